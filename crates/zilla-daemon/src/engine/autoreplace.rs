//! `autoreplace=on`: what is put in the place of a failed device becomes the pool's by itself.
//!
//! OpenZFS leaves this to its event daemon, which is told of each device that appears. Nobody tells
//! us, so the places of failed devices are looked at now and then; a place is the path by which the
//! pool knows the device. The names of most disks are no places: `/dev/sdb` is another disk after
//! a restart, and what has a disk's serial number in it never names another disk. So of block
//! devices only those below `/dev/disk/by-path`, `/dev/disk/by-vdev` and `/dev/mapper` are looked
//! at; a file is where its path says.
//!
//! Nobody is there to be asked, so only what is nobody's beyond doubt is taken: a device without
//! any ZFS label, with nothing but zeros at its beginning and its end. What carries this pool's
//! own label and never became a part of it (or has left it) is taken too. All else is left alone,
//! and the log says why. The replacing itself is that of `zpool replace` without `-f`, so it
//! survives what that survives.
//!
//! A device that does not answer keeps nobody waiting: it is looked at by a task of its own, before
//! anything is locked but the pool's own turn.

use super::Engine;
use super::pool::Pool;
use std::path::{Component, Path};
use std::sync::Arc;
use std::time::Duration;
use zilla::devices::probe;
use zilla::foreign;
use zilla_control::types::VdevAttach;
use zilla_env::{Env, OpenMode};

/// How long a device has to show what lies on it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Below these, names of block devices are places.
const PLACES: &[&str] = &["/dev/disk/by-path", "/dev/disk/by-vdev", "/dev/mapper"];

/// What is in a failed device's place.
enum Found {
    Nothing,
    /// It may be taken.
    Nobodys,
    /// It may not, and why.
    Refused(String),
}

impl Engine {
    /// Replaces a pool's failed devices by what is in their places now.
    pub(super) async fn replace_failed(&self, pool: &Arc<Pool>) {
        // The last round goes on.
        let Ok(_replacing) = pool.replacing.try_lock() else { return };
        if pool.readonly() || pool.zilla.suspended().is_some() {
            return;
        }
        let failed = pool.zilla.vdevs().failed();
        if failed.is_empty() || !pool.replaces_by_itself().await.unwrap_or(false) {
            return;
        }
        for (guid, path) in failed {
            let Some(found) = self.look_at_place(pool, guid, &path).await else { continue };
            let why = match found {
                Found::Nothing => {
                    pool.refused.lock().remove(&guid);
                    continue;
                }
                Found::Refused(why) => why,
                Found::Nobodys => {
                    let (name, path) = (pool.name(), path.clone());
                    let attach = VdevAttach { name, guid, path, replace: true, ..VdevAttach::default() };
                    match self.attach_vdev(attach).await {
                        Ok(()) => String::new(),
                        Err(e) if e.details.is_empty() => e.to_string(),
                        Err(e) => e.details.join("; "),
                    }
                }
            };
            if why.is_empty() {
                tracing::warn!(pool = %pool.name(), %path, "a new device takes the failed one's place");
                pool.refused.lock().remove(&guid);
                continue;
            }
            let told = pool.refused.lock().insert(guid, why.clone());
            if told.as_ref() != Some(&why) {
                tracing::warn!(pool = %pool.name(), %path, "a failed device has no successor: {why}");
            }
        }
    }

    /// What is there; nothing is known of a device that does not answer. It is asked again only
    /// once it has answered, or each look would leave one more thread with it.
    async fn look_at_place(&self, pool: &Arc<Pool>, guid: u64, path: &str) -> Option<Found> {
        if !pool.looking.lock().insert(guid) {
            return None;
        }
        let (env, looking) = (self.env.clone(), pool.looking.clone());
        let (own, place) = (pool.zilla.guid(), path.to_owned());
        let look = tokio::spawn(async move {
            let found = look(&env, own, Path::new(&place)).await;
            looking.lock().remove(&guid);
            found
        });
        match tokio::time::timeout(ANSWERS_WITHIN, look).await {
            Ok(found) => found.ok(),
            Err(_) => {
                tracing::warn!(pool = %pool.name(), %path, "what is in a failed device's place does not answer");
                None
            }
        }
    }
}

/// Looks at what a path names, for a pool of this guid.
async fn look(env: &Env, pool: u64, path: &Path) -> Found {
    let Ok(device) = env.open(path, OpenMode::default()).await else { return Found::Nothing };
    let named = path.to_owned();
    let is_file = zilla_env::apart(move || std::fs::metadata(named).is_ok_and(|m| m.is_file())).await;
    if !is_file.unwrap_or(false) && !is_place(path) {
        let places = PLACES.join(", ");
        return Found::Refused(format!("a path names a place only below {places}"));
    }
    if let Some(label) = probe(&device).await {
        if label.pool_guid() == Some(pool) && label.txg() == 0 {
            return Found::Nobodys;
        }
        return Found::Refused("what is there has a ZFS label".to_owned());
    }
    match foreign::look(&device).await {
        Ok(Some(what)) => return Found::Refused(format!("what is there {what}")),
        Ok(None) => {}
        Err(e) => return Found::Refused(format!("what is there cannot be read: {e}")),
    }
    match foreign::is_blank(&device).await {
        Ok(true) => Found::Nobodys,
        Ok(false) => Found::Refused("what is there is not blank".to_owned()),
        Err(e) => Found::Refused(format!("what is there cannot be read: {e}")),
    }
}

/// Whether a block device's path says where it is rather than which one it is.
fn is_place(path: &Path) -> bool {
    let straight = path.components().all(|c| c != Component::ParentDir);
    straight && PLACES.iter().any(|place| path.starts_with(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_that_say_where_are_places() {
        let is = |path: &str| is_place(Path::new(path));
        assert!(is("/dev/disk/by-path/pci-0000:00:1f.2-ata-1"));
        assert!(is("/dev/disk/by-vdev/A1-part1"));
        assert!(is("/dev/mapper/crypt0"));
        assert!(!is("/dev/sdb"));
        assert!(!is("/dev/disk/by-id/ata-X_1234"));
        assert!(!is("/dev/disk/by-path/../by-id/ata-X_1234"));
        assert!(!is("/dev/mapper0"));
    }
}
