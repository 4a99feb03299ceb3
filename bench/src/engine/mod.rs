//! One measurement of zilla's engine: a volume-like object on a fresh pool, driven as `dmubench`
//! drives OpenZFS's.
//!
//! Same data, same backing files, same order of events: the files are written in full first, every
//! record of the volume exists before anything is timed, reads come after an export, a drop of the
//! host's cache and an import, and a write's time includes the sync of what it dirtied. The clients
//! are threads of their own that call the engine and wait, as a server's would.

pub mod data;
mod job;
mod options;
mod traced;
mod volume;

use job::{Job, Kind, Outcome};
pub use options::Options;
use serde_json::{Value, json};
pub use volume::Volume;

pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// Reads from memory, by turns with and without a recording of them.
const TRACED: &str = "randread16k_traced";

pub fn main(args: lexopt::Parser) -> Result<()> {
    let o = Options::parse(args)?;
    o.prewrite()?;
    let data = std::sync::Arc::new(data::pool(o.entropy, o.seed));
    let mut volume = Volume::create(&o)?;
    let fill = Job { kind: Kind::Write, io: o.block.max(128 << 10), once: true, ..Job::new(&o) };
    let filled = job::run(&volume, &fill, 4, &data)?;
    let Some((kind, io, cached)) = workload(&o.workload) else {
        return Err(format!("no workload {}", o.workload).into());
    };
    if o.workload == TRACED {
        volume = volume.cycle(&o)?;
        let warm = Job { kind: Kind::Read, io: 128 << 10, once: true, ..Job::new(&o) };
        job::run(&volume, &warm, 2, &data)?;
        println!("{}", traced::run(&volume, &o, &data)?);
        return volume.destroy();
    }
    let outcome = match kind {
        Kind::Fill => filled.clone(),
        Kind::Scrub => {
            volume = volume.cycle(&o)?;
            volume.scrub()?
        }
        _ => {
            volume = volume.cycle(&o)?;
            if cached {
                let warm = Job { kind: Kind::Read, io: 128 << 10, once: true, ..Job::new(&o) };
                job::run(&volume, &warm, 2, &data)?;
            }
            let once = kind == Kind::Read;
            job::run(&volume, &Job { kind, io, once, ..Job::new(&o) }, o.threads, &data)?
        }
    };
    println!("{}", report(&o, &outcome, &filled));
    volume.destroy()
}

/// Name, what is done, the size of a request, and whether the volume is brought into the cache
/// first.
fn workload(name: &str) -> Option<(Kind, u64, bool)> {
    const K: u64 = 1024;
    Some(match name {
        "fill" => (Kind::Fill, 128 * K, false),
        "seqwrite128k" => (Kind::Write, 128 * K, false),
        "seqwrite128k_unaligned" => (Kind::WriteShifted, 128 * K, false),
        "seqwrite1m" => (Kind::Write, 1024 * K, false),
        "seqwrite16k" => (Kind::Write, 16 * K, false),
        "randwrite16k" => (Kind::RandWrite, 16 * K, false),
        "randwrite16k_cached" => (Kind::RandWrite, 16 * K, true),
        "seqread128k" => (Kind::Read, 128 * K, false),
        "seqread1m" => (Kind::Read, 1024 * K, false),
        "seqread16k" => (Kind::Read, 16 * K, false),
        "randread16k" => (Kind::RandRead, 16 * K, false),
        "randread16k_cached" => (Kind::RandRead, 16 * K, true),
        TRACED => (Kind::RandRead, 16 * K, true),
        "scrub" => (Kind::Scrub, 0, false),
        _ => return None,
    })
}

fn report(o: &Options, r: &Outcome, fill: &Outcome) -> Value {
    const MIB: f64 = 1_048_576.0;
    let (s, ops) = (r.spent, r.latencies.len().max(1) as f64);
    let mb = r.bytes as f64 / MIB;
    let mut sorted = r.latencies.clone();
    sorted.sort_unstable();
    let at = |p: f64| sorted.get((sorted.len() as f64 * p) as usize).map_or(0.0, |ns| f64::from(*ns) / 1e3);
    json!({
        "engine": format!("zilla-{}", env!("CARGO_PKG_VERSION")),
        "workload": o.workload, "vdev": o.shape(), "volsize": o.volume, "volblocksize": o.block,
        "threads": o.threads, "bytes": r.bytes, "seconds": s.seconds, "MBps": mb / s.seconds,
        "MBps_accept": mb / r.accepted.max(1e-9),
        "IOPS": r.latencies.len() as f64 / s.seconds,
        "lat_us_p50": at(0.5), "lat_us_p99": at(0.99),
        "cpu_s": s.cpu, "cpu_sys_s": s.system,
        "cpu_s_per_GiB": s.cpu / (mb / 1024.0).max(1e-9),
        "foreign_cpu": s.foreign,
        "csw_per_op": s.switches as f64 / ops, "pagefaults_per_op": s.faults as f64 / ops,
        "cpu_us_per_op": s.cpu * 1e6 / ops,
        "fill_MBps": fill.bytes as f64 / MIB / fill.spent.seconds,
        "pool_allocated": r.allocated,
    })
}
