//! One checksum's table: what of it is in memory, and how an entry is found.

use super::live::{Live, Origin};
use super::log::Logs;
use super::sync::{DUPLICATE, UNIQUE};
use super::{corrupt, sync};
use crate::dmu::resident;
use crate::error::{Errno, Error, Result};
use crate::pool::PoolCtx;
use crate::vdev::VdevTree;
use crate::zap::{Value, Zap};
use parking_lot::Mutex;
use std::collections::HashMap;
use zilla_codec::checksum::Checksum;
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_ondisk::ddt::{
    DDT_CLASSES, DDT_DIR_FLAGS, DDT_DIR_VERSION, DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_FLAT_PHYS_SIZE,
    DDT_KEY_WORDS, DDT_STAT_DSIZE, DDT_STAT_REF_DSIZE, DDT_TRAD_PHYS_SIZE, DDT_VERSION_FDT, DdtEntry,
    DdtHistogram, directory_name, make_value_head, table_name, value_head,
};

pub(super) type Key = [u64; DDT_KEY_WORDS];

/// The classes in the order in which an entry is looked for. The last one is of ditto blocks.
const SEARCH: [usize; DDT_CLASSES.len()] = [DUPLICATE, UNIQUE, 0];

/// What an entry takes in a ZAP is measured where there are so many; before it is about this.
/// (Measured: 262 bytes each in a table of 1,020,000.)
const ENOUGH: u64 = 10_000;
const USUAL: u64 = 262;

/// What the tables tell.
#[derive(Clone, Debug, Default)]
pub struct DedupStats {
    pub entries: u64,
    /// Bytes that the entries' blocks take in memory if all of them are there.
    pub in_core: u64,
    /// Sums by references.
    pub histogram: DdtHistogram,
    /// Bytes of the tables and their logs (`dedup_table_size`).
    pub table_size: u64,
    /// Space of the blocks in them, each counted once.
    pub dsize: u64,
    /// The same, as often as they are referred to.
    pub ref_dsize: u64,
}

impl DedupStats {
    /// What the same pointers would take beside, without deduplication.
    pub fn saved(&self) -> u64 {
        self.ref_dsize.saturating_sub(self.dsize)
    }
}

impl std::ops::Add for DedupStats {
    type Output = DedupStats;
    fn add(self, other: DedupStats) -> DedupStats {
        let mut histogram = self.histogram;
        histogram.add(&other.histogram);
        DedupStats {
            entries: self.entries.saturating_add(other.entries),
            in_core: self.in_core.saturating_add(other.in_core),
            histogram,
            table_size: self.table_size.saturating_add(other.table_size),
            dsize: self.dsize.saturating_add(other.dsize),
            ref_dsize: self.ref_dsize.saturating_add(other.ref_dsize),
        }
    }
}

/// How a table is kept. It is settled when the first entry comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub flat: bool,
    pub log: bool,
    /// The directory with the table's objects; 0: it is still to be made.
    pub directory: u64,
}

#[derive(Default)]
pub(super) struct State {
    pub layout: Option<Layout>,
    pub zaps: [Option<Zap>; DDT_CLASSES.len()],
    pub histograms: [DdtHistogram; DDT_CLASSES.len()],
    /// Entries in each ZAP.
    pub counts: [u64; DDT_CLASSES.len()],
    /// What this txg has looked at.
    pub live: HashMap<Key, Live>,
    pub logs: Logs,
}

impl State {
    pub fn layout(&mut self, ctx: &PoolCtx) -> Layout {
        *self.layout.get_or_insert_with(|| match ctx.features.is_enabled(sync::FEATURE) {
            true => Layout { flat: true, log: true, directory: 0 },
            false => Layout { flat: false, log: false, directory: sync::DIRECTORY },
        })
    }
}

pub(super) struct Table {
    pub kind: Checksum,
    pub state: Mutex<State>,
}

impl Table {
    pub fn new(kind: Checksum) -> Table {
        Table { kind, state: Mutex::default() }
    }

    /// Reads what there is but for the entries of the ZAPs.
    pub async fn load(&self, ctx: &PoolCtx, root: &Zap, sums: &Zap, tree: &VdevTree) -> Result<()> {
        let own = root.try_get_u64(&directory_name(self.kind.name())).await?;
        let (directory, mut layout) = match own {
            Some(id) => {
                let directory = Zap::open(ctx.mos(), id).await?;
                let (version, flags) =
                    (directory.get_u64(DDT_DIR_VERSION).await?, directory.get_u64(DDT_DIR_FLAGS).await?);
                if version != DDT_VERSION_FDT || flags & !(DDT_FLAG_FLAT | DDT_FLAG_LOG) != 0 {
                    let name = self.kind.name();
                    let what = format!(
                        "the deduplication table of {name} has version {version}, flags {flags:#x}, which zilla does not know"
                    );
                    return if ctx.readonly { Ok(()) } else { Err(Error::os(Errno::NotSup, what)) };
                }
                let (flat, log) = (flags & DDT_FLAG_FLAT != 0, flags & DDT_FLAG_LOG != 0);
                (directory, Some(Layout { flat, log, directory: id }))
            }
            None => (root.clone(), None),
        };
        for class in 0..DDT_CLASSES.len() {
            let name = table_name(self.kind.name(), class);
            let Some(id) = directory.try_get_u64(&name).await? else { continue };
            let zap = Zap::open(ctx.mos(), id).await?;
            let sums = sums.try_get(&name).await?;
            let words = sums.as_ref().and_then(|v| v.as_u64s()).unwrap_or_default();
            let count = zap.len().await?;
            layout.get_or_insert(Layout { flat: false, log: false, directory: sync::DIRECTORY });
            let mut st = self.state.lock();
            st.histograms[class] = DdtHistogram::from_words(&words);
            (st.zaps[class], st.counts[class]) = (Some(zap), count);
        }
        let logs = match layout {
            Some(layout) if layout.log => {
                Logs::load(ctx, &directory, self.kind.name(), layout.flat, tree).await?
            }
            _ => Logs::default(),
        };
        let mut st = self.state.lock();
        (st.layout, st.logs) = (layout, logs);
        Ok(())
    }

