//! NFS version 3 (RFC 1813): which procedure, on which file, in whose name.
//!
//! A procedure reads all its arguments before it looks at any file, so that what is garbage is told
//! as garbage. Then each file handle is found, and its share asked whether this client may come in,
//! at every call: a share that is taken back is closed at once. What fails is answered with a
//! status and no attributes; what a file was like before a change is never told, because it cannot
//! be had together with the change.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::access::Who;
use crate::attr::{Status, put_attr};
use crate::export::{Changed, Export, Exports};
use crate::handle::{Handle, MOST};
use crate::options::Admission;
use crate::rpc::{Claim, Refusal, Reply};
use crate::xdr::{Garbage, In, Out, Read};
use crate::{change, list, look};
use bytes::Bytes;
use std::net::SocketAddr;
use std::sync::Arc;
use zilla::{Attr, Entry, Filesystem, NodeId};

/// The most bytes of one READ, WRITE or READDIR.
pub(crate) const MAX_IO: usize = 1 << 20;

// UNSTABLE, DATA_SYNC and FILE_SYNC (stable_how).
pub(crate) const UNSTABLE: u32 = 0;
pub(crate) const FILE_SYNC: u32 = 2;

// Procedures that others tell apart.
pub(crate) const SETATTR: u32 = 2;
const READ: u32 = 6;
pub(crate) const WRITE: u32 = 7;
pub(crate) const CREATE: u32 = 8;
pub(crate) const LINK: u32 = 15;
const READDIR: u32 = 16;
const READDIRPLUS: u32 = 17;

/// Why a procedure has nothing to give.
pub(crate) enum Fail {
    Garbage,
    Status(Status),
}

impl From<Garbage> for Fail {
    fn from(_: Garbage) -> Fail {
        Fail::Garbage
    }
}

impl From<Status> for Fail {
    fn from(status: Status) -> Fail {
        Fail::Status(status)
    }
}

impl From<zilla::Error> for Fail {
    fn from(e: zilla::Error) -> Fail {
        let status = Status::from(&e);
        if matches!(status, Status::Io | Status::ServerFault) {
            tracing::warn!("nfs: {e}");
        }
        Fail::Status(status)
    }
}

pub(crate) type Done = Result<(), Fail>;

/// Who asks, and what there is.
pub(crate) struct Caller<'a> {
    pub(crate) exports: &'a dyn Exports,
    pub(crate) peer: SocketAddr,
    pub(crate) claim: &'a Claim,
}

/// A file that a handle led to, held as long as this lives.
pub(crate) struct At {
    pub(crate) export: Arc<Export>,
    pub(crate) who: Who,
    pub(crate) writes: bool,
    pub(crate) node: NodeId,
    pub(crate) attr: Attr,
    snapshot: u64,
    _held: Entry,
}

/// Files of a snapshot have the numbers of the live ones: to clients they are another file system.
fn fsid(export: &Export, snapshot: u64) -> u64 {
    let own = match snapshot {
        zilla::CONTROL_NAME => 0,
        n => n.rotate_left(1),
    };
    export.id.dataset ^ own
}

impl Caller<'_> {
    pub(crate) fn admission(&self, export: &Export) -> Option<Admission> {
        export.options.admit(self.peer.ip(), self.peer.port())
    }

    /// The file of a handle.
    pub(crate) async fn at(&self, handle: Bytes) -> Result<At, Fail> {
        self.at_if(handle, |_| Ok(())).await
    }

    /// The same for a procedure that changes it, or waits until it is stable. If the pool is
    /// suspended the client is to ask later: what waited here would take its client's room for
    /// calls, which are also of other pools.
    pub(crate) async fn at_to_change(&self, handle: Bytes) -> Result<At, Fail> {
        self.at_if(handle, Filesystem::unless_suspended).await
    }

    async fn at_if(
        &self,
        handle: Bytes,
        ready: impl FnOnce(&Filesystem) -> zilla::Result<()>,
    ) -> Result<At, Fail> {
        let handle = Handle::parse(handle).ok_or(Status::BadHandle)?;
        let export = self.exports.find(handle.export).ok_or(Status::Stale)?;
        let admission = self.admission(&export).ok_or(Status::Access)?;
        ready(&export.fs)?;
        let node = export.fs.node_of(handle.snapshot, handle.object).await?;
        let held = export.fs.handle(node).await?;
        if held.attr.generation != handle.generation {
            return Err(Status::Stale.into());
        }
        Ok(At {
            who: Who::of(self.claim, admission),
            writes: admission.writes,
            node,
            attr: held.attr,
            snapshot: handle.snapshot,
            export,
            _held: held,
        })
    }
}

/// The lasting name of a file that was just found.
pub(crate) fn handle_of(export: &Export, node: NodeId, attr: &Attr) -> zilla::Result<Handle> {
    let (snapshot, object) = export.fs.lasting_name(node)?;
    Ok(Handle { export: export.id, snapshot, object, generation: attr.generation })
}

/// Whether a procedure's reply holds a file's bytes or a directory's names.
pub(crate) fn gives_much(procedure: u32) -> bool {
    matches!(procedure, READ | READDIR | READDIRPLUS)
}

