//! Measures zilla beside its peers: `zilla-bench run`, or `cargo xtask bench`.
//!
//! `run` is the driver: it takes zilla and the peers by turns, so that a noisy moment of the
//! machine hits both, repeats that a few times, and prints medians and ratios. Each measurement is
//! a process of its own, because CPU time, page faults and thread switches are counted for a
//! process. `engine` is one such process, the counterpart of OpenZFS's `dmubench` with the same
//! options and the same JSON; `sync` is another, of writes that are stable when they return;
//! `modelled` runs the published tests of log devices on modelled disks, in virtual time, so that
//! it needs neither disks nor a quiet machine, and one of them also through the kernel, in real
//! time, and what cache devices bring on modelled ones; `streams` is one measurement of sends,
//! receives, encryption, deduplication or clones; `files` makes the pool that the import part
//! imports.
//!
//! Peers are never linked: they are programs that the driver finds or builds (`driver/peers.rs`).

mod driver;
mod engine;
mod files;
mod meter;
mod modelled;
mod streams;
mod synced;

use std::process::ExitCode;

const USAGE: &str = "usage: zilla-bench run [options]      zilla and its peers by turns
  --part engine|kernels|fuse|import|slog|scan|cache|volume|sync|nbd|streams   which part (default: all; repeatable)
  --runs N (5)  --seconds S (3)  --only TEXT (workloads with this in their name)
  --dir FOLDER (/dev/shm/zilla-bench)   backing files; must be in memory for comparable figures
  --disk FOLDER (target/bench-disk)     where the sync part works: on the real disk
  --peers FOLDER               where the peers are built (default: target/peers)
  --no-peers                   zilla alone
       zilla-bench engine [options]   one measurement; prints one line of JSON
  --vdev \"raidz2 a b c d\" --vdev-size 1400M --volsize 1G --volblocksize 128K --arc-max 512M
  --threads N --seconds S --workload W --entropy 50 --seed N --compress off --checksum fletcher4
       zilla-bench sync --vdev FILE --vdev-size 2G --volsize 400M --threads N --seconds S   one measurement of 8K writes with fsync
       zilla-bench modelled [--seconds 16] [--only perrin|copy|large] [--disks 1|2|4|8] [--log TEXT] [--through facade|fuse]
                         [--policy plain|measured]   log devices, on modelled devices in virtual time; perrin through fuse in real time
       zilla-bench modelled --only scan [--gb 4] [--no-legacy]   scrub and resilver of a fragmented pool, on modelled disks
       zilla-bench modelled --only story [--gb 905]   the media house's steps at their full size, on modelled disks
       zilla-bench modelled --only cache [--rows random|streams|feeding|scan|restart] [--cases TEXT] [--shrink N]
                         [--tunable NAME=N]   cache devices, on modelled devices
       zilla-bench modelled --only volume [--gb 4]   writes into parts of a volume's records, on modelled disks
       zilla-bench streams --what send|receive|incremental|crypt|dedup|clone --file FILE [options]   one measurement
  --file-mb 3072 --size-mb 256 --record 128K --turns 3 --files N --changed N --entries N
       zilla-bench files --count N [options]   an exported pool of so many small files
";

fn main() -> ExitCode {
    let mut args = lexopt::Parser::from_env();
    let command = match args.next() {
        Ok(Some(lexopt::Arg::Value(v))) => v.to_string_lossy().into_owned(),
        _ => String::new(),
    };
    let done = match command.as_str() {
        "run" => driver::main(args),
        "engine" => engine::main(args),
        "sync" => synced::main(args),
        "modelled" => modelled::main(args),
        "streams" => streams::main(args),
        "files" => files::main(args),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("zilla-bench: {e}");
            ExitCode::FAILURE
        }
    }
}
