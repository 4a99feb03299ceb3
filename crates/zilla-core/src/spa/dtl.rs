//! DTLs on disk: a space map for each leaf that ever missed anything, whose "space" is txgs.
//!
//! What a leaf missed of a txg is on disk with that txg. A leaf that takes no writes has it in its
//! DTL when the passes begin, one whose writes fail meanwhile as soon as they do; and if a flush
//! fails at the end, passes follow that write it down, before the uberblock is on its way. For
//! after a crash in the middle of that nobody could tell by the uberblocks who missed something and
//! who only did not get the last one.
//!
//! A DTL that cannot be read keeps no pool from being opened (OpenZFS refuses it): what the leaf
//! missed is not known, so it is given everything by those that have it. One without which the pool
//! cannot be read is taken as it is, for what it gives is checked.

use std::sync::Arc;

use crate::dmu::Objset;
use crate::error::{Error, Result};
use crate::metaslab::{Append, MapType, RangeTree, SpaceMap, create_object};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId, TXG_INITIAL, TXG_SIZE, Txg};
use crate::vdev::{REBUILD_TXG, RESILVER_TXG, Top, Vdev, VdevTree};

const BLOCK: u32 = 4096;
/// A longer DTL is none: it is written anew as what a device misses changes, and even one that
/// missed every other txg of half a year is shorter.
const MOST_BYTES: u64 = 64 << 20;
/// Ranges that are in memory of all DTLs: 64 MiB.
const MOST_RANGES: usize = 4 << 20;

/// What the pool's features allow in a space map.
#[derive(Clone, Copy, Debug)]
pub struct DtlFormat {
    pub v2: bool,
    pub histogram: bool,
}

/// Why a DTL cannot be read.
struct Unreadable {
    error: Error,
    /// Another can be written in its place, for nothing need be read for that.
    writable: bool,
}

