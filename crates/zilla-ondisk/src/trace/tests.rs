use super::*;
use crate::error::Problem;
use proptest::prelude::*;

fn header() -> TraceHeader {
    TraceHeader { pool: "tank".into(), guid: 7, arc_limit: 1 << 30, disks: 4, ..TraceHeader::default() }
}

fn file(all: &[Record], lost: u64) -> Vec<u8> {
    let mut out = preamble();
    out.extend(header_frame(&header()));
    out.extend(records(all, lost));
    out.extend(end_frame(&End { records: all.len() as u64, lost, micros: 9 }));
    out
}

/// What a file holds up to its damage, read in pieces of `step` bytes, and what is wrong with it.
fn read(bytes: &[u8], step: usize) -> (Vec<Item>, Option<crate::FormatError>, bool) {
    let (mut parser, mut items) = (Parser::default(), Vec::new());
    for piece in bytes.chunks(step) {
        if let Err(e) = parser.push(piece, |i| items.push(i)) {
            return (items, Some(e), false);
        }
    }
    (items, None, parser.is_whole())
}

fn any_record() -> impl Strategy<Value = Record> {
    let found =
        prop_oneof![Just(Found::Memory), Just(Found::OnItsWay), Just(Found::CacheDevice), Just(Found::Pool)];
    let size = prop_oneof![(0u32..=32768).prop_map(|n| n << 9), 0u32..=(16 << 20)];
    let block = (any::<u32>(), any::<u64>(), 0..=crate::MAX_TXG);
    let took = 0..=MAX_LATENCY;
    let reads = (block, any::<u64>(), size.clone(), size, any::<bool>(), any::<bool>(), found, took.clone());
    let reads =
        reads.prop_map(|((vdev, offset, birth), objset, lsize, psize, metadata, prefetch, found, micros)| {
            let block = BlockId { vdev, offset, birth };
            Event::Read { block, objset, lsize, psize, metadata, prefetch, found, micros }
        });
    let bytes = 0..=crate::MAX_COUNTED_BYTES;
    let event = prop_oneof![
        4 => reads,
        1 => (any::<u64>(), took.clone()).prop_map(|(objset, micros)| Event::Commit { objset, micros }),
        1 => (any::<u64>(), bytes.clone(), took.clone())
            .prop_map(|(objset, bytes, micros)| Event::LogBlock { objset, bytes, micros }),
        1 => (0..=crate::MAX_TXG, bytes, took).prop_map(|(txg, bytes, micros)| Event::Txg { txg, bytes, micros }),
    ];
    (0..=MAX_MICROS, event).prop_map(|(at, event)| Record { at, event })
}

proptest! {
    #[test]
    fn what_is_written_is_read(all in prop::collection::vec(any_record(), 0..200), lost in 0u64..3, step in 1usize..300) {
        let (items, error, whole) = read(&file(&all, lost), step);
        prop_assert_eq!(error, None);
        prop_assert!(whole);
        let mut wanted = vec![Item::Header(header())];
        wanted.extend((lost > 0).then_some(Item::Lost(lost)));
        wanted.extend(all.iter().map(|r| Item::Record(*r)));
        wanted.push(Item::End(End { records: all.len() as u64, lost, micros: 9 }));
        prop_assert_eq!(items, wanted);
    }

    #[test]
    fn a_file_that_is_cut_is_worth_its_whole_frames(cut in 0usize..100_000) {
        let some: Vec<Record> = (0..RECORDS_A_FRAME as u64 + 5).map(commit).collect();
        let bytes = file(&some, 0);
        let (items, error, whole) = read(&bytes[..cut.min(bytes.len() - 1)], 4096);
        prop_assert_eq!(error, None);
        prop_assert!(!whole);
        let got = items.iter().filter(|i| matches!(i, Item::Record(_))).count();
        prop_assert!(got == 0 || got == RECORDS_A_FRAME || got == some.len());
    }

    #[test]
    fn a_byte_that_was_changed_is_noticed(at in 0usize..2000, bit in 0u8..8) {
        let some: Vec<Record> = (0..400).map(commit).collect();
        let mut bytes = file(&some, 1);
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        // The word behind the version means nothing.
        let (_, error, whole) = read(&bytes, 512);
        prop_assert!((12..16).contains(&at) || error.is_some() || !whole, "byte {}", at);
    }
}

fn commit(n: u64) -> Record {
    Record { at: n * 10, event: Event::Commit { objset: 54, micros: n } }
}

#[test]
fn other_files_and_versions_are_refused_by_name() {
    let mut bytes = file(&[commit(1)], 0);
    bytes[8] = 2;
    let (items, error, _) = read(&bytes, 64);
    assert!(items.is_empty() && error.unwrap().field == "version");
    let (_, error, _) = read(b"#!/bin/sh\necho hello world\n", 64);
    assert_eq!(error.unwrap().problem, Problem::WrongType);
}

#[test]
fn sizes_that_no_pool_has_are_refused_behind_a_right_checksum() {
    // A frame that claims four gigabytes is refused before they are waited for.
    let mut bytes = preamble();
    bytes.extend(header_frame(&header()));
    let at = bytes.len();
    bytes.extend(records(&[commit(1)], 0));
    bytes[at + 8..at + 12].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(read(&bytes, 7).1.unwrap().field, "length");
    // Records of 2^63 microseconds and of blocks beyond 16M.
    let huge = |event: Event, at: u64| read(&file(&[Record { at, event }], 0), 99).1.map(|e| e.field);
    assert_eq!(huge(Event::Commit { objset: 1, micros: 1 }, 1 << 63), Some("time"));
    let block = BlockId { vdev: 0, offset: 1 << 63, birth: 1 };
    let read = |lsize, birth| Event::Read {
        block: BlockId { birth, ..block },
        objset: 1,
        lsize,
        psize: 512,
        metadata: false,
        prefetch: false,
        found: Found::Pool,
        micros: 1,
    };
    assert_eq!(huge(read(512, 1), 1), None);
    assert_eq!(huge(read(1 << 31, 1), 1), Some("lsize"));
    assert_eq!(huge(read(512, u64::MAX), 1), Some("birth"));
}

#[test]
fn a_read_takes_few_bytes() {
    let all: Vec<Record> = (0..1000u64)
        .map(|n| {
            let block = BlockId { vdev: 0, offset: (n * 7919 % 100_000) << 14, birth: 1234 };
            let event = Event::Read {
                block,
                objset: 54,
                lsize: 16384,
                psize: 8192,
                metadata: false,
                prefetch: false,
                found: Found::Memory,
                micros: 0,
            };
            Record { at: n * 3, event }
        })
        .collect();
    assert!(records(&all, 0).len() < 13 * all.len(), "{}", records(&all, 0).len());
}

#[test]
fn an_end_that_counts_more_than_there_can_be_is_damage() {
    let most = crate::MAX_COUNTED_BYTES;
    let ends = [
        End { records: most + 1, ..End::default() },
        End { lost: most + 1, ..End::default() },
        End { micros: MAX_MICROS + 1, ..End::default() },
    ];
    for end in ends {
        let mut bytes = preamble();
        bytes.extend(header_frame(&header()));
        bytes.extend(end_frame(&end));
        let (items, error, _) = read(&bytes, 64);
        assert_eq!(items, [Item::Header(header())]);
        assert!(matches!(error.unwrap().problem, Problem::Impossible { .. }), "{end:?}");
    }
    let (_, error, _) = read(&file(&[commit(1)], most + 1), 64);
    assert!(matches!(error.unwrap().problem, Problem::Impossible { .. }));
}
