//! Sending beside reading the same, receiving beside writing the same, and increments.
//!
//! **Limits.** A send reads what a reader reads, puts it through the stream's running fletcher4
//! and lets a sink have it; a receive adds the same sum to a write. An increment has to read the
//! blocks of dnodes in which something changed and what leads to them, so at best its cost follows
//! the number of those.

use super::{Bench, POOL, Side};
use crate::engine::Result;
use crate::engine::data::next;
use crate::meter::Mark;
use bytes::Bytes;
use serde_json::{Value, json};
use zilla::streams::{From, ReceiveOpts, RecordReader, SendOpts, Sink, Special};
use zilla::{Cred, Files, NewFile};
use zilla_env::BoxFuture;
use zilla_ondisk::stream::Record;

/// Of the overwriting that leaves no file in order, in txgs.
const SHUFFLES: usize = 8;
const FILES_IN_DIR: u64 = 1000;
const S_IFREG: u32 = 0o100_000;
const S_IFDIR: u32 = 0o040_000;
const OWNER: Cred = Cred { uid: 0, gid: 0 };

/// A sink that only counts.
#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn write(&mut self, data: Vec<Bytes>) -> BoxFuture<'_, zilla::error::Result<()>> {
        self.0 += data.iter().map(|d| d.len() as u64).sum::<u64>();
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Bench {
    /// A file whose records lie in no order, and a snapshot of it.
    async fn fragmented(&self) -> Result<()> {
        let ds = self.filesystem("sent", &[]).await?;
        let files = ds.files().await?;
        self.write(&files, "/f", &self.unique(1)).await?;
        let file = files.open("/f").await?;
        let record = u64::from(file.attr().await?.blksize);
        let mut order: Vec<u64> = (0..self.o.size / record).collect();
        let mut random = 1;
        for i in (1..order.len()).rev() {
            order.swap(i, (next(&mut random) % (i as u64 + 1)) as usize);
        }
        let data = self.unique(2);
        for part in order.chunks(order.len().div_ceil(SHUFFLES)) {
            for i in part {
                let at = i * record;
                let part = data.slice(at as usize..(at + record) as usize);
                files.filesystem().write(file.node(), at, &part, false).await?;
            }
            self.pool.sync().await?;
        }
        drop((file, files));
        ds.snapshot("a").await?;
        Ok(())
    }

    pub async fn send(&self) -> Result<Value> {
        self.fragmented().await?;
        let snapshot = self.pool.by_name(&format!("{POOL}/sent@a")).await?;
        let ds = self.pool.dataset(&format!("{POOL}/sent")).await?;
        let (mut sent, mut read) = (Side::default(), Side::default());
        for _ in 0..self.o.turns {
            let files = ds.files().await?;
            read.add(self.o.size, self.read(&files, "/f", self.o.size).await?);
            drop(files);
            self.pool.drop_caches();
            let mark = Mark::now();
            let mut sink = Count::default();
            snapshot.send(&SendOpts::default(), &Special::default(), &mut sink).await?;
            sent.add(self.o.size, mark.spent());
            if sink.0 < self.o.size {
                return Err("it did not send all".into());
            }
        }
        Ok(json!({ "this": sent.json(), "plain": read.json() }))
    }

    pub async fn receive(&self) -> Result<Value> {
        let data = self.unique(1);
        let ds = self.filesystem("sent", &[]).await?;
        self.write(&ds.files().await?, "/f", &data).await?;
        ds.snapshot("a").await?;
        let mut stream = Vec::with_capacity(self.o.size as usize * 9 / 8);
        let snapshot = self.pool.by_name(&format!("{POOL}/sent@a")).await?;
        snapshot.send(&SendOpts::default(), &Special::default(), &mut stream).await?;
        let stream = Bytes::from(stream);
        let (mut received, mut written) = (Side::default(), Side::default());
        for turn in 0..self.o.turns {
            let plain = self.filesystem(&format!("plain{turn}"), &[]).await?;
            written.add(self.o.size, self.write(&plain.files().await?, "/f", &data).await?);
            let mut source = stream.clone();
            let mark = Mark::now();
            let mut reader = RecordReader::new(&mut source);
            let Some((Record::Begin(begin), payload)) = reader.begin().await? else {
                return Err("a stream without a beginning".into());
            };
            let fs = format!("{POOL}/received{turn}");
            let opts = ReceiveOpts { fs, snap: "a".into(), ..ReceiveOpts::default() };
            let mut receiving = self.pool.receive(begin, &payload, opts).await?;
            receiving.records(&mut reader).await?;
            receiving.end().await?;
            received.add(self.o.size, mark.spent());
        }
        Ok(json!({ "this": received.json(), "plain": written.json() }))
    }

    /// The stream of what changed in some of many small files.
    pub async fn incremental(&self) -> Result<Value> {
        let ds = self.filesystem("many", &[]).await?;
        let files = ds.files().await?;
        let mut dir = files.filesystem().root();
        let mut nodes = Vec::with_capacity(self.o.files as usize);
        for i in 0..self.o.files {
            if i % FILES_IN_DIR == 0 {
                dir = make(&files, files.filesystem().root(), i, S_IFDIR | 0o755).await?;
            }
            let node = make(&files, dir, i, S_IFREG | 0o644).await?;
            files.filesystem().write(node, 0, &Bytes::from(vec![1; 4096]), false).await?;
            nodes.push(node);
        }
        let earlier = ds.snapshot("a").await?;
        let step = (self.o.files / self.o.changed.max(1)).max(1);
        for node in nodes.iter().step_by(step as usize).take(self.o.changed as usize) {
            files.filesystem().write(*node, 0, &Bytes::from(vec![2; 4096]), false).await?;
        }
        drop(files);
        ds.snapshot("b").await?;
        let from = self.pool.by_name(earlier.name()).await?;
        let from = From { guid: from.guid(), txg: from.created_txg(), is_clone: false };
        let opts = SendOpts { from: Some(from), ..SendOpts::default() };
        let later = self.pool.by_name(&format!("{POOL}/many@b")).await?;
        let mut side = Side::default();
        for _ in 0..self.o.turns {
            self.pool.drop_caches();
            let mark = Mark::now();
            let mut sink = Count::default();
            later.send(&opts, &Special::default(), &mut sink).await?;
            side.add(sink.0, mark.spent());
        }
        let sends = (self.o.changed * self.o.turns as u64) as f64;
        Ok(json!({ "files": self.o.files, "changed": self.o.changed, "this": side.json(),
            "cpu_us_per_change": side.spent.cpu * 1e6 / sends,
            "us_per_change": side.spent.seconds * 1e6 / sends,
            "bytes_per_change": side.bytes as f64 / sends }))
    }
}

async fn make(files: &Files, dir: zilla::NodeId, i: u64, mode: u32) -> Result<zilla::NodeId> {
    let name = format!("n{i}");
    Ok(files.filesystem().create(dir, name.as_bytes(), NewFile::new(mode, OWNER)).await?.leak())
}
