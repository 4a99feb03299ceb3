//! `-b` and `-c`: every block counted, read if so asked, and held against the space maps.

use super::count::{Bins, Counting, DEFERRED, DITTO, LEVELS, OTHER, Stat, TOTAL};
use super::object::type_name;
use super::{Zdb, put, text};
use std::collections::BTreeMap;
use zilla_core::check::{Census, CensusOpts, Verify, census};
use zilla_core::error::Result;
use zilla_core::metaslab::SpaceClass;
use zilla_ondisk::object_type::{self, DMU_OT_NUMTYPES};

fn ratio(a: u64, b: u64) -> f64 {
    a as f64 / b.max(1) as f64
}

fn row_name(otype: u8) -> &'static str {
    match otype {
        DEFERRED => "deferred free",
        DITTO => "dedup ditto",
        OTHER => "other",
        TOTAL => "Total",
        t => type_name(t),
    }
}

impl Zdb {
    pub(super) async fn block_stats(&mut self) -> Result<()> {
        let (checks, blind) = (self.level('c'), self.on('L'));
        put!(
            self,
            "\nTraversing all blocks {}{}{}{}{}...\n\n",
            if checks > 0 || !blind { "to verify " } else { "" },
            if checks == 1 { "metadata " } else { "" },
            if checks > 0 { "checksums " } else { "" },
            if checks > 0 && !blind { "and verify " } else { "" },
            if blind { "" } else { "nothing leaked " }
        );
        self.out.flush();
        let verify = match checks {
            0 => Verify::Nothing,
            1 => Verify::Metadata,
            _ => Verify::Everything,
        };
        let spa = self.spa.clone();
        let mut counting = Counting::new(&spa, &mut self.out, &self.env);
        let census = census(&spa, CensusOpts { verify, no_leaks: blind }, &mut counting).await?;
        let Counting { rows, embedded, bins, dedup, clones, errors, damaged, terminal, .. } = counting;
        if terminal {
            eprintln!();
        }
        self.verdict(&census, &errors, damaged);
        self.totals(&rows, dedup, clones)?;
        self.embedded(&embedded);
        let total = rows.get(&(LEVELS, TOTAL)).cloned().unwrap_or_default();
        if total.same_vdev > 0 {
            put!(self, "\tDittoed blocks on same vdev: {}\n", total.same_vdev);
        }
        if total.same_metaslab > 0 {
            put!(self, "\tDittoed blocks in same metaslab: {}\n", total.same_metaslab);
        }
        if self.level('b') >= 2 {
            self.types(&rows);
            self.sizes(&bins);
        }
        put!(self, "\n");
        Ok(())
    }

    fn verdict(&mut self, census: &Census, errors: &BTreeMap<u32, u64>, damaged: u64) {
        self.damaged |= census.errors || damaged > 0 || !census.leaks.is_empty();
        if !errors.is_empty() {
            put!(self, "\nError counts:\n\n\terrno  count\n");
            for (errno, count) in errors {
                put!(self, "\t{errno:5}  {count}\n");
            }
        }
        if damaged > 0 {
            put!(self, "\nDamaged, and covered by redundancy: {damaged} copies or columns\n");
        }
        if self.on('L') {
            return;
        }
        for l in &census.leaks {
            put!(self, "leaked space: vdev {}, offset {:#x}, size {}\n", l.vdev, l.offset, l.size);
        }
        let leaked = census.allocated - census.found;
        if leaked > 0 {
            let (found, alloc) = (census.found, census.allocated);
            put!(self, "block traversal size {found} != alloc {alloc} (leaked {leaked})\n");
        } else if errors.contains_key(&2) {
            put!(self, "\n\tNo leaks, but blocks that are not allocated, or allocated twice\n");
        } else {
            put!(self, "\n\tNo leaks (block sum matches space maps exactly)\n");
        }
    }

    fn totals(
        &mut self,
        rows: &BTreeMap<(u8, u8), Stat>,
        dedup: (u64, u64),
        clones: (u64, u64),
    ) -> Result<()> {
        let t = rows.get(&(LEVELS, TOTAL)).cloned().unwrap_or_default();
        let avg = |n: u64| n / t.count.max(1);
        let (physical, allocated) = (ratio(t.lsize, t.psize), ratio(t.lsize, t.asize));
        put!(self, "\n\t{:<16} {:14}\n\t{:<16} {:14}\n", "bp count:", t.count, "ganged count:", t.gangs);
        put!(self, "\t{:<16} {:14}      avg: {:6}\n", "bp logical:", t.lsize, avg(t.lsize));
        for (name, size, compression) in
            [("bp physical:", t.psize, physical), ("bp allocated:", t.asize, allocated)]
        {
            put!(
                self,
                "\t{name:<16} {size:14}      avg: {:6}     compression: {compression:6.2}\n",
                avg(size)
            );
        }
        let factor = ratio(dedup.0, t.asize) + 1.0;
        put!(
            self,
            "\t{:<16} {:14}    ref>1: {:6}   deduplication: {factor:6.2}\n",
            "bp deduped:",
            dedup.0,
            dedup.1
        );
        put!(self, "\t{:<16} {:14}    count: {:6}\n", "bp cloned:", clones.0, clones.1);
        self.classes()
    }

