//! Encryption by the commands: keys of every form, suites, inheritance, changes, crashes; and
//! OpenZFS's `zdb -K` reads what was written.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

const SIZE: u64 = 128 << 20;
const PASS: &str = "correct horse battery";
const SUITES: [&str; 6] =
    ["aes-128-ccm", "aes-192-ccm", "aes-256-ccm", "aes-128-gcm", "aes-192-gcm", "aes-256-gcm"];

#[track_caller]
fn told(text: &str, words: &str) {
    assert!(text.contains(words), "wanted '{words}', got: {text}");
}

/// A file with a key, as `keylocation` has it.
fn key(world: &World, name: &str, bytes: &[u8]) -> String {
    let path = world.path().join(name);
    fs::write(&path, bytes).expect("key");
    format!("file://{}", path.display())
}

fn get(world: &World, property: &str, dataset: &str) -> String {
    world.zfs(&format!("get -H -o value {property} {dataset}")).ok().trim_end().to_owned()
}

#[track_caller]
fn write(path: &Path, data: &[u8]) {
    let mut file = fs::File::create(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.write_all(data).expect("write");
    file.sync_all().expect("fsync");
}

/// A file of an exported pool, as OpenZFS reads it with the key.
#[track_caller]
fn zdb_reads(pool: &Pool<'_>, with: &str, dataset: &str, file: &str) -> Vec<u8> {
    let out = pool.world.path().join("zdb-out");
    let _ = fs::remove_file(&out);
    let done = zilla_testkit::zdb()
        .expect("OpenZFS's zdb")
        .args(["-e", "-p"])
        .arg(pool.world.disks())
        .args(["-K", with, "-r", dataset, file])
        .arg(&out)
        .output()
        .expect("zdb");
    assert!(done.status.success(), "zdb -K: {}", String::from_utf8_lossy(&done.stderr));
    fs::read(&out).expect("what zdb read")
}

#[test]
fn what_is_written_in_each_suite_openzfs_reads_with_the_key() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &[]);
    let location = key(&world, "pass", format!("{PASS}\n").as_bytes());
    let mut random = Random::new(27);
    let (text, noise) = (random.text(300_000), random.bytes(1_500_000));
    for suite in SUITES {
        world
            .zfs(&format!(
                "create -o encryption={suite} -o keyformat=passphrase -o pbkdf2iters=100000 -o \
                 keylocation={location} tank/{suite}"
            ))
            .ok();
        assert_eq!(get(&world, "encryption", &format!("tank/{suite}")), suite);
        world.zfs(&format!("create tank/{suite}/child")).ok();
        let root = pool.root().join(suite);
        write(&root.join("text"), text.as_ref());
        write(&root.join("noise"), &noise);
        write(&root.join("child/small"), suite.as_bytes());
        // An extended attribute too large for the dnode takes a spill block.
        rustix_setxattr(&root.join("text"), &vec![7; 3000]);
        world.zfs(&format!("snapshot tank/{suite}@s")).ok();
        write(&root.join("text"), b"changed");
        world.zfs(&format!("clone tank/{suite}@s tank/clone-{suite}")).ok();
        assert_eq!(get(&world, "encryptionroot", &format!("tank/clone-{suite}")), format!("tank/{suite}"));
    }
    pool.scrub();
    pool.judge();
    for suite in SUITES {
        let of = |ds: &str, file: &str| zdb_reads(&pool, PASS, ds, file);
        assert_eq!(of(&format!("tank/{suite}"), "noise"), noise, "{suite}");
        assert_eq!(of(&format!("tank/{suite}"), "text"), b"changed", "{suite}");
        assert_eq!(of(&format!("tank/{suite}@s"), "text"), AsRef::<[u8]>::as_ref(&text), "{suite}");
        assert_eq!(of(&format!("tank/clone-{suite}"), "noise"), noise, "{suite}");
        assert_eq!(of(&format!("tank/{suite}/child"), "small"), suite.as_bytes(), "{suite}");
    }
    pool.import();
    // No key is loaded after an import, and nothing encrypted is mounted; a scrub needs none.
    assert_eq!(get(&world, "keystatus", "tank/aes-256-gcm"), "unavailable");
    assert!(!pool.root().join("aes-256-gcm/noise").exists());
    pool.scrub();
    told(&world.zfs("load-key -a").ok(), "6 / 6 key(s) successfully loaded");
    world.zfs("mount -a").ok();
    for suite in SUITES {
        assert!(fs::read(pool.root().join(suite).join("noise")).expect("read") == noise, "{suite}");
    }
    for suite in SUITES {
        world.zfs(&format!("destroy -R tank/{suite}")).ok();
    }
    pool.judge();
}

