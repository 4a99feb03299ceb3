//! Writing unique data with deduplication beside without, and sharing a file's blocks.
//!
//! **Limits.** `dedup=on` means SHA-256 of every block, where plain writes take fletcher4; so a
//! write without deduplication but with that checksum is measured as well: no table costs nothing.
//! A clone copies pointers: of a file of 1 GiB 8192, of 128 bytes each.

use super::{Bench, POOL, Side};
use crate::engine::Result;
use bytes::Bytes;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Blocks that do nothing but fill the table.
const FILLER: u64 = 512;
/// Of the bytes that a file of such blocks has at most.
const FILLER_FILE: u64 = 16 << 20;

impl Bench {
    /// A table with so many entries.
    async fn fill_table(&self) -> Result<()> {
        if self.o.entries == 0 {
            return Ok(());
        }
        let props = [("compression", "off"), ("recordsize", "512"), ("dedup", "on")];
        let ds = self.pool.create_filesystem(&format!("{POOL}/filler"), &props).await?;
        let files = ds.files().await?;
        let mut left = self.o.entries * FILLER;
        let mut n = 0u64;
        while left > 0 {
            let len = left.min(FILLER_FILE);
            let mut data = vec![0u8; len as usize];
            for block in data.as_chunks_mut::<{ FILLER as usize }>().0 {
                n += 1;
                block[..8].copy_from_slice(&n.to_le_bytes());
            }
            left -= len;
            files.write(&format!("/f{n}"), Bytes::from(data)).await?;
        }
        self.pool.sync().await?;
        Ok(())
    }

    pub async fn dedup(&self) -> Result<Value> {
        self.fill_table().await?;
        let mut sides: [Side; 3] = Default::default();
        let props: [&[(&str, &str)]; 3] = [&[("dedup", "on")], &[], &[("checksum", "sha256")]];
        for turn in 0..self.o.turns {
            let data = self.unique(2 + turn as u64);
            for (i, (side, props)) in sides.iter_mut().zip(props).enumerate() {
                let files = self.filesystem(&format!("d{turn}-{i}"), props).await?.files().await?;
                side.add(self.o.size, self.write(&files, "/f", &data).await?);
            }
        }
        let entries = self.pool.status(Duration::ZERO, false).dedup.entries;
        let [this, plain, hashed] = &sides;
        Ok(json!({ "entries": entries, "this": this.json(), "plain": plain.json(), "hashed": hashed.json(),
            "limit": hashed.cpu_per_gib() / plain.cpu_per_gib() }))
    }

    pub async fn clone_file(&self) -> Result<Value> {
        let files = self.filesystem("cloned", &[]).await?.files().await?;
        self.write(&files, "/f", &self.unique(1)).await?;
        let (mut calls, mut synced) = (Vec::new(), Vec::new());
        for turn in 0..self.o.turns {
            let (from, to) = (files.open("/f").await?, files.create(&format!("/c{turn}")).await?);
            self.pool.sync().await?;
            self.pool.drop_caches();
            let begun = Instant::now();
            let fs = files.filesystem();
            let bytes = fs.clone_file(fs, from.node(), to.node()).await?;
            calls.push(begun.elapsed().as_secs_f64() * 1e3);
            if bytes != self.o.size {
                return Err("it did not clone all".into());
            }
            self.pool.sync().await?;
            synced.push(begun.elapsed().as_secs_f64() * 1e3);
        }
        Ok(json!({ "bytes": self.o.size, "ms": calls, "ms_synced": synced }))
    }
}
