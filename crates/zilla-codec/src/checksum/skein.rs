//! Skein-512 (version 1.3), plain and keyed, with up to 512 bits of output.
//!
//! Skein chains Threefish-512, a tweakable block cipher, over the message: each block is encrypted under the
//! chaining value with a tweak that says how many bytes came so far and what the block is for (key,
//! configuration, message, output), and the message is added to the result by exclusive or. OpenZFS uses it
//! as a MAC: the pool's salt is the key.

const BLOCK: usize = 64;
const FIRST: u64 = 1 << 62;
const FINAL: u64 = 1 << 63;

/// What a chain of blocks is for: the type field of the tweak.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Purpose {
    Key = 0,
    Config = 4 << 56,
    Message = 48 << 56,
    Output = 63 << 56,
}

/// Rotation distances of the eight rounds that repeat.
const ROTATE: [[u32; 4]; 8] = [
    [46, 36, 19, 37],
    [33, 27, 14, 42],
    [17, 49, 36, 39],
    [44, 9, 54, 56],
    [39, 30, 34, 24],
    [13, 50, 10, 17],
    [25, 29, 39, 43],
    [8, 35, 56, 22],
];

/// Encrypts `message` under `key` and `tweak`, and adds the message: one step of the chain.
#[inline(always)]
fn chain(key: &mut [u64; 8], tweak: [u64; 2], block: &[u8; BLOCK]) {
    let mut message = [0u64; 8];
    for (word, bytes) in message.iter_mut().zip(block.as_chunks::<8>().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let mut ks = [0u64; 9];
    ks[..8].copy_from_slice(key);
    ks[8] = key.iter().fold(0x1bd1_1bda_a9fc_1a22, |parity, word| parity ^ word);
    let ts = [tweak[0], tweak[1], tweak[0] ^ tweak[1]];

    let mut x = message;
    let inject = |x: &mut [u64; 8], s: usize| {
        for (i, word) in x.iter_mut().enumerate() {
            *word = word.wrapping_add(ks[(s + i) % 9]);
        }
        x[5] = x[5].wrapping_add(ts[s % 3]);
        x[6] = x[6].wrapping_add(ts[(s + 1) % 3]);
        x[7] = x[7].wrapping_add(s as u64);
    };
    inject(&mut x, 0);
    macro_rules! four_rounds {
        ($s:literal) => {
            for rotate in &ROTATE[($s - 1) % 2 * 4..][..4] {
                for pair in 0..4 {
                    let (a, b) = (x[2 * pair], x[2 * pair + 1]);
                    x[2 * pair] = a.wrapping_add(b);
                    x[2 * pair + 1] = b.rotate_left(rotate[pair]) ^ x[2 * pair];
                }
                x = [x[2], x[1], x[4], x[7], x[6], x[5], x[0], x[3]];
            }
            inject(&mut x, $s);
        };
    }
    // Written out so that every index and rotation is a constant.
    four_rounds!(1);
    four_rounds!(2);
    four_rounds!(3);
    four_rounds!(4);
    four_rounds!(5);
    four_rounds!(6);
    four_rounds!(7);
    four_rounds!(8);
    four_rounds!(9);
    four_rounds!(10);
    four_rounds!(11);
    four_rounds!(12);
    four_rounds!(13);
    four_rounds!(14);
    four_rounds!(15);
    four_rounds!(16);
    four_rounds!(17);
    four_rounds!(18);
    for ((key, x), message) in key.iter_mut().zip(x).zip(message) {
        *key = x ^ message;
    }
}

/// Chains all of `data`, the last block marked and padded with zeroes; no data is one block of zeroes.
fn absorb(state: &mut [u64; 8], purpose: Purpose, data: &[u8]) {
    let purpose = purpose as u64;
    // The last block is kept back even when it is whole, for its tweak differs.
    let whole = data.len().saturating_sub(1) / BLOCK;
    let (blocks, _) = data[..whole * BLOCK].as_chunks::<BLOCK>();
    let mut flags = purpose | FIRST;
    for (i, block) in blocks.iter().enumerate() {
        chain(state, [((i + 1) * BLOCK) as u64, flags], block);
        flags = purpose;
    }
    let mut last = [0; BLOCK];
    let rest = &data[whole * BLOCK..];
    last[..rest.len()].copy_from_slice(rest);
    chain(state, [data.len() as u64, flags | FINAL], &last);
}

fn output(state: &[u64; 8]) -> [u8; 64] {
    // Output block number zero; ours never need a second one.
    let mut words = *state;
    absorb(&mut words, Purpose::Output, &[0; 8]);
    let mut out = [0; 64];
    for (bytes, word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    out
}

/// Skein-512 ready to hash a message: key and output length are in the chaining value already.
#[derive(Clone)]
pub struct Skein512 {
    start: [u64; 8],
}

impl Skein512 {
    /// No key, `bits` (at most 512) of output.
    pub fn new(bits: u64) -> Self {
        Self::configured([0; 8], bits)
    }

    /// The MAC under `key`, not empty, `bits` (at most 512) of output.
    pub fn keyed(key: &[u8], bits: u64) -> Self {
        let mut start = [0; 8];
        absorb(&mut start, Purpose::Key, key);
        Self::configured(start, bits)
    }

    fn configured(mut start: [u64; 8], bits: u64) -> Self {
        let mut config = [0; 32];
        config[..4].copy_from_slice(b"SHA3");
        config[4] = 1;
        config[8..16].copy_from_slice(&bits.to_le_bytes());
        absorb(&mut start, Purpose::Config, &config);
        Skein512 { start }
    }

    /// All 512 bits of the last output block.
    pub fn hash512(&self, data: &[u8]) -> [u8; 64] {
        let mut state = self.start;
        absorb(&mut state, Purpose::Message, data);
        output(&state)
    }

    /// The first 256 bits.
    pub fn hash(&self, data: &[u8]) -> [u8; 32] {
        let mut out = [0; 32];
        out.copy_from_slice(&self.hash512(data)[..32]);
        out
    }
}

/// Plain Skein-512-512.
pub fn skein512(data: &[u8]) -> [u8; 64] {
    Skein512::new(512).hash512(data)
}
