//! `-S`: what deduplication would save, from the checksums of all data blocks.

use super::{Zdb, put};
use crate::fmt::ddt::{self, Sums};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use zilla_core::check::{CensusOpts, Observer, Sharing, Use, Verify, census};
use zilla_core::error::{Error, Result};
use zilla_core::types::Bookmark;
use zilla_core::zio::BlockStore;
use zilla_ondisk::BlkPtr;
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
        let [_, _, _, dsize, _, ref_lsize, ref_psize, ref_dsize] = ddt::total(&rows);
        if dsize > 0 && ref_psize > 0 {
            let dedup = ref_dsize as f64 / dsize as f64;
            let compress = ref_lsize as f64 / ref_psize as f64;
            let copies = ref_dsize as f64 / ref_psize as f64;
            let all = dedup * compress / copies;
            put!(self, "dedup = {dedup:.2}, compress = {compress:.2}, copies = {copies:.2}, ");
            put!(self, "dedup * compress / copies = {all:.2}\n\n");
        }
        Ok(())
    }
}
