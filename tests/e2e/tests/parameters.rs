//! Tunables that an administrator sets for every start, and those of memory.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

const MIB: u64 = 1 << 20;

struct Served {
    daemon: Child,
}

fn serve(world: &World) -> Served {
    let mut command = world.command("zillad");
    command.env("ZILLA_PARAMETERS", world.path().join("parameters"));
    command.env("ZILLA_KSTATS", world.path().join("kstat"));
    let log = std::fs::File::options().create(true).append(true).open(world.state().join("zillad.log"));
    let log = log.expect("log");
    command.stderr(log.try_clone().expect("log")).stdout(log);
    let daemon = command.spawn().expect("zillad");
    until("the daemon answers", || world.run("zilla", &["status"]).code == 0);
    Served { daemon }
}

impl Served {
    fn stop(mut self, world: &World) {
        world.stop();
        self.daemon.wait().expect("zillad");
    }
}

#[track_caller]
fn until(what: &str, done: impl Fn() -> bool) {
    let begun = Instant::now();
    while !done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to be: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn counter(file: &Path, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|l| l.split_whitespace().next() == Some(name))?;
    line.split_whitespace().last()?.parse().ok()
}

#[test]
fn what_a_file_sets_counts_from_the_start_and_memory_is_divided_by_it_at_once() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let (parameters, conf) = (world.path().join("parameters"), world.state().join("parameters.conf"));
    let text = "# more of it\nzfs_arc_max=128M\nzfs_arc_min = 96M # a floor\nzfs_txg_timeout=0x7\n\
                zfs_nonsense=1\nzfs_txg_history=many\n";
    std::fs::write(&conf, text).expect("parameters.conf");
    let served = serve(&world);
    let parameter = |name: &str| std::fs::read_to_string(parameters.join(name)).expect("a tunable");
    assert_eq!(parameter("zfs_arc_max"), format!("{}\n", 128 * MIB));
    assert_eq!((parameter("zfs_txg_timeout"), parameter("zfs_txg_history")), ("7\n".into(), "100\n".into()));
    let log = std::fs::read_to_string(world.state().join("zillad.log")).expect("log");
    for (line, why) in [(5, "there is no tunable 'zfs_nonsense'"), (6, "'many' is no number")] {
        assert!(log.contains(&format!("parameters.conf', line {line}: {why}")), "{log}");
    }
    let arcstats = world.path().join("kstat/arcstats");
    let bounds = || (counter(&arcstats, "c_min"), counter(&arcstats, "c_max"));
    let one = Pool::create(&world, "one", Kind::Single, 96 * MIB, &[]);
    until("c_min and c_max of one pool", || bounds() == (Some(96 * MIB), Some(128 * MIB)));
    // They are all pools' together.
    let two = Pool::create(&world, "two", Kind::Single, 96 * MIB, &[]);
    until("limits of both", || counter(&arcstats, "c").is_some_and(|c| c <= 128 * MIB));
    assert_eq!(bounds(), (Some(96 * MIB), Some(128 * MIB)));
    let set = |name: &str, value: u64| std::fs::write(parameters.join(name), value.to_string()).expect("set");
    set("zfs_arc_max", 192 * MIB);
    until("a larger one", || bounds() == (Some(96 * MIB), Some(192 * MIB)));
    // What cannot be is not heeded, and told.
    set("zfs_arc_min", 193 * MIB);
    set("zfs_dirty_data_max", 1);
    let told = |text: &str| {
        let log = std::fs::read_to_string(world.state().join("zillad.log")).expect("log");
        log.contains(text)
    };
    until("the refusals", || {
        told("zfs_arc_min=202375168 is not heeded") && told("zfs_dirty_data_max=1 is not heeded")
    });
    until("the usual floor", || bounds().0 == Some(64 * MIB));
    set("zfs_dirty_data_max", 32 * MIB);
    std::fs::write(one.root().join("f"), vec![7; 48 << 20]).expect("write");
    std::fs::write(two.root().join("f"), vec![7; 8 << 20]).expect("write");
    one.judge();
    two.judge();
    served.stop(&world);
}
