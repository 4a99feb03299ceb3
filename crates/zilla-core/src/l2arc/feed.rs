//! Writing blocks that the ARC is about to let go to a cache device.
//!
//! Each device has a task of its own. Every `l2arc_feed_secs` it looks along the tails of the ARC's
//! lists, as far as `l2arc_headroom` times what it may write: metadata first, then data, the
//! frequent before the recent; without `l2arc_feed_recent`, once the device is full, no data that
//! is merely recent ([`super::seen`]). What it takes is copied into large buffers that are written
//! one after the other. The ARC is not held up: a shard is locked for a glance at a few hundred
//! entries, and what is evicted meanwhile is simply not fed. A block is claimed in the index before
//! it is written, so that two devices do not take the same.
//!
//! While writers of the pool are held back by dirty data, a quarter is written; then, and while
//! many reads wait for the device, it is not fed again before `l2arc_feed_secs` are over
//! (`l2arc_feed_again`).

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use zilla_env::IoBuf;
use zilla_ondisk::l2arc::{L2LogEntPhys, L2Prop};
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;
use zilla_ondisk::{Dva, SPA_MINBLOCKSHIFT};

use super::device::CacheDev;
use super::index::{Cached, Kind};
use super::read::BUSY;
use super::stats::{add, mean};
use super::{L2arc, PoolFacts};
use crate::arc::{Block, Key, Tail, Wanted};
use crate::tunables;
use crate::vdev::{Priority, SLOW_TIMEOUT, within};

/// Bytes of one write.
const WRITE: usize = 1 << 20;
/// Bytes that are chosen and written before the evict hand moves again.
const ROUND: u64 = 8 << 20;
/// A round is no larger a part of a device than this.
const ROUND_PART: u64 = 8;
/// The soonest that a device is fed again (`l2arc_feed_min_ms`).
const FEED_MIN: Duration = Duration::from_millis(200);
/// Blocks looked at in a shard while it is locked.
const GLANCE: usize = 256;
/// States of blocks in OpenZFS's log (`arc_state_type_t`).
const ARC_STATE_MRU: u8 = 1;
const ARC_STATE_MFU: u8 = 3;

/// What is fed, the most worth first.
const PASSES: [Wanted; 4] = [
    Wanted { frequent: true, metadata: true },
    Wanted { frequent: false, metadata: true },
    Wanted { frequent: true, metadata: false },
    Wanted { frequent: false, metadata: false },
];

/// A block that was chosen.
struct Chosen {
    key: Key,
    block: Block,
    pass: Wanted,
}

/// Feeds a device until it, or the pool, is gone. To be spawned.
pub(super) async fn run(l2: Weak<L2arc>, device: Arc<CacheDev>) {
    let mut wait = Duration::from_secs(tunables::L2ARC_FEED_SECS.get().max(1));
    loop {
        let stop = device.stop.listen();
        let Some(env) = l2.upgrade().map(|l2| l2.env.clone()) else { return };
        if device.is_stopped() {
            return;
        }
        if let Either::Right(_) = select(std::pin::pin!(env.sleep(wait)), stop).await {
            return;
        }
        let Some(l2) = l2.upgrade() else { return };
        let secs = Duration::from_secs(tunables::L2ARC_FEED_SECS.get().max(1));
        let (written, budget) = l2.feed(&device).await;
        wait = if l2.suffers(&device) { secs } else { pause(written, budget, secs) };
        l2.set_limits();
    }
}

/// How long a device rests after a turn: while there is more than enough for it, it is fed again
/// soon (`l2arc_feed_again`).
fn pause(written: u64, budget: u64, secs: Duration) -> Duration {
    if tunables::L2ARC_FEED_AGAIN.get() != 0 && written > budget / 2 { FEED_MIN } else { secs }
}

impl L2arc {
    /// Whether writers of the pool are held back, or so many reads wait for the device that others
    /// pass it by: it need not be fed sooner than it must.
    fn suffers(&self, device: &CacheDev) -> bool {
        self.pool_facts().is_ok_and(|facts| facts.txgs.is_throttled()) || device.leaf.load() >= BUSY
    }

    /// One turn: how much was written, and how much might have been.
    async fn feed(&self, device: &Arc<CacheDev>) -> (u64, u64) {
        let Ok(facts) = self.pool_facts() else { return (0, 0) };
        if !device.writable(self.env.clock.now()) || facts.txgs.is_stopped() {
            return (0, 0);
        }
        add(&self.stats.feeds, 1);
        let budget = self.budget(device, facts);
        let mut written = 0;
        while written < budget && !device.is_stopped() {
            let part = (budget - written).min(ROUND).min(device.layout.size() / ROUND_PART);
            let chosen = self.choose_blocks(device, facts, part, budget);
            if chosen.is_empty() {
                break;
            }
            let bytes = self.write_round(device, facts, &chosen).await;
            let mut index = self.index.lock();
            chosen.iter().for_each(|c| index.unclaim(&c.key));
            drop(index);
            match bytes {
                Some(n) => written += n,
                None => break,
            }
        }
        (written, budget)
    }