    /// What log and ZAPs say of a key.
    pub async fn find(&self, key: &Key) -> Result<Option<(Origin, DdtEntry)>> {
        let (zaps, flat) = {
            let st = self.state.lock();
            if let Some(logged) = st.logs.find(key) {
                return Ok(Some((Origin::Logged(logged.class), logged.entry.clone())));
            }
            let Some(layout) = st.layout else { return Ok(None) };
            (st.zaps.clone(), layout.flat)
        };
        for class in SEARCH {
            let Some(zap) = &zaps[class] else { continue };
            if let Some(value) = resident(|| zap.lookup_key(key)).await? {
                return Ok(Some((Origin::Stored(class), decode(&value, flat)?)));
            }
        }
        Ok(None)
    }

    /// Bytes that the ZAPs are going to grow by when the logs are flushed, about.
    pub fn to_come(&self) -> u64 {
        let st = self.state.lock();
        let entries = st.counts.iter().copied().fold(0, u64::saturating_add);
        let bytes = st.zaps.iter().flatten().map(|z| z.dnode().used()).fold(0, u64::saturating_add);
        let each = if entries < ENOUGH { USUAL } else { bytes / entries };
        st.logs.fresh().saturating_mul(each)
    }

    /// Blocks of the ZAPs.
    pub fn blocks(&self) -> u64 {
        let of = |zap: &Zap| zap.dnode().maxblkid().saturating_add(1);
        self.state.lock().zaps.iter().flatten().map(of).fold(0, u64::saturating_add)
    }

    pub fn stats(&self) -> DedupStats {
        let st = self.state.lock();
        let mut sum = st.logs.histogram.clone();
        st.histograms.iter().for_each(|h| sum.add(h));
        let total = sum.total();
        let objects = || st.zaps.iter().flatten().map(|z| z.dnode());
        let in_core = |blocks: u64, blksz: u32| blocks.saturating_add(1).saturating_mul(blksz.into());
        let (logged, in_logs) = st.logs.size();
        DedupStats {
            entries: st.counts.iter().fold(logged, |sum, n| sum.saturating_add(*n)),
            in_core: objects().map(|o| in_core(o.maxblkid(), o.blksz())).fold(in_logs, u64::saturating_add),
            table_size: objects().map(|o| o.used()).fold(st.logs.used(), u64::saturating_add),
            dsize: total[DDT_STAT_DSIZE],
            ref_dsize: total[DDT_STAT_REF_DSIZE],
            histogram: sum,
        }
    }
}

/// Reads an entry as it lies in a ZAP.
pub(super) fn decode(value: &Value, flat: bool) -> Result<DdtEntry> {
    let bytes = value.as_bytes().unwrap_or_default();
    let Some((head, packed)) = bytes.split_first() else { return Err(corrupt("an entry is empty")) };
    let (function, order) = value_head(*head);
    let size = if flat { DDT_FLAT_PHYS_SIZE } else { DDT_TRAD_PHYS_SIZE };
    let entry = match Compress::from_u8(function) {
        Some(Compress::Off) => DdtEntry::parse(packed, order),
        Some(kind) => {
            let mut raw = vec![0; size];
            compress::decompress(kind, packed, &mut raw).map_err(|e| corrupt(e.to_string()))?;
            DdtEntry::parse(&raw, order)
        }
        None => return Err(corrupt(format!("an entry has compression {function}"))),
    };
    let entry = entry.map_err(|e| corrupt(e.to_string()))?;
    if entry.is_flat() == flat { Ok(entry) } else { Err(corrupt("an entry is of the other kind")) }
}

/// The same for writing.
pub(super) fn encode(entry: &DdtEntry) -> Value {
    let raw = entry.encode();
    let mut packed = vec![0; raw.len()];
    let spec = CompressSpec::new(Compress::Zle);
    let (function, data) = match compress::compress(spec, &raw, &mut packed).filter(|n| *n < raw.len()) {
        Some(n) => (Compress::Zle, &packed[..n]),
        None => (Compress::Off, &raw[..]),
    };
    let mut out = vec![make_value_head(function as u8)];
    out.extend_from_slice(data);
    Value::bytes(&out)
}
