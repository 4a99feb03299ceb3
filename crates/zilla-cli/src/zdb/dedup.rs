//! `-D`: what deduplication saves, and what its tables hold; `-S`: what it would save, from the
//! checksums of all data blocks.

use super::{Zdb, put};
use crate::fmt::ddt::{self, Sums};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zilla_core::check::{CensusOpts, Observer, Sharing, Use, Verify, census};
use zilla_core::ddt::{Known, LogReport, StoredReport, TableReport};
use zilla_core::error::{Error, Result};
use zilla_core::spa::Spa;
use zilla_core::types::Bookmark;
use zilla_core::zio::BlockStore;
use zilla_ondisk::BlkPtr;
use zilla_ondisk::ddt::DdtHistogram;
use zilla_ondisk::enums::ZIO_CHECKSUM_OFF;

/// Blocks, and their logical, physical and allocated sizes.
type Sum = [u64; 4];

/// What a block's contents are told by.
type Key = ([u64; 4], u64, u64, u8);

struct Table {
    store: Arc<dyn BlockStore>,
    blocks: HashMap<Key, (u64, Sum)>,
    lost: u64,
}

impl Observer for Table {
    fn block(&mut self, bp: &BlkPtr, _: &Bookmark, what: Use) {
        let counts = what == Use::Referenced
            && !bp.is_embedded()
            && !bp.is_metadata()
            && bp.checksum_kind() != ZIO_CHECKSUM_OFF;
        if !counts {
            return;
        }
        let dsize = self.store.dsize(bp);
        let key = (bp.cksum(), bp.lsize(), bp.psize(), bp.compress());
        let sum = [1, bp.lsize(), bp.psize(), dsize];
        self.blocks.entry(key).or_insert((0, sum)).0 += 1;
    }

    fn shared(&mut self, _: &BlkPtr, _: Sharing) {}
    fn not_claimed(&mut self, _: &BlkPtr, _: &str) {}

    fn unreadable(&mut self, _: &BlkPtr, at: &Bookmark, e: &Error) {
        self.lost += 1;
        eprintln!("zdb: block {at}: {e}");
    }

    fn damaged(&mut self, _: &BlkPtr, _: &Bookmark, _: usize) {}
    fn progress(&mut self) {}
}

impl Zdb {
    pub(super) async fn simulated_dedup(&mut self) -> Result<()> {
        let spa = self.spa.clone();
        let mut table = Table { store: spa.ctx.store.clone(), blocks: HashMap::new(), lost: 0 };
        let opts = CensusOpts { verify: Verify::Nothing, no_leaks: true };
        census(&spa, opts, &mut table).await?;
        self.damaged |= table.lost > 0;
        let mut rows: BTreeMap<u32, Sums> = BTreeMap::new();
        for (times, sum) in table.blocks.values() {
            let row = rows.entry(times.ilog2()).or_default();
            let all = sum.iter().copied().chain(sum.iter().map(|n| n.saturating_mul(*times)));
            row.iter_mut().zip(all).for_each(|(to, n)| *to = to.saturating_add(n));
        }
        put!(self, "Simulated DDT histogram:\n{}", ddt::histogram(&rows));
        self.dedup_ratio(&ddt::total(&rows));
        Ok(())
    }

    fn dedup_ratio(&mut self, total: &Sums) {
        let [_, _, _, dsize, _, ref_lsize, ref_psize, ref_dsize] = *total;
        if dsize > 0 && ref_psize > 0 {
            let dedup = ref_dsize as f64 / dsize as f64;
            let compress = ref_lsize as f64 / ref_psize as f64;
            let copies = ref_dsize as f64 / ref_psize as f64;
            let all = dedup * compress / copies;
            put!(self, "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, ");
            put!(self, "dedup * compress / copies = {all:.2}\n\n");
        }
    }

    /// `-D`: the tables; with more of them sums by references, of each table, and the entries, at
    /// last also of blocks that have one pointer.
    pub(super) async fn dedup_tables(&mut self) -> Result<()> {
        let spa = self.spa.clone();
        for table in spa.ddt.report().await? {
            self.dedup_table(&spa, &table).await?;
        }
        let rows = rows(&spa.ddt.stats().histogram);
        if rows.is_empty() {
            put!(self, "All DDTs are empty\n");
            return Ok(());
        }
        put!(self, "\n");
        if self.level('D') > 1 {
            put!(self, "DDT histogram (aggregated over all DDTs):\n{}", ddt::histogram(&rows));
        }
        self.dedup_ratio(&ddt::total(&rows));
        Ok(())
    }

    async fn dedup_table(&mut self, spa: &Spa, table: &TableReport) -> Result<()> {
        let kind = table.kind.name();
        let version = if table.flat { "1 [FDT]" } else { "0 [LEGACY]" };
        let flags = [(table.flat, 1, "FLAT"), (table.log, 2, "LOG")];
        let (bits, words) = flagged(&flags);
        let directory = table.directory;
        put!(self, "DDT-{kind}: version={version}; flags=0x{bits:02x}{words}; rootobj={directory}\n");
        let level = self.level('D');
        for stored in table.stored.iter().filter(|s| s.entries > 0) {
            let StoredReport { name, object, space, in_core, entries, .. } = stored;
            put!(self, "{name}: dspace={space}; mspace={in_core}; entries={entries}\n");
            if level < 3 {
                continue;
            }
            let rows = ddt::rows(&rows(&stored.histogram));
            put!(self, "{name}: object={object}\n{}{rows}\n", ddt::HEAD);
            if level < 4 || level == 4 && stored.class == UNIQUE {
                continue;
            }
            put!(self, "{name} contents:\n\n");
            let out = &mut self.out;
            spa.ddt.stored(table.kind, stored.class, |block| out.put(line(&block))).await?;
            put!(self, "\n");
        }
        for (n, log) in table.logs.iter().enumerate() {
            let flags =
                [(log.flushing, 1, "FLUSHING"), (log.flushing && log.checkpoint.is_some(), 2, "CHECKPOINT")];
            let (bits, words) = flagged(&flags);
            let LogReport { object, length, first_txg, entries, .. } = log;
            put!(self, "DDT-log-{kind}-{n}: flags=0x{bits:02x}{words}; obj={object}; len={length}; ");
            put!(self, "txg={first_txg}; entries={entries}\n");
            if let Some([a, b, c, d, prop]) = log.checkpoint {
                put!(self, "    checkpoint: {a:016x}:{b:016x}:{c:016x}:{d:016x}:{prop:016x}\n");
            }
            if level >= 4 {
                let out = &mut self.out;
                spa.ddt.logged(table.kind, log, |block| out.put(line(&block)));
            }
        }
        Ok(())
    }
}

/// Blocks with one pointer: a class of [`DDT_CLASSES`].
const UNIQUE: usize = 2;

/// The bits that are set, and their words in brackets.
fn flagged(flags: &[(bool, u8, &str)]) -> (u8, String) {
    let set = || flags.iter().filter(|f| f.0);
    let words: Vec<&str> = set().map(|f| f.2).collect();
    let words = if words.is_empty() { String::new() } else { format!(" [{}]", words.join(" ")) };
    (set().fold(0, |bits, f| bits | f.1), words)
}

fn rows(histogram: &DdtHistogram) -> BTreeMap<u32, Sums> {
    (0..).zip(histogram.0.iter().copied()).filter(|(_, sums)| sums[0] > 0).collect()
}

fn line(block: &Known) -> String {
    let Known { place, variant, refcnt, bp } = block;
    format!("index {place:x} refcnt {refcnt} phys {variant} {bp}\n")
}
