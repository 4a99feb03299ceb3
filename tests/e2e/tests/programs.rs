//! Channel programs: what they can do, what they are kept from, and what is printed.

use std::io::Write;
use std::time::{Duration, Instant};
use zilla_e2e::{Kind, Need, Pool, World, can};

/// Runs a program; options go before the pool, arguments after the program.
fn program(world: &World, options: &str, script: &str, arguments: &str) -> (i32, String, String) {
    let path = world.path().join("program.lua");
    std::fs::File::create(&path).unwrap().write_all(script.as_bytes()).unwrap();
    let done = world.zfs(&format!("program {options} tank {} {arguments}", path.display()));
    (done.code, done.stdout, done.stderr)
}

#[test]
fn programs_list_and_change_datasets() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    world.zfs("create tank/fs").ok();
    world.zfs("set note:x=hello tank/fs").ok();
    let (code, out, err) = program(
        &world,
        "",
        r##"
        args = ...
        fs = args["argv"][1]
        assert(zfs.exists(fs) and not zfs.exists(fs .. "/no"))
        assert(zfs.sync.snapshot(fs .. "@a") == 0)
        assert(zfs.sync.snapshot(fs .. "@a") == EEXIST)
        assert(zfs.sync.bookmark(fs .. "@a", fs .. "#m") == 0)
        assert(zfs.sync.rename_snapshot(fs, "a", "b") == 0)
        assert(zfs.sync.set_prop(fs, "note:y", "there") == 0)
        assert(zfs.sync.set_prop(fs, "compression", "off") == EINVAL)
        assert(zfs.check.destroy(fs .. "@b") == 0)
        assert(zfs.sync.destroy(fs) == EBUSY)
        names = {}
        for child in zfs.list.children("tank") do table.insert(names, child) end
        for snap in zfs.list.snapshots(fs) do table.insert(names, snap) end
        for mark in zfs.list.bookmarks(fs) do table.insert(names, mark) end
        notes = {}
        for name, value, from in zfs.list.user_properties(fs) do notes[name] = value .. from end
        size, from = zfs.get_prop(fs, "recordsize")
        return {names = names, notes = notes, size = size, from = from, half = 7 / 2}
        "##,
        "tank/fs",
    );
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.starts_with("Channel program fully executed with return value:\n    return:\n"), "{out}");
    for line in [
        "            1: 'tank/fs'",
        "            2: 'tank/fs@b'",
        "            3: 'tank/fs#m'",
        "            note:x: 'hellotank/fs'",
        "            note:y: 'theretank/fs'",
        "        size: 131072",
        "        from: 'default'",
        "        half: 3",
    ] {
        assert!(out.lines().any(|l| l == line), "{line} is not in\n{out}");
    }
    assert!(world.zpool("history tank").ok().contains("zfs program tank"));
    let (code, out, _) = program(&world, "-j", "return {a = 1}", "");
    assert_eq!((code, out.as_str()), (0, "{\"return\":{\"a\":1}}\n"));
    let (code, out, _) = program(&world, "-n", "", "");
    assert_eq!((code, out.as_str()), (0, "Channel program fully executed with no return value.\n"));
    pool.judge();
}

#[test]
fn programs_are_bounded_and_kept_in() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let endless = "local i = 0 while true do i = i + 1 end";
    let hungry = "a = {} i = 0 while true do i = i + 1 a[i] = 'entry ' .. i end";
    for (options, script, said) in [
        ("-t 1000", endless, "Channel program timed out"),
        ("-t 100000000", hungry, "Memory limit exhausted."),
        ("-m 100000 -t 100000000", hungry, "Memory limit exhausted."),
        ("-m 1", "return 1", "Memory limit exhausted."),
        ("-m 0", "return 1", "Invalid instruction or memory limit."),
        ("-m 200000000", "return 1", "Invalid instruction or memory limit."),
        ("-t 100000001", "return 1", "Invalid instruction or memory limit."),
        ("-n", "zfs.sync.snapshot('tank@x')", "requires passing sync=TRUE"),
        ("", "return 1.5", "malformed number"),
        ("", "return zfs.exists('rpool')", "not in the target pool"),
        ("", "zfs.sync.destroy{'foo', bar=true}", "destroy{"),
        ("", "t = {} t.t = t return t", "Maximum table depth"),
        ("", "return 1, 2", "Multiple return values"),
        ("", "return {[1] = 2, ['1'] = 3}", "Collision of key '1'"),
        ("", "return string.rep", "Invalid value type"),
        ("", "print('x')", "execution failed"),
        ("", "pcall(error)", "execution failed"),
        ("", "load('return 1')", "execution failed"),
        ("", "io.open('/etc/passwd')", "execution failed"),
        ("", "os.exit()", "execution failed"),
        ("", "error('x')", "in function 'error'"),
        ("", "{]", "execution failed"),
    ] {
        let (code, out, err) = program(&world, options, script, "");
        assert!(code == 1 && out.is_empty() && err.contains(said), "{options} {script}: {code} {out} {err}");
    }
    for wrong in ["-t x tank -", "-m x tank -", "tank", ""] {
        assert_eq!(world.zfs(&format!("program {wrong}")).code, 2, "{wrong}");
    }
}

#[test]
fn a_program_ends_with_its_command() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let script = world.path().join("program.lua");
    // Some steps a second, for minutes.
    let steps = "for n = 1, 100000 do
        zfs.sync.set_prop('tank', 'note:n', '' .. n)
        for i = 1, 200 do zfs.check.snapshot('tank@s') end
    end";
    std::fs::write(&script, steps).unwrap();
    let mut command = world.command("zfs");
    command.args(["program", "-t", "100000000", "tank"]).arg(&script);
    let mut running = command.spawn().unwrap();
    let step = || world.zfs("get -Hpo value note:n tank").ok();
    let first = step();
    let until = Instant::now() + Duration::from_secs(60);
    while step() == first {
        assert!(Instant::now() < until, "it does nothing");
    }
    running.kill().unwrap();
    running.wait().unwrap();
    let mut last = String::new();
    while last != step() {
        assert!(Instant::now() < until, "it goes on");
        last = step();
        std::thread::sleep(Duration::from_secs(2));
    }
}
