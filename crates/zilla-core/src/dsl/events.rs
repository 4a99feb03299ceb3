//! What sync tasks did to datasets, for `zpool history -i`.
//!
//! A record names the dataset as it is called at that moment, so what takes a name away is noted
//! before it does. The sync that runs the task writes the records into the pool's history with the
//! same txg: they are there exactly if what they tell of is.

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use crate::txg::Tx;
use zilla_ondisk::NvList;

impl DslPool {
    /// Notes an operation on a dataset. The names of operations and the texts are OpenZFS's.
    pub(super) fn note(&self, tx: &Tx, ds: &DslDataset, operation: &str, text: &str) {
        self.note_named(tx, &ds.name(), ds.id, operation, text);
    }

    /// The same of a dir.
    pub(super) fn note_dir(&self, tx: &Tx, dir: &DslDir, operation: &str, text: &str) {
        self.note_named(tx, &dir.name(), dir.phys().head_dataset_obj, operation, text);
    }

    fn note_named(&self, tx: &Tx, name: &str, id: u64, operation: &str, text: &str) {
        let mut record = NvList::new();
        record.add("dsname", name).add("dsid", id);
        record.add("history internal str", text).add("internal_name", operation);
        record.add("history txg", tx.txg().0).add("history time", self.ctx.env.wall().as_secs());
        self.ctx.note_event(record);
    }
}
