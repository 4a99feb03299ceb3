//! Skein-512 (version 1.3), plain and keyed, with up to 512 bits of output.
//!
//! Skein chains Threefish-512, a tweakable block cipher, over the message: each block is encrypted
//! under the chaining value with a tweak that says how many bytes came so far and what the block is
//! for (key, configuration, message, output), and the message is added to the result by exclusive
//! or. OpenZFS uses it as a MAC: the pool's salt is the key.

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

    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = message;
    // Everything below is written out, so that every index and rotation is a constant and the eight
    // words stay in registers; the permutation between rounds is in the order of the names.
    macro_rules! inject {
        ($s:literal) => {
            a = a.wrapping_add(ks[$s % 9]);
            b = b.wrapping_add(ks[($s + 1) % 9]);
            c = c.wrapping_add(ks[($s + 2) % 9]);
            d = d.wrapping_add(ks[($s + 3) % 9]);
            e = e.wrapping_add(ks[($s + 4) % 9]);
            f = f.wrapping_add(ks[($s + 5) % 9]).wrapping_add(ts[$s % 3]);
            g = g.wrapping_add(ks[($s + 6) % 9]).wrapping_add(ts[($s + 1) % 3]);
            h = h.wrapping_add(ks[($s + 7) % 9]).wrapping_add($s);
        };
    }
    macro_rules! mix {
        ($x:ident, $y:ident, $round:literal, $pair:literal) => {
            $x = $x.wrapping_add($y);
            $y = $y.rotate_left(ROTATE[$round][$pair]) ^ $x;
        };
    }
    macro_rules! round {
        ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $round:literal) => {
            mix!($a, $b, $round, 0);
            mix!($c, $d, $round, 1);
            mix!($e, $f, $round, 2);
            mix!($g, $h, $round, 3);
        };
    }
    macro_rules! eight_rounds {
        ($odd:literal, $even:literal) => {
            round!(a b c d e f g h, 0);
            round!(c b e h g f a d, 1);
            round!(e b g d a f c h, 2);
            round!(g b a h c f e d, 3);
            inject!($odd);
            round!(a b c d e f g h, 4);
            round!(c b e h g f a d, 5);
            round!(e b g d a f c h, 6);
            round!(g b a h c f e d, 7);
            inject!($even);
        };
    }
    inject!(0);
    eight_rounds!(1, 2);
    eight_rounds!(3, 4);
    eight_rounds!(5, 6);
    eight_rounds!(7, 8);
    eight_rounds!(9, 10);
    eight_rounds!(11, 12);
    eight_rounds!(13, 14);
    eight_rounds!(15, 16);
    eight_rounds!(17, 18);
    let x = [a, b, c, d, e, f, g, h];
    for ((key, x), message) in key.iter_mut().zip(x).zip(message) {
        *key = x ^ message;
    }
}

/// Chains all of `data`, the last block marked and padded with zeroes; no data is one block of
/// zeroes.
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
