//! What the tables and their logs hold, for those who look at a pool (`zdb -D`).
//!
//! It is read as it is: nothing is changed, and what another txg changes meanwhile may be missed.

use super::Ddt;
use super::table::{Key, Table, decode};
use crate::dmu::resident;
use crate::error::Result;
use crate::zap::END;
use zilla_codec::checksum::Checksum;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::ddt::{DDT_CLASSES, DdtEntry, DdtHistogram, DdtKeyPhys, log_name, table_name};
use zilla_ondisk::object_type::DMU_OT_DEDUP;

/// Entries that are read at a time.
const BATCH: usize = 1024;

/// The table of one kind of checksum.
#[derive(Clone, Debug)]
pub struct TableReport {
    pub kind: Checksum,
    pub flat: bool,
    pub log: bool,
    /// The object that names those of the table.
    pub directory: u64,
    pub stored: Vec<StoredReport>,
    pub logs: Vec<LogReport>,
}

/// The entries of a class.
#[derive(Clone, Debug)]
pub struct StoredReport {
    pub name: String,
    /// Index of [`DDT_CLASSES`].
    pub class: usize,
    pub object: u64,
    /// Bytes on disk, and in memory if all of it is there.
    pub space: u64,
    pub in_core: u64,
    pub entries: u64,
    pub histogram: DdtHistogram,
}

/// One of the two logs.
#[derive(Clone, Debug)]
pub struct LogReport {
    pub object: u64,
    pub flushing: bool,
    /// The key up to which entries are in the tables.
    pub checkpoint: Option<Key>,
    pub length: u64,
    pub first_txg: u64,
    pub entries: u64,
}

/// One of the blocks that an entry knows.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Where the entry is: its ZAP's cursor behind it, or its number in its log.
    pub place: u64,
    /// Which of its variants it is, and how many pointers there are to it.
    pub variant: usize,
    pub refcnt: u64,
    /// A pointer as all of them are, but for the object that they belong to.
    pub bp: BlkPtr,
}

fn known(kind: Checksum, place: u64, key: &Key, entry: &DdtEntry) -> impl Iterator<Item = Known> {
    let phys = DdtKeyPhys::from_words(*key);
    (0..entry.variants()).filter_map(move |variant| {
        let own = entry.variant(variant);
        if own.phys_birth == 0 {
            return None;
        }
        let mut bp = BlkPtr::ZERO;
        // (As OpenZFS does it, also where the third place is salt and IV.)
        bp.0.iter_mut().zip(own.dva).for_each(|(to, word)| *to = word);
        bp.set_lsize(phys.lsize());
        bp.set_psize(phys.psize());
        bp.set_compress(phys.compress());
        bp.set_crypt(phys.crypt());
        bp.set_checksum_kind(kind as u8);
        bp.set_otype(DMU_OT_DEDUP);
        bp.set_dedup(true);
        bp.set_byteorder(ByteOrder::NATIVE);
        bp.set_births(own.phys_birth, own.phys_birth);
        bp.set_fill(1);
        bp.set_cksum(phys.cksum);
        Some(Known { place, variant, refcnt: own.refcnt, bp })
    })
}

impl Ddt {
    /// All tables that there are.
    pub async fn report(&self) -> Result<Vec<TableReport>> {
        let mut out = Vec::new();
        for table in &self.tables {
            out.extend(self.report_of(table).await?);
        }
        Ok(out)
    }

    async fn report_of(&self, table: &Table) -> Result<Option<TableReport>> {
        let (layout, zaps, histograms, counts) = {
            let st = table.state.lock();
            (st.layout, st.zaps.clone(), st.histograms.clone(), st.counts)
        };
        let Some(layout) = layout else { return Ok(None) };
        let name = table.kind.name();
        let stored = zaps.into_iter().zip(histograms).zip(counts).enumerate();
        let stored = stored.filter_map(|(class, ((zap, histogram), entries))| {
            let object = zap?.dnode().clone();
            let blocks = object.maxblkid().saturating_add(1);
            Some(StoredReport {
                name: table_name(name, class),
                class,
                object: object.id().0,
                space: object.used(),
                in_core: blocks.saturating_mul(object.blksz().into()),
                entries,
                histogram,
            })
        });
        let stored = stored.collect();
        let mut logs = Vec::new();
        if layout.log {
            let directory = crate::zap::Zap::open(self.ctx.mos(), layout.directory).await?;
            for n in 0..2 {
                let Some(id) = directory.try_get_u64(&log_name(name, n)).await? else { continue };
                logs.extend(table.state.lock().logs.report(id));
            }
        }
        let (flat, log, directory) = (layout.flat, layout.log, layout.directory);
        Ok(Some(TableReport { kind: table.kind, flat, log, directory, stored, logs }))
    }

    /// The blocks of a class, in the order of its ZAP.
    pub async fn stored(&self, kind: Checksum, class: usize, mut tell: impl FnMut(Known)) -> Result<()> {
        let table = self.tables.iter().find(|t| t.kind == kind);
        let zap = table.and_then(|t| {
            let st = t.state.lock();
            let zap = st.zaps.get(class).cloned().flatten()?;
            Some((zap, st.layout?.flat))
        });
        let Some((zap, flat)) = zap else { return Ok(()) };
        let mut at = 0;
        while at != END {
            let batch = resident(|| zap.read_on(&mut at, BATCH)).await?;
            for entry in &batch.entries {
                let Ok(key) = Key::try_from(&entry.key[..]) else { continue };
                known(kind, entry.next, &key, &decode(&entry.value, flat)?).for_each(&mut tell);
            }
            at = batch.next;
        }
        Ok(())
    }

    /// The blocks of a log, in the order of their keys.
    pub fn logged(&self, kind: Checksum, log: &LogReport, mut tell: impl FnMut(Known)) {
        let Some(table) = self.tables.iter().find(|t| t.kind == kind) else { return };
        let st = table.state.lock();
        for (n, (key, logged)) in (0..).zip(st.logs.entries_of(log.object)) {
            known(kind, n, key, &logged.entry).for_each(&mut tell);
        }
    }
}

const _: () = assert!(DDT_CLASSES.len() == 3, "the classes are those of the reports");
