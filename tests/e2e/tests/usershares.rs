//! File systems shared over SMB: what Samba's `net` is asked, by a `net` of ours that writes it
//! down; and Samba itself, where it is installed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zilla_e2e::pool::zdb_clean;
use zilla_e2e::world::finish;
use zilla_e2e::{Kind, Need, Pool, World, can};

/// Does what Samba's does with a folder, and writes down each call, its words in brackets.
const NET: &str = r#"#!/bin/sh
here=$(dirname "$0")/..
{ for word in "$@"; do printf '<%s>' "$word"; done; echo; } >> "$here/calls"
[ -e "$here/hang" ] && exec sleep 60
if [ -e "$here/refuse" ]; then cat "$here/refuse" >&2; exit 255; fi
file=$here/usershares/$(printf %s "$3" | tr A-Z a-z)
case "$1 $2" in
'usershare info') [ -f "$file" ] && { echo "[$3]"; cat "$file"; }; exit 0 ;;
'usershare add') printf 'path=%s\ncomment=%s\nusershare_acl=%s\n%s\n' "$4" "$5" "$6" "$7" > "$file" ;;
'usershare delete')
  mountpoint -q "$(sed -n 's/^path=//p' "$file")" || echo "$3" >> "$here/too-late"
  rm "$file" ;;
*) exit 9 ;;
esac
"#;

/// A world whose daemon finds that `net`, or another.
struct Sharing {
    world: World,
    daemon: Option<Child>,
}

impl Sharing {
    fn with(net: Option<&str>) -> Sharing {
        let world = World::new();
        let bin = world.path().join("bin");
        for dir in [&bin, &world.path().join("usershares")] {
            std::fs::create_dir(dir).unwrap();
        }
        // What else the daemon and that program look for.
        for (from, name) in [
            ("/usr/bin/fusermount3", "fusermount3"),
            ("/bin/sh", "sh"),
            ("/usr/bin/env", "env"),
            ("/usr/bin/dirname", "dirname"),
            ("/usr/bin/tr", "tr"),
            ("/bin/cat", "cat"),
            ("/bin/sed", "sed"),
            ("/bin/rm", "rm"),
            ("/bin/sleep", "sleep"),
            ("/bin/mountpoint", "mountpoint"),
        ] {
            std::os::unix::fs::symlink(from, bin.join(name)).unwrap();
        }
        if let Some(text) = net {
            use std::os::unix::fs::PermissionsExt;
            std::fs::write(bin.join("net"), text).unwrap();
            std::fs::set_permissions(bin.join("net"), PermissionsExt::from_mode(0o755)).unwrap();
        }
        let mut sharing = Sharing { world, daemon: None };
        sharing.start(&[]);
        sharing
    }

    fn new() -> Sharing {
        Sharing::with(Some(NET))
    }

    fn start(&mut self, environment: &[(&str, &str)]) {
        if let Some(mut old) = self.daemon.take() {
            let _ = old.wait();
        }
        let socket = self.world.state().join("zillad.sock");
        let _ = std::fs::remove_file(&socket);
        let log = self.world.state().join("zillad.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut command = self.world.command("zillad");
        command.env("PATH", self.world.path().join("bin")).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().unwrap());
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no daemon:\n{}", self.world.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pool(&self, name: &str, options: &[&str]) -> Pool<'_> {
        Pool::create(&self.world, name, Kind::Single, 128 << 20, options)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.path().join(name)
    }