    /// Bytes for one turn.
    fn budget(&self, device: &CacheDev, facts: &PoolFacts) -> u64 {
        // No rate at all is a mistake: the device would be better removed.
        let max = match tunables::L2ARC_WRITE_MAX.get() {
            0 => tunables::L2ARC_WRITE_MAX.default,
            n => n,
        };
        let boost = if self.arc.is_cold() { tunables::L2ARC_WRITE_BOOST.get() } else { 0 };
        let mut size = max.saturating_add(boost);
        if facts.txgs.is_throttled() {
            size /= 4;
        }
        // Less than a quarter of the device, or it would overwrite what it has just written.
        size.min(device.layout.size() / 4)
    }

    /// Blocks of about `bytes` bytes from the tails, claimed.
    fn choose_blocks(&self, device: &CacheDev, facts: &PoolFacts, bytes: u64, budget: u64) -> Vec<Chosen> {
        let mut out: Vec<Chosen> = Vec::new();
        let mut taken = 0;
        let headroom = match tunables::L2ARC_HEADROOM.get() {
            // The whole list.
            0 => u64::MAX,
            n => budget.saturating_mul(n),
        };
        let recent = device.rotor.lock().first || tunables::L2ARC_FEED_RECENT.get() != 0;
        let (mfu_only, no_prefetch) = (tunables::L2ARC_MFUONLY.get(), tunables::L2ARC_NOPREFETCH.get() != 0);
        let synced = facts.txgs.synced().0;
        let shards = self.arc.shard_count();
        let per_shard = headroom / shards as u64;
        let largest = device.layout.size() / ROUND_PART;
        for pass in PASSES {
            // 1: only the frequent; 2: all metadata, and the frequent of the data.
            if !pass.frequent && (mfu_only == 1 || mfu_only == 2 && !pass.metadata) {
                continue;
            }
            if !recent && !pass.frequent && !pass.metadata {
                continue;
            }
            let begin = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
            for i in 0..shards {
                let mut tail = Tail::default();
                while taken < bytes {
                    let more = self.arc.tail((begin + i) % shards, pass, GLANCE, per_shard, &mut tail);
                    for (key, prefetched) in tail.keys.drain(..) {
                        if taken >= bytes || prefetched && no_prefetch || key.birth > synced {
                            continue;
                        }
                        if !self.index.lock().claim(&key) {
                            continue;
                        }
                        match self.arc.peek(&key) {
                            Some(block) if device.layout.asize(block.data.len() as u64) <= largest => {
                                taken += device.layout.asize(block.data.len() as u64);
                                out.push(Chosen { key, block, pass });
                            }
                            _ => self.index.lock().unclaim(&key),
                        }
                    }
                    if !more {
                        break;
                    }
                }
                if taken >= bytes {
                    return out;
                }
            }
        }
        out
    }

    /// Writes what was chosen in one piece. The bytes that it took; None: the device is not to be
    /// written to now.
    async fn write_round(&self, device: &CacheDev, facts: &PoolFacts, chosen: &[Chosen]) -> Option<u64> {
        let asize = |c: &Chosen| device.layout.asize(c.block.data.len() as u64);
        let total: u64 = chosen.iter().map(asize).sum();
        let (gone, moved) = {
            let mut rotor = device.rotor.lock();
            let before = rotor.evict;
            let bytes = rotor.with_log(total, chosen.len() as u64);
            let gone = rotor.make_room(bytes);
            (gone, rotor.evict != before)
        };
        let mut forgotten = Vec::new();
        {
            let mut index = self.index.lock();
            // Asked under the lock: its slot may be another's as soon as it has left.
            if device.is_stopped() {
                return None;
            }
            for range in &gone {
                index.evict(device.slot, range.start, range.end, &mut forgotten);
            }
        }
        let here = forgotten.iter().filter(|key| self.arc.contains(key)).count();
        add(&self.stats.evict_l1cached, here as u64);
        if moved {
            self.write_header(device, facts).await?;
        }
        let mut stream = Stream { at: device.rotor.lock().hand, parts: Vec::new(), buf: None, filled: 0 };
        let begin = stream.at;
        let mut logs = Vec::new();
        let mut placed = Vec::with_capacity(chosen.len());
        for c in chosen {
            let asize = asize(c);
            let (daddr, log) = {
                let mut rotor = device.rotor.lock();
                let daddr = rotor.place(asize);
                let full = rotor.note(entry(c, daddr), asize);
                (daddr, if full { Some(rotor.log_block(&logs)) } else { None })
            };
            stream.push(&c.block.data, asize);
            placed.push(cached(c, daddr));
            if let Some(Ok(log)) = log {
                stream.push(&log.data, log.data.len() as u64);
                logs.push(log);
            }
        }
        let end = stream.at + stream.filled as u64;
        for (at, data) in stream.finish(device.layout.ashift) {
            self.write(device, at, data).await?;
        }
        let logged = !logs.is_empty();
        {
            let mut rotor = device.rotor.lock();
            for log in logs {
                let asize = log.data.len() as u64;
                add(&self.stats.log_blk_writes, 1);
                mean(&self.stats.log_blk_avg_asize, asize);
                mean(&self.stats.data_to_meta_ratio, log.payload / asize.max(1));
                rotor.logged(log.ptr);
            }
        }
        {
            let mut index = self.index.lock();
            if !device.is_stopped() {
                placed.iter().for_each(|c| index.push(device.slot, c));
            }
        }
        placed.iter().for_each(|c| self.arc.had(&c.key));
        if logged {
            self.write_header(device, facts).await?;
        }
        Some(end - begin)
    }

