//! A file system under a mount point, by the kernel's FUSE protocol, spoken directly.
//!
//! Libraries for FUSE copy the data, hand each request to another thread, or make a system call a
//! part; here a request costs one read, one look whether more wait, and one write, on the thread
//! that took it:
//!
//! ```text
//!   read(/dev/fuse) -> decode -> operation over what is in memory -> writev(/dev/fuse)
//!                                    | something missing
//!                                    +-> the rest of the operation becomes a task; the thread reads on
//! ```
//!
//! A few threads serve all mounts of the process (`crew.rs`). Each has its own buffers, laid out so
//! that the data of a large write come to lie a record in each, which are handed to the engine as
//! they are (`request.rs`). Data read goes out of the engine's own buffers.
//!
//! **Caching.** All changes go through this mount, so the kernel may keep names, attributes and
//! pages as long as it likes. It is told to forget where that is not so: a rollback, a destroyed
//! snapshot, another server's change. Opening and closing is the kernel's business, but for files
//! whose writes are to be stable and new ones (`opens.rs`), and a file that is open though unlinked
//! lives on because the kernel still counts its inode ([`zilla::Filesystem::forget`]).
//!
//! **Permissions** are checked by the kernel (`default_permissions`), from modes and POSIX ACLs.
//!
//! **A crash** of this process leaves a mount that answers "transport endpoint is not connected";
//! [`clear_stale`] takes it away. Everything that was acknowledged by fsync is on disk; the rest is
//! the engine's last txg.
//!
//! **Deliberately absent.** No locks: the kernel's own are right, for it sees all users. No
//! write-back cache by default: it costs each file one more request to save small writes that
//! programs already gather ([`Options::writeback`] turns it on).

mod abi;
mod caller;
mod crew;
mod dev;
mod ioctl;
mod loopback;
mod mount;
pub mod mountinfo;
mod notify;
mod older;
mod opens;
mod ops;
mod reply;
mod request;
mod session;
mod texts;
mod tree;
mod volumes;

pub use loopback::Loopback;
pub use mount::clear_stale;
pub use notify::Notifier;
pub use session::{Mount, Options, mount, mount_on};
pub use texts::{TextMount, Texts, mount_texts};
pub use volumes::{OpenVolume, Shelf, VolumeMount, mount_volumes};
