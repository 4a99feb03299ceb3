//! How urgent an I/O is. The queue of each leaf ([`super::queue`]) serves the classes in this
//! order.

/// OpenZFS's I/O classes, in falling order of urgency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    SyncRead,
    SyncWrite,
    AsyncRead,
    AsyncWrite,
    Scrub,
    Removal,
    Initialize,
    Trim,
    Rebuild,
}
