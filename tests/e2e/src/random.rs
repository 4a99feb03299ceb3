//! Random numbers from a seed, so that what a test made can be made again.

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A seed from `ZILLA_SEED`, else from the clock; printed, so that a failure can be run again.
    pub fn from_env() -> Random {
        let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let given = std::env::var("ZILLA_SEED").ok().and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| now().as_nanos() as u64);
        eprintln!("ZILLA_SEED={seed}");
        Random(seed)
    }

    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.word() % n.max(1)
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(&self.word().to_le_bytes());
        }
        out.truncate(n);
        out
    }

    /// Text that compresses about three to one.
    pub fn text(&mut self, n: usize) -> Vec<u8> {
        const WORDS: [&str; 8] = ["pool ", "vdev ", "block ", "txg ", "label\n", "dnode ", "zap ", "scrub\n"];
        let mut out = Vec::with_capacity(n + 8);
        while out.len() < n {
            out.extend_from_slice(WORDS[self.below(8) as usize].as_bytes());
        }
        out.truncate(n);
        out
    }
}