fn rustix_setxattr(path: &Path, value: &[u8]) {
    let done = Command::new("setfattr").args(["-n", "user.big", "-v"]).arg(hex(value)).arg(path).status();
    assert!(done.is_ok_and(|s| s.success()), "setfattr");
}

fn hex(bytes: &[u8]) -> String {
    std::iter::once("0x".to_owned()).chain(bytes.iter().map(|b| format!("{b:02x}"))).collect()
}

#[test]
fn a_log_is_claimed_without_the_key_and_replayed_with_it() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let location = key(&world, "raw", &[0x5a; 32]);
    world.zfs(&format!("create -o encryption=on -o keyformat=raw -o keylocation={location} tank/c")).ok();
    let root = pool.root().join("c");
    // Begins the chain: a frozen pool could not write the header that leads to it.
    write(&root.join("first"), b"first");
    pool.sync();
    let mut random = Random::new(28);
    let (small, large) = (random.bytes(5_000), random.bytes(700_000));
    // The txg is frozen, so that what fsync promised can only come back from the log.
    world.zpool("freeze tank").ok();
    write(&root.join("small"), &small);
    write(&root.join("large"), &large);
    fs::create_dir(root.join("dir")).expect("dir");
    write(&root.join("dir/last"), b"last");
    let (key, away) = (world.path().join("raw"), world.path().join("away"));
    fs::rename(&key, &away).expect("rename");
    world.kill();
    // Comes back by itself, without keys. The log is claimed all the same, and none of it is on the
    // disk in the clear.
    assert_eq!(get(&world, "keystatus", "tank/c"), "unavailable");
    world.zpool("sync tank").ok();
    pool.scrub();
    told(&world.zfs("mount tank/c").fails(), "encryption key not loaded");
    fs::rename(&away, &key).expect("rename");
    world.zfs("load-key tank/c").ok();
    world.zfs("mount tank/c").ok();
    assert!(fs::read(root.join("small")).expect("small") == small);
    assert!(fs::read(root.join("large")).expect("large") == large);
    assert_eq!(fs::read(root.join("dir/last")).expect("last"), b"last");
    pool.judge();
    let image = fs::read(&pool.disks[0]).expect("image");
    let seen = |what: &[u8]| image.windows(what.len()).any(|w| w == what);
    assert!(!seen(&small[..64]) && !seen(&large[..64]), "plaintext on the disk");
    assert!(!seen(b"dir/last") && !seen(&[0x5a; 32]), "a name or the key on the disk");
}

