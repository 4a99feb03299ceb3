//! The micro ZAP: one block of 64-byte entries.
//!
//! ```text
//! 0           8      16          24       64
//! | ZBT_MICRO | salt | normflags | 0 ... | value:8 cd:4 0:2 name:50 | ... |
//! ```
//!
//! An entry whose name begins with NUL is free. A name is at most 49 bytes. Only the hash's upper
//! 28 bits count here, as in a fat ZAP without flags, since an upgrade to that keeps hashes and
//! differentiators.

use super::ZBT_MICRO;
use crate::bytes::{put_at, u32_at, u64_at};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

pub const MZAP_ENT_LEN: usize = 64;
/// With its NUL.
pub const MZAP_NAME_LEN: usize = MZAP_ENT_LEN - 8 - 4 - 2;
const CD: usize = 8;
const NAME: usize = 14;

const S: &str = "mzap_phys";

/// An entry in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MicroEntry<'a> {
    /// Which of the block's entries.
    pub chunk: usize,
    pub value: u64,
    pub cd: u32,
    pub name: &'a [u8],
}

/// A micro ZAP's block, checked to be one.
#[derive(Clone, Copy, Debug)]
pub struct MicroZap<'a> {
    block: &'a [u8],
    order: ByteOrder,
}

/// Entries a block of this length has.
pub const fn num_chunks(block_len: usize) -> usize {
    (block_len / MZAP_ENT_LEN).saturating_sub(1)
}

impl<'a> MicroZap<'a> {
    pub fn new(block: &'a [u8], order: ByteOrder) -> Result<MicroZap<'a>> {
        let short = Problem::Truncated { need: MZAP_ENT_LEN, have: block.len() };
        let found = u64_at(block, 0, order).filter(|_| block.len() >= MZAP_ENT_LEN);
        let found = found.ok_or(FormatError::new(S, "mz_block_type", 0, short))?;
        if found != ZBT_MICRO {
            let problem = Problem::Magic { found, wanted: ZBT_MICRO };
            return Err(FormatError::new(S, "mz_block_type", 0, problem));
        }
        Ok(MicroZap { block, order })
    }

    pub fn salt(&self) -> u64 {
        u64_at(self.block, 8, self.order).unwrap_or(0)
    }

    pub fn normflags(&self) -> u64 {
        u64_at(self.block, 16, self.order).unwrap_or(0)
    }

    pub fn num_chunks(&self) -> usize {
        num_chunks(self.block.len())
    }

    /// Entry number `chunk`, unless it is free or not there.
    pub fn entry(&self, chunk: usize) -> Result<Option<MicroEntry<'a>>> {
        let at = chunk.saturating_add(1).saturating_mul(MZAP_ENT_LEN);
        let raw = self.block.get(at..).and_then(|b| b.get(..MZAP_ENT_LEN)).unwrap_or_default();
        let name = raw.get(NAME..).unwrap_or_default();
        let end = match name.iter().position(|b| *b == 0) {
            Some(0) => return Ok(None),
            Some(end) => end,
            None if name.is_empty() => return Ok(None),
            None => return Err(FormatError::new(S, "mze_name", at + NAME, Problem::String)),
        };
        Ok(Some(MicroEntry {
            chunk,
            value: u64_at(raw, 0, self.order).unwrap_or(0),
            cd: u32_at(raw, CD, self.order).unwrap_or(0),
            name: name.get(..end).unwrap_or_default(),
        }))
    }

    /// The entries in use, in the order of the block.
    pub fn iter(&self) -> impl Iterator<Item = Result<MicroEntry<'a>>> + use<'a> {
        let this = *self;
        (0..this.num_chunks()).filter_map(move |i| this.entry(i).transpose())
    }

    /// Looks for a name entry by entry. Who asks often keeps an index by hash.
    pub fn find(&self, name: &[u8]) -> Result<Option<MicroEntry<'a>>> {
        for e in self.iter() {
            let e = e?;
            if e.name == name {
                return Ok(Some(e));
            }
        }
        Ok(None)
    }

    /// The first free entry at or behind `from`.
    pub fn free_chunk(&self, from: usize) -> Option<usize> {
        (from..self.num_chunks()).find(|&i| self.block.get((i + 1) * MZAP_ENT_LEN + NAME) == Some(&0))
    }
}

/// Makes a block an empty micro ZAP. The salt must not be 0.
pub fn init(block: &mut [u8], salt: u64, normflags: u64) -> Result<()> {
    block.fill(0);
    let have = block.len();
    let short = FormatError::new(S, "block", 0, Problem::NoSpace { need: 2 * MZAP_ENT_LEN, have });
    if have < 2 * MZAP_ENT_LEN {
        return Err(short);
    }
    put_at(block, 0, &ZBT_MICRO.to_ne_bytes()).ok_or(short)?;
    put_at(block, 8, &salt.to_ne_bytes()).ok_or(short)?;
    put_at(block, 16, &normflags.to_ne_bytes()).ok_or(short)
}

fn slot(block: &mut [u8], chunk: usize) -> Result<&mut [u8]> {
    let at = chunk.saturating_add(1).saturating_mul(MZAP_ENT_LEN);
    let problem = Problem::Truncated { need: at.saturating_add(MZAP_ENT_LEN), have: block.len() };
    block
        .get_mut(at..)
        .and_then(|b| b.get_mut(..MZAP_ENT_LEN))
        .ok_or(FormatError::new(S, "mz_chunk", at, problem))
}

/// Fills a free entry of a block in the machine's order.
pub fn set(block: &mut [u8], chunk: usize, name: &[u8], value: u64, cd: u32) -> Result<()> {
    let bad = |why| FormatError::impossible(S, "mze_name", 0, name.len() as u64, why);
    if name.is_empty() || name.len() >= MZAP_NAME_LEN || name.contains(&0) {
        return Err(bad("1 to 49 bytes without NUL"));
    }
    let raw = slot(block, chunk)?;
    raw.fill(0);
    put_at(raw, 0, &value.to_ne_bytes()).ok_or(bad("entry too short"))?;
    put_at(raw, CD, &cd.to_ne_bytes()).ok_or(bad("entry too short"))?;
    put_at(raw, NAME, name).ok_or(bad("entry too short"))
}

/// Changes the value of an entry of a block in the machine's order.
pub fn set_value(block: &mut [u8], chunk: usize, value: u64) -> Result<()> {
    let raw = slot(block, chunk)?;
    put_at(raw, 0, &value.to_ne_bytes()).ok_or(FormatError::new(S, "mze_value", 0, Problem::Missing))
}

/// Frees an entry.
pub fn remove(block: &mut [u8], chunk: usize) -> Result<()> {
    slot(block, chunk)?.fill(0);
    Ok(())
}

/// May this key and value be in a micro ZAP at all?
pub fn fits(name: &[u8], value: &super::ZapValue) -> bool {
    !name.is_empty() && name.len() < MZAP_NAME_LEN && value.as_u64().is_some()
}

pub(super) fn swap(block: &mut [u8]) {
    for (i, ent) in block.as_chunks_mut::<MZAP_ENT_LEN>().0.iter_mut().enumerate() {
        let (words, _) = ent.as_chunks_mut::<8>();
        let numbers = if i == 0 { 3 } else { 1 };
        words.iter_mut().take(numbers).for_each(|w| w.reverse());
        if i > 0
            && let Some(cd) = ent.get_mut(CD..CD + 4)
        {
            cd.reverse();
        }
    }
}
