//! The dnode: one object. 64 bytes of header, then block pointers, bonus and spill pointer share
//! the rest.
//!
//! ```text
//! 0        64       192 ...                       end-128   end
//! | header | bp[0]  | bp[1], bp[2] | bonus ......... | spill |
//! ```
//!
//! The first slot has 512 bytes; a large dnode takes up to 32 slots of a 16K block, and the slots
//! behind its first must be skipped. Most objects have one pointer and a bonus, a few (the meta
//! dnodes) three and none.

use smallvec::SmallVec;

use crate::blkptr::{BLKPTR_SIZE, BlkPtr};
use crate::bytes::{Reader, Writer};
use crate::error::{FormatError, Problem, Result};
use crate::object_type;
use crate::order::ByteOrder;

pub const DNODE_SHIFT: u32 = 9;
pub const DNODE_MIN_SIZE: usize = 1 << DNODE_SHIFT;
pub const DNODE_BLOCK_SHIFT: u32 = 14;
pub const DNODE_BLOCK_SIZE: usize = 1 << DNODE_BLOCK_SHIFT;
pub const DNODE_MAX_SIZE: usize = DNODE_BLOCK_SIZE;
pub const DNODES_PER_BLOCK_SHIFT: u32 = DNODE_BLOCK_SHIFT - DNODE_SHIFT;
pub const DNODES_PER_BLOCK: u64 = 1 << DNODES_PER_BLOCK_SHIFT;
pub const DNODE_MAX_SLOTS: usize = DNODE_MAX_SIZE >> DNODE_SHIFT;
pub const DNODE_CORE_SIZE: usize = 64;
pub const DN_MIN_INDBLKSHIFT: u8 = 12;
pub const DN_MAX_INDBLKSHIFT: u8 = 17;
/// Pools of the first versions had indirect blocks of 1K.
const OLD_MIN_INDBLKSHIFT: u8 = 10;
/// Files are no longer than an offset can say.
const MAX_OBJECT_BYTES: u64 = i64::MAX as u64;
pub const DN_MAX_NBLKPTR: u8 = 3;
/// Most levels an object can have: (64 - 9) / (12 - 7), and the data.
pub const DN_MAX_LEVELS: u8 = 12;
/// Objects are numbered below 2^48.
pub const DN_MAX_OBJECT: u64 = 1 << 48;
/// Bonus of a dnode of one slot with one pointer.
pub const DN_OLD_MAX_BONUSLEN: usize = DNODE_MIN_SIZE - DNODE_CORE_SIZE - BLKPTR_SIZE;

/// `used` is in bytes; in 512-byte sectors without it.
pub const DNODE_FLAG_USED_BYTES: u8 = 1 << 0;
pub const DNODE_FLAG_USERUSED_ACCOUNTED: u8 = 1 << 1;
pub const DNODE_FLAG_SPILL_BLKPTR: u8 = 1 << 2;
pub const DNODE_FLAG_USEROBJUSED_ACCOUNTED: u8 = 1 << 3;

/// Room for a bonus in a dnode of `slots` slots with one pointer and no spill.
pub const fn slots_to_bonuslen(slots: usize) -> usize {
    (slots << DNODE_SHIFT) - DNODE_CORE_SIZE - BLKPTR_SIZE
}

/// One object, as it stands in a dnode block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DnodePhys {
    /// 0 in a free slot. See [`crate::object_type`].
    pub otype: u8,
    pub indblkshift: u8,
    /// 1 when the pointers lead to data.
    pub nlevels: u8,
    pub nblkptr: u8,
    pub bonustype: u8,
    pub checksum: u8,
    pub compress: u8,
    pub flags: u8,
    /// Size of a data block, in 512 bytes.
    pub datablkszsec: u16,
    /// Slots behind the first that belong to this dnode.
    pub extra_slots: u8,
    /// The highest block that is there.
    pub maxblkid: u64,
    /// Space taken; see [`DnodePhys::used_bytes`].
    pub used: u64,
    pub blkptr: SmallVec<[BlkPtr; 3]>,
    /// As it is on disk, `bonuslen` bytes in `bonus_order`: what they mean is the bonus type's
    /// affair.
    pub bonus: Vec<u8>,
    pub bonus_order: ByteOrder,
    /// What the dnode says of its bonus' length where that is encrypted: `bonus` then is all the
    /// room that there is for it, because that was encrypted as a whole.
    pub sealed_bonuslen: Option<u16>,
    pub spill: Option<BlkPtr>,
}

