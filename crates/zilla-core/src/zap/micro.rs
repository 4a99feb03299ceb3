//! The index of a micro-ZAP.
//!
//! On disk a micro-ZAP's slots have no order. In memory an index by (hash, cd) is kept beside the
//! dnode: the order of directory positions, and a lookup without a walk over the block. It is made
//! when the ZAP is first used and follows every change.

use super::key::{HashSpec, Key};
use std::collections::BTreeMap;
use zilla_ondisk::zap::micro::{self, MicroZap};
use zilla_ondisk::{ByteOrder, FormatError, Problem};

type Result<T> = std::result::Result<T, FormatError>;

/// Chunks that an entry of a micro-ZAP takes at most in a leaf: itself, three of name, one of
/// value.
const LEAF_CHUNKS: usize = 5;

pub(crate) struct Micro {
    pub spec: HashSpec,
    /// (hash >> 32, cd) -> slot.
    pub index: BTreeMap<(u32, u32), u32>,
    slots: usize,
    next_free: usize,
}

/// One slot in use.
pub(super) struct Slot<'a> {
    pub value: u64,
    pub name: &'a [u8],
}

/// The entry in a slot, if it is in use.
pub(super) fn slot(block: &[u8], i: u32) -> Option<Slot<'_>> {
    let e = MicroZap::new(block, ByteOrder::NATIVE).and_then(|m| m.entry(i as usize)).ok()??;
    Some(Slot { value: e.value, name: e.name })
}

impl Micro {
    pub fn open(block: &[u8]) -> Result<Micro> {
        let m = MicroZap::new(block, ByteOrder::NATIVE)?;
        let spec = HashSpec { salt: m.salt(), normflags: m.normflags(), flags: 0 };
        let mut index = BTreeMap::new();
        for e in m.iter() {
            let e = e?;
            if !spec.may_have(e.cd) {
                let problem = Problem::Impossible { value: e.cd.into(), why: "not below the highest" };
                return Err(FormatError::new("mzap_ent_phys", "mze_cd", 64 * (e.chunk + 1) + 8, problem));
            }
            let hash = (spec.hash_name(e.name) >> 32) as u32;
            if index.insert((hash, e.cd), e.chunk as u32).is_some() {
                let problem =
                    Problem::Impossible { value: e.cd.into(), why: "two entries of one hash have it" };
                return Err(FormatError::new("mzap_ent_phys", "mze_cd", 64 * (e.chunk + 1) + 8, problem));
            }
        }
        Ok(Micro { spec, index, slots: m.num_chunks(), next_free: 0 })
    }

    pub fn is_full(&self) -> bool {
        self.index.len() >= self.slots
    }

    /// The block has grown to `len` bytes.
    pub fn grown(&mut self, len: usize) {
        self.slots = micro::num_chunks(len);
    }

    fn same_hash(&self, key: &Key) -> impl Iterator<Item = (u32, u32)> + '_ {
        let h = (key.hash >> 32) as u32;
        self.index.range((h, 0)..=(h, u32::MAX)).map(|(&(_, cd), &slot)| (cd, slot))
    }

    pub(super) fn find(&self, block: &[u8], key: &Key) -> Option<(u32, u32)> {
        self.same_hash(key).find(|&(_, i)| slot(block, i).is_some_and(|s| key.matches_name(s.name)))
    }

    /// Whether another entry than that of `cd` has the key's normalized name.
    pub(super) fn conflicts(&self, block: &[u8], key: &Key, cd: u32) -> bool {
        self.same_hash(key)
            .any(|(other, i)| other != cd && slot(block, i).is_some_and(|s| key.matches_name(s.name)))
    }

    /// Whether an entry more of this hash would still fit one leaf of a fat ZAP, should it come to
    /// that.
    pub(super) fn fits_a_leaf(&self, key: &Key, leaf_chunks: usize) -> bool {
        (self.same_hash(key).count() + 1) * LEAF_CHUNKS < leaf_chunks
    }

    /// Adds an entry. The name is short and not there yet, and a slot is free.
    pub(super) fn add(&mut self, block: &mut [u8], key: &Key, value: u64) -> Result<()> {
        let mut cd = 0;
        for (used, _) in self.same_hash(key) {
            if used != cd {
                break;
            }
            cd += 1;
        }
        let m = MicroZap::new(block, ByteOrder::NATIVE)?;
        let have = self.slots;
        let free = m.free_chunk(self.next_free).or_else(|| m.free_chunk(0)).ok_or(FormatError::new(
            "mzap_phys",
            "mz_chunk",
            0,
            Problem::NoSpace { need: have + 1, have },
        ))?;
        micro::set(block, free, key.as_name(), value, cd)?;
        self.next_free = if free + 1 < self.slots { free + 1 } else { 0 };
        self.index.insert(((key.hash >> 32) as u32, cd), free as u32);
        Ok(())
    }

    pub(super) fn remove(&mut self, block: &mut [u8], key: &Key, cd: u32, i: u32) -> Result<()> {
        micro::remove(block, i as usize)?;
        self.index.remove(&((key.hash >> 32) as u32, cd));
        Ok(())
    }
}
