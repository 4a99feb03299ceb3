//! CRC-64 (ECMA-182, reflected), seeded with the ZAP's salt.

const POLY: u64 = 0xC96C_5795_D787_0F42;

const fn table() -> [u64; 256] {
    let mut out = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut c = i as u64;
        let mut bit = 0;
        while bit < 8 {
            c = (c >> 1) ^ if c & 1 != 0 { POLY } else { 0 };
            bit += 1;
        }
        #[allow(clippy::indexing_slicing)] // evaluated by the compiler
        {
            out[i] = c;
        }
        i += 1;
    }
    out
}

static TABLE: [u64; 256] = table();

/// Folds bytes into a hash.
pub fn crc64(seed: u64, bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(seed, |h, b| {
        // Eight bits always lie in the table.
        #[allow(clippy::indexing_slicing)]
        let t = TABLE[((h ^ u64::from(b)) & 0xff) as usize];
        (h >> 8) ^ t
    })
}