#[test]
fn keys_change_and_are_inherited() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let one = key(&world, "one", b"the first passphrase\n");
    let two = key(&world, "two", &[b"0123456789abcdef".repeat(4), b"\n".to_vec()].concat());
    let options = [format!(
        "-O encryption=aes-128-gcm -O keyformat=passphrase -O pbkdf2iters=100000 -O keylocation={one}"
    )];
    let options: Vec<&str> = options[0].split(' ').collect();
    let pool = Pool::create(&world, "tank", Kind::Mirror, SIZE, &options);
    assert_eq!(get(&world, "encryptionroot", "tank"), "tank");
    world.zfs("create tank/a").ok();
    world.zfs("create tank/a/b").ok();
    world.zfs("create -V 16M tank/v").ok();
    world.zfs("create -o encryption=off tank/plain").ok();
    assert_eq!(get(&world, "encryptionroot", "tank/a/b"), "tank");
    assert_eq!(get(&world, "encryption", "tank/plain"), "off");
    write(&pool.root().join("a/b/file"), b"contents");
    // A root of its own in the middle takes what is below along.
    world.zfs(&format!("change-key -o keyformat=hex -o keylocation={two} tank/a")).ok();
    assert_eq!(get(&world, "encryptionroot", "tank/a/b"), "tank/a");
    assert_eq!(get(&world, "keyformat", "tank/a/b"), "hex");
    assert_eq!(get(&world, "pbkdf2iters", "tank/a"), "0");
    told(&world.zfs("rename tank/a/b tank/b").fails(), "encryption root");
    told(
        &world.zfs("set keylocation=none tank/a").fails(),
        "keylocation must not be 'none' for encrypted datasets",
    );
    pool.export();
    pool.import();
    told(
        &world.zfs("load-key tank/a/b").fails(),
        "Keys must be loaded for encryption root of 'tank/a/b' (tank/a).",
    );
    told(&world.zfs("change-key -i tank/a").fails(), "Key change error: Parent key must be loaded.");
    world.zfs("load-key -r tank").ok();
    world.zfs("change-key -i tank/a").ok();
    assert_eq!(get(&world, "encryptionroot", "tank/a/b"), "tank");
    assert_eq!(get(&world, "keylocation", "tank/a"), "none");
    told(&world.zfs("load-key tank").fails(), "Key already loaded for 'tank'.");
    // The old passphrase no longer opens anything.
    let three = key(&world, "three", b"another passphrase\n");
    world.zfs(&format!("change-key -o keylocation={three} tank")).ok();
    pool.export();
    pool.import();
    told(&world.zfs(&format!("load-key -L {one} tank")).fails(), "Incorrect key provided for 'tank'.");
    told(&world.zfs(&format!("load-key -n -L {three} tank")).ok(), "1 / 1 key(s) successfully verified");
    assert_eq!(get(&world, "keystatus", "tank"), "unavailable");
    world.zfs("unmount tank/plain").ok();
    world.zfs("mount -l tank").ok();
    world.zfs("mount -a").ok();
    assert_eq!(fs::read(pool.root().join("a/b/file")).expect("file"), b"contents");
    told(&world.zfs("unload-key tank").fails(), "'tank' is busy.");
    // With the key, of an encryption root; while others use that it is mounted again.
    world.zfs("unmount -u tank/a").ok();
    assert_eq!(get(&world, "keystatus", "tank/a"), "available");
    world.zfs("mount -a").ok();
    let raw = key(&world, "own", &[0x44; 32]);
    world.zfs(&format!("create -o encryption=on -o keyformat=raw -o keylocation={raw} tank/own")).ok();
    world.zfs("snapshot tank/own@s").ok();
    world.zfs("clone tank/own@s tank/plain/clone").ok();
    let refused = world.zfs("unmount -u tank/own");
    assert_eq!((refused.code, refused.stderr.as_str()), (1, "Key unload error: 'tank/own' is busy.\n"));
    assert_eq!((get(&world, "keystatus", "tank/own"), get(&world, "mounted", "tank/own")), {
        ("available".into(), "yes".into())
    });
    world.zfs("destroy tank/plain/clone").ok();
    world.zfs("unmount -u tank/own").ok();
    assert_eq!(get(&world, "keystatus", "tank/own"), "unavailable");
    world.zfs("unmount -a -u").ok();
    assert_eq!(get(&world, "keystatus", "tank"), "unavailable");
    world.zfs("load-key tank").ok();
    world.zfs("mount -a").ok();
    world.zfs("unmount -a").ok();
    world.zfs("unload-key tank").ok();
    told(&world.zfs("unload-key tank").fails(), "Key already unloaded for 'tank'.");
    told(&world.zfs("create tank/new").fails(), "");
    world.zfs("snapshot tank/a@locked").ok();
    pool.judge();
}

