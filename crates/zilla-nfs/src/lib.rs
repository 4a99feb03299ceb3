//! File systems over NFS version 3, for whoever has no FUSE: other machines, macOS, hypervisors.
//!
//! ```text
//!   TCP -> records (server) -> a call and who makes it (rpc) -> MOUNT (mountd): a path to a handle
//!                                                            -> NFS (nfs): look, list, change -> the facade's Filesystem
//! ```
//!
//! A call names its file by a handle (`handle`) that means the same after any restart. A share says
//! who may come (`options`, the words of the property `sharenfs`), and each call is judged by it,
//! and by the file's mode and ACL (`access`), as the kernel does on a mount. The file system served
//! is the one that is mounted, so that there is one owner of its files; the kernel is told to
//! forget what changes here ([`Remembers`]).
//!
//! **What is promised.** A reply means stable storage, by the intent log, for everything but writes
//! that were asked for as UNSTABLE; COMMIT makes those so. A write's verifier is another at each
//! opening of the pool, so that clients send again what they had not committed.
//!
//! **Hostile clients.** Requests are bounded in length, number and time (`server`), and decoded in
//! full before any file is looked at. What is wrong gets the protocol's error. Unless the
//! share says otherwise, nobody is root, and nobody comes from a port that any user may use.
//!
//! **Calls that are sent again** after a connection broke get their first answer (`drc`).
//!
//! **Deliberately absent.** UDP and a portmapper: clients are given both ports (`port=`,
//! `mountport=`), which are one. Locks (NLM): a single client mounts with `nolock`. NFS version 4.
//! Kerberos: a network that is not trusted needs a tunnel. File systems below a share, which are
//! shares of their own.

mod access;
mod attr;
mod change;
mod drc;
mod export;
mod handle;
mod list;
mod look;
mod mountd;
mod nfs;
mod options;
mod rpc;
mod server;
mod xdr;

pub use export::{Changed, Export, ExportId, Exports, Remembers};
pub use options::{Client, Options};
pub use server::{answer, serve};
pub use zilla::{Filesystem, NodeId};
