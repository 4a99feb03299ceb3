//! `-S`: what deduplication would save, from the checksums of all data blocks.

use super::{Zdb, put};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_core::check::{CensusOpts, Observer, Sharing, Use, Verify, census};
use zilla_core::error::{Error, Result};
use zilla_core::types::Bookmark;
use zilla_core::zio::BlockStore;
use zilla_ondisk::BlkPtr;
use zilla_ondisk::enums::ZIO_CHECKSUM_OFF;

/// Blocks, and their sizes.
#[derive(Clone, Copy, Default)]
struct Sum {
    blocks: u64,
    lsize: u64,
    psize: u64,
    dsize: u64,
}

impl Sum {
    fn add(&mut self, o: &Sum, times: u64) {
        self.blocks += o.blocks * times;
        self.lsize += o.lsize * times;
        self.psize += o.psize * times;
        self.dsize += o.dsize * times;
    }

    fn text(&self) -> String {
        let [lsize, psize, dsize] = [self.lsize, self.psize, self.dsize].map(nicebytes);
        format!("{:>6}   {lsize:>5}   {psize:>5}   {dsize:>5}", nicenum(self.blocks))
    }
}

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
        let sum = Sum { blocks: 1, lsize: bp.lsize(), psize: bp.psize(), dsize };
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
        let mut rows: BTreeMap<u32, (Sum, Sum)> = BTreeMap::new();
        let (mut unique, mut referenced) = (Sum::default(), Sum::default());
        for (times, sum) in table.blocks.values() {
            let row = rows.entry(times.ilog2()).or_default();
            row.0.add(sum, 1);
            row.1.add(sum, *times);
            unique.add(sum, 1);
            referenced.add(sum, *times);
        }
        let group = "_".repeat(30);
        put!(self, "Simulated DDT histogram:\n\n");
        put!(self, "bucket              allocated                       referenced          \n");
        put!(self, "______   {group}   {group}\n");
        put!(self, "refcnt{}\n", "   blocks   LSIZE   PSIZE   DSIZE".repeat(2));
        put!(self, "------{}\n", "   ------   -----   -----   -----".repeat(2));
        for (bucket, (a, b)) in &rows {
            put!(self, "{:>6}   {}   {}\n", nicenum(1 << bucket), a.text(), b.text());
        }
        put!(self, "{:>6}   {}   {}\n\n", "Total", unique.text(), referenced.text());
        if unique.dsize > 0 && referenced.psize > 0 {
            let dedup = referenced.dsize as f64 / unique.dsize as f64;
            let compress = referenced.lsize as f64 / referenced.psize as f64;
            let copies = referenced.dsize as f64 / referenced.psize as f64;
            let all = dedup * compress / copies;
            put!(self, "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, ");
            put!(self, "dedup * compress / copies = {all:.2}\n\n");
        }
        Ok(())
    }
}
