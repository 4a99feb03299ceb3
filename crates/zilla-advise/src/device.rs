//! What a kind of device costs: its model, driven by a few readers, or a log, in a time of its own.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;
use zilla_env::model::{Profile, Timing};

/// Operations that a figure is the mean of.
const ROUNDS: u64 = 2000;
/// As large as the place that is read at random.
const SPAN: u64 = 64 << 30;

/// Reads of a device: how long one takes alone, and the time from one to the next when many wait.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub alone: f64,
    pub busy: f64,
}

/// Random reads of `bytes`.
pub fn reads(profile: &Profile, bytes: u64) -> Cost {
    Cost { alone: run(profile, bytes, 1), busy: run(profile, bytes, 64) }
}

/// Seconds for each of some reads of which so many are under way at once.
fn run(profile: &Profile, bytes: u64, depth: u64) -> f64 {
    let mut timing = Timing::new(profile.clone(), SPAN);
    let mut under_way: BinaryHeap<Reverse<Duration>> = (0..depth).map(|_| Reverse(Duration::ZERO)).collect();
    let (mut x, mut last) = (1u64, Duration::ZERO);
    for _ in 0..ROUNDS {
        let Some(Reverse(now)) = under_way.pop() else { break };
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = ((x >> 20) % (SPAN >> 12)) << 12;
        let done = timing.read(now, offset, bytes);
        last = last.max(done);
        under_way.push(Reverse(done));
    }
    last.as_secs_f64() / ROUNDS as f64
}

/// Seconds for a block of a log: it is written behind the last one, and flushed.
pub fn log_block(profile: &Profile, bytes: u64, pause: Duration) -> f64 {
    let mut timing = Timing::new(profile.clone(), SPAN);
    let (mut now, mut at, mut sum) = (Duration::ZERO, 0, Duration::ZERO);
    for _ in 0..ROUNDS {
        let written = timing.write(now, at, bytes);
        let done = timing.flush(written);
        sum += done - now;
        at = (at + bytes.next_multiple_of(4096)) % (SPAN / 2);
        now = done + pause;
    }
    sum.as_secs_f64() / ROUNDS as f64
}

/// Bytes a second that it reads in one stream.
pub fn bandwidth(profile: &Profile) -> f64 {
    profile.media_read.min(profile.bus) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Profile {
        Profile::named(name).unwrap()
    }

    #[test]
    fn figures_are_the_data_sheets() {
        let nvme = reads(&named("nvme"), 4096);
        assert!((60e-6..90e-6).contains(&nvme.alone), "{nvme:?}");
        assert!((1.0 / nvme.busy) > 250_000.0, "{nvme:?}");
        let disk = reads(&named("7200rpm-sata"), 4096);
        assert!((0.009..0.018).contains(&disk.alone) && disk.busy < disk.alone, "{disk:?}");
    }

    #[test]
    fn a_log_on_what_keeps_its_word_is_quick() {
        let of = |name: &str| log_block(&named(name), 8192, Duration::from_millis(1));
        assert!(of("nvram") < 30e-6 && of("nvram") < of("nvme") && of("nvme") < of("sata-ssd"));
        assert!(of("7200rpm-sata") > 3e-3, "a turn each: {}", of("7200rpm-sata"));
        assert!(of("usb-flash-stick") > of("sata-ssd"));
    }
}
