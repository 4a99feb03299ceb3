//! Space maps: what was read and can be expressed again must read the same.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::spacemap::{SpaceMapPhys, SpaceMapReader, SpaceMapWriter};

fuzz_target!(|data: &[u8]| {
    let Some((&head, body)) = data.split_first() else { return };
    let shift = u32::from(head % 24);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let entries: Vec<_> =
            SpaceMapReader::new(body, order, 0, shift).filter_map(Result::ok).take(4096).collect();
        let mut w = SpaceMapWriter::new(0, 512, 0, shift, true);
        for e in &entries {
            let _ = w.push(e.kind, e.offset, e.run, e.vdev);
        }
        let raw = w.finish();
        let again: Vec<_> = SpaceMapReader::new(&raw, ByteOrder::NATIVE, 0, shift)
            .map(|e| e.expect("written by us"))
            .collect();
        let space =
            |v: &[zilla_ondisk::spacemap::SpaceMapEntry]| v.iter().map(|e| u128::from(e.run)).sum::<u128>();
        assert_eq!(space(&again), space(&entries));
        if let Ok(mut p) = SpaceMapPhys::from_bonus(body, order) {
            p.histogram_add(&[u64::from(head); 64], shift);
        }
    }
});
