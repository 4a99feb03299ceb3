//! A client of the NBD server that sends anything: the handshake, and requests after it.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, OnceLock};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zilla_nbd::{Export, Exports, Extent, Facts, Memory, ReadData, Refused, serve_client};

const SIZE: u64 = 1 << 20;

/// A volume of zeroes that forgets what is written.
struct Zeroes;

struct Shelf;

impl Exports for Shelf {
    type Export = Zeroes;
    async fn list(&self) -> Vec<String> {
        vec!["a".into()]
    }
    async fn open(&self, name: &str) -> Result<Zeroes, Refused> {
        if name == "a" { Ok(Zeroes) } else { Err(Refused) }
    }
}

fn zeroes(off: u64, len: usize) -> zilla_nbd::ReadData {
    assert!(off.checked_add(len as u64).is_some_and(|end| end <= SIZE), "a read beyond the end was let through");
    [Bytes::from(vec![0; len])].into_iter().collect()
}

impl Export for Zeroes {
    fn facts(&self) -> zilla_nbd::Result<Facts> {
        Ok(Facts { size: SIZE, block_size: 4096, readonly: false, concurrent: true })
    }
    async fn closed(&self) {
        std::future::pending().await
    }
    fn try_read(&self, off: u64, len: usize) -> zilla_nbd::Result<Option<ReadData>> {
        Ok((off % 2 == 0).then(|| zeroes(off, len)))
    }
    async fn read(&self, off: u64, len: usize) -> zilla_nbd::Result<ReadData> {
        Ok(zeroes(off, len))
    }
    async fn write(&self, off: u64, data: Vec<Bytes>, _: bool) -> zilla_nbd::Result<()> {
        zeroes(off, data.iter().map(Bytes::len).sum());
        Ok(())
    }
    async fn flush(&self) -> zilla_nbd::Result<()> {
        Ok(())
    }
    async fn trim(&self, off: u64, len: u64, _: bool) -> zilla_nbd::Result<()> {
        zeroes(off, len as usize);
        Ok(())
    }
    async fn write_zeroes(&self, off: u64, len: u64, _: bool, _: bool) -> zilla_nbd::Result<()> {
        zeroes(off, len as usize);
        Ok(())
    }
    async fn extents(&self, off: u64, len: u64) -> zilla_nbd::Result<Vec<Extent>> {
        zeroes(off, len as usize);
        Ok(vec![Extent { len, hole: off % 2 == 0 }])
    }
    async fn cache(&self, off: u64, len: u64) -> zilla_nbd::Result<()> {
        zeroes(off, len as usize);
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    static RUNTIME: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime")
    });
    // The first bit says whether the handshake is the fuzzer's too.
    let Some((first, rest)) = data.split_first() else { return };
    let mut sent = Vec::new();
    if first & 1 == 1 {
        sent.extend_from_slice(&[0, 0, 0, 3]);
        for (option, data) in [(8u32, &b""[..]), (10, b"\0\0\0\x01a\0\0\0\x01\0\0\0\x0fbase:allocation"), (7, b"\0\0\0\x01a\0\0")] {
            sent.extend_from_slice(b"IHAVEOPT");
            sent.extend_from_slice(&option.to_be_bytes());
            sent.extend_from_slice(&(data.len() as u32).to_be_bytes());
            sent.extend_from_slice(data);
        }
    }
    sent.extend_from_slice(rest);
    runtime.block_on(async {
        let (client, server) = tokio::io::duplex(8192);
        let (r, w) = tokio::io::split(server);
        let served = tokio::spawn(async move { serve_client(r, w, Arc::new(Shelf), &Memory::of(0)).await });
        let (mut from, mut to) = tokio::io::split(client);
        let writing = tokio::spawn(async move {
            let _ = to.write_all(&sent).await;
            let _ = to.shutdown().await;
        });
        let mut out = Vec::new();
        let _ = from.read_to_end(&mut out).await;
        writing.await.expect("the client");
        // It comes to its end, without a panic.
        let _ = served.await.expect("the server");
    });
});
