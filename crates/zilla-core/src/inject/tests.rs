use super::*;

struct Counting(std::sync::atomic::AtomicU64);

impl Rng for Counting {
    /// 0, a quarter, a half, three quarters, 0, ...
    fn fill(&self, out: &mut [u8]) {
        let n = self.0.fetch_add(1, Ordering::Relaxed) % 4;
        out.fill(0);
        if let Some(last) = out.last_mut() {
            *last = (n * 64) as u8;
        }
    }
}

fn rng() -> Counting {
    Counting(Default::default())
}

const GIB: u64 = 1 << 30;

fn io(kind: IoType, offset: u64) -> DeviceIo {
    DeviceIo { vdev: 7, kind, offset, psize: GIB, retry: false }
}

fn device(failure: Failure, on: IoType) -> Fault {
    Fault::Device { vdev: 7, place: Place::Data, failure, on, fail_fast: false }
}

#[test]
fn a_device_fails_where_and_as_it_was_asked_to() {
    let all = Injections::new();
    let id = all.add("tank", 1, device(Failure::Io, IoType::Read), Frequency::Always).unwrap();
    let rng = rng();
    let read = io(IoType::Read, 8 << 20);
    assert_eq!(all.device(&read, &rng), Some((Failure::Io, false)));
    assert_eq!(all.device(&DeviceIo { vdev: 8, ..read }, &rng), None);
    assert_eq!(all.device(&io(IoType::Write, 8 << 20), &rng), None);
    // Labels and probes are left alone, or a device could not even be looked at.
    for offset in [0, (4 << 20) - 1, GIB - (512 << 10), GIB - 1] {
        assert_eq!(all.device(&io(IoType::Read, offset), &rng), None);
    }
    assert_eq!(all.device(&io(IoType::Read, GIB - (512 << 10) - 1), &rng), Some((Failure::Io, false)));
    assert_eq!(all.clear(Some(id + 1)), []);
    assert_eq!(all.clear(Some(id)), [id]);
    assert_eq!(all.device(&read, &rng), None);
    let everything = all.add("tank", 1, device(Failure::Gone, IoType::All), Frequency::Always).unwrap();
    assert_eq!(everything, id + 1, "a number is used once");
    assert_eq!(all.device(&io(IoType::Flush, 0), &rng), Some((Failure::Gone, false)));
    assert_eq!(all.device(&io(IoType::Probe, 0), &rng), None, "a probe is asked for by name");
    assert!(all.is_gone(7) && !all.is_gone(8) && !all.is_required(7));
}

#[test]
fn who_fails_fast_may_be_tried_again() {
    let all = Injections::new();
    let fault =
        Fault::Device { vdev: 7, place: Place::Data, failure: Failure::Io, on: IoType::All, fail_fast: true };
    all.add("tank", 1, fault, Frequency::Always).unwrap();
    let read = io(IoType::Read, 8 << 20);
    assert_eq!(all.device(&read, &rng()), Some((Failure::Io, true)));
    assert_eq!(all.device(&DeviceIo { retry: true, ..read }, &rng()), None);
}

#[test]
fn a_label_fails_in_one_of_its_parts_in_all_four() {
    let all = Injections::new();
    let fault = Fault::Device {
        vdev: 7,
        place: Place::Label(Region::Uber),
        failure: Failure::Io,
        on: IoType::Write,
        fail_fast: false,
    };
    all.add("tank", 1, fault, Frequency::Always).unwrap();
    let strikes = |offset| all.device(&io(IoType::Write, offset), &rng()).is_some();
    for label in [0, 256 << 10, GIB - (512 << 10), GIB - (256 << 10)] {
        assert!(strikes(label + (128 << 10)) && strikes(label + (256 << 10) - 1));
        assert!(!strikes(label) && !strikes(label + (128 << 10) - 1));
    }
    assert!(!strikes((512 << 10) + (128 << 10)), "the boot area is no label");
    assert!(!strikes(8 << 20) && all.device(&io(IoType::Flush, 128 << 10), &rng()).is_none());
}

#[test]
fn chance_is_what_was_asked_for() {
    let all = Injections::new();
    all.add("tank", 1, device(Failure::Io, IoType::All), Frequency::Of(1 << 31)).unwrap();
    let rng = rng();
    let hits = (0..100).filter(|_| all.device(&io(IoType::Read, 8 << 20), &rng).is_some()).count();
    assert_eq!(hits, 50);
}

#[test]
fn what_is_swallowed_is_not_answered_and_the_other_way_round() {
    let all = Injections::new();
    all.add("tank", 1, device(Failure::Noop, IoType::Write), Frequency::Always).unwrap();
    let write = io(IoType::Write, 8 << 20);
    assert!(all.swallows(&write, &rng()) && !all.swallows(&io(IoType::Read, 8 << 20), &rng()));
    assert_eq!(all.device(&write, &rng()), None);
}

