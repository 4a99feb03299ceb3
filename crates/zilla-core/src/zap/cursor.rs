//! Walking over all entries, from any position on.
//!
//! A position is OpenZFS's: the hash's used bits, and above them the collision number of the next
//! entry wanted. It means the same whatever is added, removed or split in the meantime, and is what
//! `readdir` hands to its callers.

use super::key::HashSpec;
use super::key::Key;
use super::{Match, State, Value, Zap, conflicts_in, corrupt, micro};
use crate::dmu::{Now, Stop};
use zilla_ondisk::zap::Leaf;
use zilla_ondisk::{ByteOrder, FormatError};

/// The position behind the last entry.
pub const END: u64 = u64::MAX;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Empty where keys are numbers.
    pub name: Vec<u8>,
    /// Empty where keys are names.
    pub key: Vec<u64>,
    pub value: Value,
    /// Another entry has the same normalized name.
    pub conflict: bool,
    /// The position behind this entry.
    pub next: u64,
}

impl Entry {
    pub fn name_str(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.name)
    }
}

/// Some entries in a row.
#[derive(Debug, Default)]
pub struct Batch {
    pub entries: Vec<Entry>,
    /// Where to go on; [`END`] if nothing is left.
    pub next: u64,
}

fn position(spec: &HashSpec, hash: u64, cd: u32) -> u64 {
    (hash >> (64 - spec.hashbits())) | (u64::from(cd) << spec.hashbits())
}

fn parse(spec: &HashSpec, at: u64) -> (u64, u32) {
    let bits = spec.hashbits();
    let cd = u32::try_from(at >> bits).unwrap_or(u32::MAX);
    (at << (64 - bits), if cd >= spec.max_cd() { 0 } else { cd })
}

impl Zap {
    /// As [`Zap::read_on`], for what is small.
    pub fn read_from(&self, mut at: u64, max: usize) -> Now<Batch> {
        self.read_on(&mut at, max)
    }

    /// At least one and about `max` of the entries from position `at` on (0: the first), as far as
    /// they are in memory. Where something must be read first `at` has moved on over leaves without
    /// entries: who begins again there does not go through them again.
    pub fn read_on(&self, at: &mut u64, max: usize) -> Now<Batch> {
        let mut out = Batch { entries: Vec::new(), next: END };
        if *at == END {
            return Ok(out);
        }
        let state = self.state()?;
        let spec = Zap::spec(&state);
        let (mut hash, mut cd) = parse(&spec, *at);
        match &*state {
            State::Unknown => Ok(out),
            State::Micro(m) => self.dn.with_block(0, |b| {
                for (&(h, c), &i) in m.index.range(((hash >> 32) as u32, cd)..) {
                    let hash = u64::from(h) << 32;
                    if out.entries.len() >= max {
                        out.next = position(&spec, hash, c);
                        break;
                    }
                    let Some(s) = micro::slot(b, i) else { continue };
                    let conflict = spec.normflags != 0
                        && Key::name(&spec, s.name, Match::Normalized).is_ok_and(|k| m.conflicts(b, &k, c));
                    out.entries.push(Entry {
                        name: s.name.to_vec(),
                        key: Vec::new(),
                        value: Value::u64(s.value),
                        conflict,
                        next: position(&spec, hash, c + 1),
                    });
                }
                out
            }),
            State::Fat(fat) => loop {
                let step = fat.leaf_of(&self.dn, hash).and_then(|blk| {
                    let from = (hash, cd, fat.phys.ptrtbl.shift);
                    let r = self.dn.with_block(blk, |b| leaf_entries(b, &spec, from, max, &mut out))?;
                    Ok(r.map_err(|e| corrupt(&self.dn, blk, e))?)
                });
                match step {
                    Ok(Some(next_hash)) => (hash, cd) = (next_hash, 0),
                    Ok(None) => return Ok(out),
                    Err(Stop::Need(_)) if !out.entries.is_empty() => {
                        out.next = position(&spec, hash, cd);
                        return Ok(out);
                    }
                    Err(e) => {
                        *at = position(&spec, hash, cd);
                        return Err(e);
                    }
                }
            },
        }
    }
}

/// Takes the entries of one leaf from (hash, cd) on, of a table indexed by so many bits; gives the
/// first hash of the next leaf, or None when done.
fn leaf_entries(
    block: &[u8],
    spec: &HashSpec,
    (hash, cd, table_shift): (u64, u32, u64),
    max: usize,
    out: &mut Batch,
) -> Result<Option<u64>, FormatError> {
    let leaf = Leaf::new(block, ByteOrder::NATIVE)?;
    leaf.check_place(hash, table_shift)?;
    let mut found = Vec::with_capacity(usize::from(leaf.header().nentries).min(1024));
    for e in leaf.iter() {
        let e = e?;
        // Positions would go back, or come again, and whoever follows them never come to the end.
        if !leaf.covers(e.hash) || !spec.may_have(e.cd) || e.hash << spec.hashbits() != 0 {
            let why = "an entry in another's place";
            return Err(FormatError::impossible("zap_leaf", "le_hash", 0, e.hash, why));
        }
        if (e.hash, e.cd) >= (hash, cd) {
            found.push(e);
        }
    }
    found.sort_unstable_by_key(|e| (e.hash, e.cd));
    if let Some((a, _)) =
        found.iter().zip(found.iter().skip(1)).find(|(a, b)| (a.hash, a.cd) == (b.hash, b.cd))
    {
        return Err(FormatError::impossible("zap_leaf", "le_cd", 12, a.cd.into(), "two entries have it"));
    }
    for e in &found {
        if out.entries.len() >= max {
            out.next = position(spec, e.hash, e.cd);
            return Ok(None);
        }
        let (name, key) = if spec.int_keys() {
            (Vec::new(), leaf.name_u64s(e)?)
        } else {
            (leaf.name(e)?.to_vec(), Vec::new())
        };
        let conflict = spec.normflags != 0
            && match Key::name(spec, &name, Match::Normalized) {
                Ok(k) => conflicts_in(&leaf, e, &k)?,
                Err(_) => false,
            };
        let next = position(spec, e.hash, e.cd.wrapping_add(1));
        out.entries.push(Entry { name, key, value: leaf.value(e)?, conflict, next });
    }
    let len = u32::from(leaf.header().prefix_len);
    if len == 0 {
        return Ok(None);
    }
    // The next leaf begins where this one's prefix ends.
    let rest = u64::MAX >> len;
    Ok((hash | rest).checked_add(1))
}
