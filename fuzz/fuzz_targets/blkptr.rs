//! Block pointers of any bits, in both orders.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::{BlkPtr, ByteOrder, bpobj, ddt::DdtKeyPhys, gang::GangHeader};

fuzz_target!(|data: &[u8]| {
    for order in [ByteOrder::Little, ByteOrder::Big] {
        for bp in BlkPtr::iter(data, order) {
            let _ =
                (bp.to_string(), bp.asize(), bp.ndvas(), bp.count_gang(), bp.is_metadata(), bp.phys_birth());
            let _ = (bpobj::stored(&bp, true), DdtKeyPhys::of(&bp), bp.iv(), bp.mac(), bp.fill());
            assert_eq!(BlkPtr::decode(&bp.encode(), ByteOrder::NATIVE), Ok(bp));
            if bp.validate().is_ok() && bp.is_embedded() && !bp.is_redacted() {
                let payload = bp.embedded_data();
                let _ = &payload[..bp.embedded_psize()];
            }
        }
        let _ = GangHeader::decode(data, order);
    }
});
