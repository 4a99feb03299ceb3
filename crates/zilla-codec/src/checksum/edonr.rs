//! Edon-R 512, the tweaked version that OpenZFS stores, and its keyed use.
//!
//! A wide-pipe hash: sixteen words of state, blocks of 128 bytes, and a compression function that
//! is eight applications of one quasigroup operation on eight-word vectors. The quasigroup mixes
//! each operand by sums of five words, rotated, and then combines both by exclusive or and
//! addition.
//!
//! OpenZFS keys it by hashing one block first that is made from the salt: H(salt) then H(H(salt)).

const BLOCK: usize = 128;

type Half = [u64; 8];

const fn initial() -> [u64; 16] {
    // Consecutive bytes from 0x80 on.
    let mut state = [0; 16];
    let mut i = 0;
    while i < 16 {
        state[i] = 0x8081_8283_8485_8687u64.wrapping_add(0x0808_0808_0808_0808u64.wrapping_mul(i as u64));
        i += 1;
    }
    state
}

/// x * y in the quasigroup.
#[inline(always)]
fn star(x: &Half, y: &Half) -> Half {
    const C: u64 = 0xaaaa_aaaa_aaaa_aaaa;
    let five = |v: &Half, a: usize, b: usize, c: usize, d: usize, e: usize| {
        v[a].wrapping_add(v[b]).wrapping_add(v[c]).wrapping_add(v[d]).wrapping_add(v[e])
    };
    let s = [
        five(x, 0, 1, 4, 7, 2).wrapping_add(C),
        five(x, 0, 1, 4, 7, 3).rotate_left(5),
        five(x, 0, 1, 4, 7, 6).rotate_left(15),
        five(x, 2, 3, 5, 6, 7).rotate_left(22),
        five(x, 2, 3, 5, 6, 1).rotate_left(31),
        five(x, 0, 4, 2, 3, 5).rotate_left(40),
        five(x, 1, 7, 5, 6, 0).rotate_left(50),
        five(x, 2, 3, 5, 6, 4).rotate_left(59),
    ];
    let t = [
        five(y, 0, 1, 2, 5, 7).wrapping_add(!C),
        five(y, 0, 1, 3, 4, 6).rotate_left(10),
        five(y, 0, 1, 2, 5, 3).rotate_left(19),
        five(y, 3, 4, 6, 7, 2).rotate_left(29),
        five(y, 0, 1, 3, 4, 5).rotate_left(36),
        five(y, 2, 5, 6, 7, 4).rotate_left(44),
        five(y, 2, 5, 6, 7, 1).rotate_left(48),
        five(y, 3, 4, 6, 7, 0).rotate_left(55),
    ];
    let mix = |a: usize, b: usize, c: usize, d: usize, e: usize, f: usize| {
        (s[a] ^ s[b] ^ s[c]).wrapping_add(t[d] ^ t[e] ^ t[f])
    };
    [
        mix(0, 1, 4, 0, 1, 5),
        mix(0, 4, 7, 2, 6, 7),
        mix(1, 6, 7, 0, 1, 3),
        mix(2, 3, 4, 0, 3, 4),
        mix(0, 1, 7, 1, 2, 5),
        mix(3, 5, 6, 3, 4, 6),
        mix(2, 5, 6, 2, 5, 7),
        mix(2, 3, 5, 4, 6, 7),
    ]
}

fn reversed(mut half: Half) -> Half {
    half.reverse();
    half
}

#[derive(Clone, Copy)]
struct State {
    pipe: [Half; 2],
}

impl State {
    fn new() -> Self {
        const START: [u64; 16] = initial();
        let (mut low, mut high) = ([0; 8], [0; 8]);
        low.copy_from_slice(&START[..8]);
        high.copy_from_slice(&START[8..]);
        State { pipe: [low, high] }
    }

    fn block(&mut self, block: &[u8; BLOCK]) {
        let mut m = [[0u64; 8]; 2];
        for (word, bytes) in m.as_flattened_mut().iter_mut().zip(block.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [low, high] = &mut self.pipe;
        let mut p = star(&reversed(m[1]), &m[0]);
        let mut q = star(&p, &m[1]);
        p = star(high, &p);
        q = star(&p, &q);
        p = star(&p, low);
        q = star(&q, &p);
        p = star(&reversed(m[0]), &p);
        q = star(&p, &q);
        for i in 0..8 {
            low[i] ^= m[1][i] ^ p[i];
            high[i] ^= m[0][i] ^ q[i];
        }
    }

    /// Hashes `data` and the padding, `before` bytes (whole blocks) having been hashed already.
    fn finish(mut self, before: u64, data: &[u8]) -> [u8; 64] {
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        for block in blocks {
            self.block(block);
        }
        let bits = before.wrapping_add(data.len() as u64).wrapping_mul(8);
        let mut tail = [0u8; 2 * BLOCK];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        // One bit block of padding and the length must fit behind the rest.
        let used = if rest.len() < BLOCK - 8 { BLOCK } else { 2 * BLOCK };
        tail[used - 8..used].copy_from_slice(&bits.to_le_bytes());
        for block in tail[..used].as_chunks::<BLOCK>().0 {
            self.block(block);
        }
        let mut digest = [0; 64];
        for (bytes, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(self.pipe[1]) {
            *bytes = word.to_le_bytes();
        }
        digest
    }
}

/// Plain Edon-R 512.
pub fn edonr512(data: &[u8]) -> [u8; 64] {
    State::new().finish(0, data)
}

/// The state after the key block.
#[derive(Clone)]
pub(super) struct Keyed(State);

impl Keyed {
    pub fn new(salt: &[u8; 32]) -> Self {
        let mut key = [0; BLOCK];
        let first = edonr512(salt);
        key[..64].copy_from_slice(&first);
        key[64..].copy_from_slice(&edonr512(&first));
        let mut state = State::new();
        state.block(&key);
        Keyed(state)
    }

    /// The first 256 bits of the keyed hash.
    pub fn hash(&self, data: &[u8]) -> [u8; 32] {
        let digest = self.0.finish(BLOCK as u64, data);
        let mut out = [0; 32];
        out.copy_from_slice(&digest[..32]);
        out
    }
}