    /// Names of the shares, in their order.
    fn shares(&self) -> Vec<String> {
        let all = std::fs::read_dir(self.file("usershares")).unwrap().flatten();
        let mut all: Vec<String> = all.map(|e| e.file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }

    fn share(&self, name: &str) -> String {
        std::fs::read_to_string(self.file("usershares").join(name)).unwrap_or_default()
    }

    fn calls(&self) -> String {
        std::fs::read_to_string(self.file("calls")).unwrap_or_default()
    }
}

#[test]
fn shares_come_and_go_with_their_mounts() {
    if !can(&[Need::Fuse, Need::Nested]) {
        return;
    }
    let mut sharing = Sharing::new();
    let pool = sharing.pool("tank", &[]);
    let world = &sharing.world;
    let root = pool.root().display().to_string();
    assert_eq!(sharing.calls(), "", "nothing is asked of Samba unless it is said");
    assert!(world.zfs("share tank").fails().contains("legacy share"));
    world.zfs("set sharesmb=on tank").ok();
    let expected = format!("path={root}\ncomment=Comment: {root}\nusershare_acl=S-1-1-0:F\nguest_ok=n\n");
    assert_eq!(sharing.share("tank"), expected);
    assert!(world.zfs("share tank").fails().contains("already shared"));
    // What inherits is a share of its own, by a name that is OpenZFS's.
    world.zfs("create tank/a-b").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_a_b"]);
    let why = world.zfs("create -o sharesmb=on tank/a_b").fails();
    assert!(why.contains("created, but not shared") && why.contains("is that of 'tank/a-b'"), "{why}");
    assert_eq!(sharing.share("tank_a_b").lines().next(), Some(&*format!("path={root}/a-b")));
    world.zfs("destroy tank/a_b").ok();
    world.zfs("unshare tank/a-b").ok();
    assert!(world.zfs("unshare tank/a-b").fails().contains("not currently shared"));
    assert_eq!(sharing.shares(), ["tank"]);
    world.zfs("share -a nfs").ok();
    assert_eq!(sharing.shares(), ["tank"], "that is the other protocol");
    world.zfs("share -a smb").ok();
    world.zfs("unshare -a nfs").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_a_b"]);
    world.zfs("unshare -a smb").ok();
    assert_eq!(sharing.shares(), [""; 0]);
    world.zfs("share -a").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_a_b"]);
    assert_eq!(world.zfs("share -a cifs").code, 1);
    // Mounts and names.
    world.zfs("unmount tank/a-b").ok();
    assert_eq!(sharing.shares(), ["tank"]);
    world.zfs("share tank/a-b").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_a_b"], "it was mounted for that");
    world.zfs("rename tank/a-b tank/c").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_c"]);
    world.zfs("rename -u tank/c tank/d:1").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_d_1"], "it stays mounted, and its share gets its name");
    assert!(sharing.share("tank_d_1").starts_with(&format!("path={root}/c\n")));
    // What cannot be unmounted stays shared.
    let open = std::fs::File::create(format!("{root}/c/f")).unwrap();
    assert!(world.run("zfs", &["unmount", "tank/d:1"]).code != 0);
    assert_eq!(sharing.shares(), ["tank", "tank_d_1"]);
    drop(open);
    world.zfs("set sharesmb=off tank/d:1").ok();
    assert_eq!(sharing.shares(), ["tank"]);
    world.zfs("inherit sharesmb tank/d:1").ok();
    world.zfs("destroy tank/d:1").ok();
    assert_eq!(sharing.shares(), ["tank"]);
    world.zfs("set -u sharesmb=off tank").ok();
    assert_eq!(sharing.shares(), ["tank"], "-u changes the property only");
    world.zfs("set -u sharesmb=on tank").ok();
    pool.export();
    assert_eq!(sharing.shares(), [""; 0]);
    pool.import();
    assert_eq!(sharing.shares(), ["tank"]);
    drop(pool);
    sharing.world.stop();
    assert_eq!(sharing.shares(), [""; 0]);
    sharing.start(&[]);
    assert_eq!(sharing.shares(), ["tank"], "the pools of the last run are shared again");
    sharing.world.zpool("destroy tank").ok();
    assert_eq!(sharing.shares(), [""; 0]);
    assert!(!sharing.file("too-late").exists(), "a share outlived its mount");
    assert!(!sharing.world.state().join("usershares").exists());
}

#[test]
fn what_a_crash_left_is_taken_back_and_nothing_of_others() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let mut sharing = Sharing::new();
    drop(sharing.pool("tank", &["-O", "sharesmb=on"]));
    sharing.world.zfs("create tank/later").ok();
    assert_eq!(sharing.shares(), ["tank", "tank_later"]);
    sharing.world.kill();
    // Somebody has put a share of his own in the place of one.
    std::fs::write(sharing.file("usershares/tank_later"), "path=/srv\n").unwrap();
    std::fs::write(sharing.file("usershares/other"), "path=/srv\n").unwrap();
    // This one opens no pool.
    let empty = sharing.file("no-pools").display().to_string();
    sharing.start(&[("ZILLA_CACHE_FILE", &empty)]);
    assert_eq!(sharing.shares(), ["other", "tank_later"]);
    assert!(!sharing.world.state().join("usershares").exists());
    sharing.world.stop();
    // Where a name is taken nothing is shared by it, and it is said whose it is.
    sharing.start(&[]);
    assert_eq!(sharing.shares(), ["other", "tank", "tank_later"]);
    let why = sharing.world.zfs("share tank/later").fails();
    assert!(why.contains("there is a usershare 'tank_later' already, of '/srv'"), "{why}");
    assert_eq!(sharing.share("tank_later"), "path=/srv\n");
    sharing.world.zpool("export tank").ok();
    zdb_clean(&sharing.world.disks(), "tank");
    assert_eq!(sharing.shares(), ["other", "tank_later"]);
}

