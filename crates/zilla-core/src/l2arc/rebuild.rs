//! Finding out what a cache device holds that was filled before, by this pool, here or by OpenZFS.
//!
//! The header leads to the newest two log blocks, each of them to the one two before it. They are
//! read newest first, and so are their blocks entered. It ends at the first log block that is not
//! whole any more, lies, or cannot be read, and where the index is full; what was entered until
//! then stays. Nothing waits for it, and what is entered is used at once. What could not be read
//! this time is kept for the next: the device is begun anew only if the header or the newest log
//! block is none of ours.
//!
//! Every number is hostile. What a log block says of a place outside of what it may speak of is
//! passed over; each log block must lie further behind the hand than the one before, so a chain
//! cannot go in circles. What passes all that and still lies is found out when it is read, by the
//! block pointer's checksum.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

use zilla_codec::checksum::fletcher4;
use zilla_codec::compress::{self, Compress};
use zilla_ondisk::l2arc::{L2ARC_LOG_BLK_SIZE, L2LogBlk, L2LogBlkptr, L2LogEntPhys};
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

use super::device::CacheDev;
use super::index::{Cached, Kind};
use super::rotor::{BadHeader, Rotor, overlaps};
use super::stats::add;
use super::{L2arc, PoolFacts};
use crate::arc::Key;
use crate::tunables;
use crate::vdev::{Priority, SLOW_TIMEOUT, within};

const ARC_STATE_MFU: u8 = 3;
/// How often the header of a device is asked for, and after which pause again.
const HEADER_TRIES: u32 = 3;
const HEADER_PAUSE: Duration = Duration::from_secs(5);

/// What became of what the device held before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It is not this pool's, or not what the header says.
    Nothing,
    /// It may be there, be it known now or not: hand and chain go on where they were, and the next
    /// import may find it.
    Something,
}

impl L2arc {
    /// Learns what the device holds, or makes it an empty one.
    pub(super) async fn start(&self, device: &Arc<CacheDev>, fresh: bool) {
        let Ok(facts) = self.pool_facts() else { return };
        let found = if fresh { Found::Nothing } else { self.learn(device, facts).await };
        if device.is_stopped() || facts.readonly {
            return;
        }
        if found == Found::Nothing {
            // Nothing that the header leads to counts: from now on it leads nowhere.
            *device.rotor.lock() = Rotor::new(device.layout);
            self.write_header(device, facts).await;
        }
    }

    async fn learn(&self, device: &Arc<CacheDev>, facts: &PoolFacts) -> Found {
        let Some(raw) = self.read_header(device).await else { return Found::Nothing };
        if !self.restore(device, facts, &raw) || device.layout.log_entries == 0 {
            return Found::Nothing;
        }
        if tunables::L2ARC_REBUILD_ENABLED.get() == 0 {
            return Found::Something;
        }
        self.rebuild(device).await
    }

    /// The header's bytes. A device that does not give them is asked again after a while: who does
    /// not know the hand overwrites what it holds.
    async fn read_header(&self, device: &CacheDev) -> Option<Bytes> {
        for tried in 1..=HEADER_TRIES {
            let size = device.layout.header_size();
            let read = device.leaf.read_at(VDEV_LABEL_START_SIZE, size, Priority::AsyncRead);
            if let Some(Ok(raw)) = within(&self.env, SLOW_TIMEOUT, read).await {
                return Some(raw);
            }
            add(&self.stats.rebuild_dh_errors, 1);
            let stop = device.stop.listen();
            if tried == HEADER_TRIES || device.is_stopped() {
                break;
            }
            within(&self.env, HEADER_PAUSE, stop).await;
        }
        None
    }

    /// Takes the header over; whether it is one of this device in this pool.
    fn restore(&self, device: &CacheDev, facts: &PoolFacts, raw: &[u8]) -> bool {
        let restored = device.rotor.lock().restore(
            raw,
            facts.guid.load(std::sync::atomic::Ordering::Acquire),
            device.vdev.guid,
        );
        match restored {
            Ok(()) => return true,
            Err(BadHeader::Damaged) => add(&self.stats.rebuild_dh_errors, 1),
            Err(BadHeader::Unsupported) => add(&self.stats.rebuild_unsupported, 1),
        }
        *device.rotor.lock() = Rotor::new(device.layout);
        false
    }