impl Default for DnodePhys {
    /// A free slot.
    fn default() -> Self {
        DnodePhys {
            otype: 0,
            indblkshift: 0,
            nlevels: 0,
            nblkptr: 0,
            bonustype: 0,
            checksum: 0,
            compress: 0,
            flags: 0,
            datablkszsec: 0,
            extra_slots: 0,
            maxblkid: 0,
            used: 0,
            blkptr: SmallVec::new(),
            bonus: Vec::new(),
            bonus_order: ByteOrder::NATIVE,
            sealed_bonuslen: None,
            spill: None,
        }
    }
}

const fn bad(field: &'static str, offset: usize, value: u64, why: &'static str) -> FormatError {
    FormatError::impossible("dnode_phys", field, offset, value, why)
}

impl DnodePhys {
    /// Reads the dnode that begins at the front of `buf`, which must reach to the end of its last
    /// slot.
    ///
    /// A free slot gives the default value, whatever else stands in it.
    pub fn decode(buf: &[u8], order: ByteOrder) -> Result<DnodePhys> {
        let mut r = Reader::new(buf, order, "dnode_phys");
        let mut dn = DnodePhys { otype: r.u8("dn_type")?, ..Default::default() };
        if buf.len() < DNODE_MIN_SIZE {
            return Err(r.error("dn_type", Problem::Truncated { need: DNODE_MIN_SIZE, have: buf.len() }));
        }
        if dn.otype == object_type::DMU_OT_NONE {
            return Ok(DnodePhys::default());
        }
        dn.indblkshift = r.u8("dn_indblkshift")?;
        dn.nlevels = r.u8("dn_nlevels")?;
        dn.nblkptr = r.u8("dn_nblkptr")?;
        dn.bonustype = r.u8("dn_bonustype")?;
        dn.checksum = r.u8("dn_checksum")?;
        dn.compress = r.u8("dn_compress")?;
        dn.flags = r.u8("dn_flags")?;
        dn.datablkszsec = r.u16("dn_datablkszsec")?;
        let bonuslen = usize::from(r.u16("dn_bonuslen")?);
        dn.extra_slots = r.u8("dn_extra_slots")?;
        r.skip(3, "dn_pad2")?;
        dn.maxblkid = r.u64("dn_maxblkid")?;
        dn.used = r.u64("dn_used")?;
        r.skip(32, "dn_pad3")?;

        dn.check_header()?;
        let size = dn.size();
        let bps = &buf.get(DNODE_CORE_SIZE..size).ok_or(FormatError::new(
            "dnode_phys",
            "dn_extra_slots",
            12,
            Problem::Truncated { need: size, have: buf.len() },
        ))?;
        for i in 0..usize::from(dn.nblkptr) {
            dn.blkptr.push(BlkPtr::at(bps, i, order)?);
        }
        if bonuslen > dn.max_bonuslen() {
            return Err(bad("dn_bonuslen", 10, bonuslen as u64, "does not fit"));
        }
        let bonus = bps.get(usize::from(dn.nblkptr) * BLKPTR_SIZE..).unwrap_or_default();
        dn.bonus = bonus.get(..bonuslen).unwrap_or_default().to_vec();
        dn.bonus_order = order;
        if dn.flags & DNODE_FLAG_SPILL_BLKPTR != 0 {
            let at = bps.len().saturating_sub(BLKPTR_SIZE);
            dn.spill = Some(BlkPtr::decode(bps.get(at..).unwrap_or_default(), order)?);
        }
        Ok(dn)
    }

    /// As [`DnodePhys::decode`], of a block that is as it was encrypted.
    pub fn decode_sealed(buf: &[u8], order: ByteOrder) -> Result<DnodePhys> {
        let mut dn = DnodePhys::decode(buf, order)?;
        if !dn.bonus.is_empty() {
            let from = DNODE_CORE_SIZE + usize::from(dn.nblkptr) * BLKPTR_SIZE;
            let whole = buf.get(from..from + dn.max_bonuslen()).unwrap_or_default().to_vec();
            dn.sealed_bonuslen = u16::try_from(dn.bonus.len()).ok();
            dn.bonus = whole;
        }
        Ok(dn)
    }