    pub(super) async fn write_header(&self, device: &CacheDev, facts: &PoolFacts) -> Option<()> {
        let header = device.rotor.lock().header(facts.guid.load(Ordering::Acquire), device.vdev.guid).ok()?;
        self.write(device, VDEV_LABEL_START_SIZE, header).await
    }

    /// One write. A device that fails or stalls is left alone for now.
    async fn write(&self, device: &CacheDev, at: u64, data: Bytes) -> Option<()> {
        let len = data.len() as u64;
        add(&self.stats.writes_sent, 1);
        let write = device.leaf.write_at(at, data, Priority::AsyncWrite);
        let result = within(&self.env, SLOW_TIMEOUT, write).await;
        add(&self.stats.writes_done, 1);
        match result {
            Some(Ok(())) => {
                device.wrote();
                add(&self.stats.write_bytes, len);
                Some(())
            }
            Some(Err(_)) => {
                add(&self.stats.writes_error, 1);
                if device.failed() {
                    self.forget_later(device.slot);
                }
                None
            }
            None => {
                add(&self.stats.writes_error, 1);
                device.stalled(self.env.clock.now());
                None
            }
        }
    }
}

fn entry(c: &Chosen, daddr: u64) -> L2LogEntPhys {
    let state = if c.pass.frequent { ARC_STATE_MFU } else { ARC_STATE_MRU };
    let prop = L2Prop::default()
        .with_sizes(u64::from(c.block.lsize), c.block.data.len() as u64)
        .with_compress(c.block.compress as u8)
        .with_kind(c.block.metadata, false, false, state);
    let facts = c.block.l2;
    let asize = u64::from(facts.asectors) << SPA_MINBLOCKSHIFT;
    let dva = Dva { vdev: c.key.vdev, offset: c.key.offset, asize, gang: facts.gang };
    L2LogEntPhys { dva_words: dva.to_words(), birth: c.key.birth, prop, daddr, ..Default::default() }
}

fn cached(c: &Chosen, daddr: u64) -> Cached {
    let mut kind = 0;
    if c.block.metadata {
        kind |= Kind::METADATA;
    }
    if c.pass.frequent {
        kind |= Kind::MFU;
    }
    Cached {
        key: c.key,
        daddr,
        psize: c.block.data.len() as u64,
        lsize: u64::from(c.block.lsize),
        kind: Kind(kind),
    }
}

/// Gathers blocks that lie behind one another into large buffers.
struct Stream {
    /// Where the buffer that is being filled begins.
    at: u64,
    parts: Vec<(u64, Bytes)>,
    buf: Option<IoBuf>,
    filled: usize,
}

impl Stream {
    /// Appends `data`, with zeroes to `asize`.
    fn push(&mut self, data: &[u8], asize: u64) {
        let padding = (asize as usize).saturating_sub(data.len());
        self.copy(data);
        for _ in 0..padding / 512 {
            self.copy(&[0; 512]);
        }
        self.copy(&[0; 512][..padding % 512]);
    }

    fn copy(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let buf = self.buf.get_or_insert_with(|| IoBuf::scratch(WRITE));
            let n = data.len().min(WRITE - self.filled);
            buf[self.filled..self.filled + n].copy_from_slice(&data[..n]);
            self.filled += n;
            data = &data[n..];
            if self.filled == WRITE {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        if let Some(mut buf) = self.buf.take() {
            buf.truncate(self.filled);
            self.parts.push((self.at, buf.into_bytes()));
            self.at += self.filled as u64;
            self.filled = 0;
        }
    }

    fn finish(mut self, ashift: u32) -> Vec<(u64, Bytes)> {
        debug_assert!(self.filled.is_multiple_of(1 << ashift), "blocks are whole sectors");
        self.flush();
        self.parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_had_much_is_fed_again_soon() {
        let secs = Duration::from_secs(1);
        assert_eq!(pause(5 << 20, 8 << 20, secs), FEED_MIN);
        assert_eq!(pause(4 << 20, 8 << 20, secs), secs);
        assert_eq!(pause(0, 0, secs), secs);
    }
}
