//! A vdev that has become larger: metaslabs of the size it has, appended.
//!
//! It happens in two steps, because blocks of the intent log are acknowledged before their txg is:
//! in the syncing context of the txg whose configuration says the new size the metaslabs come into
//! being ([`Metaslabs::grow`]); new blocks go there when that txg is stable
//! ([`Metaslabs::use_grown`]). A crash in between finds the old size and nothing beyond it, or the
//! new size and nothing on it.
//!
//! [`VdevSpace`] never changes what it is made of: a larger one takes its place. Both share their
//! metaslabs and counters, so whoever still allocates from the old one does so rightly.

use super::alloc::Metaslabs;
use crate::error::Result;

impl Metaslabs {
    /// Appends metaslabs up to a vdev's new size. To be called in the syncing context.
    pub fn grow(&self, vdev: u32, asize: u64) -> Result<()> {
        let grown = self.vdev(vdev)?.grown(asize)?;
        self.exchange(grown);
        Ok(())
    }

    /// A vdev's new size is stable: new blocks may go to all of it.
    pub fn use_grown(&self, vdev: u32, asize: u64) -> Result<()> {
        let opened = self.vdev(vdev)?.opened(asize)?;
        self.exchange(opened);
        self.rebalance();
        Ok(())
    }
}
