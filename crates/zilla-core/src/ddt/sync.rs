//! What a txg changed is written down: to the log or the ZAPs, with the sums. Then some of the
//! log's entries go to the ZAPs.

use super::Ddt;
use super::live::Origin;
use super::table::{Key, Layout, Table, encode};
use crate::dmu::resident;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::vdev::VdevTree;
use crate::zap::{CreateOpts, Value, Zap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::ddt::{
    DDT_DIR_FLAGS, DDT_DIR_VERSION, DDT_FLAG_FLAT, DDT_FLAG_LOG, DDT_PHYS_DITTO, DDT_VERSION_FDT, DdtEntry,
    DdtKeyPhys, DdtLogged, DdtStat, DdtTradPhys, directory_name, table_name,
};
use zilla_ondisk::dsl::DMU_POOL_DDT_STATS;
use zilla_ondisk::object_type::{DMU_OT_DDT_STATS, DMU_OT_DDT_ZAP, DMU_OT_DEDUP, DMU_OTN_ZAP_METADATA};
use zilla_ondisk::zap::{ZAP_FLAG_HASH64, ZAP_FLAG_PRE_HASHED_KEY, ZAP_FLAG_UINT64_KEY};

pub(super) const FEATURE: &str = "fast_dedup";
/// The pool's directory, where older tables lie. Source: DMU_POOL_DIRECTORY_OBJECT in sys/dmu.h.
pub(super) const DIRECTORY: u64 = 1;
/// log2 of the ZAPs' blocks. Source: ddt_zap_default_bs and ddt_zap_default_ibs of ddt_zap.c.
const ZAP_SHIFT: u8 = 15;
pub(super) const DUPLICATE: usize = 1;
pub(super) const UNIQUE: usize = 2;

/// What an entry adds to the sums.
pub(super) fn stat_of(tree: &VdevTree, key: &Key, entry: &DdtEntry) -> DdtStat {
    let key = DdtKeyPhys::from_words(*key);
    let mut out: DdtStat = [0; 8];
    for p in (0..entry.variants()).map(|v| entry.variant(v)).filter(|p| p.phys_birth != 0) {
        let dsize = p.copies(key.crypt()).map(|d| tree.dva_dsize(&d)).fold(0, u64::saturating_add);
        let own = [1, key.lsize(), key.psize(), dsize];
        let all = own.map(|n: u64| n.saturating_mul(p.refcnt));
        let (once, often) = out.split_at_mut(own.len());
        once.iter_mut().zip(own).for_each(|(sum, n)| *sum = sum.saturating_add(n));
        often.iter_mut().zip(all).for_each(|(sum, n)| *sum = sum.saturating_add(n));
    }
    out
}

/// One table's turn.
pub(super) struct Pass<'a> {
    ddt: &'a Ddt,
    table: &'a Table,
    tx: &'a Tx,
    tree: Arc<VdevTree>,
    layout: Layout,
    root: Zap,
    directory: Zap,
    sums: Zap,
    frees: Vec<BlkPtr>,
}

impl Ddt {
    /// Whether entries are to go from the logs to the ZAPs.
    pub(crate) fn has_work(&self, tx: &Tx) -> bool {
        self.tables.iter().any(|table| table.state.lock().logs.has_work(tx))
    }

    /// Writes down what changed; in a txg's first pass the logs move on too. Gives the blocks that
    /// are to be freed: nothing points to them.
    pub(crate) async fn sync(&self, tx: &Tx, first_pass: bool) -> Result<Vec<BlkPtr>> {
        let mut frees = Vec::new();
        for table in &self.tables {
            let (mut changed, work, layout) = {
                let mut st = table.state.lock();
                let live = std::mem::take(&mut st.live);
                let changed: Vec<_> = live.into_iter().filter(|(_, l)| l.is_changed()).collect();
                let work = first_pass && st.logs.has_work(tx);
                if changed.is_empty() && !work {
                    continue;
                }
                (changed, work, st.layout(&self.ctx))
            };
            // ZAPs keep neighbours by hash together, and the hash is of the key's first word.
            changed.sort_unstable_by_key(|(key, _)| *key);
            let mut pass = Pass::begin(self, table, tx, layout).await?;
            let mut records = Vec::new();
            for (key, live) in changed {
                let (before, mut class) = (stat_of(&pass.tree, &key, &live.before), live.origin.class());
                {
                    let mut st = table.state.lock();
                    match live.origin {
                        Origin::Stored(class) => st.histograms[class].count(&before, false),
                        Origin::Logged(_) => st.logs.histogram.count(&before, false),
                        Origin::New => {}
                    }
                }
                if pass.layout.log && live.entry.refcnt() > 0 {
                    let stat = stat_of(&pass.tree, &key, &live.entry);
                    table.state.lock().logs.histogram.count(&stat, true);
                    records.push((key, DdtLogged { class, entry: live.entry }));
                    continue;
                }
                // (A record without references replaces what the log says. The block is freed now,
                // not when the log is flushed.)
                let gone = DdtLogged { class: None, entry: DdtEntry::new(pass.layout.flat, 0) };
                let logged = matches!(live.origin, Origin::Logged(_));
                let record = match pass.store(&key, live.entry, &mut class).await {
                    Ok(()) => gone,
                    // The entry would be found again if it could be read: its block stays.
                    Err(Error::Corrupt(c)) if logged && pass.layout.log => {
                        tracing::error!("a block of which the deduplication table is damaged stays: {c}");
                        table.state.lock().logs.histogram.count(&before, true);
                        DdtLogged { class, entry: live.before }
                    }
                    Err(e) => return Err(e),
                };
                if logged {
                    records.push((key, record));
                }
            }
            table.state.lock().logs.append(tx, records);
            if work {
                pass.flush().await?;
            }
            pass.end().await?;
            frees.append(&mut pass.frees);
        }
        Ok(frees)
    }
}

