use super::*;
use crate::vdev::gather::Gather;

fn io(class: Priority, offset: u64, len: u64, at: u64) -> QIo {
    let done = Gather::new(1);
    let at = Duration::from_millis(at);
    QIo { op: QOp::Read(None), offset, len, class, at, retry: false, done, slot: 0 }
}

/// Fills the class's room so that what comes next waits.
fn busy(q: &mut Queue, class: Priority) -> u32 {
    let mut n = 0;
    while q.enter(io(class, 1 << 40, 512, 0)).is_ok() {
        n += 1;
    }
    q.waiting -= 1;
    let c = &mut q.classes[class as usize];
    c.waiting.clear();
    c.by_age.clear();
    n
}

fn offsets(run: &Run) -> Vec<u64> {
    run.iter().map(|io| io.offset).collect()
}

#[test]
fn neighbours_go_together_and_in_disk_order() {
    let mut q = Queue::new();
    assert_eq!(busy(&mut q, Priority::AsyncRead), 3);
    for offset in [40_960, 8192, 4096, 0, 1 << 20] {
        assert!(q.enter(io(Priority::AsyncRead, offset, 4096, 0)).is_err());
    }
    assert!(q.next(Duration::ZERO).is_none(), "its most is at the device");
    q.left(Priority::AsyncRead);
    q.last_offset = 3000;
    // From where the head is; both sides come along.
    assert_eq!(offsets(&q.next(Duration::ZERO).unwrap()), [0, 4096, 8192]);
    q.left(Priority::AsyncRead);
    assert_eq!(offsets(&q.next(Duration::ZERO).unwrap()), [40_960]);
    q.left(Priority::AsyncRead);
    assert_eq!(offsets(&q.next(Duration::ZERO).unwrap()), [1 << 20]);
    assert_eq!(q.load(), 3);
}

/// Blocks that came with one I/O do not hold one another in memory.
#[test]
fn what_was_read_together_is_kept_apart() {
    let whole = Bytes::from((0..40_000u32).map(|n| n as u8).collect::<Vec<_>>());
    let shares = |part: &Bytes| whole.as_ptr_range().contains(&part.as_ptr());
    let part = |class, offset, len, own: Option<usize>| {
        let mut io = QIo { op: QOp::Read(own.map(IoBuf::scratch)), ..io(class, offset, len, 0) };
        let part = io.part(&whole, 100_000);
        assert!(part[..] == whole[offset as usize - 100_000..][..len as usize]);
        part
    };
    for class in [Priority::SyncRead, Priority::AsyncRead] {
        assert!(!shares(&part(class, 100_000, 8192, None)));
        assert!(!shares(&part(class, 120_480, 4608, None)));
        assert!(!shares(&part(class, 120_480, 2048, Some(2048))), "it brought its own");
        assert!(shares(&part(class, 120_480, 2048, None)), "it is copied when it is cached");
        assert!(shares(&part(class, 100_000, 40_000, None)), "it came alone");
    }
    assert!(shares(&part(Priority::Scrub, 100_000, 8192, None)), "nobody keeps it");
}

#[test]
fn a_disk_reads_small_gaps_along_and_a_merge_has_its_limit() {
    let mut q = Queue::new();
    q.rotational = true;
    busy(&mut q, Priority::Scrub);
    for i in 0..40 {
        assert!(q.enter(io(Priority::Scrub, i * 65_536, 49_152, 0)).is_err());
    }
    q.left(Priority::Scrub);
    q.last_offset = 0;
    let run = q.next(Duration::ZERO).unwrap();
    assert_eq!(run.len(), 16);
    for (class, most) in [(Priority::SyncWrite, 2), (Priority::AsyncWrite, 8)] {
        let mut q = Queue::new();
        q.rotational = true;
        busy(&mut q, class);
        for i in 0..16 {
            assert!(q.enter(io(class, i << 17, 1 << 17, 0)).is_err());
        }
        q.left(class);
        q.last_offset = 0;
        assert_eq!(q.next(Duration::ZERO).unwrap().len(), most);
    }
}

