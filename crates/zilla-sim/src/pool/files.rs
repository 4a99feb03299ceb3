//! Files of known contents, for tests that do something to a pool and look whether all is there.

use super::run::open_fs;
use std::ops::Range;
use std::sync::Arc;
use zilla_core::error::Result;
use zilla_core::spa::Spa;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;

/// `f0`, `f1`, ... in a pool's root, each longer than the one before by so many bytes.
#[derive(Clone, Copy)]
pub struct Files(pub u32);

impl Files {
    pub fn contents(self, i: u32) -> Vec<u8> {
        (0..self.0 * i + 1).map(|x| (x * 7 + i) as u8 ^ (x >> 8) as u8).collect()
    }

    /// Writes some of them, which are stable then.
    pub async fn put(self, env: &Env, spa: &Arc<Spa>, range: Range<u32>) -> Result<()> {
        let zfs = open_fs(env, spa, &spa.name()).await?;
        for i in range {
            let new = NewFile::new(0o100644, Cred::default());
            let (h, _) = zfs.create(zfs.root(), format!("f{i}").as_bytes(), new).await?;
            zfs.write(h.id(), 0, &self.contents(i).into(), false).await?;
        }
        spa.sync().await
    }

    /// The first so many are there, as they were written.
    pub async fn check(self, env: &Env, spa: &Arc<Spa>, files: u32, what: &str) {
        self.check_all(env, spa, 0..files, what).await;
    }

    /// All of these are there, as they were written.
    pub async fn check_all(
        self,
        env: &Env,
        spa: &Arc<Spa>,
        files: impl IntoIterator<Item = u32>,
        what: &str,
    ) {
        let zfs = open_fs(env, spa, &spa.name()).await.expect("a file system");
        for i in files {
            let found = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await;
            let (h, a) = found.unwrap_or_else(|e| panic!("{what}: f{i}: {e}"));
            let read = zfs.read(h.id(), 0, a.size as usize).await;
            let read = read.unwrap_or_else(|e| panic!("{what}: f{i}: {e}")).concat();
            assert!(read == self.contents(i), "{what}: f{i}");
        }
    }
}
