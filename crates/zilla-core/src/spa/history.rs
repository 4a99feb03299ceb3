//! The pool's history: every command that changed it, in a ring in the MOS that never forgets the
//! first records.
//!
//! Records are natively packed nvlists behind a little-endian length; the object's bonus
//! (`spa_history_phys`) says where the ring begins and ends. What was logged up to the first
//! command (`zpool create`) is kept for ever, the ring begins behind it. Offsets in the bonus are
//! logical and only grow. A crash loses the records of the txg that was not synced, with what they
//! describe.

use crate::dmu::{Dnode, NewObject, Objset, resident};
use crate::error::{Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use std::sync::Arc;
use zilla_ondisk::history::{HistoryPhys, MAX_RECORD};
use zilla_ondisk::object_type::{DMU_OT_SPA_HISTORY, DMU_OT_SPA_HISTORY_OFFSETS};
use zilla_ondisk::{ByteOrder, NvList, Phys};

const BLKSZ: u32 = 128 << 10;
/// The ring takes a thousandth of the pool, within these bounds.
const MIN_RING: u64 = 128 << 10;
const MAX_RING: u64 = 1 << 30;

/// Makes the history object of a new pool of `space` bytes.
#[crate::boxed]
pub async fn create(mos: &Arc<Objset>, tx: &Tx, space: u64) -> Result<ObjectId> {
    let phys = HistoryPhys { phys_max_off: (space / 1000).clamp(MIN_RING, MAX_RING), ..Default::default() };
    let bonus = phys.encode();
    let spec = NewObject::new(DMU_OT_SPA_HISTORY, BLKSZ).bonus(DMU_OT_SPA_HISTORY_OFFSETS, bonus.len());
    let dn = resident(|| mos.alloc(tx, spec)).await?;
    dn.set_bonus(tx, &bonus);
    Ok(dn.id())
}

fn load(dn: &Arc<Dnode>) -> Result<HistoryPhys> {
    let bad = |e: zilla_ondisk::FormatError| Error::corrupt(None, "pool history", e.to_string());
    let p = HistoryPhys::decode(&dn.bonus(), ByteOrder::NATIVE).map_err(bad)?;
    p.check().map_err(bad)?;
    Ok(p)
}

async fn read_at(dn: &Arc<Dnode>, p: &HistoryPhys, off: u64, out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    for span in p.spans(off, out.len() as u64) {
        let part = &mut out[done..done + span.len as usize];
        if !part.is_empty() {
            dn.read_wait(span.offset, part).await?;
        }
        done += span.len as usize;
    }
    Ok(())
}

/// Length of the record at `off`; None if what stands there cannot be one.
async fn record_len(dn: &Arc<Dnode>, p: &HistoryPhys, off: u64, end: u64) -> Result<Option<u64>> {
    if off + 8 > end {
        return Ok(None);
    }
    let mut len = [0; 8];
    read_at(dn, p, off, &mut len).await?;
    let len = u64::from_le_bytes(len);
    Ok((len > 0 && len <= MAX_RECORD as u64 && off + 8 + len <= end).then_some(len))
}

/// A record as an event tells it: `history txg` is `history_txg` there.
pub fn as_event(record: &NvList) -> NvList {
    let mut event = NvList::new();
    for (name, value) in record {
        let name = name.replace(' ', "_");
        event.add(if name.starts_with("history") { name } else { format!("history_{name}") }, value.clone());
    }
    event
}

/// Appends a record. Old records give way when the ring is full.
#[crate::boxed]
pub async fn append(mos: &Arc<Objset>, tx: &Tx, id: u64, record: &NvList) -> Result<()> {
    let dn = mos.hold_wait(ObjectId(id)).await?;
    let mut p = load(&dn)?;
    let packed = record.pack_native();
    let mut bytes = (packed.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&packed);
    let ring = p.phys_max_off - p.pool_create_len;
    if bytes.len() as u64 >= ring / 2 {
        return Ok(());
    }
    while p.free() <= bytes.len() as u64 {
        match record_len(&dn, &p, p.bof, p.eof).await? {
            Some(len) => {
                p.bof += 8 + len;
                p.records_lost += 1;
            }
            // What cannot be read cannot be stepped over: the ring begins anew.
            None => p.bof = p.eof,
        }
    }
    // What is written over in part is read first: a sync that cannot would be the pool's last.
    let blksz = u64::from(dn.blksz()).max(1);
    for span in p.spans(p.eof, bytes.len() as u64) {
        let mut at = span.offset;
        while at < span.offset + span.len {
            dn.read_wait(at, &mut [0]).await?;
            at = (at / blksz + 1) * blksz;
        }
    }
    let mut done = 0;
    for span in p.spans(p.eof, bytes.len() as u64) {
        dn.write(tx, span.offset, &bytes[done..done + span.len as usize]);
        done += span.len as usize;
    }
    p.eof += bytes.len() as u64;
    if p.pool_create_len == 0 && record.get("history command").is_some() {
        p.pool_create_len = p.eof;
        p.bof = p.eof;
    }
    dn.set_bonus(tx, &p.encode());
    Ok(())
}

/// All records there are, oldest first. A damaged record ends the list.
#[crate::boxed]
pub async fn read(mos: &Arc<Objset>, id: u64) -> Result<Vec<NvList>> {
    let dn = mos.hold_wait(ObjectId(id)).await?;
    let p = load(&dn)?;
    let mut out = Vec::new();
    for (mut off, end) in [(0, p.pool_create_len), (p.bof, p.eof)] {
        while let Some(len) = record_len(&dn, &p, off, end).await? {
            let mut buf = vec![0; len as usize];
            read_at(&dn, &p, off + 8, &mut buf).await?;
            let Ok(nv) = NvList::unpack(&buf) else { break };
            out.push(nv);
            off += 8 + len;
        }
    }
    Ok(out)
}