impl<'a> Pass<'a> {
    pub(super) async fn begin(
        ddt: &'a Ddt,
        table: &'a Table,
        tx: &'a Tx,
        mut layout: Layout,
    ) -> Result<Pass<'a>> {
        let mos = ddt.ctx.mos();
        let root = Zap::open(mos, DIRECTORY).await?;
        let sums = match ddt.statistics.load(Ordering::Relaxed) {
            0 => {
                let sums = Zap::make(mos, tx, DMU_OT_DDT_STATS, &CreateOpts::default()).await?;
                root.insert_u64(tx, DMU_POOL_DDT_STATS, sums.id()).await?;
                ddt.statistics.store(sums.id(), Ordering::Relaxed);
                sums
            }
            id => Zap::open(mos, id).await?,
        };
        let name = table.kind.name();
        let directory = match layout.directory {
            0 => {
                let own = Zap::make(mos, tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?;
                root.insert_u64(tx, &directory_name(name), own.id()).await?;
                own.insert_u64(tx, DDT_DIR_VERSION, DDT_VERSION_FDT).await?;
                own.insert_u64(tx, DDT_DIR_FLAGS, DDT_FLAG_FLAT | DDT_FLAG_LOG).await?;
                ddt.ctx.features.add(mos, tx, FEATURE, 1).await?;
                layout.directory = own.id();
                own
            }
            DIRECTORY => root.clone(),
            id => Zap::open(mos, id).await?,
        };
        let lacks_logs = layout.log && !table.state.lock().logs.is_made();
        if lacks_logs {
            let mut logs = std::mem::take(&mut table.state.lock().logs);
            let made = logs.make(&ddt.ctx, tx, &directory, name).await;
            table.state.lock().logs = logs;
            made?;
        }
        table.state.lock().layout = Some(layout);
        let (tree, frees) = (ddt.zio.tree(), Vec::new());
        Ok(Pass { ddt, table, tx, tree, layout, root, directory, sums, frees })
    }

    /// Puts an entry into the table of its class, out of the one where it was. Variants that
    /// nothing points to are freed. If it fails, `was` says where the entry is still.
    async fn store(&mut self, key: &Key, mut entry: DdtEntry, was: &mut Option<usize>) -> Result<()> {
        let mut frees = Vec::new();
        for v in 0..entry.variants() {
            let p = entry.variant(v);
            let ditto = !entry.is_flat() && v == DDT_PHYS_DITTO;
            if p.phys_birth != 0 && (p.refcnt == 0 || ditto) {
                frees.push(self.pointer(key, &p));
                entry.set_variant(v, DdtTradPhys::default());
            }
        }
        let refcnt = entry.refcnt();
        let class = if refcnt > 1 { DUPLICATE } else { UNIQUE };
        let old = was.filter(|was| *was != class || refcnt == 0);
        let old = old.and_then(|was| self.table.state.lock().zaps[was].clone());
        if let Some(zap) = old {
            match resident(|| zap.remove_key(self.tx, key)).await {
                Err(e) if e.is(Errno::NoEnt) => {
                    tracing::error!("a deduplication table lacks a key that its log names")
                }
                done => done?,
            }
            *was = None;
        }
        if refcnt > 0 {
            let stat = stat_of(&self.tree, key, &entry);
            let (zap, value) = (self.zap(class).await?, encode(&entry));
            resident(|| zap.update_key(self.tx, key, &value)).await?;
            self.table.state.lock().histograms[class].count(&stat, true);
        }
        self.frees.append(&mut frees);
        Ok(())
    }