#[test]
fn wrong_words_are_refused_in_openzfs_words() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let short = key(&world, "short", b"1234567\n");
    let raw = key(&world, "raw", &[1; 31]);
    for (words, said) in [
        (
            "-o encryption=on".to_owned(),
            "Encryption create error: Keyformat required for new encryption root.",
        ),
        (
            format!("-o encryption=off -o keyformat=raw -o keylocation={raw}"),
            "Encryption must be turned on to set encryption properties.",
        ),
        (
            format!("-o encryption=on -o keyformat=passphrase -o keylocation={short}"),
            "Passphrase too short (min 8).",
        ),
        (
            format!("-o encryption=on -o keyformat=raw -o keylocation={raw}"),
            "Raw key too short (expected 32).",
        ),
        (
            "-o encryption=on -o keyformat=raw -o keylocation=file:///nowhere/at/all".into(),
            "Failed to open key material file: No such file or directory",
        ),
    ] {
        told(&world.zfs(&format!("create {words} tank/x")).fails(), said);
        assert!(!world.zfs("list -H -o name").ok().contains("tank/x"), "{words}");
    }
    told(&world.zfs("load-key tank").fails(), "Key load error: 'tank' is not encrypted.");
    told(&world.zfs("change-key tank").fails(), "Key change error: Dataset not encrypted.");
    told(&world.zfs("load-key").fails(), "Missing dataset argument or -a option");
    pool.judge();
}

/// (OpenZFS's issue 12014 and its relatives: a key that goes while blocks are still to be encrypted
/// with it.)
#[test]
fn a_key_is_not_taken_from_under_who_writes() {
    use std::sync::atomic::{AtomicBool, Ordering};
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let location = key(&world, "raw", &[0x33; 32]);
    world.zfs(&format!("create -o encryption=on -o keyformat=raw -o keylocation={location} tank/c")).ok();
    let (root, over) = (pool.root().join("c"), AtomicBool::new(false));
    let written = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let mut written = Vec::new();
            for n in 0..20_000u32 {
                let data = Random::new(u64::from(n) + 1).bytes(30_000);
                // The last ones may come when it is not mounted any more.
                match fs::File::create(root.join(format!("f{}", n % 50))).and_then(|mut f| f.write_all(&data))
                {
                    Ok(()) => written.push((n % 50, data)),
                    Err(_) => break,
                }
                if over.load(Ordering::Relaxed) {
                    break;
                }
            }
            written
        });
        for _ in 0..10 {
            told(&world.zfs("unload-key tank/c").fails(), "'tank/c' is busy.");
        }
        over.store(true, Ordering::Relaxed);
        writer.join().expect("the writer")
    });
    // Right behind the last write, whose txg is not synced.
    world.zfs("unmount tank/c").ok();
    world.zfs("unload-key tank/c").ok();
    told(&world.zfs("mount tank/c").fails(), "encryption key not loaded");
    world.zfs("mount -l tank/c").ok();
    let last: std::collections::BTreeMap<u32, Vec<u8>> = written.into_iter().collect();
    assert!(!last.is_empty());
    for (n, data) in last {
        assert!(fs::read(root.join(format!("f{n}"))).expect("file") == data, "f{n}");
    }
    pool.judge();
}

