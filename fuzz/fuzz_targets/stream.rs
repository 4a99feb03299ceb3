//! Send streams of any bytes: as records in both orders, as a whole, and as the token of one that
//! was interrupted.
#![no_main]
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use zilla_core::send::frame::RecordReader;
use zilla_core::send::{check_features, parse_token};
use zilla_ondisk::stream::{MAX_BEGIN_PAYLOAD, RECORD_SIZE, Record, order_of};
use zilla_ondisk::{ByteOrder, NvList};

fuzz_target!(|data: &[u8]| {
    for head in data.as_chunks::<RECORD_SIZE>().0 {
        let _ = order_of(head);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let Ok(record) = Record::decode(head, order) else { continue };
            assert!(record.payload_len() <= MAX_BEGIN_PAYLOAD);
            assert_eq!(Record::decode(&record.encode_in(order), order), Ok(record));
        }
    }
    let mut source = Bytes::copy_from_slice(data);
    let _ = zilla_env::block_on(async {
        let mut r = RecordReader::new(&mut source);
        if let Some((Record::Begin(b), payload)) = r.begin().await? {
            let _ = (check_features(&b), NvList::unpack(&payload));
            while !matches!(r.next().await?, (Record::End(_), _)) {}
        }
        Ok::<_, zilla_core::error::Error>(())
    });
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = parse_token(text);
    }
});