    async fn rebuild(&self, device: &Arc<CacheDev>) -> Found {
        let mut found = Found::Nothing;
        let mut rotor = device.rotor.lock().clone();
        let [mut this, mut next] = rotor.start_lbps;
        let mut behind = 0;
        loop {
            // The next one further behind, or the chain goes in circles.
            let further = rotor.layout.behind(rotor.hand, this.daddr);
            if this.daddr == 0 || !rotor.is_valid(&this) || further <= behind {
                break;
            }
            behind = further;
            let raw = self.read_log(device, this).await;
            if device.is_stopped() {
                return Found::Something;
            }
            let Some(raw) = raw else {
                add(&self.stats.rebuild_io_errors, 1);
                found = Found::Something;
                break;
            };
            let Some(block) = open(&this, &raw, device.layout.log_entries as usize) else {
                add(&self.stats.rebuild_cksum_lb_errors, 1);
                break;
            };
            found = Found::Something;
            if !self.enter(device, &rotor, &this, &block) {
                add(&self.stats.rebuild_lowmem, 1);
                break;
            }
            rotor.log_blocks.push_back(this);
            rotor.log_bytes += this.prop.psize();
            add(&self.stats.rebuild_log_blks, 1);
            // Behind this one lies what was written in this round over what the rest of the chain
            // speaks of.
            if overlaps(next.payload_start, this.payload_start, rotor.evict) && !rotor.first {
                break;
            }
            (this, next) = (next, block.prev_lbp);
        }
        if rotor.log_blocks.is_empty() {
            return found;
        }
        add(&self.stats.rebuild_success, 1);
        tracing::info!(path = %device.leaf.path(), log_blocks = rotor.log_blocks.len(), "the cache is known again");
        *device.rotor.lock() = rotor;
        self.set_limits();
        found
    }

    async fn read_log(&self, device: &CacheDev, ptr: L2LogBlkptr) -> Option<Bytes> {
        let asize = ptr.prop.psize();
        let read = device.leaf.read_at(ptr.daddr, asize, Priority::AsyncRead);
        within(&self.env, SLOW_TIMEOUT, read).await?.ok()
    }

    /// Enters the blocks of a log block, the newest first; false: the index is full.
    fn enter(&self, device: &CacheDev, rotor: &Rotor, ptr: &L2LogBlkptr, block: &L2LogBlk) -> bool {
        let layout = rotor.layout;
        let oldest = layout.behind(rotor.hand, ptr.payload_start);
        let mut last = layout.behind(rotor.hand, ptr.daddr);
        for entry in block.entries.iter().rev() {
            let (psize, daddr) = (entry.prop.psize(), entry.daddr);
            let asize = layout.asize(psize);
            let behind = layout.behind(rotor.hand, daddr);
            // In the order in which they were written, within what the log block may speak of.
            if !layout.holds(daddr, asize) || behind <= last || behind > oldest {
                continue;
            }
            last = behind;
            let Some(cached) = cached(entry) else { continue };
            let mut index = self.index.lock();
            // (Asked under the lock: its slot may be another's as soon as the device has left.)
            if index.is_full_for(&cached.key) || device.is_stopped() {
                return false;
            }
            let entered = index.push_older(device.slot, &cached);
            drop(index);
            if entered {
                add(&self.stats.rebuild_bufs, 1);
                add(&self.stats.rebuild_size, cached.lsize);
                add(&self.stats.rebuild_asize, asize);
            } else {
                add(&self.stats.rebuild_bufs_precached, 1);
            }
        }
        true
    }
}

fn cached(entry: &L2LogEntPhys) -> Option<Cached> {
    let dva = entry.dva();
    // A block of an encrypted dataset is kept without what would be needed to check it here.
    if entry.prop.protected() || !dva.is_valid() {
        return None;
    }
    let mut kind = 0;
    if entry.prop.metadata()? {
        kind |= Kind::METADATA;
    }
    if entry.prop.state() == ARC_STATE_MFU {
        kind |= Kind::MFU;
    }
    if entry.prop.prefetch() {
        kind |= Kind::PREFETCH;
    }
    Some(Cached {
        key: Key { vdev: dva.vdev, offset: dva.offset, birth: entry.birth },
        daddr: entry.daddr,
        psize: entry.prop.psize(),
        lsize: entry.prop.lsize(),
        kind: Kind(kind),
    })
}

/// The log block in what was read, if it is the one.
fn open(ptr: &L2LogBlkptr, raw: &[u8], entries: usize) -> Option<L2LogBlk> {
    if raw.len() as u64 != ptr.prop.psize() {
        return None;
    }
    // Of the other byte order too: the sum goes over words.
    if fletcher4(raw, false) != ptr.cksum && fletcher4(raw, true) != ptr.cksum {
        return None;
    }
    let whole = match Compress::from_u8(ptr.prop.compress()) {
        Some(Compress::Off) => raw.to_vec(),
        Some(Compress::Lz4) => {
            let mut whole = vec![0; L2ARC_LOG_BLK_SIZE];
            compress::decompress(Compress::Lz4, raw, &mut whole).ok()?;
            whole
        }
        _ => return None,
    };
    L2LogBlk::parse(&whole, entries).ok()
}