    /// What must hold before pointers and bonus can be found.
    fn check_header(&self) -> Result<()> {
        if !object_type::is_valid(self.otype) {
            return Err(bad("dn_type", 0, self.otype.into(), "no such type"));
        }
        if !(OLD_MIN_INDBLKSHIFT..=DN_MAX_INDBLKSHIFT).contains(&self.indblkshift) {
            return Err(bad("dn_indblkshift", 1, self.indblkshift.into(), "10 to 17"));
        }
        if self.nlevels == 0 || self.nlevels > DN_MAX_LEVELS {
            return Err(bad("dn_nlevels", 2, self.nlevels.into(), "1 to 12"));
        }
        if self.nblkptr == 0 || self.nblkptr > DN_MAX_NBLKPTR {
            return Err(bad("dn_nblkptr", 3, self.nblkptr.into(), "1 to 3"));
        }
        if !object_type::is_valid(self.bonustype) {
            return Err(bad("dn_bonustype", 4, self.bonustype.into(), "no such type"));
        }
        if !(1..=crate::SPA_MAXBLOCKSIZE).contains(&self.datablksz()) {
            return Err(bad("dn_datablkszsec", 8, self.datablkszsec.into(), "1 to 32768"));
        }
        // The last block of the longest file ends one byte beyond it.
        if self.maxblkid > (MAX_OBJECT_BYTES - 1) / self.datablksz() {
            return Err(bad("dn_maxblkid", 16, self.maxblkid, "beyond the end of any object"));
        }
        if self.used_bytes() > crate::MAX_COUNTED_BYTES {
            return Err(bad("dn_used", 24, self.used, "larger than any pool"));
        }
        if usize::from(self.extra_slots) >= DNODE_MAX_SLOTS {
            return Err(bad("dn_extra_slots", 12, self.extra_slots.into(), "over 31"));
        }
        let spill = usize::from(self.flags & DNODE_FLAG_SPILL_BLKPTR != 0);
        let need = DNODE_CORE_SIZE + (usize::from(self.nblkptr) + spill) * BLKPTR_SIZE;
        if need > self.size() {
            return Err(bad("dn_flags", 7, self.flags.into(), "no room for a spill pointer"));
        }
        Ok(())
    }

    /// Writes the dnode into its slots: `slots` is exactly [`DnodePhys::size`] long and is filled
    /// whole.
    pub fn encode_into(&self, slots: &mut [u8]) -> Result<()> {
        if self.is_free() {
            slots.fill(0);
            return Ok(());
        }
        self.check_header()?;
        if slots.len() != self.size() {
            return Err(bad("dn_extra_slots", 12, slots.len() as u64, "not the bytes of the slots"));
        }
        if self.blkptr.len() != usize::from(self.nblkptr) {
            return Err(bad("dn_nblkptr", 3, self.blkptr.len() as u64, "not as many pointers"));
        }
        if self.bonus.len() > self.max_bonuslen() {
            return Err(bad("dn_bonuslen", 10, self.bonus.len() as u64, "does not fit"));
        }
        if !self.bonus.is_empty() && !self.bonus_order.is_native() {
            return Err(bad("dn_bonus", 0, 0, "still in the other byte order"));
        }
        if self.spill.is_some() != (self.flags & DNODE_FLAG_SPILL_BLKPTR != 0) {
            return Err(bad("dn_flags", 7, self.flags.into(), "spill pointer and its flag disagree"));
        }
        let mut w = Writer::native(slots.len());
        self.write(&mut w, slots.len());
        slots.copy_from_slice(&w.finish());
        Ok(())
    }

    fn write(&self, w: &mut Writer, size: usize) {
        w.bytes(&[
            self.otype,
            self.indblkshift,
            self.nlevels,
            self.nblkptr,
            self.bonustype,
            self.checksum,
            self.compress,
            self.flags,
        ]);
        w.u16(self.datablkszsec);
        w.u16(self.sealed_bonuslen.unwrap_or(self.bonus.len() as u16));
        w.u8(self.extra_slots);
        w.zeros(3);
        w.u64(self.maxblkid);
        w.u64(self.used);
        w.zeros(32);
        for bp in &self.blkptr {
            crate::bytes::Field::write(bp, w);
        }
        w.bytes(&self.bonus);
        match &self.spill {
            Some(bp) => {
                w.pad_to(size.saturating_sub(BLKPTR_SIZE));
                crate::bytes::Field::write(bp, w);
            }
            None => w.pad_to(size),
        }
    }

    pub const fn is_free(&self) -> bool {
        self.otype == object_type::DMU_OT_NONE
    }

    pub const fn slots(&self) -> usize {
        self.extra_slots as usize + 1
    }

    /// Bytes of all its slots.
    pub const fn size(&self) -> usize {
        self.slots() << DNODE_SHIFT
    }

