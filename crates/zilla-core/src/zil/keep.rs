//! Keeping in the log what a sync could not put on disk.
//!
//! Bytes that were written into a record which cannot be read are held in memory from one txg to
//! the next (`dmu/held.rs`). The records that an fsync has logged of them count until their txg is
//! synced, as all records do. So the sync that leaves them behind logs them again, as writes of the
//! txg that comes next, before its uberblock is written:
//!
//! ```text
//!   sync of 7: [write, txg 7]  cannot be done            -> [write, txg 8] logged, flushed; uberblock 7
//!   sync of 8: the same again                            -> [write, txg 9] logged, flushed; uberblock 8; the one before is freed
//!   sync of 9: the record can be read, all is written    -> nothing is logged; uberblock 9
//! ```
//!
//! **What is kept true.** At each uberblock N the log has what is held after N in records of txg
//! N+1, and in no others that count: a claim after a crash counts records from N+1 on. So what a
//! txg has put on disk, or freed, or overwritten, is never replayed again over what came later. A
//! record says what its bytes are *now*, with all that is not synced yet, and is written while
//! nobody else fills a block ([`State::filling`](super::log::State)): records that lie before it in
//! the chain are of changes that it knows, those behind it are newer or the same.
//!
//! **Space.** The block that comes next is allocated in the txg under sync, so a pool where nothing
//! else happens comes to rest: a txg without an uberblock needs no new records. Only if the end of
//! the chain belongs to a later txg it is taken from the open one, since who reads a chain that was
//! not claimed takes the first block of an unsynced txg for its end.
//!
//! **Without a chain** (all was freed, a replay is over, nobody has called fsync yet) one begins in
//! this very sync, which writes the header with it. Commits wait until that is on disk. While a log
//! is being replayed its header still leads to the old chain, which has all of it; see
//! [`super::replay`] for a crash at that time.
//!
//! **If the log cannot be written** (no space, devices fail) the bytes are in memory only until the
//! next txg, which tries again.

use super::itx::Itx;
use super::log::Zilog;
use super::pack::Train;
use super::policy::Step;
use super::states::Waiter;
use crate::dmu::{Kept, KeptPart, Objset};
use crate::error::{Errno, Error, Result};
use crate::types::Txg;
use crate::zio::LOG_BLOCK_UNIT;
use bytes::Bytes;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::enums::SPA_VERSION_SLIM_ZIL;
use zilla_ondisk::zil::{LogRecord, LrHeader, RecordBody, ZilHeader};

/// A part of what is held as records of `txg`. A file that is cut at its end loses nothing: so
/// behind it the file is made longer first.
fn records(kept: Kept, txg: Txg) -> SmallVec<[Itx; 2]> {
    let Kept { object, offset, what } = kept;
    let cut = |length| (RecordBody::Truncate { object, offset, length }, Bytes::new());
    let bodies: SmallVec<[_; 2]> = match what {
        KeptPart::Free(length) => smallvec![cut(length)],
        KeptPart::Behind(length) => smallvec![cut(length), cut(0)],
        KeptPart::Data(data) => {
            let length = data.len() as u64;
            let body = RecordBody::Write { object, offset, length, blkptr: BlkPtr::ZERO, data: &[] };
            smallvec![(body, data)]
        }
    };
    let itx = |(body, data)| {
        let header = LrHeader { txg: txg.0, ..LrHeader::default() };
        let record = LogRecord { header, ignore_case: false, body }.encode();
        Itx { txg: txg.0, record, data, offset, file: None, placed: 0, flags: false, kept: None }
    };
    bodies.into_iter().map(itx).collect()
}

impl Zilog {
    /// Waits for the right to fill the block at the end of the chain, or to begin a chain.
    pub(super) async fn fill(&self) {
        loop {
            let listener = self.changed.listen();
            if !std::mem::replace(&mut self.state.lock().filling, true) {
                return;
            }
            listener.await;
        }
    }

    pub(super) fn filled(&self) {
        self.state.lock().filling = false;
        self.changed.notify(usize::MAX);
    }

    /// In syncing context, when `txg` has written the objset and will be on disk: logs what is
    /// still held. Says whether the objset's header has changed and must be written again.
    pub(crate) async fn keep(
        self: &Arc<Self>,
        os: &Objset,
        txg: Txg,
        end_of: impl Fn(u8, &[u8]) -> Option<u64>,
    ) -> bool {
        let hurried = self.ctx.log.take_over(&self.ctx.env);
        self.fill().await;
        let header = os.phys().zil_header;
        let result = self.log_again(&header, txg, || os.kept(end_of)).await;
        self.filled();
        drop(hurried);
        if let Err(e) = result {
            let objset = self.objset;
            tracing::error!(objset, error = %e, "what cannot be written over damaged blocks is in memory only");
        }
        let (mut after, mut frees) = (header, Vec::new());
        {
            let mut st = self.state.lock();
            if st.chain.is_abandoned() {
                return false;
            }
            st.advance(&mut after, txg, &mut frees);
        }
        frees.iter().for_each(|bp| self.ctx.free(bp));
        if after != header {
            os.with_phys(|p| p.zil_header = after);
        }
        after != header
    }

    async fn log_again(
        self: &Arc<Self>,
        header: &ZilHeader,
        txg: Txg,
        kept: impl FnOnce() -> Vec<Kept>,
    ) -> Result<()> {
        let begin = {
            let st = self.state.lock();
            let absent = st.chain.is_absent();
            if st.chain.is_abandoned() || absent && !header.log.is_hole() {
                // Its contents go, or it is being replayed.
                return Ok(());
            }
            if self.ctx.version() < SPA_VERSION_SLIM_ZIL {
                return Err(Error::os(Errno::NotSup, "the pool's version is too old for a log of ours"));
            }
            st.chain.not_broken()?;
            absent
        };
        let itxs: Vec<Itx> = kept().into_iter().flat_map(|k| records(k, txg.next())).collect();
        if itxs.is_empty() {
            return Ok(());
        }
        if begin {
            self.begin_chain(txg).await?;
        }
        let waiter = Waiter::new(None, txg.next());
        let (waiters, site) = (vec![waiter.clone()], self.site());
        let mut train = Train { waiters, itxs, site, syncing: Some(txg) };
        self.pack(&mut train).await?.await;
        waiter.wait().await;
        self.state.lock().chain.not_broken()
    }

    /// Begins a chain in `txg`, which the caller holds open or syncs. Nobody else may be at it
    /// ([`Zilog::fill`]).
    pub(super) async fn begin_chain(&self, txg: Txg) -> Result<()> {
        let spots = self.spots(&self.site(), Step { pause: true, on: None }, LOG_BLOCK_UNIT);
        let mut bp = self.store.log().alloc(txg, LOG_BLOCK_UNIT, spots).await?;
        bp.set_cksum(self.new_chain());
        let mut st = self.state.lock();
        if let Err(e) = st.chain.begin(bp, txg) {
            self.ctx.free_in(txg, &bp);
            return Err(e);
        }
        self.need_saxattr(txg);
        st.dirty(txg);
        Ok(())
    }
}
