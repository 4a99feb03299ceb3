//! The Python package: its own tests, and its first example, whose pool the commands take over.

use std::path::{Path, PathBuf};
use std::process::Command;
use zilla_e2e::pool::zdb_clean;
use zilla_e2e::world::finish;
use zilla_e2e::{Done, Need, World, can};

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python")
}

/// The package, with the extension that was built with this test.
fn package(world: &World) -> PathBuf {
    let package = world.path().join("package");
    for folder in ["zilla", "tests"] {
        std::fs::create_dir_all(package.join(folder)).unwrap();
        for file in std::fs::read_dir(sources().join(folder)).unwrap() {
            let file = file.unwrap();
            if file.file_type().unwrap().is_file() {
                std::fs::copy(file.path(), package.join(folder).join(file.file_name())).unwrap();
            }
        }
    }
    let built = std::env::current_exe().unwrap().with_file_name("lib_zilla.so");
    std::os::unix::fs::symlink(built, package.join("zilla/_zilla.abi3.so")).unwrap();
    package
}

fn python(world: &World, package: &Path, arguments: &[&str]) -> Done {
    let mut command = Command::new("python3");
    command.args(arguments).env("PYTHONPATH", package).env("LC_ALL", "C.UTF-8");
    command.current_dir(world.disks());
    finish(command)
}

#[test]
fn the_package_s_own_tests() {
    if !can(&[Need::Python]) {
        return;
    }
    let world = World::new();
    let package = package(&world);
    let tests = package.join("tests");
    let (top, tests) = (package.to_str().unwrap(), tests.to_str().unwrap());
    let done =
        python(&world, &package, &["-W", "error", "-m", "unittest", "discover", "-t", top, "-s", tests]);
    assert!(done.stderr.contains("\nRan ") && !done.stderr.contains("Ran 0 tests"), "{done}");
    eprintln!("{}", done.stderr);
    done.ok();
}

#[test]
fn commands_take_over_the_pool_of_the_first_example() {
    if !can(&[Need::Python, Need::Fuse]) {
        return;
    }
    let world = World::new();
    let package = package(&world);
    let readme = std::fs::read_to_string(sources().join("README.md")).unwrap();
    let example = readme.split("```python\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let told = python(&world, &package, &["-W", "error", "-c", example]).ok();
    assert!(told.starts_with("zstd default 1.") && told.ends_with("\nDear Ann\n"), "{told}");
    if can(&[Need::Zdb]) {
        zdb_clean(&world.disks(), "tank");
    }

    let disks = world.disks();
    world.zpool(&format!("import -d {} -R {} tank", disks.display(), world.mnt().display())).ok();
    assert_eq!(world.zfs("get -H -o value,source compression tank/home").ok(), "zstd\tlocal\n");
    assert_eq!(world.zfs("list -H -o name -t snapshot").ok(), "tank/home@monday\n");
    let letters = world.mnt().join("tank/home").join("letters");
    assert_eq!(std::fs::read(letters.join("first")).unwrap(), b"Dear Ann\n");
    std::fs::write(letters.join("second"), "Dear Bob\n").unwrap();
    world.zpool("scrub -w tank").ok();
    assert!(world.zpool("status tank").ok().contains("errors: No known data errors"));
    world.zpool("export tank").ok();

    // And back.
    let script = "import zilla\n\
        with zilla.Pool.open('tank', '.') as pool, pool.dataset('tank/home').files() as files:\n\
        \x20   print(files.open('/letters/second').read(), end='')";
    assert_eq!(python(&world, &package, &["-c", script]).ok(), "Dear Bob\n");
    if can(&[Need::Zdb]) {
        zdb_clean(&world.disks(), "tank");
    }
}