#[test]
fn urgent_classes_first_but_every_class_its_least() {
    let mut q = Queue::new();
    busy(&mut q, Priority::SyncRead);
    assert!(q.enter(io(Priority::SyncRead, 0, 512, 0)).is_err());
    assert!(q.enter(io(Priority::SyncRead, 4096, 512, 0)).is_err());
    assert!(q.enter(io(Priority::Scrub, 0, 512, 0)).is_err());
    assert!(q.enter(io(Priority::AsyncWrite, 0, 512, 0)).is_err());
    assert_eq!(q.next(Duration::ZERO).unwrap()[0].class, Priority::AsyncWrite);
    assert_eq!(q.next(Duration::ZERO).unwrap()[0].class, Priority::Scrub);
    assert!(q.next(Duration::ZERO).is_none());
    q.left(Priority::SyncRead);
    assert_eq!(q.next(Duration::ZERO).unwrap()[0].class, Priority::SyncRead);
}

#[test]
fn the_background_has_an_idle_device_and_a_part_of_a_busy_one() {
    let mut q = Queue::new();
    let ms = Duration::from_millis;
    let sent = |at| Arc::new(Sent { at: ms(at), offset: 0, len: 512, write: false, run: Mutex::new(None) });
    assert_eq!(busy(&mut q, Priority::Scrub), 3, "nobody else is there");
    for i in 0..4 {
        assert!(q.enter(io(Priority::Scrub, i << 20, 512, 0)).is_err());
    }
    assert_eq!((q.before(Priority::SyncRead), q.before(Priority::Scrub)), (3, 7));
    assert!(q.enter(io(Priority::SyncRead, 1 << 30, 512, 5)).is_ok(), "it passes what nobody waits for");
    for _ in 0..3 {
        assert!(q.next(ms(10)).is_none(), "one at a time");
        q.answered(Priority::Scrub, &sent(0), ms(10));
    }
    // They took 10 ms, so the next one is due 40 ms later; and nothing needs to happen for
    // that.
    assert_eq!((q.wake_at(ms(10)), q.next(ms(49)).is_none()), (Some(ms(50)), true));
    assert_eq!(q.next(ms(50)).unwrap()[0].class, Priority::Scrub);
    assert_eq!((q.wake_at(ms(50)), q.next(ms(99)).is_none()), (None, true));
    q.answered(Priority::Scrub, &sent(50), ms(60));
    // The reader goes, and after a lull the device is idle.
    q.answered(Priority::SyncRead, &sent(5), ms(61));
    assert_eq!((q.wake_at(ms(61)), q.next(ms(70)).is_none()), (Some(ms(81)), true));
    assert!(q.next(ms(81)).is_some() && q.next(ms(81)).is_some() && q.next(ms(81)).is_some());
    assert_eq!(q.depths()[Priority::Scrub as usize], (0, 3));
}

#[test]
fn a_resilver_has_the_part_that_is_set() {
    let (mut q, ms) = (Queue::new(), Duration::from_millis);
    assert_eq!(q.rest(ms(10)), ms(40));
    q.resilvers = true;
    for (of_five_seconds, rest) in [(2500, 10), (5000, 0), (RESILVER_MIN_TIME_MS.default, 40)] {
        RESILVER_MIN_TIME_MS.set(of_five_seconds);
        assert_eq!(q.rest(ms(10)), ms(rest));
    }
}

#[test]
fn the_oldest_is_not_starved_and_a_promoted_prefetch_goes_first() {
    let mut q = Queue::new();
    busy(&mut q, Priority::AsyncRead);
    assert!(q.enter(io(Priority::AsyncRead, 0, 512, 0)).is_err());
    for i in 1..100 {
        assert!(q.enter(io(Priority::AsyncRead, i << 20, 512, 400)).is_err());
    }
    q.left(Priority::AsyncRead);
    q.last_offset = 1;
    assert_eq!(offsets(&q.next(Duration::from_millis(450)).unwrap()), [1 << 20]);
    q.left(Priority::AsyncRead);
    assert_eq!(offsets(&q.next(Duration::from_millis(501)).unwrap()), [0]);
    let Err(ticket) = q.enter(io(Priority::AsyncRead, 77 << 30, 512, 502)) else { panic!("it had room") };
    q.promote(ticket, Priority::SyncRead);
    assert_eq!(offsets(&q.next(Duration::from_millis(502)).unwrap()), [77 << 30]);
    // Twice, or when it is gone already, is nothing.
    q.promote(ticket, Priority::SyncRead);
    assert_eq!(q.waiting, 98);
}
