//! A label: the input lies over the parts that are parsed, at a place its first byte chooses.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::label::{self, VdevLabel};
use zilla_ondisk::{NvList, Uberblock};

fuzz_target!(|data: &[u8]| {
    let Some((&ashift, body)) = data.split_first() else { return };
    let ashift = u32::from(ashift % 20);
    let mut raw = vec![0; label::VDEV_LABEL_SIZE as usize];
    for at in [label::VDEV_PHYS_OFFSET, label::uberblock_offset(ashift, 3)] {
        let at = at as usize;
        let n = body.len().min(raw.len() - at);
        raw[at..at + n].copy_from_slice(&body[..n]);
    }
    let l = VdevLabel::split(&raw).expect("256K");
    let _ = NvList::unpack(l.nvlist());
    for (_, slot) in l.slots(ashift) {
        if let Ok((ub, _)) = Uberblock::decode_slot(slot) {
            let _ = (ub.rank(), ub.mmp_interval(), ub.mmp_fail_intervals(), ub.reflow_offset());
            let _ = (ub.rootbp.validate(), ub.rootbp.to_string());
            let mut again = vec![0; slot.len()];
            ub.encode_slot(&mut again).expect("a slot");
            assert_eq!(Uberblock::decode_slot(&again).expect("written by us").0, ub);
        }
    }
    for l in 0..5 {
        let _ = label::label_offset(body.iter().fold(0, |n, b| (n << 8) | u64::from(*b)), l);
    }
});
