//! Writing and reading what is encrypted beside what is not.
//!
//! **Limit.** The cipher's own speed on one core is measured in the same process. What is encrypted
//! costs at least what is not and the cipher's time, so its rate is at most
//! plain / (plain + cipher) of the other's, each as CPU seconds of a GiB.

use super::{Bench, POOL, Side};
use crate::engine::Result;
use crate::meter::Mark;
use serde_json::{Value, json};
use std::sync::Arc;
use zilla::keys::{KeyFormat, NewCrypt, NewSuite, Suite, WrappingKey};
use zilla::{Dataset, Maker};
use zilla_codec::crypt::{Cipher, IV_LEN, MAC_LEN};

const SUITE: Suite = Suite::Aes256Gcm;
const BLOCK: usize = 128 << 10;
const CIPHER_BYTES: usize = 256 << 20;

/// CPU seconds of a GiB that one core takes to encrypt blocks, and to decrypt them.
fn cipher() -> Result<(f64, f64)> {
    let cipher = Cipher::new(SUITE, &[7; 32]).ok_or("a key of the wrong length")?;
    let mut all = vec![[0; MAC_LEN]; CIPHER_BYTES / BLOCK];
    let mut data = vec![1; CIPHER_BYTES];
    let iv = |n: usize| {
        let mut iv = [0; IV_LEN];
        iv[..8].copy_from_slice(&(n as u64).to_le_bytes());
        iv
    };
    let mark = Mark::now();
    for (n, (block, mac)) in data.chunks_mut(BLOCK).zip(&mut all).enumerate() {
        *mac = cipher.seal(&iv(n), &[], block).map_err(|_| "too long a block")?;
    }
    let sealing = mark.spent().cpu;
    let mark = Mark::now();
    for (n, (block, mac)) in data.chunks_mut(BLOCK).zip(&all).enumerate() {
        cipher.open(&iv(n), &[], block, mac).map_err(|_| "what was sealed does not open")?;
    }
    let opening = mark.spent().cpu;
    let gib = CIPHER_BYTES as f64 / (1 << 30) as f64;
    Ok((sealing / gib, opening / gib))
}

impl Bench {
    async fn encrypted(&self, name: &str) -> Result<Dataset> {
        let key = Some(Arc::new(WrappingKey::raw(KeyFormat::Raw, &[7; 32])?));
        let crypt = NewCrypt { suite: NewSuite::Of(SUITE), key, location: Some("prompt".into()) };
        let name = format!("{POOL}/{name}");
        self.pool.make_filesystem(&name, &Maker::owner(0, 0), Vec::new(), crypt).await?;
        let ds = self.pool.dataset(&name).await?;
        ds.set(&[("compression", "off"), ("recordsize", self.o.record.as_str())]).await?;
        Ok(ds)
    }

    pub async fn crypt(&self) -> Result<Value> {
        let (sealing, opening) = cipher()?;
        let data = self.unique(1);
        let mut sides: [Side; 4] = Default::default();
        for turn in 0..self.o.turns {
            let plain = self.filesystem(&format!("plain{turn}"), &[]).await?.files().await?;
            let secret = self.encrypted(&format!("secret{turn}")).await?.files().await?;
            for (i, files) in [secret, plain].iter().enumerate() {
                sides[i].add(self.o.size, self.write(files, "/f", &data).await?);
                sides[i + 2].add(self.o.size, self.read(files, "/f", self.o.size).await?);
            }
        }
        let limit = |plain: &Side, cipher: f64| plain.cpu_per_gib() / (plain.cpu_per_gib() + cipher);
        let [written, plain_written, read, plain_read] = &sides;
        Ok(json!({
            "write": { "this": written.json(), "plain": plain_written.json(), "limit": limit(plain_written, sealing) },
            "read": { "this": read.json(), "plain": plain_read.json(), "limit": limit(plain_read, opening) },
            "cipher_GBps": { "seal": 1.073_741_824 / sealing, "open": 1.073_741_824 / opening },
        }))
    }
}
