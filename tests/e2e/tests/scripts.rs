//! Scripts that `zpool status -c` and `zpool iostat -c` run for each device.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use zilla_e2e::{Kind, Need, Pool, World, can, world};

/// `zpool status -c` and `zpool iostat -c`.
#[test]
fn scripts_of_the_caller_say_something_of_each_device() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, 96 << 20, &[]);
    let scripts = world.path().join("scripts");
    fs::create_dir(&scripts).expect("scripts");
    let script = |name: &str, text: &str| {
        let path = scripts.join(name);
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("script");
    };
    script(
        "place",
        "[ \"$1\" = -h ] && echo \"Where it lies.$SECRET\" && exit\n\
         echo \"file=${VDEV_PATH##*/}\"; echo \"under=${VDEV_UPATH##*/}\"; echo \"pool=$POOL_NAME\"; \
         echo \"home=$HOME\"; echo rest of it; echo not=read",
    );
    script("fails", "[ \"$1\" = -h ] || echo failed=yes; exit 1");
    fs::write(scripts.join("text"), "no program").expect("text");
    let root = rustix::process::geteuid().is_root();
    let run = |as_root: &str, words: &[&str]| {
        let mut command = world.command("zpool");
        command.args(words).env("ZPOOL_SCRIPTS_PATH", &scripts).env("ZPOOL_SCRIPTS_AS_ROOT", as_root);
        // Nothing for the scripts to see.
        command.env("SECRET", "of the caller");
        world::finish(command)
    };
    for command in ["status", "iostat"] {
        if root {
            let refused = run("0", &[command, "-c", "place"]);
            let why = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
            assert_eq!((refused.code, refused.stderr.as_str()), (1, why));
            // They are run to be listed, too.
            let refused = run("0", &[command, "-c"]);
            assert_eq!((refused.code, refused.stderr.as_str()), (1, why));
        }
        let twice = run("1", &[command, "-c", "place", "-c", "fails"]);
        assert_eq!((twice.code, twice.stderr.as_str()), (1, "Can't set -c flag twice\n"));
        let listed = run("1", &[command, "-c"]).ok();
        let wanted = format!("Available 'zpool {command} -c' commands:\n  {:<14}  Where it lies.\n", "place");
        assert_eq!(listed, wanted);
        let shown = run("1", &[command, "-c", "place,fails,none,../scripts/place"]).ok();
        let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let heading = shown.lines().map(cells).find(|l| l.ends_with(&["home".to_owned()]));
        assert!(heading.is_some_and(|h| h.join(" ").ends_with("file under pool home")), "{shown}");
        for disk in &pool.disks {
            let name = disk.file_name().expect("name").to_string_lossy().into_owned();
            let wanted = format!("{name} {name} tank - rest of it");
            assert!(shown.lines().any(|l| cells(l).join(" ").ends_with(&wanted)), "{shown}");
        }
        assert!(!shown.contains("failed") && !shown.contains("read=") && !shown.contains("  not"), "{shown}");
    }
    let json = run("1", &["status", "-j", "-c", "place"]).ok();
    assert!(json.contains("\"under\"") && json.contains("\"extra_1\""), "{json}");
    pool.judge();
}
