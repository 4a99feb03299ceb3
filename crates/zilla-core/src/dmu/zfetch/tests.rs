use super::*;
use proptest::prelude::*;

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;
const SIZE: u64 = 100 * MB;

/// Reads one after the other: what was to be read ahead for each.
fn run(s: &mut Streams, reads: impl IntoIterator<Item = (u64, u64)>) -> Vec<Wanted> {
    reads.into_iter().map(|(off, len)| s.read(off, len, SIZE, LARGEST).wanted).collect()
}

fn bytes(wanted: &[Wanted]) -> u64 {
    wanted.iter().flatten().map(|r| r.end - r.start).sum()
}

/// The ranges put together, in order; a panic if two of them share a byte.
fn joined(wanted: &[Wanted]) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = wanted.iter().flatten().cloned().collect();
    all.sort_by_key(|r| r.start);
    let mut out: Vec<Range<u64>> = Vec::new();
    for r in all {
        match out.last_mut() {
            Some(last) if last.end == r.start => last.end = r.end,
            Some(last) => {
                assert!(last.end < r.start, "{last:?} and {r:?}");
                out.push(r);
            }
            None => out.push(r),
        }
    }
    out
}

/// Random reads of 16 KiB, from a table of so many of them.
fn at_random(s: &mut Streams, x: &mut u64, table: u64, reads: usize) -> Vec<Wanted> {
    let mut at = || {
        *x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((*x >> 33) % table * 16 * KB, 16 * KB)
    };
    run(s, (0..reads).map(|_| at()))
}

#[test]
fn who_goes_on_is_read_ahead() {
    let mut s = Streams::default();
    assert_eq!(s.read(0, 4096, SIZE, LARGEST), Seen::only(Hit::Miss), "it may be the only read");
    assert_eq!(s.read(40 * KB, 4096, SIZE, LARGEST).hit, Hit::Miss, "that is elsewhere");
    let Seen { hit, wanted, .. } = s.read(4096, 4096, SIZE, LARGEST);
    assert_eq!((hit, wanted.len(), &wanted[0]), (Hit::Next, 1, &(8192..8192 + FIRST)));
    let seen = s.read(8192, 4096, SIZE, LARGEST);
    assert_eq!((seen.hit, seen.wanted.len()), (Hit::Next, 0), "enough is on its way");
}

#[test]
fn a_reader_never_reaches_the_end_of_what_is_read_ahead() {
    for len in [4 * KB, 128 * KB, 16 * MB] {
        for backwards in [false, true] {
            let n = SIZE / len;
            let at = |i: u64| if backwards { SIZE - (i + 1) * len } else { i * len };
            let (mut s, mut edge) = (Streams::default(), None);
            for i in 0..n {
                let wanted = s.read(at(i), len, SIZE, LARGEST).wanted;
                for r in wanted {
                    assert!(r.start < r.end && r.end <= SIZE, "{r:?}");
                    let (from, to) = if backwards { (r.end, r.start) } else { (r.start, r.end) };
                    assert_eq!(from, edge.unwrap_or(if backwards { at(i) } else { at(i) + len }));
                    assert!(at(i).abs_diff(to) <= LARGEST.max(len) + len, "{len}: {r:?}");
                    edge = Some(to);
                }
                let next = if backwards { at(i) } else { at(i) + len };
                let is_ahead =
                    edge.is_some_and(|e| if backwards { e < next || e == 0 } else { e > next || e == SIZE });
                assert!(i == 0 || is_ahead, "read {i} of {len}: {edge:?}");
            }
            assert_eq!(edge, Some(if backwards { 0 } else { SIZE }));
        }
    }
}

#[test]
fn strides_are_read_ahead_read_by_read() {
    let mut s = Streams::default();
    let wanted = run(&mut s, (0..800).map(|i| (i * 100 * KB, 4 * KB)));
    assert_eq!(bytes(&wanted[..2]), 0, "two reads make no strides");
    assert_eq!(&wanted[2][..], [3, 4, 5, 6].map(|i| i * 100 * KB..i * 100 * KB + 4 * KB));
    let all: Vec<_> = wanted.iter().flatten().collect();
    assert!(
        all.iter()
            .enumerate()
            .all(|(i, r)| r.start == (i as u64 + 3) * 100 * KB && r.end - r.start == 4 * KB)
    );
    assert!(all.len() >= 797 && all.len() <= 797 + STRIDES.end as usize, "{}", all.len());
    // The same from the end to the beginning.
    let mut s = Streams::default();
    let wanted = run(&mut s, (0..800).rev().map(|i| (i * 100 * KB, 4 * KB)));
    let all = joined(&wanted);
    assert!(all.iter().all(|r| r.start % (100 * KB) == 0), "{all:?}");
    assert_eq!((all.len(), all[0].start), (797, 0));
}

