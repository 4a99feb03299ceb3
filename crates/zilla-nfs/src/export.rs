//! What is shared, as whoever serves it knows it: a file system, a path to ask for it by, and what
//! `sharenfs` says.

use crate::options::Options;
use futures_util::future::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;
use zilla::{Filesystem, NodeId};

/// What a file system is called in file handles, for ever: its pool's guid and its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportId {
    /// The pool's.
    pub pool: u64,
    /// The dataset's.
    pub dataset: u64,
}

/// What a change made other than it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// A file's contents or attributes.
    File(NodeId),
    /// What a name in a directory leads to.
    Name(NodeId, Vec<u8>),
}

/// Somebody who remembers files, and is to be told when they change here: the kernel, where the
/// file system is mounted.
pub trait Remembers: Send + Sync {
    /// Comes back when it is forgotten.
    fn forget(&self, changed: Vec<Changed>) -> BoxFuture<'_, ()>;
    /// Where in the file system something is mounted: ways from its root.
    fn mounted_within(&self) -> Vec<PathBuf> {
        Vec::new()
    }
}

/// One share.
pub struct Export {
    /// What its file handles say.
    pub id: ExportId,
    /// What clients ask for: where it is mounted.
    pub path: String,
    /// Its files.
    pub fs: Arc<Filesystem>,
    /// Who may come.
    pub options: Options,
    /// Another at each opening of the pool: what was written and not committed before may be lost.
    pub verifier: u64,
    /// Who else looks at its files.
    pub kernel: Option<Arc<dyn Remembers>>,
}

/// All that is shared.
pub trait Exports: Send + Sync + 'static {
    /// The share of a file handle.
    fn find(&self, id: ExportId) -> Option<Arc<Export>>;
    /// All shares.
    fn all(&self) -> Vec<Arc<Export>>;
}
