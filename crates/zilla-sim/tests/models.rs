//! Modelled devices in virtual time: each kind shows the figures it is known for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use zilla_env::model::{ModelDevice, Profile};
use zilla_env::{Device, IoBuf, IoOp, MemDevice};
use zilla_sim::{Sim, SimConfig, SimRng};

const GIB: u64 = 1 << 30;

struct Bench {
    sim: Sim,
    device: Arc<dyn Device>,
    rng: SimRng,
}

impl Bench {
    fn new(profile: &str) -> Bench {
        let sim = Sim::with_config(1, SimConfig { punctual: true, ..SimConfig::default() });
        // Memory reads as zero until written, so a large device costs nothing.
        let memory = Arc::new(MemDevice::new(500 * GIB));
        let device = Arc::new(ModelDevice::new(memory, Profile::named(profile).unwrap(), &sim.env()));
        Bench { sim, device, rng: SimRng::new(1, "bench") }
    }

    /// Virtual time of `n` rounds of `depth` operations each at offsets from `next`.
    fn run(
        &mut self,
        n: u64,
        depth: u64,
        write: bool,
        len: u64,
        mut next: impl FnMut(&mut SimRng) -> u64,
    ) -> Duration {
        let start = self.sim.now();
        let data = Bytes::from(vec![0; len as usize]);
        for _ in 0..n {
            let ops = (0..depth).map(|_| match (next(&mut self.rng), write) {
                (offset, true) => IoOp::Write { offset, data: [data.clone()].into_iter().collect() },
                (offset, false) => IoOp::Read { offset, buf: IoBuf::scratch(len as usize) },
            });
            let batch = self.device.batch(ops.collect());
            assert!(self.sim.block_on(batch).iter().all(Result::is_ok));
        }
        self.sim.now() - start
    }

    fn sequential(&mut self, write: bool) -> f64 {
        let (len, n, mut at) = (1 << 20, 64, 0);
        let took = self.run(n / 8, 8, write, len, |_| {
            at += len;
            at - len
        });
        (n * len) as f64 / 1e6 / took.as_secs_f64()
    }

    fn random(&mut self, write: bool, depth: u64) -> f64 {
        let took = self.run(200 / depth, depth, write, 4096, |rng| rng.below(500 * GIB / 4096) * 4096);
        (200 / depth * depth) as f64 / took.as_secs_f64()
    }

    fn flush(&mut self) -> Duration {
        let start = self.sim.now();
        self.sim.block_on(self.device.flush()).unwrap();
        self.sim.now() - start
    }
}

fn between(what: &str, value: f64, low: f64, high: f64) {
    assert!((low..=high).contains(&value), "{what}: {value:.1} is not within {low} and {high}");
}

#[test]
fn notebook_disk_on_usb() {
    between("read MB/s", Bench::new("5400rpm-usb2").sequential(false), 25.0, 34.0);
    between("write MB/s", Bench::new("5400rpm-usb2").sequential(true), 25.0, 34.0);
    between("random reads/s", Bench::new("5400rpm-usb2").random(false, 1), 45.0, 70.0);
}

#[test]
fn desktop_disk() {
    between("read MB/s", Bench::new("7200rpm-sata").sequential(false), 110.0, 139.0);
    between("random reads/s", Bench::new("7200rpm-sata").random(false, 1), 60.0, 95.0);
    let mut queued = Bench::new("7200rpm-sata");
    between("random reads/s, 25 at once", queued.random(false, 25), 110.0, 220.0);
    // The cache takes writes at once, and a flush pays for them.
    let mut bench = Bench::new("7200rpm-sata");
    between("cached writes/s", bench.random(true, 1), 5000.0, 50_000.0);
    between("flush of 200 random writes, ms", bench.flush().as_secs_f64() * 1e3, 500.0, 3000.0);
    between("flush of nothing, ms", bench.flush().as_secs_f64() * 1e3, 0.0, 1.0);
}

#[test]
fn flash_stick_hates_random_writes() {
    between("read MB/s", Bench::new("usb-flash-stick").sequential(false), 20.0, 31.0);
    between("write MB/s", Bench::new("usb-flash-stick").sequential(true), 6.0, 15.0);
    between("random writes/s", Bench::new("usb-flash-stick").random(true, 1), 2.0, 5.0);
    between("random reads/s", Bench::new("usb-flash-stick").random(false, 1), 900.0, 1500.0);
}

#[test]
fn solid_state_disks() {
    between("SATA read MB/s", Bench::new("sata-ssd").sequential(false), 450.0, 551.0);
    between("SATA random reads/s", Bench::new("sata-ssd").random(false, 1), 8_000.0, 11_000.0);
    between("SATA random reads/s, 20 at once", Bench::new("sata-ssd").random(false, 20), 60_000.0, 130_000.0);
    between("NVMe read MB/s", Bench::new("nvme").sequential(false), 2400.0, 3300.0);
    between("NVMe random reads/s", Bench::new("nvme").random(false, 1), 12_000.0, 15_000.0);
    between("NVMe random writes/s", Bench::new("nvme").random(true, 1), 40_000.0, 120_000.0);
    let mut nvram = Bench::new("nvram");
    between("NVRAM writes/s", nvram.random(true, 1), 80_000.0, 200_000.0);
    between("NVRAM flush, us", nvram.flush().as_secs_f64() * 1e6, 0.0, 10.0);
}

#[test]
fn a_full_cache_slows_writes_to_the_medium() {
    let mut bench = Bench::new("7200rpm-sata");
    let (len, mut at) = (1u64 << 20, 0);
    let took = bench.run(64, 8, true, len, |_| {
        at += len;
        at - len
    });
    between("512 MiB written, MB/s", (64 * 8 * len) as f64 / 1e6 / took.as_secs_f64(), 130.0, 165.0);
}
