//! Any bytes as a packed nvlist; what was accepted must survive both encodings.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_ondisk::NvList;

fuzz_target!(|data: &[u8]| {
    let Ok(list) = NvList::unpack(data) else { return };
    let _ = list.to_string();
    let packed = list.pack();
    // Bytes are compared, since a NaN in a list does not equal itself.
    assert_eq!(NvList::unpack(&packed).expect("packed by us").pack(), packed);
    let native = list.pack_native();
    assert_eq!(NvList::unpack(&native).expect("packed by us").pack(), packed);
});