    fn classes(&mut self) -> Result<()> {
        let mut classes: BTreeMap<SpaceClass, (u64, u64)> = BTreeMap::new();
        for top in self.spa.tree().tops.iter().filter(|t| t.vdev.is_concrete()) {
            for m in self.spa.metaslabs.report(top.id)?.metaslabs {
                let (alloc, space) = classes.entry(m.class).or_default();
                *alloc = alloc.saturating_add_signed(m.allocated);
                *space += m.size;
            }
        }
        // The intent log's class is always there, if empty.
        classes.entry(SpaceClass::EmbeddedLog).or_default();
        for (class, name) in [
            (SpaceClass::Normal, "Normal class:"),
            (SpaceClass::Special, "Special class"),
            (SpaceClass::Dedup, "Dedup class"),
            (SpaceClass::EmbeddedLog, "Embedded log class"),
        ] {
            if let Some((alloc, space)) = classes.get(&class) {
                put!(self, "\t{name:<16} {alloc:14}     used: {}%\n", text::percent(*alloc, *space));
            }
        }
        Ok(())
    }

    fn embedded(&mut self, embedded: &BTreeMap<u8, (u64, Vec<u64>)>) {
        for (kind, (count, sizes)) in embedded {
            put!(self, "\n\tadditional, non-pointer bps of type {kind}: {count:10}\n");
            if self.level('b') >= 3 {
                put!(self, "\t number of (compressed) bytes:  number of bps\n{}", text::histogram(sizes, 0));
            }
        }
    }

    fn types(&mut self, rows: &BTreeMap<(u8, u8), Stat>) {
        let total = rows.get(&(LEVELS, TOTAL)).map_or(0, |s| s.asize);
        let mut metadata = Stat::default();
        put!(self, "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType\n");
        for otype in 0..=TOTAL {
            let all = rows.get(&(LEVELS, otype)).map_or(0, |s| s.asize);
            if all == 0 {
                put!(
                    self,
                    "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:>6}\t",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-",
                    "-"
                );
                put!(self, "{}\n", row_name(otype));
                continue;
            }
            for level in (0..LEVELS).rev().chain([LEVELS]) {
                let Some(s) = rows.get(&(level, otype)).filter(|s| s.asize > 0) else { continue };
                if level < LEVELS && otype < DMU_OT_NUMTYPES && (level > 0 || object_type::is_metadata(otype))
                {
                    metadata.count += s.count;
                    metadata.lsize += s.lsize;
                    metadata.psize += s.psize;
                    metadata.asize += s.asize;
                }
                let alone = level == 0 && s.asize == all;
                if alone || (self.level('b') < 3 && level < LEVELS) {
                    continue;
                }
                let name = match level {
                    LEVELS => row_name(otype).to_owned(),
                    _ => format!("    L{level} {}", row_name(otype)),
                };
                self.type_row(s, total, &name);
                if self.level('b') >= 3 && s.gangs > 0 {
                    let gangs = self.nice(s.gangs);
                    put!(self, "\t number of ganged blocks: {gangs}\n");
                }
                if self.level('b') >= 4 {
                    let bars = text::histogram(&s.sectors, 0);
                    put!(self, "psize (in 512-byte sectors): number of blocks\n{bars}");
                }
            }
        }
        self.type_row(&metadata, total, "Metadata Total");
    }

    fn type_row(&mut self, s: &Stat, total: u64, name: &str) {
        let n = |v| self.nice(v);
        let (count, lsize, psize, asize) = (n(s.count), n(s.lsize), n(s.psize), n(s.asize));
        let avg = n(s.asize / s.count.max(1));
        let (comp, share) = (ratio(s.lsize, s.psize), 100.0 * ratio(s.asize, total));
        put!(
            self,
            "{count:>6}\t{lsize:>5}\t{psize:>5}\t{asize:>5}\t{avg:>5}\t{comp:5.2}\t{share:6.2}\t{name}\n"
        );
    }

    fn sizes(&mut self, bins: &[Bins; 3]) {
        put!(self, "\nBlock Size Histogram\n\n  block   psize                lsize                asize\n");
        let heads = "  Count   Size   Cum.".repeat(3);
        put!(self, "   size {}\n", heads);
        let mut sums = [0u64; 3];
        for shift in 9..=24u32 {
            let size = self.nice(1 << shift);
            put!(self, "{size:>7}:");
            for (bins, sum) in bins.iter().zip(&mut sums) {
                let (count, bytes) = bins.get(shift as usize).copied().unwrap_or_default();
                *sum += bytes;
                let (count, bytes, sum) = (self.nice(count), self.nice(bytes), self.nice(*sum));
                put!(self, " {count:>6} {bytes:>6} {sum:>6}");
            }
            put!(self, "\n");
        }
    }
}
