//! What is unmounted for a while: something is done that nobody may use the files for, or a new
//! mount is to heed what an old one cannot.
//!
//! What is kept true: it comes back as it was, with the options of that one mount, and at the place
//! that somebody chose for it, whatever its property says.

use super::Engine;
use super::errors::Answer;
use super::mountopts::Temporary;
use super::mounts::How;
use super::pool::Pool;
use super::values::{Mountpoint, Settings};
use std::collections::BTreeMap;
use zilla_control::ApiError;

/// How something was mounted.
#[derive(Debug, Clone, Default)]
pub(super) struct Earlier {
    temporary: Temporary,
    at: Option<String>,
    redacted: bool,
}

impl Earlier {
    /// The same, but where its property says.
    pub(super) fn in_its_place(self) -> Earlier {
        Earlier { at: None, ..self }
    }
}

impl Pool {
    /// How something is mounted now.
    pub(super) fn earlier(&self, name: &str) -> Earlier {
        let mounts = self.mounts();
        let now = mounts.get(name).map(|m| Earlier {
            temporary: m.temporary,
            at: m.at.clone(),
            redacted: m.redacted,
        });
        now.unwrap_or_default()
    }

    /// Where those would be that somebody has mounted at places of his own.
    pub(super) async fn places_by_hand(&self, mounted: &[String]) -> BTreeMap<String, Mountpoint> {
        let mut places = BTreeMap::new();
        for name in mounted.iter().filter(|name| self.earlier(name).at.is_some()) {
            let Ok(ds) = self.zilla.by_name(name).await else { continue };
            if let Ok(settings) = Settings::of(&ds).await {
                places.insert(name.clone(), settings.place(self));
            }
        }
        places
    }

    /// Unmounts a tree, deepest first. Returns what was unmounted, and what stopped it.
    pub(super) async fn unmount_tree(
        &self,
        name: &str,
        force: bool,
    ) -> (Vec<(String, Earlier)>, Option<ApiError>) {
        self.unmount_each(&self.mounted_below(name), force).await
    }

    /// The same for some, in this order.
    pub(super) async fn unmount_each(
        &self,
        names: &[String],
        force: bool,
    ) -> (Vec<(String, Earlier)>, Option<ApiError>) {
        let mut unmounted = Vec::new();
        for name in names {
            let earlier = self.earlier(name);
            if let Err(e) = self.unmount_one(name, force).await {
                return (unmounted, Some(e));
            }
            unmounted.push((name.clone(), earlier));
        }
        (unmounted, None)
    }

    /// Mounts again what was unmounted, as it was; the first error.
    pub(super) async fn mount_back(
        &self,
        engine: &Engine,
        unmounted: &[(String, Earlier)],
    ) -> Option<ApiError> {
        let mut first = None;
        for (name, earlier) in unmounted.iter().rev() {
            // It was mounted: so it is now, unasked or not, if it may be at all. What is redacted
            // only since then nobody has asked for.
            if earlier.at.is_none() && !self.may_be_mounted(name).await {
                continue;
            }
            let (temporary, at) = (earlier.temporary, earlier.at.clone());
            let how = How { temporary, at, explicit: true, again: earlier.redacted, ..How::default() };
            if let Err(e) = self.mount(engine, name, &how).await {
                tracing::warn!("'{name}' cannot be mounted again: {}", e.description());
                first.get_or_insert(e);
            }
        }
        first
    }

    /// Whether a file system has a mountpoint that is a path, and is not kept from it.
    async fn may_be_mounted(&self, name: &str) -> bool {
        let Ok(ds) = self.zilla.by_name(name).await else { return false };
        let settings = Settings::of(&ds).await;
        settings.is_ok_and(|s| matches!(s.place(self), Mountpoint::At(_)) && s.canmount() != 0)
    }

    /// Mounts a tree again, so that it heeds what only a new mount does.
    pub(super) async fn mount_anew(&self, engine: &Engine, name: &str) -> Answer<()> {
        let (unmounted, stopped) = self.unmount_tree(name, false).await;
        let failed = self.mount_back(engine, &unmounted).await;
        stopped.or(failed).map_or(Ok(()), Err)
    }
}
