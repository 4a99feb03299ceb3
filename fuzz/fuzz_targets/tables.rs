//! Entries of deduplication tables and their logs, block reference tables, and redaction lists: of
//! any bytes, in both orders. What was read and written again reads the same.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::brt::BrtVdevPhys;
use zilla_ondisk::ddt::{DdtEntry, DdtHistogram, DdtLogPhys, make_log_block, read_log_block, value_head};
use zilla_ondisk::dsl::{RedactBlockPhys, RedactionListPhys};
use zilla_ondisk::{ByteOrder, Phys};

fn entry(raw: &[u8], order: ByteOrder) {
    let Ok(entry) = DdtEntry::parse(raw, order) else { return };
    assert_eq!(DdtEntry::parse(&entry.encode(), ByteOrder::NATIVE).as_ref(), Ok(&entry));
    let mut again = DdtEntry::new(entry.is_flat(), 0);
    for i in 0..entry.variants() {
        again.set_variant(i, entry.variant(i));
        let _ = (entry.variant(i).copies(true).count(), entry.variant(i).copies(false).count());
    }
    assert_eq!(again.refcnt(), entry.refcnt());
}

fuzz_target!(|data: &[u8]| {
    if let Some((&head, body)) = data.split_first() {
        entry(body, value_head(head).1);
    }
    if let Ok(list) = read_log_block(data) {
        let block = make_log_block(data.len(), list.iter().map(|(key, logged)| (key, logged)));
        assert_eq!(read_log_block(&block), Ok(list));
    }
    let words: Vec<u64> = data.as_chunks::<8>().0.iter().map(|w| u64::from_ne_bytes(*w)).collect();
    let mut sums = DdtHistogram::from_words(&words);
    if let Some(stat) = words.first_chunk() {
        sums.count(stat, words.len() % 2 == 0);
    }
    sums.add(&DdtHistogram::from_words(&words));
    let _ = (sums.total(), sums.words());
    for order in [ByteOrder::Little, ByteOrder::Big] {
        entry(data, order);
        if let Ok(log) = DdtLogPhys::decode(data, order) {
            let _ = (log.flags(), log.is_known());
        }
        if let Ok(table) = BrtVdevPhys::decode(data, order) {
            assert_eq!(BrtVdevPhys::decode(&table.encode(), ByteOrder::NATIVE), Ok(table));
        }
        if let Ok(list) = RedactionListPhys::decode(data, order) {
            let _ = list.is_complete();
            assert_eq!(RedactionListPhys::decode(&list.encode(), ByteOrder::NATIVE), Ok(list));
        }
        if let Ok(run) = RedactBlockPhys::decode(data, order) {
            let again = RedactBlockPhys::new(run.object, run.blkid, run.count(), run.blksz());
            assert_eq!((again.count(), again.blksz()), (run.count(), run.blksz()));
        }
    }
});