/// What a DTL says, in no more than `room` ranges.
async fn read_ranges(
    mos: &Arc<Objset>,
    object: u64,
    end: u64,
    room: usize,
) -> Result<Vec<(u64, u64)>, Unreadable> {
    let lost = |error| Unreadable { error, writable: false };
    let dnode = mos.hold_wait(ObjectId(object)).await.map_err(lost)?;
    let map = SpaceMap::open(dnode.clone(), 0, u64::MAX, 0).map_err(lost)?;
    let too_long = |what: String| {
        let place = Bookmark::new(dnode.objset_id(), dnode.id(), 0, 0);
        Error::corrupt(Some(place), "", format!("space map {object}: {what} of what a device missed"))
    };
    // Many blocks of a hostile object may be one block.
    if map.length() > MOST_BYTES {
        return Err(lost(too_long(format!("{} bytes", map.length()))));
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let entries = map.reader();
    let read = entries
        .for_each(map.length(), |kind, _, start, size| {
            if kind != MapType::Alloc {
                return Ok(());
            }
            let upto = start.saturating_add(size).min(end);
            let full = ranges.len() >= room;
            match ranges.last_mut() {
                Some(last) if (last.0..=last.1).contains(&start) => last.1 = last.1.max(upto),
                _ if full => return Err(too_long("too many ranges".to_owned())),
                _ => ranges.push((start, upto)),
            }
            Ok(())
        })
        .await;
    read.map(|()| ranges).map_err(|error| Unreadable { error, writable: dnode.phys().nlevels == 1 })
}

/// Whether a device was being given what it lacks.
fn is_unfinished(v: &Vdev) -> bool {
    [RESILVER_TXG, REBUILD_TXG].iter().any(|key| v.config_u64(key).is_some())
}

impl VdevTree {
    /// Reads what leaves have missed, as of a txg. What goes far beyond it nobody can have missed:
    /// to write such ranges down again might take more than there is memory.
    #[crate::boxed]
    pub async fn load_dtls(&self, mos: &Arc<Objset>, as_of: u64) {
        let end = as_of.saturating_add(2 * TXG_SIZE as u64);
        let (mut unknown, mut room) = (Vec::new(), MOST_RANGES);
        for v in self.root.walk() {
            let (Some(leaf), Some(object)) = (&v.leaf, v.config_u64("DTL").filter(|o| *o != 0)) else {
                continue;
            };
            match read_ranges(mos, object, end, room).await {
                #[cfg(feature = "planted")]
                Ok(_) if crate::planted::is(crate::planted::Bug::NotResilvered) => leaf.dtl.set([]),
                Ok(ranges) => {
                    room -= ranges.len();
                    leaf.dtl.set(ranges);
                }
                Err(Unreadable { error, writable }) => {
                    tracing::error!(path = %leaf.path(), "what the device missed cannot be read: {error}");
                    leaf.dtl.set([]);
                    leaf.dtl.write_anew();
                    if !writable {
                        // It stays behind, as an object that nothing leads to. To free it takes
                        // what cannot be read: its dnode, or the pointers to its blocks. And what
                        // is no space map is somebody else's.
                        tracing::error!(
                            path = %leaf.path(), object,
                            "the record of what the device missed is damaged: it stays allocated, unused"
                        );
                        v.remove_config("DTL");
                    }
                    unknown.push(v);
                }
            }
        }
        for v in unknown {
            let Some(leaf) = &v.leaf else { continue };
            let top = self.tops.iter().find(|t| t.leaves().any(|l| Arc::ptr_eq(l, leaf)));
            if is_unfinished(&v) || top.is_none_or(|t| !t.needs(leaf)) {
                leaf.dtl.add(0, as_of.saturating_add(1));
            } else {
                tracing::warn!(path = %leaf.path(), "nobody else has what it has: scrub the pool");
            }
        }
    }

    /// Before the DTLs can be read, which lie in the pool: devices that were being given what they
    /// lack may lack anything, so others are read first.
    pub fn note_unfinished(&self, last: u64) {
        for v in self.root.walk() {
            if let Some(leaf) = v.leaf.as_ref().filter(|_| is_unfinished(&v)) {
                leaf.dtl.add(TXG_INITIAL.0, last + 1);
            }
        }
    }

    /// Takes over from the tree whose place this one takes where the DTLs are written.
    pub fn know_dtls_of(&self, old: &VdevTree) {
        let nodes = old.root.walk();
        for v in self.root.walk() {
            let Some(leaf) = &v.leaf else { continue };
            let before = nodes.iter().find(|o| o.leaf.as_ref().is_some_and(|l| l.index == leaf.index));
            if let Some(object) = before.and_then(|o| o.config_u64("DTL")).filter(|o| *o != 0) {
                v.set_config_u64("DTL", object);
            }
        }
    }

    /// Takes over from it how large vdevs have become.
    pub fn know_sizes_of(&self, old: &VdevTree) {
        for top in self.tops.iter().filter(|t| t.vdev.is_concrete()) {
            if let Ok(was) = old.top(top.id).map(|t| &t.vdev)
                && was.is_concrete()
            {
                top.vdev.set_asize(top.vdev.asize().max(was.asize()));
            }
        }
    }

    /// Whether a DTL changed since it was written.
    pub fn dtls_dirty(&self) -> bool {
        self.pool_leaves().any(|l| l.dtl.is_dirty())
    }

    /// Whether a device misses something of `txg` and no DTL on disk says so. (Nothing of a txg
    /// lies on a log device.)
    pub fn is_untold(&self, txg: Txg) -> bool {
        self.tops_for(false).flat_map(Top::leaves).any(|l| l.dtl.is_untold(txg.0))
    }

    /// Devices that take no writes miss what a txg is about to write.
    pub fn note_away(&self, txg: Txg) {
        let away = self.tops_for(false).flat_map(Top::leaves).filter(|l| !l.writable());
        away.for_each(|l| l.dtl.add(txg.0, txg.0 + 1));
    }

    /// Writes the DTLs that changed. How many leaves got their first one, which the configuration
    /// must then say, and the count of maps with histograms.
    #[crate::boxed]
    pub async fn sync_dtls(&self, mos: &Arc<Objset>, tx: &Tx, pass: u64, how: DtlFormat) -> Result<i64> {
        let (mut fresh, v2) = (0, how.v2);
        for v in self.root.walk() {
            let Some(ranges) = v.leaf.as_ref().and_then(|l| l.dtl.take_dirty()) else { continue };
            let mut tree = RangeTree::new();
            for (start, end) in ranges {
                tree.add(start, end - start).map_err(|e| Error::inval(e.to_string()))?;
            }
            let dnode = match v.config_u64("DTL").filter(|o| *o != 0) {
                Some(object) => mos.hold_wait(ObjectId(object)).await?,
                None if tree.is_empty() => continue,
                None => {
                    let dnode = create_object(mos, tx, BLOCK, how.histogram).await?;
                    v.set_config_u64("DTL", dnode.id().0);
                    fresh += 1;
                    dnode
                }
            };
            let mut map = SpaceMap::open(dnode, 0, u64::MAX, 0)?;
            map.truncate(tx);
            map.append(Append { tx, pass, v2 }, &tree, MapType::Alloc, None)?;
        }
        Ok(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dmu::testing::Harness;
    use zilla_env::block_on;
    use zilla_ondisk::Field;
    use zilla_ondisk::spacemap::SpaceMapPhys;

    #[test]
    fn a_dtl_takes_no_more_memory_than_it_may() {
        block_on(async {
            let mut h = Harness::new(0);
            let tx = h.tx();
            let dnode = create_object(&h.objset, &tx, BLOCK, true).await.expect("an object");
            let mut map = SpaceMap::open(dnode.clone(), 0, u64::MAX, 0).expect("a map");
            let append = Append { tx: &tx, pass: 1, v2: true };
            let mut tree = RangeTree::new();
            (0..1000).for_each(|n| tree.add(100 + 3 * n, 2).expect("apart"));
            map.append(append, &tree, MapType::Alloc, None).expect("written");
            drop(tx);
            h.sync_open().await;
            let id = dnode.id().0;
            let read = read_ranges(&h.objset, id, u64::MAX, 1000).await;
            assert_eq!(read.map_err(|e| e.error).expect("ranges").len(), 1000);
            let Err(e) = read_ranges(&h.objset, id, u64::MAX, 999).await else { panic!("too many") };
            assert!(e.error.to_string().contains(&format!("space map {id}: too many ranges")), "{}", e.error);

            // What says the same again and again is one range.
            let tx = h.tx();
            map.truncate(&tx);
            let append = Append { tx: &tx, pass: 1, v2: true };
            let mut tree = RangeTree::new();
            tree.add(100, 7).expect("the first");
            for _ in 0..1000 {
                map.append(append, &tree, MapType::Alloc, None).expect("written");
            }
            drop(tx);
            h.sync_open().await;
            let read = read_ranges(&h.objset, id, u64::MAX, 1).await;
            assert_eq!(read.map_err(|e| e.error).expect("ranges"), [(100, 107)]);

            let tx = h.tx();
            dnode.write(&tx, MOST_BYTES, &[1]);
            let phys = SpaceMapPhys { object: id, length: MOST_BYTES + 8, ..SpaceMapPhys::default() };
            dnode.set_bonus(&tx, &phys.to_bonus(SpaceMapPhys::SIZE));
            drop(tx);
            h.sync_open().await;
            let Err(e) = read_ranges(&h.objset, id, u64::MAX, 1000).await else { panic!("too long") };
            assert!(e.error.to_string().contains(&format!("{} bytes", MOST_BYTES + 8)), "{}", e.error);
        });
    }
}
