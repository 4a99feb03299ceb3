//! Telling the kernel to forget what it remembers.

use crate::abi::notify;
use crate::reply::{Out, to_kernel};
use crate::session::Session;
use std::io;
use std::sync::Arc;
use zilla::NodeId;

/// For whoever changes a mounted file system behind the mount's back. Must not be used by a thread
/// that serves the mount: the kernel waits for running requests.
#[derive(Clone)]
pub struct Notifier(pub(crate) Arc<Session>);

impl Notifier {
    /// A file's attributes and pages are not what they were.
    pub fn inode(&self, node: NodeId) -> io::Result<()> {
        self.0.forget_inode(node, 0)
    }

    /// A name means something else, or nothing.
    pub fn entry(&self, dir: NodeId, name: &[u8]) -> io::Result<()> {
        let mut out = Out::with(17 + name.len());
        out.u64(to_kernel(dir, self.0.root())).u32(name.len() as u32).u32(0);
        out.0.extend_from_slice(name);
        out.0.push(0);
        self.0.notify(notify::INVAL_ENTRY, &out.0)
    }
}

impl Session {
    fn notify(&self, code: i32, body: &[u8]) -> io::Result<()> {
        let sent = self.dev.send(crate::abi::OUT_HEADER + body.len(), code, 0, body, &[]);
        match sent {
            // It did not know it anyway.
            Err(e) if e.raw_os_error() == Some(2) => Ok(()),
            r => r,
        }
    }

    /// Pages from an offset on; a negative one leaves them, and then nothing is waited for.
    fn forget_inode(&self, node: NodeId, off: i64) -> io::Result<()> {
        let mut out = Out::with(24);
        out.u64(to_kernel(node, self.root())).u64(off as u64).u64(0);
        self.notify(notify::INVAL_INODE, &out.0)
    }

    /// A request has changed attributes of which the kernel does not know that it does. May be told
    /// before the request is answered: the kernel takes no lock for it that a client who waits for
    /// the answer could hold.
    pub(crate) fn forget_attributes(&self, node: NodeId) {
        if let Err(e) = self.forget_inode(node, -1) {
            tracing::error!("telling the kernel of a file's new mode: {e}");
        }
    }
}
