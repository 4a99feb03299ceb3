//! Reading, writing and freeing a volume's bytes.

use super::ZVOL_OBJ;
use super::volume::Zvol;
use crate::dmu::{Need, Now, PART, ReadData, Stop, in_tx, resident};
use crate::error::{Errno, Result};
use crate::txg::Tx;
use crate::zil::{When, Zilog};
use crate::zio::Leave;
use crate::zpl::SyncMode;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::zil::RecordBody;

/// About as many bytes of a write go into one transaction, so that none keeps its txg open for
/// long.
const WRITE_MAX: u64 = 4 << 20;
/// Small writes are copied for the log, so that a large buffer is not kept for them.
const COPY_BELOW: usize = 4096;
/// As many blocks are looked at by one call for extents: their dnode is locked meanwhile.
const EXTENT_BLOCKS: u64 = 8192;

impl Zvol {
    /// The log, if what is done now is to be noted there.
    fn zil(&self) -> Option<&Arc<Zilog>> {
        self.log.as_ref().filter(|_| !self.replaying.load(Ordering::Relaxed))
    }

    /// Bytes, if they are in memory. All of the range must be within the volume.
    pub fn try_read(&self, off: u64, len: usize) -> Now<ReadData> {
        let data = self.read_now(off, len)?;
        self.read_ahead(off, len);
        Ok(data)
    }

    fn read_now(&self, off: u64, len: usize) -> Now<ReadData> {
        self.check_range(off, len as u64, Errno::Inval)?;
        let data = self.data.read_at(off, len, false)?;
        self.objset.stats.read(len);
        Ok(data)
    }

    fn read_ahead(&self, off: u64, len: usize) {
        self.data.read_ahead(&self.env, &self.zfetch, off, len as u64, self.size());
    }

    /// Bytes. All of the range must be within the volume.
    pub async fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        let mut new = true;
        loop {
            match self.read_now(off, len) {
                Ok(data) => {
                    if new {
                        self.read_ahead(off, len);
                    }
                    return Ok(data);
                }
                Err(Stop::Err(e)) => return Err(e),
                Err(Stop::Need(Need::Block { level: 0, .. })) => {
                    if std::mem::take(&mut new) {
                        self.read_ahead(off, len);
                    }
                    self.data.load_range(off, len as u64).await?;
                }
                Err(Stop::Need(need)) => need.load().await?,
            }
        }
    }

    /// Writes buffers, one behind the other. A whole record is taken over where one buffer holds
    /// all of it; so a small slice of a large buffer, which would keep all of it in memory, should
    /// be copied by the caller first. ENOSPC if not all of it is within the volume.
    pub async fn write(&self, off: u64, data: &[Bytes]) -> Result<()> {
        let len = data.iter().map(|d| d.len() as u64).sum();
        let txgs = self.txgs()?;
        self.check_range(off, len, Errno::NoSpc)?;
        let (mut off, mut rest) = (off, data);
        while !rest.is_empty() {
            let (n, bytes) = first_part(rest);
            let (part, behind) = rest.split_at(n);
            in_tx(txgs, |tx| self.write_now(tx, off, bytes, part)).await?;
            self.objset.stats.written(bytes);
            (off, rest) = (off + bytes, behind);
        }
        self.ended().await
    }

    fn write_now(&self, tx: &Tx, off: u64, len: u64, data: &[Bytes]) -> Now<()> {
        let _order = self.order.lock();
        self.data.in_order(tx)?;
        self.data.check_waiting()?;
        self.check_range(off, len, Errno::NoSpc)?;
        // What was acknowledged before a crash may take nearly the last.
        let redone = self.replaying.load(Ordering::Relaxed);
        self.space.admit(tx, len, redone)?;
        let leave = if redone { Leave::Eighth } else { Leave::Half };
        self.space.hold_room(tx, self.data.cost(tx, off, off + len, self.block_size), leave)?;
        let written = self.data.write_pieces(tx, off, data, false);
        if let Some(log) = self.zil() {
            for w in written.into_iter().filter(|w| !w.data.is_empty()) {
                let d = if w.data.len() < COPY_BELOW { Bytes::copy_from_slice(&w.data) } else { w.data };
                log.push_write(tx, When::With(ZVOL_OBJ), ZVOL_OBJ, w.at, d, w.shared);
            }
        }
        Ok(())
    }

    /// Makes a range read as zeroes and gives its whole blocks back, a part a txg from its end on.
    /// ENOSPC if not all of it is within the volume.
    pub async fn free(&self, off: u64, len: u64) -> Result<()> {
        let txgs = self.txgs()?;
        self.check_range(off, len, Errno::NoSpc)?;
        if len == 0 {
            return Ok(());
        }
        let free = |tx: &Tx, at: u64, end: u64| self.free_now(tx, at, end - at);
        let end = self.data.all_but_a_part(txgs, (off, off + len), || self.part(), free).await?;
        in_tx(txgs, |tx| free(tx, off, end)).await?;
        self.ended().await
    }

    fn free_now(&self, tx: &Tx, off: u64, len: u64) -> Now<()> {
        let _order = self.order.lock();
        self.data.in_order(tx)?;
        self.check_range(off, len, Errno::NoSpc)?;
        self.space.admit(tx, 0, true)?;
        self.space.hold_room(tx, self.data.free_cost(tx, off, off + len), Leave::Quarter)?;
        self.data.free_some(tx, off, len, PART);
        if let Some(log) = self.zil() {
            let body = RecordBody::Truncate { object: ZVOL_OBJ, offset: off, length: len };
            log.push(tx, When::With(ZVOL_OBJ), body);
        }
        Ok(())
    }

    /// Says that a range is not needed any more: its whole blocks are given back, the rest stays as
    /// it is.
    pub async fn trim(&self, off: u64, len: u64) -> Result<()> {
        self.txgs()?;
        self.check_range(off, len, Errno::NoSpc)?;
        let (first, end) = (off.next_multiple_of(self.block_size), (off + len) / self.block_size);
        let end = end * self.block_size;
        if first < end { self.free(first, end - first).await } else { Ok(()) }
    }

    /// After a change: with `sync=always` it returns only when it is stable.
    async fn ended(&self) -> Result<()> {
        if self.props().sync == SyncMode::Always { self.commit().await } else { Ok(()) }
    }

    /// What a range consists of, from its beginning: how many bytes, and whether they are a hole.
    /// It may end before the range does.
    pub async fn extents(&self, off: u64, len: u64) -> Result<Vec<(u64, bool)>> {
        self.check_range(off, len, Errno::Inval)?;
        let (end, first) = (off + len, off / self.block_size);
        let last = end.div_ceil(self.block_size).min(first + EXTENT_BLOCKS);
        let runs = resident(|| self.data.runs(first, last)).await?;
        let mut at = off;
        let bytes = runs.into_iter().map(|(block, hole)| {
            let from = std::mem::replace(&mut at, block.saturating_mul(self.block_size).min(end));
            (at - from, hole)
        });
        Ok(bytes.filter(|(n, _)| *n > 0).collect())
    }
}

/// As many buffers as go into one transaction, one at least, and their bytes.
fn first_part(data: &[Bytes]) -> (usize, u64) {
    let mut bytes = 0;
    for (i, d) in data.iter().enumerate() {
        let more = bytes + d.len() as u64;
        if i > 0 && more > WRITE_MAX {
            return (i, bytes);
        }
        bytes = more;
    }
    (data.len(), bytes)
}
