//! `-m`: metaslabs, and the logs of what their space maps lack.

use super::{Zdb, put, text};
use zilla_core::error::Result;
use zilla_core::metaslab::{MetaslabReport, VdevReport};
use zilla_core::types::ObjectId;
use zilla_core::zio::Allocator;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::spacemap::{MapType, SM_NO_VDEVID, SpaceMapPhys, SpaceMapReader};

/// Log space maps count in this unit.
const LOG_SHIFT: u32 = 9;

impl Zdb {
    /// Vdevs that operands after the pool name, and metaslabs of the first.
    fn chosen(&self) -> (Option<u32>, Vec<u64>) {
        if !self.on('m') {
            return (None, Vec::new());
        }
        let mut numbers = self.opts.operands.iter().skip(1).filter_map(|w| w.parse::<u64>().ok());
        let vdev = numbers.next().and_then(|n| u32::try_from(n).ok());
        (vdev, numbers.collect())
    }

    pub(super) async fn metaslabs(&mut self) -> Result<()> {
        put!(self, "\nMetaslabs:\n");
        let (vdev, only) = self.chosen();
        let tree = self.spa.tree();
        for top in tree.tops.iter().filter(|t| t.vdev.is_concrete()) {
            if vdev.is_some_and(|v| v != top.id) {
                continue;
            }
            let report = self.spa.metaslabs.report(top.id)?;
            let bias = if top.vdev.is_log { "log".to_owned() } else { top.vdev.bias().unwrap_or_default() };
            self.header(top.id, &bias, &report);
            for m in &report.metaslabs {
                if only.is_empty() || only.contains(&m.id) {
                    self.metaslab(top.id, top.ashift(), m).await?;
                }
            }
            put!(self, "\n");
        }
        Ok(())
    }

    fn header(&mut self, id: u32, bias: &str, report: &VdevReport) {
        put!(self, "\tvdev {id:10}   {bias}");
        if let Some(object) = report.unflushed_object {
            put!(self, "   ms_unflushed_phys object {object}");
        }
        let count = report.metaslabs.len();
        put!(
            self,
            "\n\t{:<10}{count:5}   {:<19}   {:<15}   {:<12}\n",
            "metaslabs",
            "offset",
            "spacemap",
            "free"
        );
        let line = |n: usize| "-".repeat(n);
        put!(self, "\t{}   {}   {}   {}\n", line(15), line(19), line(15), line(12));
    }

    async fn metaslab(&mut self, vdev: u32, ashift: u32, m: &MetaslabReport) -> Result<()> {
        let free = u64::try_from((m.size as i64).saturating_sub(m.allocated)).unwrap_or(0);
        let free = self.nice(free);
        put!(
            self,
            "\tmetaslab {:6}   offset {:12x}   spacemap {:6}   free    {free:>5}\n",
            m.id,
            m.start,
            m.object
        );
        if self.level('m') > 2 && !self.on('L') {
            self.spa.metaslabs.load(vdev, m.id).await?;
            match self.spa.metaslabs.free_ranges(vdev, m.id)? {
                Some(ranges) => {
                    let most = self.nice(ranges.iter().map(|(s, e)| e - s).max().unwrap_or(0));
                    let percent = ranges.space() * 100 / m.size.max(1);
                    let segments = ranges.len();
                    let what = "segments";
                    put!(self, "\t {what:>25} {segments:10}   maxsize {most:>7}   freepct {percent:4}%\n");
                    let bars = text::histogram(ranges.histogram(), 0);
                    put!(self, "\tIn-memory histogram:\n{bars}");
                }
                None => {
                    self.damaged = true;
                    put!(self, "\t(its space map contradicts itself)\n");
                }
            }
        }
        if self.level('m') > 1
            && let Some(histogram) = &m.histogram
        {
            let fragmentation = m.fragmentation.map_or("-".into(), |f| f.to_string());
            let bars = text::histogram(histogram, ashift as usize);
            put!(self, "\tOn-disk histogram:\t\tfragmentation {fragmentation}\n{bars}");
        }
        if m.object != 0 {
            self.space_map(m.object, m.start, ashift).await?;
        }
        if self.spa.ctx.features.is_active("log_spacemap") {
            put!(self, "\tFlush data:\n\tunflushed txg={}\n\n", m.unflushed_txg);
        }
        Ok(())
    }

    /// A space map's summary, and at high levels its entries.
    async fn space_map(&mut self, object: u64, start: u64, shift: u32) -> Result<()> {
        let dn = self.spa.ctx.mos().hold_wait(ObjectId(object)).await?;
        let phys = SpaceMapPhys::from_bonus(&dn.bonus(), ByteOrder::NATIVE).map_err(|e| {
            zilla_core::error::Error::corrupt(None, format!("space map {object}"), e.to_string())
        })?;
        put!(self, "space map object {object}:\n");
        put!(self, "  smp_length = {:#x}\n  smp_alloc = {:#x}\n", phys.length, phys.alloc);
        if self.level('d') < 6 && self.level('m') < 4 {
            return Ok(());
        }
        // No entry goes beyond its block.
        let (mut at, mut n, piece) = (0, 0u64, u64::from(dn.blksz()).max(512));
        let mut last = (0, 0, MapType::Alloc);
        let length = phys.length.min((dn.maxblkid() + 1).saturating_mul(u64::from(dn.blksz())));
        while at < length {
            let mut buf = vec![0; piece.min(length - at) as usize];
            dn.read_wait(at, &mut buf).await?;
            at += buf.len() as u64;
            for entry in SpaceMapReader::new(&buf, ByteOrder::NATIVE, start, shift) {
                let e = match entry {
                    Ok(e) => e,
                    Err(e) => {
                        self.damaged = true;
                        put!(self, "\t    [{n:6}] {e}\n");
                        break;
                    }
                };
                if last != (e.txg, e.sync_pass, e.kind) {
                    last = (e.txg, e.sync_pass, e.kind);
                    let kind = if e.kind == MapType::Alloc { "ALLOC" } else { "FREE" };
                    put!(self, "\t    [{n:6}] {kind}: txg {} pass {}\n", e.txg, e.sync_pass);
                    n += 1;
                }
                let kind = if e.kind == MapType::Alloc { 'A' } else { 'F' };
                let (offset, run) = (e.offset, e.run);
                let end = offset.saturating_add(run);
                let (vdev, words) = (e.vdev.unwrap_or(SM_NO_VDEVID), 1 + u8::from(e.vdev.is_some()));
                put!(
                    self,
                    "\t    [{n:6}]    {kind}  range: {offset:010x}-{end:010x}  size: {run:06x} vdev: {vdev:06} words: {words}\n"
                );
                n += 1;
            }
        }
        Ok(())
    }

    pub(super) async fn log_space_maps(&mut self) -> Result<()> {
        if !self.spa.ctx.features.is_active("log_spacemap") {
            return Ok(());
        }
        put!(self, "\nLog Space Maps in Pool:\n");
        for (txg, object) in self.spa.metaslabs.log_maps() {
            put!(self, "Log Spacemap object {} txg {txg}\n", object.0);
            self.space_map(object.0, 0, LOG_SHIFT).await?;
        }
        put!(self, "\n");
        Ok(())
    }
}