#[test]
fn hostile_names_and_paths_do_not_get_to_samba() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let sharing = Sharing::new();
    let world = &sharing.world;
    let pool = sharing.pool("homes", &[]);
    let why = world.zfs("set sharesmb=on homes").fails();
    assert!(why.contains("'homes' cannot be a share's name") && why.contains("unable to reshare"), "{why}");
    for options in ["guest_ok=y", "on,guest_ok=y", "name=x", ""] {
        let why = world.run("zfs", &["set", &format!("sharesmb={options}"), "homes"]).fails();
        assert!(why.contains("'sharesmb' cannot be set to invalid options"), "{why}");
    }
    let at = format!("{}/%U", world.mnt().display());
    let why = world.run("zfs", &["create", "-o", &format!("mountpoint={at}"), "homes/x"]).fails();
    assert!(why.contains("'%' and '$('"), "{why}");
    assert_eq!(sharing.calls(), "", "Samba was not asked at all");
    // Words of a shell are words.
    let at = format!("{}/a b;$HOME`id`'\"&", world.mnt().display());
    world.run("zfs", &["create", "-o", &format!("mountpoint={at}"), "homes/y"]).ok();
    let add = format!("<usershare><add><homes_y><{at}><Comment: {at}><S-1-1-0:F><guest_ok=n>\n");
    assert!(sharing.calls().contains(&add), "{}", sharing.calls());
    pool.judge();
    assert_eq!(sharing.shares(), [""; 0]);
}

#[test]
fn where_samba_is_not_it_is_said_with_what_helps() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let none = Sharing::with(None);
    let pool = none.pool("tank", &["-O", "sharesmb=on"]);
    let world = &none.world;
    let why = world.zfs("share tank").fails();
    assert!(why.contains("cannot share 'tank'") && why.contains("apt-get install samba"), "{why}");
    assert!(world.zfs("set sharesmb=on tank").fails().contains("unable to reshare filesystem"));
    let why = world.zfs("create -o sharesmb=on tank/a").fails();
    assert!(why.contains("created, but not shared"), "{why}");
    // Nobody asked for a share here: the log says it.
    world.zfs("create tank/b").ok();
    assert!(world.log().contains("'tank/b' is not shared: "), "{}", world.log());
    pool.judge();

    let sharing = Sharing::new();
    let pool = sharing.pool("tank", &[]);
    for (said, helps) in [
        ("net usershare: usershares are currently disabled", "usershare max shares"),
        (
            "net usershare: cannot open usershare directory /x. Error No such file or directory",
            "usershare path",
        ),
        ("net usershare: cannot open usershare directory /x. Error Permission denied", "sambashare"),
    ] {
        std::fs::write(sharing.file("refuse"), said).unwrap();
        let why = sharing.world.zfs("set sharesmb=on tank").fails();
        assert!(why.contains(helps) && why.contains(said), "{why}");
    }
    std::fs::remove_file(sharing.file("refuse")).unwrap();
    sharing.world.zfs("share tank").ok();
    // One that hangs is not waited for, and not asked again at once.
    std::fs::write(sharing.file("hang"), "").unwrap();
    let begin = Instant::now();
    sharing.world.zfs("unshare tank").ok();
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let begin = Instant::now();
    assert!(sharing.world.zfs("share tank").fails().contains("does not end within 10 s"));
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    pool.judge();
}

/// Samba, on a port and in folders of its own.
struct Samba {
    conf: PathBuf,
    port: u16,
    smbd: Child,
}

