//! Why an operation on datasets is refused.
//!
//! One variant a reason, with what it is about, so that nobody has to search a sentence for it. The
//! numbers are what OpenZFS's engine answers; the sentences of the commands are made of the
//! variants at the edge.

use super::Errno;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("'{0}' is not the name of a bookmark")]
    NotBookmark(String),
    #[error("{0}: bookmark does not exist")]
    NoBookmark(String),
    #[error("{0}: bookmark exists")]
    BookmarkExists(String),
    #[error("{0} is not a snapshot")]
    NotSnapshot(String),
    #[error("source is not an ancestor of the new bookmark's dataset")]
    NotAncestor,
    #[error("{0} has bookmarks after the snapshot")]
    LaterBookmarks(String),
    #[error("attempted to resume redaction  with a mismatched redaction list")]
    OtherRedaction,
    #[error("attempted to redact redacted dataset or with respect to redacted dataset")]
    AlreadyRedacted,
    #[error("redaction snapshot must be descendent of snapshot being redacted")]
    NotDescendant,
    #[error("{0} is not kept in this file system")]
    NoAccounts(&'static str),
    #[error("feature {0} is not enabled in this pool")]
    FeatureDisabled(&'static str),
    #[error("pool must be upgraded to receive this stream. (It lacks the feature '{0}'.)")]
    StreamNeedsFeature(&'static str),
    #[error("{0}: its {1} is reached")]
    OverLimit(String, &'static str),
    #[error("permission denied")]
    NotAllowed,
    #[error("{0}: name is too long")]
    NameTooLong(String),
    #[error("parent does not exist")]
    NoParent,
    #[error("parent is not a filesystem")]
    ParentNotFilesystem,
    #[error("cannot set property for '{0}': size is less than current used or reserved space")]
    BelowUsed(String),
    #[error("cannot set property for '{0}': size is greater than available space")]
    BeyondAvailable(String),
}

impl Refusal {
    pub fn errno(&self) -> Errno {
        match self {
            Refusal::NotBookmark(_) | Refusal::NotSnapshot(_) | Refusal::NotAncestor => Errno::Inval,
            Refusal::NoBookmark(_) => Errno::NoEnt,
            Refusal::BookmarkExists(_) | Refusal::LaterBookmarks(_) => Errno::Exist,
            Refusal::FeatureDisabled(_) | Refusal::StreamNeedsFeature(_) | Refusal::NoAccounts(_) => {
                Errno::NotSup
            }
            Refusal::OtherRedaction => Errno::NoEnt,
            Refusal::AlreadyRedacted => Errno::Busy,
            Refusal::NotDescendant => Errno::Inval,
            Refusal::OverLimit(..) => Errno::DQuot,
            Refusal::NotAllowed => Errno::Perm,
            Refusal::NameTooLong(_) => Errno::NameTooLong,
            Refusal::NoParent => Errno::NoEnt,
            Refusal::ParentNotFilesystem => Errno::Inval,
            Refusal::BelowUsed(_) | Refusal::BeyondAvailable(_) => Errno::NoSpc,
        }
    }
}
