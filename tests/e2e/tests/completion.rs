//! Completions in the shells that people use: each shell is started, loads the script, and is
//! asked.

use std::process::Command;
use zilla_e2e::world::finish;
use zilla_e2e::{Kind, Need, Pool, World, can};

/// A shell that finds our commands and our daemon.
fn shell(world: &World, name: &str, args: &[&str]) -> Option<Command> {
    let program = std::env::var_os("PATH")
        .and_then(|path| std::env::split_paths(&path).map(|dir| dir.join(name)).find(|p| p.is_file()));
    let Some(program) = program else {
        assert!(std::env::var_os("CI").is_none() || name != "bash", "this test needs {name}");
        eprintln!("not run: no {name} here");
        return None;
    };
    let bin = std::path::PathBuf::from(world.command("zpool").get_program());
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new(program);
    command.args(args).env("PATH", path).env("ZILLA_DIR", world.state()).env("HOME", world.path());
    command.env("LC_ALL", "C").current_dir(world.path());
    Some(command)
}

fn world_with_a_pool() -> Option<World> {
    if !can(&[Need::Fuse]) {
        return None;
    }
    let world = World::new();
    {
        let _pool = Pool::create(&world, "tank", Kind::Mirror, 128 << 20, &[]);
    }
    world.zfs("create tank/home").ok();
    world.zfs("snapshot tank/home@monday").ok();
    Some(world)
}

#[test]
fn bash_completes_commands_properties_and_live_names() {
    let Some(world) = world_with_a_pool() else { return };
    let script = r#"
        source <(zilla complete bash)
        ask() { COMP_LINE=$1; COMP_POINT=${#1}; COMPREPLY=(); _zilla 2>/dev/null; echo "$1=> ${COMPREPLY[*]}"; }
        ask 'zpool scr'
        ask 'zpool scrub '
        ask 'zfs rollback tank/home@'
        ask 'zfs set compression=zstd-1'
        ask 'zilla zfs set ati'
        ask 'zpool nonsense '
    "#;
    let Some(bash) = shell(&world, "bash", &["--norc", "-c", script]) else { return };
    let done = finish(bash);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines[0], "zpool scr=> scrub", "{done}");
    assert_eq!(lines[1], "zpool scrub => tank", "{done}");
    assert_eq!(lines[2], "zfs rollback tank/home@=> monday", "{done}");
    assert!(lines[3].starts_with("zfs set compression=zstd-1=> zstd-1 zstd-10"), "{done}");
    assert_eq!(lines[4], "zilla zfs set ati=> atime=", "{done}");
    assert_eq!(lines[5], "zpool nonsense => ", "{done}");
}

#[test]
fn fish_completes_live_names() {
    let Some(world) = world_with_a_pool() else { return };
    let script =
        "zilla complete fish | source; complete -C 'zpool scrub '; complete -C 'zfs rollback tank/home@'";
    let Some(fish) = shell(&world, "fish", &["--no-config", "-c", script]) else { return };
    let done = finish(fish);
    assert_eq!(done.stdout.lines().collect::<Vec<_>>(), ["tank", "tank/home@monday"], "{done}");
}

#[test]
fn zsh_loads_the_script_and_gets_live_names() {
    let Some(world) = world_with_a_pool() else { return };
    // The line editor needs a terminal; what it would be told is caught on its way.
    let script = r#"
        autoload -U compinit && compinit -u -d ./zcompdump
        source <(zilla complete zsh)
        compadd() {
            # With -Q names would be put on the line as they are, and run.
            while [[ $1 != -- ]]; do [[ $1 == -*Q* ]] && print -r -- $1; shift; done
            shift; print -r -- $words[CURRENT]: "$@"
        }
        words=(zpool scrub ''); CURRENT=3; _zilla
        words=(zfs rollback tank/home@); CURRENT=3; _zilla
        print -r -- ${_comps[zfs]}
    "#;
    let Some(zsh) = shell(&world, "zsh", &["-f", "-c", script]) else { return };
    let done = finish(zsh);
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert_eq!(lines, [": tank", "tank/home@: tank/home@monday", "_zilla"], "{done}");
}
