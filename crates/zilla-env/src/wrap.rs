//! A world whose devices are wrapped as they are opened: in a model of a slower disk, in faults, in
//! a counter.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{BoxFuture, Device, DirEntry, Env, OpenMode, Opener};

type Wrap = dyn Fn(&Path, Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync;

struct WrapOpener {
    inner: Arc<dyn Opener>,
    wrap: Arc<Wrap>,
}

impl Env {
    /// The same world, except that every device opened in it goes through `wrap` with its path.
    pub fn wrap_devices(
        &self,
        wrap: impl Fn(&Path, Arc<dyn Device>) -> Arc<dyn Device> + Send + Sync + 'static,
    ) -> Env {
        let opener = Arc::new(WrapOpener { inner: self.opener.clone(), wrap: Arc::new(wrap) });
        Env { opener, ..self.clone() }
    }
}

impl Opener for WrapOpener {
    fn open(&self, path: &Path, mode: OpenMode) -> BoxFuture<'static, io::Result<Arc<dyn Device>>> {
        let (opening, wrap, path) = (self.inner.open(path, mode), self.wrap.clone(), path.to_owned());
        Box::pin(async move { Ok(wrap(&path, opening.await?)) })
    }

    fn list(&self, dir: &Path) -> BoxFuture<'static, io::Result<Vec<DirEntry>>> {
        self.inner.list(dir)
    }

    fn read_file(&self, path: &Path) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        self.inner.read_file(path)
    }

    fn write_file(&self, path: &Path, data: Vec<u8>) -> BoxFuture<'static, io::Result<()>> {
        self.inner.write_file(path, data)
    }

    fn remove_file(&self, path: &Path) -> BoxFuture<'static, io::Result<()>> {
        self.inner.remove_file(path)
    }

    fn create_file(&self, path: &Path, size: u64) -> BoxFuture<'static, io::Result<()>> {
        self.inner.create_file(path, size)
    }

    fn canonical(&self, path: &Path) -> BoxFuture<'static, io::Result<PathBuf>> {
        self.inner.canonical(path)
    }
}
