//! What an installation and a package have in them, and that they leave nothing and take nobody's
//! names.

use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::World;
use zilla_e2e::world::finish;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn make(world: &World, target: &str, dest: &Path) {
    let mut make = Command::new("make");
    let built = PathBuf::from(world.command("zilla").get_program());
    make.current_dir(top()).args(["-s", target, "PREFIX=/usr/local"]);
    make.arg(format!("DESTDIR={}", dest.display())).arg(format!("BUILT={}", built.display()));
    finish(make).ok();
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => out.extend(files(&entry.path())),
            false => out.push(entry.path()),
        }
    }
    out
}

fn has(program: &str) -> bool {
    let found = Command::new("sh").args(["-c", "command -v \"$0\" >/dev/null", program]).status();
    found.is_ok_and(|s| s.success())
}

#[test]
fn an_installation_is_whole_and_goes_without_a_trace() {
    let world = World::new();
    let dest = world.path().join("dest");
    make(&world, "install-files", &dest);
    let prefix = dest.join("usr/local");
    for name in [
        "bin/zilla",
        "bin/zpool",
        "bin/zillad",
        "share/man/man8/zilla.8",
        "share/bash-completion/completions/zpool.bash",
        "share/zsh/site-functions/_zilla",
        "share/fish/vendor_completions.d/zfs.fish",
        "lib/systemd/system/zillad.service",
        "lib/systemd/system/zilla-scrub-monthly@.timer",
        "lib/systemd/user/zillad.socket",
        "lib/systemd/system/zilla-trim-weekly@.timer",
        "lib/systemd/system/zilla-trim@.service",
        "share/man/man8/zed.8",
        "share/man/man8/zgenhostid.8",
        "share/zilla/monitoring/alerts.yml",
        "share/zilla/examples/parameters.conf",
        "share/zilla/compatibility.d/openzfs-2.1-linux",
        "share/zilla/compatibility.d/grub2",
    ] {
        assert!(prefix.join(name).exists(), "{name}");
    }
    let installed = |name: &str, words: &str| {
        let mut command = Command::new(prefix.join("bin").join(name));
        command.args(words.split_whitespace()).env("ZILLA_DIR", world.state());
        command.env("ZILLA_ZVOL_DEVICES", "off");
        finish(command)
    };
    assert!(installed("zpool", "version").ok().starts_with("zilla-"));
    // It brings its own sets of features, wherever it lies: this one is nobody else's.
    let (sets, image) = (prefix.join("share/zilla/compatibility.d"), &world.images("d", 1, 96 << 20)[0]);
    std::fs::rename(sets.join("openzfs-2.1-linux"), sets.join("of-a-test")).unwrap();
    installed("zpool", &format!("create -m none -o compatibility=of-a-test tank {}", image.display())).ok();
    let value = |property: &str| installed("zpool", &format!("get -Ho value {property} tank")).ok();
    assert_eq!(value("compatibility"), "of-a-test\n");
    let features = ["feature@draid", "feature@head_errlog", "feature@zstd_compress"].map(value);
    assert_eq!(features, ["enabled\n", "disabled\n", "enabled\n"]);
    installed("zpool", "export tank").ok();
    std::fs::rename(sets.join("of-a-test"), sets.join("openzfs-2.1-linux")).unwrap();
    let hostid = world.path().join("hostid");
    installed("zgenhostid", &format!("-o {} 0xdeadbeef", hostid.display())).ok();
    assert_eq!(std::fs::read(&hostid).unwrap(), 0xdead_beef_u32.to_ne_bytes());
    let again = installed("zgenhostid", &format!("-o {} 00000001", hostid.display()));
    assert_eq!((again.code, again.stderr), (1, format!("{}: File exists\n", hostid.display())));
    world.stop();
    make(&world, "uninstall", &dest);
    assert_eq!(files(&dest), Vec::<PathBuf>::new());
}

#[test]
fn systemd_finds_no_fault_with_the_units() {
    if !has("systemd-analyze") {
        eprintln!("not run: needs systemd-analyze");
        return;
    }
    let world = World::new();
    for folder in ["packaging/systemd", "packaging/systemd/user"] {
        let mut units = Vec::new();
        for entry in std::fs::read_dir(top().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_file() {
                continue;
            }
            // The programs are not installed here; another one stands for them.
            let text = std::fs::read_to_string(&path).unwrap();
            let text = text.replace("@BINDIR@/zillad", "/bin/true").replace("@BINDIR@/zpool", "/bin/true");
            let name = path.file_name().unwrap().to_str().unwrap().replace("@.", "@tank.");
            let at = world.path().join(name);
            std::fs::write(&at, text).unwrap();
            units.push(at);
        }
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["verify", "--man=no"]);
        if folder.ends_with("user") {
            analyze.arg("--user").env("XDG_RUNTIME_DIR", world.path());
        }
        analyze.args(&units).env("SYSTEMD_UNIT_PATH", format!("{}:", world.path().display()));
        let done = finish(analyze);
        assert!(done.code == 0 && !done.stderr.contains("zilla"), "{folder}: {done}");
    }
}

#[test]
fn a_package_takes_nobody_s_names_and_is_the_same_twice() {
    if !has("dpkg-deb") || !has("objdump") || !has("xz") {
        eprintln!("not run: needs dpkg-deb, objdump and xz");
        return;
    }
    let world = World::new();
    let built = PathBuf::from(world.command("zilla").get_program());
    let build = |name: &str| {
        let out = world.path().join(name);
        let mut package = Command::new(top().join("packaging/package"));
        package.args(["deb", "tarball"]).env("BUILT", &built).env("OUT", &out);
        package.env("SOURCE_DATE_EPOCH", "1700000000").env("XZ_LEVEL", "0");
        finish(package).ok();
        std::fs::read_to_string(out.join("SHA256SUMS")).unwrap()
    };
    let first = build("one");
    assert_eq!(first.lines().count(), 2, "{first}");
    assert_eq!(first, build("two"));
    let deb =
        files(&world.path().join("one")).into_iter().find(|p| p.extension().is_some_and(|e| e == "deb"));
    let mut list = Command::new("dpkg-deb");
    list.arg("-c").arg(deb.unwrap());
    let list = finish(list).ok();
    let theirs =
        ["./usr/sbin/", "./usr/bin/zpool", "./usr/bin/zfs", "completions/zpool\n", "completions/zfs\n"];
    assert!(theirs.iter().all(|name| !list.contains(name)), "{list}");
    for ours in ["./usr/lib/zilla/bin/zpool ->", "./usr/bin/zilla ->", "zilla.cdx.json", "zillad.service"] {
        assert!(list.contains(ours), "{ours} is not in {list}");
    }
}
