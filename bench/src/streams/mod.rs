//! Streams, keys and shared blocks: what each costs beside the plain reading or writing that it
//! stands on.
//!
//! One measurement is a process of its own on a pool in a file that lies in memory, and does both
//! sides by turns, so that their ratio is of one machine at one time. Writes end when they are
//! synced; reads begin with nothing of the pool in its caches. The file is written in full first.
//! One client asks; the engine has as many threads as there are cores.

mod crypt;
mod dedup;
mod send;

use crate::engine::Result;
use crate::engine::data::next;
use crate::meter::{Mark, Spent};
use bytes::Bytes;
use lexopt::ValueExt;
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zilla::{Dataset, Files, NewPool, NewVdev, Pool};
use zilla_env::{Env, real_env};

const POOL: &str = "streams";
const MIB: u64 = 1 << 20;
/// Of the pool's caches.
const MEMORY: u64 = 512 << 20;
/// A request of whoever reads or writes plainly.
const REQUEST: u64 = 128 << 10;

pub struct Options {
    pub what: String,
    pub file: PathBuf,
    pub file_size: u64,
    /// Bytes of what is sent, written or cloned.
    pub size: u64,
    pub record: String,
    pub turns: usize,
    /// Files of the incremental, and those of them that change.
    pub files: u64,
    pub changed: u64,
    /// Of the deduplication table.
    pub entries: u64,
}

impl Options {
    fn parse(mut args: lexopt::Parser) -> Result<Options> {
        let mut o = Options {
            what: String::new(),
            file: PathBuf::new(),
            file_size: 3 << 30,
            size: 256 << 20,
            record: "128K".into(),
            turns: 3,
            files: 20_000,
            changed: 200,
            entries: 0,
        };
        while let Some(arg) = args.next()? {
            match arg {
                lexopt::Arg::Long("what") => o.what = args.value()?.string()?,
                lexopt::Arg::Long("file") => o.file = args.value()?.into(),
                lexopt::Arg::Long("file-mb") => o.file_size = args.value()?.parse::<u64>()? * MIB,
                lexopt::Arg::Long("size-mb") => o.size = args.value()?.parse::<u64>()? * MIB,
                lexopt::Arg::Long("record") => o.record = args.value()?.string()?,
                lexopt::Arg::Long("turns") => o.turns = args.value()?.parse()?,
                lexopt::Arg::Long("files") => o.files = args.value()?.parse()?,
                lexopt::Arg::Long("changed") => o.changed = args.value()?.parse()?,
                lexopt::Arg::Long("entries") => o.entries = args.value()?.parse()?,
                other => return Err(other.unexpected().into()),
            }
        }
        Ok(o)
    }
}

pub fn main(args: lexopt::Parser) -> Result<()> {
    let o = Options::parse(args)?;
    prewrite(&o)?;
    let bench = Bench::new(o)?;
    let run = bench.env.clone();
    let result = run.block_on(async {
        let result = match bench.o.what.as_str() {
            "send" => bench.send().await?,
            "receive" => bench.receive().await?,
            "incremental" => bench.incremental().await?,
            "crypt" => bench.crypt().await?,
            "dedup" => bench.dedup().await?,
            "clone" => bench.clone_file().await?,
            other => return Err(format!("there is nothing called {other} to measure").into()),
        };
        bench.pool.export().await?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(result)
    })?;
    println!("{result}");
    Ok(())
}

fn prewrite(o: &Options) -> Result<()> {
    let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&o.file)?;
    if file.metadata()?.len() == o.file_size {
        return Ok(());
    }
    file.set_len(0)?;
    let fresh = vec![0x5a; MIB as usize];
    for at in (0..o.file_size).step_by(fresh.len()) {
        file.write_all_at(&fresh, at)?;
    }
    Ok(())
}

pub struct Bench {
    o: Options,
    env: Env,
    pool: Pool,
}

/// What one side took in all its turns.
#[derive(Default)]
pub struct Side {
    bytes: u64,
    spent: Spent,
}

impl Side {
    fn add(&mut self, bytes: u64, spent: Spent) {
        self.bytes += bytes;
        self.spent.seconds += spent.seconds;
        self.spent.cpu += spent.cpu;
        self.spent.system += spent.system;
    }

    fn cpu_per_gib(&self) -> f64 {
        self.spent.cpu / (self.bytes as f64 / (1 << 30) as f64)
    }

    fn rate(&self) -> f64 {
        self.bytes as f64 / MIB as f64 / self.spent.seconds
    }

    fn json(&self) -> Value {
        let gib = self.bytes as f64 / (1 << 30) as f64;
        json!({ "bytes": self.bytes, "seconds": self.spent.seconds, "MBps": self.rate(),
            "cpu_s_per_GiB": self.cpu_per_gib(), "cpu_sys_s_per_GiB": self.spent.system / gib })
    }
}

impl Bench {
    fn new(o: Options) -> Result<Bench> {
        let env = real_env(0);
        let new = NewPool::new(POOL).vdev(NewVdev::single(&o.file)).overwrite().memory(MEMORY);
        let pool = env.block_on(Pool::create(&env, new))?;
        Ok(Bench { o, env, pool })
    }

    async fn filesystem(&self, name: &str, more: &[(&str, &str)]) -> Result<Dataset> {
        let mut props = vec![("compression", "off"), ("recordsize", self.o.record.as_str())];
        props.extend(more);
        Ok(self.pool.create_filesystem(&format!("{POOL}/{name}"), &props).await?)
    }

    /// Writes a file by requests, and syncs it.
    async fn write(&self, files: &Files, name: &str, data: &Bytes) -> Result<Spent> {
        let file = files.create(name).await?;
        let fs = files.filesystem();
        let mark = Mark::now();
        for at in (0..data.len()).step_by(REQUEST as usize) {
            let part = data.slice(at..(at + REQUEST as usize).min(data.len()));
            fs.write(file.node(), at as u64, &part, false).await?;
        }
        self.pool.sync().await?;
        Ok(mark.spent())
    }

    /// Reads a file by requests, of which nothing is in the pool's caches.
    async fn read(&self, files: &Files, name: &str, size: u64) -> Result<Spent> {
        let file = files.open(name).await?;
        let fs = files.filesystem();
        self.pool.drop_caches();
        let mark = Mark::now();
        for at in (0..size).step_by(REQUEST as usize) {
            fs.read(file.node(), at, REQUEST as usize).await?;
        }
        Ok(mark.spent())
    }

    /// Bytes of which no 512 are the same, and none as with another seed.
    fn unique(&self, seed: u64) -> Bytes {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut out = vec![0; self.o.size as usize];
        for word in out.as_chunks_mut::<8>().0 {
            *word = next(&mut state).to_le_bytes();
        }
        Bytes::from(out)
    }
}
