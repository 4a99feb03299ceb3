//! Faulty devices do what their rules say, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule, When};
use zilla_env::{Device, MemDevice, OpenMode};
use zilla_sim::Sim;

const SIZE: u64 = 1 << 20;
const EIO: i32 = 5;

fn faulty(sim: &Sim) -> (Arc<MemDevice>, FaultyDevice) {
    let memory = Arc::new(MemDevice::new(SIZE));
    (memory.clone(), FaultyDevice::new(memory, &sim.env()))
}

fn data(byte: u8, len: usize) -> Bytes {
    Bytes::from(vec![byte; len])
}

#[test]
fn errors_by_kind_place_and_count() {
    let sim = Sim::new(1);
    let (_, dev) = faulty(&sim);
    sim.block_on(async {
        let reads = dev.add(Rule::new(Ops::Reads, Fault::Error(EIO)).within(4096..8192));
        assert_eq!(dev.read(4000, 200).await.unwrap_err().raw_os_error(), Some(EIO));
        dev.read(0, 4096).await.unwrap();
        dev.read(8192, 4096).await.unwrap();
        dev.write(4096, data(1, 4096)).await.unwrap();
        assert_eq!(dev.hits(reads), 1);
        dev.clear();
        dev.add(Rule::new(Ops::Writes, Fault::Error(EIO)).when(When::Nth(2)));
        dev.add(Rule::new(Ops::Flushes, Fault::Error(EIO)).when(When::From(2)));
        for expected in [true, false, true] {
            assert_eq!(dev.write(0, data(1, 512)).await.is_ok(), expected);
        }
        for expected in [true, false, false] {
            assert_eq!(dev.flush().await.is_ok(), expected);
        }
        dev.clear();
        dev.add(Rule::new(Ops::All, Fault::Error(EIO)).when(When::Every(3)));
        let mut good = 0;
        for _ in 0..9 {
            good += dev.read(0, 512).await.is_ok() as u32;
        }
        assert_eq!(good, 6);
    });
}

#[test]
fn corruption_up_and_down() {
    let sim = Sim::new(2);
    let (memory, dev) = faulty(&sim);
    sim.block_on(async {
        dev.write(0, data(7, 4096)).await.unwrap();
        dev.add(Rule::new(Ops::Reads, Fault::FlipBits { count: 1 }));
        let wrong = dev.read(0, 4096).await.unwrap();
        let flipped: u32 = wrong.iter().map(|b| (b ^ 7).count_ones()).sum();
        assert_eq!(flipped, 1);
        assert!(
            memory.read(0, 4096).await.unwrap().iter().all(|&b| b == 7),
            "a read must not change the disk"
        );
        dev.clear();
        for (fault, offset) in [(Fault::Garbage, 8192), (Fault::Zeroes, 16_384), (Fault::Ignore, 24_576)] {
            dev.add(Rule::new(Ops::Writes, fault));
            memory.write(offset, data(5, 4096)).await.unwrap();
            dev.write(offset, data(7, 4096)).await.unwrap();
            dev.clear();
        }
        let at = async |offset| memory.read(offset, 4096).await.unwrap();
        assert!(at(8192).await.iter().any(|&b| b != 7 && b != 5));
        assert!(at(16_384).await.iter().all(|&b| b == 0));
        assert!(at(24_576).await.iter().all(|&b| b == 5));
        dev.add(Rule::new(Ops::Writes, Fault::Tear { sectors: 3 }).when(When::Nth(1)));
        dev.add(Rule::new(Ops::Writes, Fault::Misdirect(4096)));
        dev.write(40_960, data(9, 4096)).await.unwrap();
        assert_eq!(at(40_960).await.iter().filter(|&&b| b == 9).count(), 3 * 512);
        dev.write(49_152, data(9, 4096)).await.unwrap();
        assert!(at(49_152).await.iter().all(|&b| b == 0));
        assert!(at(53_248).await.iter().all(|&b| b == 9));
    });
}

#[test]
fn hangs_and_delays() {
    let sim = Sim::new(3);
    let (_, dev) = faulty(&sim);
    let env = sim.env();
    sim.block_on(async {
        dev.add(Rule::new(Ops::Reads, Fault::Hang));
        let read = dev.read(0, 512);
        assert!(env.timeout(Duration::from_secs(3600), read).await.is_err());
        let read = dev.read(0, 512);
        assert_eq!(dev.release_hung(), 2);
        read.await.unwrap();
        dev.clear();
        dev.add(Rule::new(Ops::Writes, Fault::Delay(Duration::from_secs(30))));
        let before = env.now();
        dev.write(0, data(1, 512)).await.unwrap();
        assert_eq!(env.now() - before, Duration::from_secs(30));
    });
}

#[test]
fn unflushed_writes_are_seen_and_can_be_lost() {
    let sim = Sim::new(4);
    let (memory, dev) = faulty(&sim);
    sim.block_on(async {
        dev.keep_unflushed();
        dev.write(0, data(1, 8192)).await.unwrap();
        dev.write(4096, data(2, 8192)).await.unwrap();
        dev.write_zeroes(6000, 100).await.unwrap();
        let mut expected = [vec![1; 4096], vec![2; 8192], vec![0; 4096]].concat();
        expected[6000..6100].fill(0);
        assert!(dev.read(0, 16_384).await.unwrap()[..] == expected[..]);
        assert!(memory.read(0, 16_384).await.unwrap().iter().all(|&b| b == 0));
        dev.flush().await.unwrap();
        assert!(memory.read(0, 16_384).await.unwrap()[..] == expected[..]);
        dev.write(0, data(3, 4096)).await.unwrap();
        assert_eq!(dev.lose_unflushed(), 1);
        assert!(dev.read(0, 16_384).await.unwrap()[..] == expected[..]);
        assert!(dev.write(SIZE - 10, data(1, 100)).await.is_err());
    });
}

#[test]
fn a_world_can_wrap_what_it_opens() {
    let sim = Sim::new(5);
    sim.add_disk("/good", SIZE);
    sim.add_disk("/bad", SIZE);
    let plain = sim.env();
    let env = sim.env().wrap_devices(move |path, device| {
        let faulty = FaultyDevice::new(device, &plain);
        if path == std::path::Path::new("/bad") {
            faulty.add(Rule::new(Ops::All, Fault::Error(EIO)));
        }
        Arc::new(faulty)
    });
    sim.block_on(async {
        let good = env.open("/good".as_ref(), OpenMode::default()).await.unwrap();
        let bad = env.open("/bad".as_ref(), OpenMode::default()).await.unwrap();
        assert!(good.read(0, 512).await.is_ok() && bad.read(0, 512).await.is_err());
    });
}

#[test]
fn chance_follows_the_seed() {
    let run = |seed| {
        let sim = Sim::new(seed);
        let (_, dev) = faulty(&sim);
        dev.add(Rule::new(Ops::Reads, Fault::Error(EIO)).when(When::Chance(0.3)));
        let reads = async || {
            let mut failed = Vec::new();
            for i in 0..200 {
                if dev.read(0, 512).await.is_err() {
                    failed.push(i);
                }
            }
            failed
        };
        sim.block_on(reads())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    assert!((30..90).contains(&run(1).len()));
}
