//! Bookmarks: what remains of a snapshot for incremental streams when it is destroyed; and
//! redaction, whose lists of left-out blocks are bookmarks too.

use crate::error::Result;
use crate::pool::Pool;
use crate::tree::DatasetRef;
use zilla_core::send::{check_redaction, redaction};
use zilla_ondisk::dsl::ZfsBookmarkPhys;

pub use zilla_core::dsl::{DslBookmark as Bookmark, RedactedRun, RedactionList, same_snaps};

impl Pool {
    /// A bookmark by its whole name (`tank/home#monday`), and its dataset.
    pub async fn bookmark_by_name(&self, name: &str) -> Result<(DatasetRef, Bookmark)> {
        let (head, mark) = self.dsl().bookmark_by_name(name).await?;
        Ok((self.reference(head), mark))
    }

    /// Makes bookmarks of snapshots or of other bookmarks: pairs of source and new name.
    pub async fn bookmark(&self, pairs: Vec<(String, String)>) -> Result<()> {
        self.task(move |dsl, tx| Box::pin(async move { dsl.bookmark(&tx, &pairs).await })).await
    }

    /// Destroys bookmarks by their whole names.
    pub async fn destroy_bookmarks(&self, names: Vec<String>) -> Result<()> {
        self.task(move |dsl, tx| Box::pin(async move { dsl.destroy_bookmarks(&tx, &names).await })).await
    }

    /// The guids of the snapshots that a redaction bookmark is for; None: it is an ordinary one.
    pub async fn redaction_snaps(&self, mark: &ZfsBookmarkPhys) -> Result<Option<Vec<u64>>> {
        self.dsl().redaction_snaps(mark).await
    }

    /// The blocks that a redaction bookmark leaves out.
    pub async fn redaction_list(&self, mark: &ZfsBookmarkPhys) -> Result<RedactionList> {
        self.dsl().redaction_list(mark).await
    }

    /// Makes a redaction bookmark, `name` of the snapshot's dataset: what the other snapshots have
    /// changed of this one is left out of streams that are redacted by it.
    pub async fn redact(&self, snap: &DatasetRef, others: &[DatasetRef], name: &str) -> Result<()> {
        // Nobody may destroy them meanwhile.
        let _held: Vec<_> = others.iter().chain([snap]).map(DatasetRef::hold).collect();
        let fs = snap.name().split('@').next().unwrap_or_default().to_owned();
        let full = format!("{fs}#{name}");
        let guids: Vec<u64> = others.iter().map(DatasetRef::guid).collect();
        let dsl = self.dsl();
        let others: Vec<_> = others.iter().map(|o| o.ds.clone()).collect();
        check_redaction(dsl, &snap.ds, &others).await?;
        if !name.contains('#') && snap.is_snapshot() {
            dsl.redact_again(&full, &guids).await?;
        }
        let list = redaction(dsl, &snap.ds, &others).await?;
        let snap = snap.ds.clone();
        self.task(move |dsl, tx| Box::pin(async move { dsl.redact(&tx, &snap, &full, &list).await })).await
    }
}

impl DatasetRef {
    /// A head's bookmarks as they are in memory.
    pub fn bookmarks(&self) -> Vec<Bookmark> {
        self.ds.bookmarks()
    }

    /// A head's bookmarks as they are on disk, by name.
    pub async fn bookmarks_on_disk(&self) -> Result<Vec<(String, ZfsBookmarkPhys)>> {
        self.dsl.bookmarks_of(&self.ds).await
    }

    /// Bytes written since a bookmark; None: it keeps no account of that.
    pub async fn written_since_bookmark(&self, mark: &ZfsBookmarkPhys) -> Result<Option<u64>> {
        self.dsl.written_since_bookmark(&self.ds, mark).await
    }
}