/// Goes down from a share's root, directory by directory.
pub(crate) async fn walk(export: Arc<Export>, path: &str) -> Result<Handle, Status> {
    let error = |e: zilla::Error| Status::from(&e);
    let mut at = export.fs.handle(export.fs.root()).await.map_err(error)?;
    for name in path.split('/').filter(|n| !matches!(*n, "" | ".")) {
        if name == ".." {
            return Err(Status::Inval);
        }
        let next = export.fs.lookup(at.node, name.as_bytes()).await.map_err(error)?;
        if !next.attr.is_dir() {
            return Err(Status::NotDir);
        }
        at = next;
    }
    handle_of(&export, at.node, &at.attr).map_err(error)
}

impl At {
    pub(crate) fn put_attr(&self, out: &mut Out, attr: &Attr) {
        put_attr(out, attr, fsid(&self.export, self.snapshot));
    }

    /// Attributes of a file in the same directory tree, which may be the root of a snapshot.
    pub(crate) fn put_attr_of(&self, out: &mut Out, handle: &Handle, attr: &Attr) {
        put_attr(out, attr, fsid(&self.export, handle.snapshot));
    }

    /// Attributes after a call (post_op_attr), as they are now.
    pub(crate) async fn put_now(&self, out: &mut Out) {
        match self.export.fs.getattr(self.node).await {
            Ok(attr) => {
                out.bool(true);
                self.put_attr(out, &attr);
            }
            Err(_) => {
                out.bool(false);
            }
        }
    }

    /// Attributes before and after a change (wcc_data).
    pub(crate) async fn put_changed(&self, out: &mut Out) {
        out.bool(false);
        self.put_now(out).await;
    }

    /// Whoever else remembers what was changed forgets it.
    pub(crate) async fn tell(&self, changed: Vec<Changed>) {
        if let Some(kernel) = &self.export.kernel {
            kernel.forget(changed).await;
        }
    }

    /// Refuses changes where a share or what it shows is only read.
    pub(crate) fn may_change(&self) -> Result<(), Status> {
        if self.writes && self.snapshot == 0 { Ok(()) } else { Err(Status::RoFs) }
    }

    /// Waits until what was changed is stable, as the protocol demands of everything but UNSTABLE
    /// writes.
    pub(crate) async fn stable(&self) -> zilla::Result<()> {
        if self.export.options.sync { self.export.fs.fsync(self.node).await } else { Ok(()) }
    }
}

pub(crate) fn file(args: &mut In) -> Read<Bytes> {
    args.opaque(MOST)
}

/// So long may a name or path be before it is refused as garbage, and not as too long.
const MAX_WORD: usize = 4096;

pub(crate) fn word(args: &mut In) -> Read<Bytes> {
    args.opaque(MAX_WORD)
}

/// A directory, and a name in it.
pub(crate) fn place(args: &mut In) -> Read<(Bytes, Bytes)> {
    Ok((file(args)?, word(args)?))
}

/// So many words without anything in them follow a status that is none of success, by procedure.
const EMPTY: [usize; 22] = [0, 0, 2, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 4, 3, 1, 1, 1, 1, 1, 2];

/// Answers a procedure's arguments.
pub(crate) async fn answer(
    caller: &Caller<'_>,
    procedure: u32,
    args: In,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    let begin = reply.head.0.len();
    let done = match procedure {
        0 => return Ok(()),
        1 => look::getattr(caller, args, reply).await,
        SETATTR => change::setattr(caller, args, reply).await,
        3 => look::lookup(caller, args, reply).await,
        4 => look::access(caller, args, reply).await,
        5 => look::readlink(caller, args, reply).await,
        READ => look::read(caller, args, reply).await,
        WRITE => change::write(caller, args, reply).await,
        CREATE => change::create(caller, args, reply).await,
        9 => change::mkdir(caller, args, reply).await,
        10 => change::symlink(caller, args, reply).await,
        11 => change::mknod(caller, args, reply).await,
        12 => change::remove(caller, args, reply, false).await,
        13 => change::remove(caller, args, reply, true).await,
        14 => change::rename(caller, args, reply).await,
        LINK => change::link(caller, args, reply).await,
        READDIR => list::readdir(caller, args, reply).await,
        READDIRPLUS => list::readdirplus(caller, args, reply).await,
        18 => look::fsstat(caller, args, reply).await,
        19 => look::fsinfo(caller, args, reply).await,
        20 => look::pathconf(caller, args, reply).await,
        21 => change::commit(caller, args, reply).await,
        _ => return Err(Refusal::ProcedureUnavailable),
    };
    match done {
        Ok(()) => Ok(()),
        Err(Fail::Garbage) => Err(Refusal::Garbage),
        Err(Fail::Status(status)) => {
            reply.head.0.truncate(begin);
            reply.data.clear();
            reply.head.u32(status as u32);
            let empty = EMPTY.get(procedure as usize).copied().unwrap_or(0);
            (0..empty).for_each(|_| {
                reply.head.bool(false);
            });
            Ok(())
        }
    }
}