    /// The ZAP of a class.
    async fn zap(&self, class: usize) -> Result<Zap> {
        if let Some(zap) = &self.table.state.lock().zaps[class] {
            return Ok(zap.clone());
        }
        let hashed = if self.table.kind.is_dedup() { ZAP_FLAG_PRE_HASHED_KEY } else { 0 };
        let opts = CreateOpts {
            flags: ZAP_FLAG_HASH64 | ZAP_FLAG_UINT64_KEY | hashed,
            leaf_shift: ZAP_SHIFT.into(),
            indirect_shift: ZAP_SHIFT,
            ..CreateOpts::default()
        };
        let zap = Zap::make(self.ddt.ctx.mos(), self.tx, DMU_OT_DDT_ZAP, &opts).await?;
        self.directory.insert_u64(self.tx, &table_name(self.table.kind.name(), class), zap.id()).await?;
        self.table.state.lock().zaps[class] = Some(zap.clone());
        Ok(zap)
    }

    /// The block of a variant, as one that is not counted any more.
    fn pointer(&self, key: &Key, p: &DdtTradPhys) -> BlkPtr {
        let key = DdtKeyPhys::from_words(*key);
        let mut bp = BlkPtr::ZERO;
        bp.set_lsize(key.lsize());
        bp.set_psize(key.psize());
        bp.set_compress(key.compress());
        bp.set_checksum_kind(self.table.kind as u8);
        bp.set_otype(DMU_OT_DEDUP);
        bp.set_byteorder(zilla_ondisk::ByteOrder::NATIVE);
        bp.set_crypt(key.crypt());
        bp.set_cksum(key.cksum);
        bp.0[..p.dva.len()].copy_from_slice(&p.dva);
        bp.set_births(p.phys_birth, p.phys_birth);
        bp
    }

    /// Puts the entries whose turn it is from the flushing log into the ZAPs. Those whose place
    /// there cannot be read go into the active log again: they stay where they are found.
    async fn flush(&mut self) -> Result<()> {
        let due = self.table.state.lock().logs.due();
        let some = self.table.state.lock().logs.take_some(self.ddt.at_once(due));
        let last = some.last().map(|(key, _)| *key);
        let mut unread = Vec::new();
        for (key, mut logged) in some {
            let stat = stat_of(&self.tree, &key, &logged.entry);
            match self.store(&key, logged.entry.clone(), &mut logged.class).await {
                Ok(()) => self.table.state.lock().logs.histogram.count(&stat, false),
                Err(Error::Corrupt(c)) => {
                    if unread.is_empty() {
                        tracing::error!("entries of the deduplication table stay in its log: {c}");
                    }
                    unread.push((key, logged));
                }
                Err(e) => return Err(e),
            }
        }
        let mut st = self.table.state.lock();
        st.logs.append(self.tx, unread);
        st.logs.flushed(self.tx, last);
        Ok(())
    }

    /// Writes the sums down; what is empty goes.
    pub(super) async fn end(&self) -> Result<()> {
        let (ddt, tx, kind) = (self.ddt, self.tx, self.table.kind.name());
        let mos = ddt.ctx.mos();
        let zaps = self.table.state.lock().zaps.clone();
        let mut entries = 0u64;
        for (class, zap) in zaps.iter().enumerate() {
            let count = match zap {
                Some(zap) => zap.len().await?,
                None => 0,
            };
            self.table.state.lock().counts[class] = count;
            entries = count.saturating_add(entries);
        }
        for (class, zap) in zaps.iter().enumerate() {
            let (Some(zap), name) = (zap, table_name(kind, class)) else { continue };
            if entries > 0 {
                let words = self.table.state.lock().histograms[class].words();
                self.sums.set(tx, &name, &Value::u64s(&words)).await?;
                continue;
            }
            self.directory.delete(tx, &name).await?;
            self.sums.delete_if_there(tx, &name).await?;
            mos.free(tx, zap.dnode());
            let mut st = self.table.state.lock();
            (st.zaps[class], st.histograms[class]) = Default::default();
        }
        if entries > 0 || !self.table.state.lock().logs.is_empty() {
            return Ok(());
        }
        if self.layout.directory != DIRECTORY {
            let mut logs = std::mem::take(&mut self.table.state.lock().logs);
            logs.destroy(&ddt.ctx, tx, &self.directory, kind).await?;
            self.root.delete(tx, &directory_name(kind)).await?;
            mos.free(tx, self.directory.dnode());
            ddt.ctx.features.add(mos, tx, FEATURE, -1).await?;
        }
        // The next one is kept as the pool's features have it then.
        self.table.state.lock().layout = None;
        Ok(())
    }
}