    /// Room for the bonus beside the pointers there are.
    pub const fn max_bonuslen(&self) -> usize {
        let spill = (self.flags & DNODE_FLAG_SPILL_BLKPTR != 0) as usize;
        self.size().saturating_sub(DNODE_CORE_SIZE + (self.nblkptr as usize + spill) * BLKPTR_SIZE)
    }

    /// Bytes of a data block.
    pub const fn datablksz(&self) -> u64 {
        (self.datablkszsec as u64) << crate::SPA_MINBLOCKSHIFT
    }

    pub const fn used_bytes(&self) -> u64 {
        if self.flags & DNODE_FLAG_USED_BYTES != 0 {
            self.used
        } else {
            self.used.saturating_mul(crate::SPA_MINBLOCKSIZE)
        }
    }

    /// Brings the bonus into the machine's byte order where its type alone says how. System
    /// attributes stay as they are: their words are found through the layout, and their magic tells
    /// the order.
    pub fn bonus_to_native(&mut self) {
        if !self.bonus_order.is_native() && self.bonustype != object_type::DMU_OT_SA {
            object_type::byteswap(object_type::byteswap_class(self.bonustype), &mut self.bonus);
            self.bonus_order = ByteOrder::NATIVE;
        }
    }
}

/// The dnodes of a block of dnodes, each with its slot; interior slots of large ones are skipped. A
/// dnode that cannot be is given as its error, and the walk goes on at the next slot.
pub fn dnodes(block: &[u8], order: ByteOrder) -> impl Iterator<Item = (usize, Result<DnodePhys>)> + '_ {
    let mut slot = 0;
    std::iter::from_fn(move || {
        loop {
            let at = slot;
            let buf = block.get(at << DNODE_SHIFT..).filter(|b| b.len() >= DNODE_MIN_SIZE)?;
            let dn = DnodePhys::decode(buf, order);
            slot += dn.as_ref().map_or(1, DnodePhys::slots);
            match dn {
                Ok(dn) if dn.is_free() => {}
                dn => return Some((at, dn)),
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_computed_with_are_refused() {
        let good = DnodePhys {
            otype: object_type::DMU_OT_PLAIN_FILE_CONTENTS,
            indblkshift: 17,
            nlevels: 2,
            nblkptr: 1,
            flags: DNODE_FLAG_USED_BYTES,
            datablkszsec: 256,
            maxblkid: 1000,
            blkptr: smallvec::smallvec![BlkPtr::ZERO],
            ..DnodePhys::default()
        };
        let mut raw = [0; DNODE_MIN_SIZE];
        good.encode_into(&mut raw).unwrap();
        assert_eq!(DnodePhys::decode(&raw, ByteOrder::NATIVE).unwrap(), good);
        // Block size of none, and over 16M; too narrow a tree; a block beyond any offset; more than
        // any pool has.
        let max = u64::MAX.to_ne_bytes();
        let bad: [(usize, &[u8]); 5] = [(8, &[0, 0]), (8, &[0xff, 0xff]), (1, &[7]), (16, &max), (24, &max)];
        for (at, bytes) in bad {
            let mut damaged = raw;
            damaged[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(DnodePhys::decode(&damaged, ByteOrder::NATIVE).is_err(), "at {at}");
        }
    }

    /// A program may write the last byte that an offset can name, and a sync must not fail on that.
    #[test]
    fn the_longest_file_has_a_last_block_and_none_after_it() {
        // 512 bytes, an odd number of sectors, 128K, 16M.
        for datablkszsec in [1, 3, 256, 32768] {
            let mut dn = DnodePhys {
                otype: object_type::DMU_OT_PLAIN_FILE_CONTENTS,
                indblkshift: 17,
                nlevels: 6,
                nblkptr: 1,
                flags: DNODE_FLAG_USED_BYTES,
                datablkszsec,
                blkptr: smallvec::smallvec![BlkPtr::ZERO],
                ..DnodePhys::default()
            };
            let last_byte = i64::MAX as u64 - 1;
            dn.maxblkid = last_byte / dn.datablksz();
            let mut raw = [0; DNODE_MIN_SIZE];
            dn.encode_into(&mut raw).unwrap();
            assert_eq!(DnodePhys::decode(&raw, ByteOrder::NATIVE).unwrap(), dn);
            dn.maxblkid += 1;
            assert!(dn.encode_into(&mut raw).is_err(), "{datablkszsec}");
        }
    }
}