impl Samba {
    fn start(dir: &Path) -> Samba {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let snippet = snippet();
        let conf = dir.join("smb.conf");
        let private = dir.join("samba");
        for made in [&private, &private.join("shares")] {
            std::fs::create_dir(made).unwrap();
        }
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(private.join("shares"), PermissionsExt::from_mode(0o1770)).unwrap();
        let mut text =
            format!("[global]\nsmb ports = {port}\nusershare path = {}\n", private.join("shares").display());
        for folder in [
            "private dir",
            "lock directory",
            "state directory",
            "cache directory",
            "pid directory",
            "ncalrpc dir",
        ] {
            text += &format!("{folder} = {}\n", private.display());
        }
        text += "interfaces = 127.0.0.1/8\nbind interfaces only = yes\nserver role = standalone server\n\
                 usershare max shares = 100\nload printers = no\ndisable spoolss = yes\nusershare allow guests = yes\n\
                 map to guest = bad user\nguest account = nobody\n";
        text += &format!("log file = {}/log\n{snippet}", private.display());
        std::fs::write(&conf, text).unwrap();
        let tested = finish({
            let mut testparm = Command::new("/usr/bin/testparm");
            testparm.arg("-s").arg(&conf);
            testparm
        });
        assert!(tested.code == 0 && !tested.stderr.contains("nknown parameter"), "{tested}");
        let mut user = Command::new("/usr/bin/smbpasswd");
        user.arg("-c").arg(&conf).args(["-s", "-a", "root"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut user = user.spawn().unwrap();
        std::io::Write::write_all(&mut user.stdin.take().unwrap(), b"secret\nsecret\n").unwrap();
        assert!(user.wait().unwrap().success());
        let mut smbd = Command::new("/usr/sbin/smbd");
        smbd.arg("--foreground").arg("-s").arg(&conf);
        let smbd = smbd.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begin.elapsed() < Duration::from_secs(60), "smbd does not listen");
            std::thread::sleep(Duration::from_millis(50));
        }
        Samba { conf, port, smbd }
    }

    fn client(&self, who: &str, share: &str, commands: &str) -> zilla_e2e::world::Done {
        let mut client = Command::new("/usr/bin/smbclient");
        client.arg("-s").arg(&self.conf).args(["-p", &self.port.to_string(), "-U", who]);
        client.arg(format!("//127.0.0.1/{share}")).args(["-c", commands]);
        if who == "%" {
            client.arg("-N");
        }
        finish(client)
    }
}

impl Drop for Samba {
    fn drop(&mut self) {
        // It has a process group of its own, and its children go with it.
        let pid = rustix::process::Pid::from_child(&self.smbd);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.smbd.wait();
    }
}

/// What the book has people put into smb.conf.
fn snippet() -> String {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book/src/shares.md");
    let text = std::fs::read_to_string(book).unwrap();
    let block = text.split("```ini\n").nth(1).and_then(|b| b.split("```").next()).expect("the book has one");
    block.replace("[global]\n", "")
}

#[test]
fn samba_serves_files_and_their_previous_versions() {
    if !can(&[Need::Fuse, Need::Root, Need::Samba]) {
        return;
    }
    let sharing = Sharing::with(None);
    let samba = Samba::start(sharing.world.path());
    let net = sharing.file("bin/net");
    std::fs::write(&net, format!("#!/bin/sh\nexec /usr/bin/net -s '{}' \"$@\"\n", samba.conf.display()))
        .unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&net, PermissionsExt::from_mode(0o755)).unwrap();

    let pool = sharing.pool("tank", &["-O", "sharesmb=on"]);
    let world = &sharing.world;
    world.zfs("create tank/my-files").ok();
    let share = "tank_my_files";
    let here = world.path().join("here");
    std::fs::write(&here, "first").unwrap();
    let put = format!("put {} f", here.display());
    samba.client("root%secret", share, &put).ok();
    assert_eq!(std::fs::read(pool.root().join("my-files/f")).unwrap(), b"first");
    // Nobody comes in as a guest, though this Samba would let guests in.
    assert!(samba.client("%", share, "ls").code != 0);
    assert!(samba.client("root%wrong", share, "ls").code != 0);

    // Previous versions, by the times in the snapshots' names.
    world.zfs("snapshot tank/my-files@auto-2026.01.02-03.04.05").ok();
    world.zfs("snapshot tank/my-files@by-hand").ok();
    std::fs::write(&here, "second").unwrap();
    samba.client("root%secret", share, &put).ok();
    let versions = samba.client("root%secret", share, "allinfo f").ok();
    assert!(versions.contains("@GMT-2026.01.02-03.04.05"), "{versions}");
    let back = world.path().join("back");
    let get = format!("get @GMT-2026.01.02-03.04.05\\f {}", back.display());
    samba.client("root%secret", share, &get).ok();
    assert_eq!(std::fs::read(&back).unwrap(), b"first");
    samba.client("root%secret", share, &format!("get f {}", back.display())).ok();
    assert_eq!(std::fs::read(&back).unwrap(), b"second");

    world.zfs("unshare tank/my-files").ok();
    assert!(samba.client("root%secret", share, "ls").code != 0);
    world.zfs("share tank/my-files").ok();
    samba.client("root%secret", share, "ls").ok();
    pool.judge();
    assert!(samba.client("root%secret", share, "ls").code != 0);
    let left = std::fs::read_dir(world.path().join("samba/shares")).unwrap().count();
    assert_eq!(left, 0, "shares outlive the pool");
}
