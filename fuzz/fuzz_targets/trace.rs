//! Recorded traces: any bytes, in pieces of any size, as they are and behind right checksums; what
//! is read is advised upon, in bounded memory.
#![no_main]
use libfuzzer_sys::fuzz_target;
use zilla_advise::{Analysis, Options, plot};
use zilla_ondisk::trace::{
    BlockId, Event, Found, Item, Parser, Record, TraceHeader, end_frame, header_frame,
};
use zilla_ondisk::trace::{End, preamble, records};

fn read(bytes: &[u8], step: usize) -> (Analysis, Vec<Record>, bool) {
    let (mut parser, mut analysis, mut all) = (Parser::default(), Analysis::default(), Vec::new());
    for piece in bytes.chunks(step.max(1)) {
        let result = parser.push(piece, |item| {
            if let Item::Record(r) = &item {
                all.push(*r);
            }
            analysis.item(item);
        });
        if result.is_err() {
            break;
        }
    }
    assert!(parser.good() <= bytes.len() as u64);
    (analysis, all, parser.is_whole())
}

fn advise(analysis: Analysis) {
    if let Some(advice) = analysis.advice(&Options { sizes: vec![1 << 20, 1 << 60], disks: None }) {
        let rates = [advice.now.hits, advice.now.per_second, advice.commit];
        assert!(rates.iter().all(|n| n.is_finite() && *n >= 0.0));
        assert!(advice.caches.iter().all(|c| c.reads.hits <= 1.001 && c.reads.per_second.is_finite()));
        assert!(plot(&advice).ends_with("</svg>\n"));
    }
}

/// Records that a writer might have written, whatever is in them.
fn made(data: &[u8]) -> Vec<Record> {
    let words = data.as_chunks::<16>().0.iter();
    let record = |w: &[u8; 16]| {
        let n = |i: usize, len: usize| w[i..i + len].iter().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let found =
            [Found::Memory, Found::OnItsWay, Found::CacheDevice, Found::Pool][usize::from(w[0] >> 4 & 3)];
        let (objset, micros) = (n(9, 1), n(10, 4));
        let event = match w[0] & 3 {
            0 => Event::Commit { objset, micros },
            1 => Event::LogBlock { objset, bytes: n(2, 7), micros },
            2 => Event::Txg { txg: n(2, 4), bytes: n(2, 7), micros },
            _ => Event::Read {
                block: BlockId { vdev: w[1].into(), offset: n(2, 7), birth: n(14, 2) },
                objset,
                lsize: (n(2, 2) as u32) << 8,
                psize: (n(3, 2) as u32) << 8,
                metadata: w[0] & 4 != 0,
                prefetch: w[0] & 8 != 0,
                found,
                micros,
            },
        };
        Record { at: n(5, 6), event }
    };
    words.map(record).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((&step, rest)) = data.split_first() else { return };
    advise(read(rest, step.into()).0);
    let all = made(rest);
    let mut file = preamble();
    let word =
        |i: usize| rest.get(i..i + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes) >> 4;
    file.extend(header_frame(&TraceHeader {
        pool: "tank".into(),
        arc_limit: word(0),
        arc_max: word(8),
        disks: word(16),
        feed_rate: word(24),
        ..TraceHeader::default()
    }));
    file.extend(records(&all, 1));
    file.extend(end_frame(&End::default()));
    let (analysis, again, whole) = read(&file, usize::from(step) * 7 + 1);
    assert!(whole && again == all);
    advise(analysis);
});