#[test]
fn lanes_are_taken_in_turn_and_the_quickest_first() {
    let ms = Duration::from_millis;
    let all = Injections::new();
    let delay = |latency, lanes| Fault::Delay { vdev: 7, latency: ms(latency), lanes, on: IoType::All };
    let one = all.add("tank", 1, delay(10, 1), Frequency::Always).unwrap();
    let read = io(IoType::Read, 8 << 20);
    let at = |now| all.delay(&read, ms(now), &rng()).unwrap();
    // One lane: each waits for the one before.
    assert_eq!([at(0), at(0), at(5)], [(one, ms(10)), (one, ms(20)), (one, ms(30))]);
    assert_eq!(at(100), (one, ms(110)), "a lane that is free costs its time only");
    let two = all.add("tank", 1, delay(25, 2), Frequency::Always).unwrap();
    let times: Vec<_> = (0..5).map(|_| at(200)).collect();
    assert_eq!(times, [(one, ms(210)), (one, ms(220)), (two, ms(225)), (two, ms(225)), (one, ms(230))]);
    assert!(all.delay(&DeviceIo { vdev: 8, ..read }, ms(0), &rng()).is_none());
    all.clear(None);
    assert!(all.delay(&read, ms(300), &rng()).is_none() && !all.has(one));
}

#[test]
fn blocks_fail_by_place_type_and_copy() {
    let all = Injections::new();
    let at = DataPlace::Blocks { objset: 54, object: 2, level: 0, first: 1, last: 3 };
    let fault = Fault::Data { at, failure: Failure::Checksum, copies: Copies(0b10) };
    all.add("tank", 1, fault, Frequency::Always).unwrap();
    let mark = Bookmark { objset: 54, object: 2, level: 0, blkid: 3 };
    let read = BlockRead { pool: 1, at: mark, object_type: 19, copy: Some(1) };
    let spoils = |failure, read: BlockRead| all.block(failure, &read, &rng());
    assert!(spoils(Failure::Checksum, read));
    assert!(!spoils(Failure::Io, read));
    assert!(!spoils(Failure::Checksum, BlockRead { copy: Some(0), ..read }));
    assert!(!spoils(Failure::Checksum, BlockRead { copy: None, ..read }));
    assert!(!spoils(Failure::Checksum, BlockRead { pool: 2, ..read }), "another pool's block");
    for other in
        [Bookmark { blkid: 4, ..mark }, Bookmark { level: 1, ..mark }, Bookmark { object: 3, ..mark }]
    {
        assert!(!spoils(Failure::Checksum, BlockRead { at: other, ..read }));
    }
    all.clear(None);
    let at = DataPlace::Mos { object_type: Some(8) };
    all.add("tank", 1, Fault::Data { at, failure: Failure::Io, copies: Copies(0) }, Frequency::Always)
        .unwrap();
    let mos = BlockRead { at: Bookmark { objset: 0, ..mark }, object_type: 8, ..read };
    assert!(spoils(Failure::Io, mos) && !spoils(Failure::Io, BlockRead { object_type: 9, ..mos }));
    assert!(!spoils(Failure::Io, BlockRead { at: mark, ..mos }));
}

#[test]
fn a_pool_takes_its_handlers_along_and_a_pause_happens_once() {
    let all = Injections::new();
    let second = Duration::from_secs(1);
    let mine = all.add("tank", 1, device(Failure::Io, IoType::All), Frequency::Always).unwrap();
    let other = all.add("pond", 2, device(Failure::Io, IoType::All), Frequency::Always).unwrap();
    let pause = |import| Fault::Pause { import, lasts: second };
    let waits = all.add("tank", 0, pause(true), Frequency::Always).unwrap();
    all.add("tank", 0, pause(false), Frequency::Always).unwrap();
    assert!(all.add("tank", 0, pause(true), Frequency::Always).unwrap_err().is(Errno::Exist));
    all.forget_pool(1);
    assert_eq!((all.has(mine), all.has(other), all.has(waits)), (false, true, true));
    assert_eq!(all.take_pause("pond", true), None);
    assert_eq!(all.take_pause("tank", true), Some(second));
    assert_eq!(all.take_pause("tank", true), None);
    assert_eq!(all.take_pause("tank", false), Some(second));
}

#[test]
fn what_makes_no_sense_is_refused_and_there_is_a_limit() {
    let all = Injections::new();
    let delay =
        |ms, lanes| Fault::Delay { vdev: 7, latency: Duration::from_millis(ms), lanes, on: IoType::All };
    let data = |failure, copies| Fault::Data {
        at: DataPlace::Mos { object_type: None },
        failure,
        copies: Copies(copies),
    };
    for fault in [
        delay(0, 1),
        delay(1, 0),
        delay(1, u16::MAX),
        delay(3_600_001, 1),
        device(Failure::Corrupt, IoType::All),
        device(Failure::Io, IoType::Free),
        data(Failure::Noop, 0),
        data(Failure::Decrypt, 1),
        Fault::Pause { import: true, lasts: Duration::ZERO },
    ] {
        assert!(all.add("tank", 1, fault.clone(), Frequency::Always).is_err(), "{fault:?}");
    }
    for _ in 0..MOST {
        all.add("tank", 1, device(Failure::Io, IoType::All), Frequency::Always).unwrap();
    }
    let one_more = all.add("tank", 1, device(Failure::Io, IoType::All), Frequency::Always);
    assert!(one_more.unwrap_err().is(Errno::NoSpc));
}
