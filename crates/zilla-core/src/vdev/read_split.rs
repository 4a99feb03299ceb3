//! Reading what became of a block whose vdev was removed.
//!
//! Mostly it was copied whole, and reading it is reading another place. But a removal copies runs
//! and not blocks, so a block may have been split among several places. One checksum covers all of
//! it: if it does not fit, nobody knows which piece is bad, and combinations of the pieces' sides
//! are tried until it does. Then the sides that differ are the ones that lied.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use bytes::Bytes;
use smallvec::SmallVec;
use zilla_env::IoBuf;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::distributed::Side;
use super::indirect::{Piece, Pieces};
use super::leaf::Leaf;
use super::priority::Priority;
use super::read::{DvaFailure, Healing, Mend, Outcome, Reader};
use super::tree::{Layout, Unit};
use super::widths::Entry;

/// So many combinations of sides are tried. Source: zfs_reconstruct_indirect_combinations_max of
/// vdev_indirect.c.
const MAX_COMBINATIONS: usize = 4096;

/// A piece of a block, and what its sides hold.
struct Part<'a> {
    unit: &'a Unit,
    at: u64,
    piece: Piece,
    /// What came, each with the leaves it came from.
    versions: Vec<(Bytes, SmallVec<[&'a Arc<Leaf>; 2]>)>,
    failed: SmallVec<[&'a Arc<Leaf>; 2]>,
    asked: SmallVec<[usize; 2]>,
}

impl Part<'_> {
    /// The leaves to be asked yet, the best first.
    fn order(&self, class: Priority) -> SmallVec<[usize; 4]> {
        let unit = self.unit.leaves.iter().enumerate();
        let mut order: SmallVec<[usize; 4]> =
            unit.filter(|(i, l)| l.readable() && !self.asked.contains(i)).map(|(i, _)| i).collect();
        order.sort_by_cached_key(|i| {
            self.unit.leaves.get(*i).map(|l| (!l.holds(self.piece.birth), l.read_cost(self.at, class)))
        });
        order
    }
}

impl Reader<'_> {
    fn failed(&self, what: String, checksum: bool) -> DvaFailure {
        let place = format!("indirect-{} at {}", self.top.id, self.offset);
        DvaFailure { place, what, checksum, device: !checksum }
    }

    pub(super) async fn read_indirect(&self) -> Outcome {
        let pieces = self.tree.resolve(self.top.id, self.offset, self.sectors(), self.birth);
        let pieces = pieces.map_err(|e| self.failed(e.to_string(), false))?;
        if let [one] = &pieces[..] {
            let top = self.tree.top(one.vdev).map_err(|e| self.failed(e.to_string(), false))?;
            let moved = Reader { top, offset: one.offset, birth: one.birth, ..*self };
            return Box::pin(moved.read()).await;
        }
        self.read_split(pieces).await
    }

    async fn read_split(&self, pieces: Pieces) -> Outcome {
        let mut parts = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let unit = match self.tree.top(piece.vdev).map(|t| &t.layout) {
                Ok(Layout::Plain(unit)) => unit,
                _ => return Err(self.failed(format!("vdev {} holds no pieces", piece.vdev), false)),
            };
            parts.push(Part {
                unit,
                at: piece.offset + VDEV_LABEL_START_SIZE,
                piece,
                versions: Vec::new(),
                failed: SmallVec::new(),
                asked: SmallVec::new(),
            });
        }
        for part in &mut parts {
            while part.versions.is_empty() {
                let Some(next) = part.order(self.class).first().copied() else {
                    let what = "no device that should hold a piece of it can be read";
                    return Err(self.failed(what.into(), false));
                };
                self.ask(part, next).await;
            }
        }
        let mut found = if self.every_copy { None } else { self.combination(&parts) };
        if found.is_none() {
            for part in &mut parts {
                for next in part.order(self.class) {
                    self.ask(part, next).await;
                }
            }
            found = self.combination(&parts);
        }
        let Some((picks, block)) = found else {
            let what = "no combination of its pieces has the right checksum";
            return Err(self.failed(what.into(), true));
        };
        let healing = self.heal_split(&parts, &picks).await;
        Ok((block.slice(..self.psize as usize), healing))
    }

    async fn ask<'a>(&self, part: &mut Part<'a>, i: usize) {
        part.asked.push(i);
        let Some(leaf) = part.unit.leaves.get(i) else { return };
        match self.leaf_read(leaf, part.at, part.piece.len).await {
            Ok(data) => match part.versions.iter_mut().find(|(known, _)| *known == data) {
                Some((_, leaves)) => leaves.push(leaf),
                None => part.versions.push((data, SmallVec::from_iter([leaf]))),
            },
            Err(_) => part.failed.push(leaf),
        }
    }

    /// Which version of each part makes the block, and the block.
    fn combination(&self, parts: &[Part<'_>]) -> Option<(Vec<usize>, Bytes)> {
        let mut picks = vec![0; parts.len()];
        for _ in 0..MAX_COMBINATIONS {
            let mut block = IoBuf::scratch(self.sectors() as usize);
            let mut rest = &mut block[..];
            for (part, pick) in parts.iter().zip(&picks) {
                let (data, _) = part.versions.get(*pick)?;
                let (front, back) = rest.split_at_mut_checked(data.len())?;
                front.copy_from_slice(data);
                rest = back;
            }
            if (self.check)(block.get(..self.psize as usize)?).is_ok() {
                return Some((picks, block.into_bytes()));
            }
            // The next one, as an odometer counts.
            let turn = picks.iter().zip(parts).position(|(pick, part)| pick + 1 < part.versions.len())?;
            picks.iter_mut().take(turn).for_each(|p| *p = 0);
            *picks.get_mut(turn)? += 1;
        }
        None
    }

    /// Counts the sides that lied, and writes theirs again, those that failed, and those that
    /// missed it.
    async fn heal_split(&self, parts: &[Part<'_>], picks: &[usize]) -> Healing {
        let mut healing = Healing::default();
        let mut writes = SmallVec::new();
        for (part, pick) in parts.iter().zip(picks) {
            let Some((right, _)) = part.versions.get(*pick) else { continue };
            let wrong = part.versions.iter().enumerate().filter(|(i, _)| i != pick).flat_map(|(_, v)| &v.1);
            for leaf in wrong.clone().filter(|l| !self.speculative && l.holds(part.piece.birth)) {
                leaf.lied(part.at, part.piece.len);
            }
            let missed = part.unit.leaves.iter().filter(|l| l.writable() && !l.holds(part.piece.birth));
            let known = wrong.chain(&part.failed).copied();
            let mut bad: Vec<&Arc<Leaf>> = known.filter(|l| l.holds(part.piece.birth)).collect();
            healing.bad.extend(bad.iter().map(|l| l.index));
            bad.extend(missed);
            writes.extend(bad.into_iter().map(|l| Mend::new(&Side::own(l), part.at, right.clone())));
        }
        let places = parts.iter().map(|p| (p.piece.vdev, p.piece.offset, p.piece.len));
        let places: Vec<_> = places.collect();
        healing.count(self.repair_at(&places, writes, Entry::default()).await);
        healing
    }
}
