//! Doing what a volume's log records say.
//!
//! Each record is one transaction, which also says in the log's header that it was done. Nothing is
//! logged meanwhile.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use super::ZVOL_OBJ;
use super::volume::Zvol;
use crate::dmu::{Now, PART, in_tx};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::zil::{Replay, Zilog};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use std::slice::from_ref;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::zil::{LogRecord, RecordBody};

struct Replayer<'z>(&'z Zvol, &'z Zilog);

impl Replay for Replayer<'_> {
    fn replay<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.replay_record(record))
    }
    fn again<'a>(&'a self, record: &'a LogRecord<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.replay_again(record))
    }
}

impl Zvol {
    /// Brings the volume to where its log says it was, and begins to log. Once, when it is opened
    /// for writing.
    pub(super) async fn start_log(&self) -> Result<()> {
        let Some(log) = self.log.as_ref().filter(|l| !l.is_started()) else { return Ok(()) };
        self.replaying.store(true, Ordering::Release);
        let result = log.start(&self.objset, &Replayer(self, log)).await;
        self.replaying.store(false, Ordering::Release);
        let (done, objset) = (result?, self.objset.id());
        match &done.stopped {
            Some(why) => {
                let records = done.records;
                tracing::error!(objset, records, "intent log of a volume replayed in part, and kept: {why}");
                let first = self.kept_log.set(why.clone());
                debug_assert!(first.is_ok(), "a log is started once");
            }
            None if done.records > 0 => {
                tracing::info!(objset, records = done.records, "intent log of a volume replayed");
            }
            None => {}
        }
        Ok(())
    }
}

impl Replayer<'_> {
    /// Runs `op` in a transaction that says that the record is done.
    async fn redo(&self, seq: u64, mut op: impl FnMut(&Tx) -> Now<()>) -> Result<()> {
        in_tx(self.0.txgs()?, |tx| {
            let _order = self.0.order.lock();
            self.0.data.in_order(tx)?;
            op(tx)?;
            self.1.replayed(tx, seq);
            Ok(())
        })
        .await
    }

    /// The bytes of a write's record, and where they belong.
    async fn logged(&self, offset: u64, length: u64, blkptr: &BlkPtr, data: &[u8]) -> Result<(u64, Bytes)> {
        let (at, data) = if data.is_empty() {
            crate::zil::logged_block(&self.0.objset, ZVOL_OBJ, offset, length, blkptr).await?
        } else {
            (offset, Bytes::copy_from_slice(data))
        };
        // A block of the log's may be longer than what is left of the volume.
        let rest = self.0.size().saturating_sub(at).min(data.len() as u64);
        Ok((at, data.slice(..rest as usize)))
    }

    /// Of a change that was replayed before: what lies in blocks that cannot be read.
    async fn replay_again(&self, record: &LogRecord<'_>) -> Result<()> {
        let dn = &self.0.data;
        let (at, data, parts) = match &record.body {
            RecordBody::Write { object: ZVOL_OBJ, offset, length, blkptr, data } => {
                let parts = dn.unreadable(*offset, *length).await;
                if parts.is_empty() {
                    return Ok(());
                }
                let (at, data) = self.logged(*offset, *length, blkptr, data).await?;
                (at, Some(data), parts)
            }
            RecordBody::Truncate { object: ZVOL_OBJ, offset, length } => {
                let end = self.0.size().min(offset.saturating_add(*length));
                (*offset, None, dn.unsynced(*offset, end.saturating_sub(*offset)))
            }
            _ => return Ok(()),
        };
        for (from, to) in parts {
            let part = match &data {
                Some(data) => {
                    let end = to.saturating_sub(at).min(data.len() as u64);
                    data.slice(from.saturating_sub(at).min(end) as usize..end as usize)
                }
                None => vec![0; to.saturating_sub(from) as usize].into(),
            };
            // Its number is not above what the header says.
            self.redo(0, |tx| {
                dn.write_records(tx, from, &part);
                Ok(())
            })
            .await?;
        }
        Ok(())
    }

    async fn replay_record(&self, record: &LogRecord<'_>) -> Result<()> {
        let seq = record.header.seq;
        match &record.body {
            RecordBody::Commit => Ok(()),
            RecordBody::Write { object: ZVOL_OBJ, offset, length, blkptr, data } => {
                let (at, data) = self.logged(*offset, *length, blkptr, data).await?;
                self.redo(seq, |tx| {
                    self.0.data.write_pieces(tx, at, from_ref(&data), false);
                    Ok(())
                })
                .await
            }
            RecordBody::Truncate { object: ZVOL_OBJ, offset, length } => {
                let (dn, end) = (&self.0.data, self.0.size().min(offset.saturating_add(*length)));
                let free = |tx: &Tx, at: u64, end: u64| {
                    if at < end {
                        dn.free_some(tx, at, end - at, PART);
                    }
                    Ok(())
                };
                let parts = dn.all_but_a_part(
                    self.0.txgs()?,
                    (*offset, end),
                    || self.0.part(),
                    |tx, at, end| {
                        let _order = self.0.order.lock();
                        dn.in_order(tx)?;
                        free(tx, at, end)
                    },
                );
                let end = parts.await?;
                self.redo(seq, |tx| free(tx, *offset, end)).await
            }
            _ => {
                let what = format!("a record of type {} in a volume's log", record.header.txtype);
                Err(Error::os(Errno::NotSup, what))
            }
        }
    }
}
