//! Requests that no kernel sends: any bytes give an answer, and nothing panics.
//!
//! `ZILLA_FUZZ_SECONDS` says for how long; `ZILLA_SEED` repeats a run.

use crate::common::in_memory;
use std::time::{Duration, Instant};
use zilla::FsProps;
use zilla_env::block_on;
use zilla_fuse::Loopback;

const NAMES: [&[u8]; 10] = [
    b"a\0",
    b"b\0",
    b"d\0",
    b".\0",
    b"..\0",
    b".zfs\0",
    b"snapshot\0",
    b"user.x\0",
    b"security.capability\0",
    b"system.posix_acl_access\0",
];

struct Maker(u64);

impl Maker {
    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Numbers as they are asked for: small ones, those at a limit, any.
    fn number(&mut self) -> u64 {
        match self.below(6) {
            0 => 0,
            1 => self.below(16),
            2 => 1 << self.below(64),
            3 => (1u64 << self.below(64)).wrapping_sub(1),
            4 => self.below(1 << 20),
            _ => self.next(),
        }
    }

    fn request(&mut self) -> Vec<u8> {
        let (opcode, node) =
            (self.below(54) as u32, if self.below(4) > 0 { self.below(12) } else { self.number() });
        let mut body = Vec::new();
        for _ in 0..self.below(14) {
            match self.below(3) {
                0 => body.extend_from_slice(&(self.number() as u32).to_ne_bytes()),
                1 => body.extend_from_slice(&self.number().to_ne_bytes()),
                _ => body.extend_from_slice(NAMES[self.below(NAMES.len() as u64) as usize]),
            }
        }
        if self.below(8) == 0 {
            body.resize(body.len() + self.below(300_000) as usize, 7);
        }
        let len = 40 + body.len() as u32;
        let mut out = Vec::with_capacity(len as usize);
        let len = if self.below(50) == 0 { self.number() as u32 } else { len };
        [len, opcode].iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
        [self.below(99), node].iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
        [self.below(3) as u32, 0, 0, 0].iter().for_each(|v| out.extend_from_slice(&v.to_ne_bytes()));
        out.extend(body);
        if self.below(50) == 0 {
            out.truncate(self.below(40) as usize);
        }
        out
    }
}

#[test]
fn any_request_is_answered() {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seconds = number("ZILLA_FUZZ_SECONDS").unwrap_or(2);
    let seed = number("ZILLA_SEED").unwrap_or(0x5eed);
    let mut maker = Maker(seed);
    let begin = Instant::now();
    let (mut sent, mut good) = (0u64, 0u64);
    while begin.elapsed() < Duration::from_secs(seconds) {
        // A new one now and then: what is written is never synced here, and stays in memory.
        let (fs, env) = in_memory(FsProps::default());
        let mut kernel = Loopback::new(fs, env).unwrap();
        for _ in 0..5000 {
            let request = maker.request();
            let slow = Instant::now();
            let answer = block_on(kernel.answer(&request));
            assert!(slow.elapsed() < Duration::from_secs(20), "seed {seed}, request {sent}: {request:?}");
            sent += 1;
            good += u64::from(answer.is_some_and(|(errno, _)| errno == 0));
        }
    }
    eprintln!("{sent} requests, {good} of them carried out");
    assert!(good * 100 > sent, "hardly any was one that could be carried out");
}