#[test]
fn many_readers_of_one_object_have_a_stream_each() {
    let mut s = Streams::default();
    let part = SIZE / 16;
    let reads = (0..part / (64 * KB)).flat_map(|i| (0..16).map(move |r| (r * part + i * 64 * KB, 64 * KB)));
    let wanted = run(&mut s, reads);
    assert!(bytes(&wanted) >= SIZE * 9 / 10, "{}", bytes(&wanted));
    // Two files' worth beside random reads of the same object.
    let mut s = Streams::default();
    let (mut x, mut asked) = (1, 0);
    at_random(&mut s, &mut x, SIZE / (16 * KB), 500);
    for i in 0..600u64 {
        asked += bytes(&run(&mut s, [(i * 16 * KB, 16 * KB), (50 * MB + i * 16 * KB, 16 * KB)]));
        at_random(&mut s, &mut x, SIZE / (16 * KB), 5);
    }
    assert!(asked > 15 * MB, "{asked}");
}

#[test]
fn one_stream_has_all_and_many_share_it() {
    let shares = Shares::default();
    assert_eq!(shares.largest(1 << 40), LARGEST);
    assert_eq!(shares.largest(0), LEAST);
    (0..100).for_each(|_| shares.note(1, 1));
    assert_eq!(shares.largest(16 * MB), LARGEST);
    (0..100).for_each(|i| shares.note(1 + i % 2, (i % 4) as u32));
    assert_eq!(shares.largest(16 * MB), 4 * MB);
    (0..100).for_each(|_| shares.note(7, 1));
    assert_eq!(shares.largest(16 * MB), LARGEST, "the others have ended");
}

#[test]
fn reads_that_were_sent_at_once_come_in_any_order() {
    let mut s = Streams::default();
    run(&mut s, [(0, 128 * KB), (128 * KB, 128 * KB)]);
    let mut seen = Vec::new();
    for i in (2..600).step_by(4) {
        for j in [1, 0, 3, 2] {
            seen.push(s.read((i + j) * 128 * KB, 128 * KB, SIZE, LARGEST).hit);
        }
    }
    assert_eq!(s.streams.len(), 1, "{:?}", s.streams);
    assert!(seen.iter().all(|h| matches!(h, Hit::Next | Hit::Future | Hit::Past)), "{seen:?}");
}

#[test]
fn neighbours_by_chance_cost_little_and_are_forgiven() {
    let mut s = Streams::default();
    let read = 50_000 * 16 * KB;
    let wasted = bytes(&at_random(&mut s, &mut 1, 5120, 50_000));
    assert!(wasted < read / 50, "{wasted} of {read}");
    assert!(s.patience > 0);
    // Who means it is read ahead all the same, and soon at once again.
    for at in 1..8 {
        let wanted = run(&mut s, (0..4096).map(|i| (at * 300 * MB + i * 16 * KB, 16 * KB)));
        assert!(bytes(&wanted) == 0, "it is behind the end");
        let reads = (0..1024).map(|i| (at * 10 * MB + i * 4 * KB, 4 * KB));
        assert!(bytes(&run(&mut s, reads)) > MB);
        let elsewhere = (0..u64::from(ENDED) * 2).map(|i| (i * i % 6000 * 16 * KB + 1, 3));
        run(&mut s, elsewhere);
    }
    let wanted = run(&mut s, (0..40).map(|i| (80 * MB + i * 4 * KB, 4 * KB)));
    assert!(bytes(&wanted) > 0, "{s:?}");
}

proptest! {
    #[test]
    fn nothing_is_asked_for_twice_and_a_read_that_waited_changes_nothing(
        len in 1..300_000u64, from in 0..SIZE, way in 0..4usize, more in 0..SIZE, n in 1..200u64,
    ) {
        let step = len + 1 + more;
        let at = |i: u64| match way {
            0 => from.checked_add(i * len),
            1 => from.checked_sub(i * len),
            2 => from.checked_add(i * step),
            _ => from.checked_sub(i * step),
        };
        let reads: Vec<u64> = (0..n).map_while(at).take_while(|at| *at < SIZE).collect();
        let (mut once, mut twice) = (Streams::default(), Streams::default());
        let mut all = Vec::new();
        for off in reads {
            let seen = once.read(off, len, SIZE, LARGEST);
            let again = twice.read(off, len, SIZE, LARGEST);
            prop_assert_eq!((again.hit, &again.wanted), (seen.hit, &seen.wanted));
            prop_assert_eq!(twice.read(off, len, SIZE, LARGEST).hit, Hit::Again);
            all.push(seen.wanted);
        }
        prop_assert!(all.iter().flatten().all(|r| r.start < r.end && r.end <= SIZE));
        joined(&all);
    }

    #[test]
    fn any_reads_are_taken(reads in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..200)) {
        let mut s = Streams::default();
        let mut last = (0, 0);
        for (off, len, kind) in reads {
            // Half of them go on in some way from the one before.
            let (o, l): (u64, u64) = last;
            let (off, len) = match kind % 4 {
                0 => (o.wrapping_add(l), len >> (kind % 64)),
                1 => (o.wrapping_sub(len >> 40), len >> 40),
                _ => (off >> (kind % 64), len >> (kind % 60)),
            };
            let wanted = s.read(off, len, kind, LARGEST).wanted;
            prop_assert!(wanted.len() <= STRIDES.end as usize);
            prop_assert!(wanted.iter().all(|r| r.start < r.end), "{:?}", wanted);
            last = (off, len);
        }
        prop_assert!(s.streams.len() <= STREAMS && s.recent.len() <= RECENT);
    }
}
