//! An object's block pointers, and the stretches that hold data.

use super::object::Context;
use super::{Zdb, put, text};
use zilla_core::error::{Error, Result};
use zilla_core::types::{Bookmark, ObjectId};
use zilla_core::zio::Priority;
use zilla_ondisk::blkptr::{BlkPtr, SPA_BLKPTRSHIFT};
use zilla_ondisk::dnode::{DNODE_BLOCK_SIZE, DNODE_SHIFT, dnodes};
use zilla_ondisk::object_type::DMU_OT_DNODE;
use zilla_ondisk::{ByteOrder, DnodePhys};

/// Stretches found in ascending order, put together where they meet.
#[derive(Default)]
struct Stretches(Vec<(u64, u64)>);

impl Stretches {
    fn add(&mut self, start: u64, end: u64) {
        match self.0.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.0.push((start, end)),
        }
    }
}

impl Zdb {
    /// Lists the pointers of an object's tree, parents before children.
    pub(super) async fn blocks_of(
        &mut self,
        cx: &Context,
        id: ObjectId,
        dn: &DnodePhys,
        all: bool,
    ) -> Result<()> {
        put!(self, "Indirect blocks:\n");
        let store = cx.os.store().clone();
        let blksz = u64::from(dn.datablkszsec) << 9;
        let epbs = u32::from(dn.indblkshift).saturating_sub(SPA_BLKPTRSHIFT);
        let top = dn.nlevels.saturating_sub(1);
        let mut todo: Vec<(u8, u64, BlkPtr)> = Vec::new();
        todo.extend(dn.blkptr.iter().enumerate().rev().map(|(i, bp)| (top, i as u64, *bp)));
        let mut data = Stretches::default();
        while let Some((level, blkid, bp)) = todo.pop() {
            // Nothing was ever here.
            if bp.birth() == 0 {
                continue;
            }
            let first = blkid.checked_shl(epbs.saturating_mul(level.into())).unwrap_or(u64::MAX);
            let offset = first.saturating_mul(blksz);
            let indent: String = (0..=i16::from(top) + 1)
                .map(|l| if l == i16::from(top - level) { format!("L{level:x}") } else { " ".into() })
                .collect();
            put!(self, "{offset:16x} {indent}{}", text::compact(&bp, all));
            let mut wrong = |what: String| {
                self.damaged = true;
                put!(self, " (ERROR: {what})");
            };
            if !bp.is_embedded() && bp.otype() != dn.otype {
                wrong(format!(
                    "Block pointer type ({}) does not match dnode type ({})",
                    bp.otype(),
                    dn.otype
                ));
            }
            if !bp.is_embedded() && bp.level() != level {
                wrong(format!(
                    "Block pointer level ({}) does not match bookmark level ({level})",
                    bp.level()
                ));
            }
            put!(self, "\n");
            if bp.is_hole() || bp.is_redacted() {
                continue;
            }
            if level == 0 && dn.otype != DMU_OT_DNODE {
                data.add(offset, offset.saturating_add(blksz));
                continue;
            }
            let at = Bookmark::new(cx.os.id(), id, level, blkid);
            match store.read_tree(bp, at, Priority::SyncRead).await {
                Ok(block) if level == 0 => {
                    if block.len() == DNODE_BLOCK_SIZE {
                        self.dnode_slots(&block, offset, at, &mut data);
                    }
                }
                Ok(block) => {
                    let below: Vec<BlkPtr> = BlkPtr::iter(&block, ByteOrder::NATIVE).collect();
                    let below = below.into_iter().enumerate().rev();
                    let first = blkid.checked_shl(epbs).unwrap_or(u64::MAX);
                    todo.extend(below.map(|(i, bp)| (level - 1, first.saturating_add(i as u64), bp)));
                }
                Err(e) => self.complain(&format!("block {at}"), &e),
            }
        }
        put!(self, "\n");
        for (start, end) in data.0 {
            let size = self.nice(end - start);
            put!(self, "\t\tsegment [{start:016x}, {end:016x}) size {size:>5}\n");
        }
        Ok(())
    }

    fn dnode_slots(&mut self, block: &[u8], offset: u64, at: Bookmark, data: &mut Stretches) {
        for (slot, dn) in dnodes(block, ByteOrder::NATIVE) {
            let start = offset + ((slot as u64) << DNODE_SHIFT);
            match dn {
                Ok(dn) => data.add(start, start + dn.size() as u64),
                Err(e) => {
                    self.complain(&format!("block {at}"), &Error::corrupt(Some(at), "", e.to_string()));
                }
            }
        }
    }
}