/// As OpenZFS's units do at boot: `zfs load-key -a`, then `zfs mount -a`.
#[test]
fn a_daemon_loads_the_keys_that_lie_in_files_when_it_starts() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let outside = key(&world, "raw", &[0x5b; 32]);
    let phrase = key(&world, "phrase", format!("{PASS}\n").as_bytes());
    let gone = key(&world, "gone", &[b"0123456789abcdef".repeat(4), b"\n".to_vec()].concat());
    let make = |format: &str, location: &str, name: &str| {
        let how = format!("-o encryption=on -o keyformat={format} -o keylocation={location}");
        world.zfs(&format!("create {how} {name}")).ok();
    };
    make("raw", &outside, "tank/outside");
    world.zfs("create -o encryption=off tank/outside/plain").ok();
    make("passphrase -o pbkdf2iters=100000", &phrase, "tank/phrase");
    // A key that lies in a dataset that a key opens.
    let within = pool.root().join("outside/key");
    write(&within, &[0x11; 32]);
    make("raw", &format!("file://{}", within.display()), "tank/a");
    make("hex", &gone, "tank/gone");
    make("raw", &outside, "tank/wrong");
    make("raw", &outside, "tank/prompt");
    world.zfs("set keylocation=prompt tank/prompt").ok();
    let other = key(&world, "other", &[0x77; 32]);
    world.zfs(&format!("set keylocation={other} tank/wrong")).ok();
    let all = ["outside", "outside/plain", "phrase", "a", "gone", "wrong", "prompt"];
    for name in all {
        write(&pool.root().join(name).join("file"), name.as_bytes());
    }
    fs::remove_file(world.path().join("gone")).expect("remove");
    world.stop();
    let here = |name: &str| fs::read(pool.root().join(name).join("file")).ok();
    pool.sync();
    for name in ["outside", "outside/plain", "phrase", "a"] {
        assert_eq!(here(name).as_deref(), Some(name.as_bytes()), "{name}: {}", world.log());
    }
    for name in ["gone", "wrong", "prompt"] {
        assert_eq!(get(&world, "keystatus", &format!("tank/{name}")), "unavailable");
        assert_eq!(here(name), None, "{name}");
    }
    let lines = |name: &str| {
        let (log, start) = (world.log(), format!("'{name}' stays locked"));
        log.lines().filter(|l| l.contains(&start)).map(str::to_owned).collect::<Vec<_>>()
    };
    let said = lines("tank/gone");
    assert_eq!(said.len(), 1, "{said:?}");
    told(&said[0], &format!("'{gone}': Failed to open key material file: No such file or directory."));
    let said = lines("tank/wrong");
    assert_eq!(said.len(), 1, "{said:?}");
    told(&said[0], "Incorrect key provided for 'tank/wrong'.");
    assert_eq!(lines("tank/prompt"), [""; 0]);
    // An import loads none by itself, and all that it can with -l.
    pool.export();
    pool.import();
    assert_eq!(get(&world, "keystatus", "tank/outside"), "unavailable");
    pool.judge();
}

#[test]
fn a_daemon_asks_a_server_for_keys_when_it_has_started() {
    use std::io::{BufRead, BufReader};
    if !can(&[Need::Fuse]) || Command::new("curl").arg("--version").output().is_err() {
        return;
    }
    let world = World::new();
    let pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let location = format!("http://127.0.0.1:{}/key", server.local_addr().expect("address").port());
    let serve = std::thread::spawn(move || {
        // Once for the new dataset, once for the daemon.
        for _ in 0..2 {
            let (mut client, _) = server.accept().expect("accept");
            let asked = BufReader::new(client.try_clone().expect("clone")).lines();
            asked.map_while(Result::ok).take_while(|l| !l.is_empty()).for_each(drop);
            let answer = [&b"HTTP/1.0 200 OK\r\nContent-Length: 32\r\n\r\n"[..], &[0x42; 32]].concat();
            client.write_all(&answer).expect("answer");
        }
    });
    world.zfs(&format!("create -o encryption=on -o keyformat=raw -o keylocation={location} tank/c")).ok();
    let file = pool.root().join("c/file");
    write(&file, b"contents");
    world.stop();
    pool.sync();
    let begun = std::time::Instant::now();
    while !file.exists() {
        assert!(begun.elapsed().as_secs() < 60, "it stays locked:\n{}", world.log());
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    serve.join().expect("the server");
    assert_eq!(fs::read(&file).expect("file"), b"contents");
    pool.judge();
}

/// OpenZFS's variables say which certificates are believed.
#[test]
fn a_server_of_keys_is_asked_with_the_certificates_that_are_named() {
    if !can(&[Need::Fuse]) || Command::new("curl").arg("--version").output().is_err() {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, SIZE, &[]);
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("listen");
    let location =
        format!("keylocation=https://127.0.0.1:{}/key", server.local_addr().expect("address").port());
    let mut command = world.command("zfs");
    command.args(["create", "-o", "encryption=on", "-o", "keyformat=raw", "-o", &location, "tank/c"]);
    let done = command.env("SSL_CA_CERT_FILE", "/nonexistent/ca").output().expect("zfs");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(!done.status.success() && said.contains("/nonexistent/ca"), "{said}");
}
