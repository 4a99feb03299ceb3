//! Layers that lie on a block of another file.

use super::{ClonedBlock, Dbuf, Layer, LayerData, Partial};
use crate::types::Txg;
use zilla_ondisk::blkptr::BlkPtr;

impl Dbuf {
    /// A cloned block whose contents are not in memory.
    pub(crate) fn unread_clone(&self) -> Option<BlkPtr> {
        self.layers.iter().filter_map(Layer::under).find(|c| c.data.is_none()).map(|c| c.bp)
    }

    /// The same of the layer of `txg`.
    pub(crate) fn unread_clone_of(&self, txg: Txg) -> Option<BlkPtr> {
        let layer = self.layers.iter().find(|l| l.txg == txg)?;
        layer.under().filter(|c| c.data.is_none()).map(|c| c.bp)
    }

    /// Has the cloned block that the layer of `txg` lies on stay in memory; where it is, if it was
    /// not read.
    pub(crate) fn pin_clone(&mut self, txg: Txg) -> Option<BlkPtr> {
        let unread = self.unread_clone_of(txg);
        let layer = self.layers.iter_mut().find(|l| l.txg == txg);
        if let Some(c) = layer.and_then(|l| l.clone.as_mut()).filter(|c| c.data.is_some()) {
            c.pinned = true;
        }
        unread
    }

    /// Whether there are contents of a cloned block that no sync needs: it only points there. (Of
    /// one that was written since, the sync makes a block of its own, and has to find what it has
    /// loaded.)
    pub(crate) fn has_spare_clone(&self) -> bool {
        self.layers.iter().filter_map(Layer::only_clone).any(ClonedBlock::is_spare)
    }

    /// Forgets these.
    pub(crate) fn drop_clones(&mut self) {
        for layer in &mut self.layers {
            if layer.only_clone().is_some_and(ClonedBlock::is_spare) {
                layer.clone.iter_mut().for_each(|c| c.data = None);
            }
        }
    }

    /// Whether the layer of `txg` lies on a cloned block.
    pub(crate) fn is_clone(&self, txg: Txg) -> bool {
        self.layers.iter().any(|l| l.txg == txg && l.under().is_some())
    }

    /// The cloned block that is all that `txg` made of this one.
    pub(crate) fn only_clone(&self, txg: Txg) -> Option<BlkPtr> {
        let layer = self.layers.last().filter(|l| l.txg == txg)?;
        let LayerData::Partial(part) = &layer.data else { return None };
        layer.clone.as_ref().filter(|_| part.valid.is_empty()).map(|c| c.bp)
    }

    /// Makes the block, of `blksz` bytes, what is at `bp`.
    pub(crate) fn put_clone(&mut self, txg: Txg, blksz: usize, bp: BlkPtr) {
        self.put(txg, LayerData::Partial(Partial::new(blksz, 0, 0)));
        if let Some(l) = self.layers.last_mut() {
            l.clone = Some(Box::new(ClonedBlock { bp, data: None, pinned: false }));
        }
    }
}

impl ClonedBlock {
    fn is_spare(&self) -> bool {
        self.data.is_some() && !self.pinned
    }
}
