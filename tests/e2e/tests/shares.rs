//! File systems shared over NFS: by libnfs's programs, and by a small client of our own, call by
//! call.
//!
//! `ZILLA_KILLS` says how often the daemon is killed behind a COMMIT (a few in every run).

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zilla_e2e::pool::zdb_clean;
use zilla_e2e::world::finish;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;
const UNSTABLE: u32 = 0;
const FILE_SYNC: u32 = 2;
const OK: u32 = 0;
const NFS3ERR_ACCES: u32 = 13;
const NFS3ERR_ROFS: u32 = 30;
const NFS3ERR_STALE: u32 = 70;

/// A world whose daemon shares on a port of its own.
struct Sharing {
    world: World,
    port: u16,
    daemon: Option<Child>,
}

impl Sharing {
    fn new() -> Sharing {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = free.local_addr().expect("a port").port();
        drop(free);
        let mut sharing = Sharing { world: World::new(), port, daemon: None };
        sharing.start();
        sharing
    }

    fn start(&mut self) {
        if let Some(mut old) = self.daemon.take() {
            let _ = old.wait();
        }
        let socket = self.world.state().join("zillad.sock");
        let _ = std::fs::remove_file(&socket);
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.world.state().join("zillad.log"))
            .expect("log");
        let mut command = self.world.command("zillad");
        command.args(["--nfs", &format!("127.0.0.1:{}", self.port)]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
        self.daemon = Some(command.spawn().expect("zillad"));
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "no daemon:\n{}", self.world.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pool(&self, name: &str, options: &[&str]) -> Pool<'_> {
        Pool::create(&self.world, name, Kind::Mirror, 256 << 20, options)
    }

    fn client(&self, uid: u32) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the server");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("timeout");
        Client { stream, xid: 0, uid, gid: uid }
    }
}

/// XDR, as much of it as is needed.
#[derive(Default, Clone)]
struct Args(Vec<u8>);

impl Args {
    fn n(mut self, n: u32) -> Args {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }
    fn nn(mut self, n: u64) -> Args {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }
    fn bytes(self, bytes: &[u8]) -> Args {
        let mut out = self.n(bytes.len() as u32);
        out.0.extend_from_slice(bytes);
        out.0.resize(out.0.len().next_multiple_of(4), 0);
        out
    }
    /// sattr3 that sets a mode and nothing else.
    fn mode(self, mode: u32) -> Args {
        self.n(1).n(mode).n(0).n(0).n(0).n(0).n(0)
    }
    fn no_change(self) -> Args {
        self.n(0).n(0).n(0).n(0).n(0).n(0)
    }
}

struct Reply(Vec<u8>);

impl Reply {
    fn n(&mut self) -> u32 {
        let bytes: Vec<u8> = self.0.drain(..4).collect();
        u32::from_be_bytes(bytes.try_into().expect("four bytes"))
    }
    fn nn(&mut self) -> u64 {
        u64::from(self.n()) << 32 | u64::from(self.n())
    }
    fn bytes(&mut self) -> Vec<u8> {
        let len = self.n() as usize;
        let padded: Vec<u8> = self.0.drain(..len.next_multiple_of(4)).collect();
        padded[..len].to_vec()
    }
    /// fattr3: the mode and size.
    fn attr(&mut self) -> (u32, u64) {
        let (_, mode, ..) = (self.n(), self.n(), self.n(), self.n(), self.n());
        let size = self.nn();
        self.0.drain(..84 - 28);
        (mode, size)
    }
    fn maybe_attr(&mut self) -> Option<(u32, u64)> {
        (self.n() == 1).then(|| self.attr())
    }
    fn wcc(&mut self) {
        assert_eq!(self.n(), 0, "no attributes before");
        self.maybe_attr();
    }
}

struct Client {
    stream: TcpStream,
    xid: u32,
    uid: u32,
    gid: u32,
}

impl Client {
    fn send(&mut self, record: &[u8]) -> Option<Vec<u8>> {
        let header = (record.len() as u32 | 1 << 31).to_be_bytes();
        self.stream.write_all(&header).ok()?;
        self.stream.write_all(record).ok()?;
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).ok()?;
        let mut reply = vec![0; (u32::from_be_bytes(header) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut reply).ok()?;
        Some(reply)
    }

    fn raw(&mut self, program: u32, procedure: u32, args: Args) -> Option<Reply> {
        self.xid += 1;
        let who = Args::default().n(0).bytes(b"test").n(self.uid).n(self.gid).n(0);
        let call = Args::default().n(self.xid).n(0).n(2).n(program).n(3).n(procedure).n(1).bytes(&who.0);
        let mut record = call.n(0).n(0).0;
        record.extend(args.0);
        let mut reply = Reply(self.send(&record)?);
        assert_eq!((reply.n(), reply.n(), reply.n()), (self.xid, 1, 0), "an accepted reply");
        reply.n();
        reply.bytes();
        Some(reply)
    }

    /// A call that RPC takes; what follows the word that it did.
    #[track_caller]
    fn call(&mut self, program: u32, procedure: u32, args: Args) -> Reply {
        let mut reply = self.raw(program, procedure, args).expect("a reply");
        assert_eq!(reply.n(), 0, "the call is not done");
        reply
    }

    /// Status and the rest.
    #[track_caller]
    fn nfs(&mut self, procedure: u32, args: Args) -> (u32, Reply) {
        let mut reply = self.call(NFS, procedure, args);
        (reply.n(), reply)
    }

    #[track_caller]
    fn ok(&mut self, procedure: u32, args: Args) -> Reply {
        let (status, reply) = self.nfs(procedure, args);
        assert_eq!(status, OK, "procedure {procedure}");
        reply
    }

    fn mount(&mut self, path: &str) -> Result<Vec<u8>, u32> {
        let mut reply = self.call(MOUNT, 1, Args::default().bytes(path.as_bytes()));
        match reply.n() {
            OK => Ok(reply.bytes()),
            status => Err(status),
        }
    }

    fn lookup(&mut self, dir: &[u8], name: &str) -> Result<Vec<u8>, u32> {
        let (status, mut reply) = self.nfs(3, Args::default().bytes(dir).bytes(name.as_bytes()));
        if status == OK { Ok(reply.bytes()) } else { Err(status) }
    }

    /// CREATE, UNCHECKED.
    #[track_caller]
    fn create(&mut self, dir: &[u8], name: &str, mode: u32) -> Vec<u8> {
        let mut reply = self.ok(8, Args::default().bytes(dir).bytes(name.as_bytes()).n(0).mode(mode));
        assert_eq!(reply.n(), 1, "a handle");
        reply.bytes()
    }

    /// The verifier.
    #[track_caller]
    fn write(&mut self, file: &[u8], off: u64, data: &[u8], how: u32) -> u64 {
        let args = Args::default().bytes(file).nn(off).n(data.len() as u32).n(how).bytes(data);
        let mut reply = self.ok(7, args);
        reply.wcc();
        assert_eq!((reply.n() as usize, reply.n()), (data.len(), how));
        reply.nn()
    }

    #[track_caller]
    fn commit(&mut self, file: &[u8]) -> u64 {
        let mut reply = self.ok(21, Args::default().bytes(file).nn(0).n(0));
        reply.wcc();
        reply.nn()
    }

    #[track_caller]
    fn read(&mut self, file: &[u8], off: u64, len: u32) -> (Vec<u8>, bool) {
        let mut reply = self.ok(6, Args::default().bytes(file).nn(off).n(len));
        reply.maybe_attr();
        let (count, eof) = (reply.n(), reply.n() == 1);
        let data = reply.bytes();
        assert_eq!(data.len(), count as usize);
        (data, eof)
    }

    fn getattr(&mut self, file: &[u8]) -> Result<(u32, u64), u32> {
        let (status, mut reply) = self.nfs(1, Args::default().bytes(file));
        if status == OK { Ok(reply.attr()) } else { Err(status) }
    }

    /// Names in a directory, in replies of at most `most` bytes.
    #[track_caller]
    fn names(&mut self, dir: &[u8], plus: bool, most: u32) -> Vec<String> {
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let args = Args::default().bytes(dir).nn(cookie).nn(0);
            let args = if plus { args.n(most).n(most) } else { args.n(most) };
            let mut reply = self.ok(if plus { 17 } else { 16 }, args);
            assert!(reply.0.len() <= most as usize);
            reply.maybe_attr();
            reply.nn();
            while reply.n() == 1 {
                reply.nn();
                names.push(String::from_utf8(reply.bytes()).expect("a name"));
                cookie = reply.nn();
                if plus && reply.maybe_attr().is_some() {
                    assert_eq!(reply.n(), 1);
                    reply.bytes();
                } else if plus {
                    assert_eq!(reply.n(), 0);
                }
            }
            if reply.n() == 1 {
                return names;
            }
        }
    }
}

fn insecure() -> [&'static str; 2] {
    ["-O", "sharenfs=rw,insecure,no_root_squash"]
}

#[test]
fn every_procedure_does_what_the_mount_shows() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let sharing = Sharing::new();
    let pool = sharing.pool("tank", &insecure());
    let root = pool.root();
    let mut c = sharing.client(0);
    let top = c.mount(root.to_str().unwrap()).unwrap();
    // Its own files, through NFS and on the mount, whose kernel remembers what it saw.
    assert!(!root.join("f").exists());
    let f = c.create(&top, "f", 0o640);
    assert!(root.join("f").exists(), "the kernel remembers that there was none");
    c.write(&f, 0, b"hello", FILE_SYNC);
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"hello");
    c.write(&f, 5, b" world", UNSTABLE);
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"hello world");
    std::fs::write(root.join("f"), "from the mount").unwrap();
    assert_eq!(c.read(&f, 5, 100), (b"the mount".to_vec(), true));
    assert_eq!(c.read(&f, 0, 4), (b"from".to_vec(), false));
    assert_eq!(c.getattr(&f), Ok((0o640, 14)));
    c.ok(2, Args::default().bytes(&f).n(0).n(0).n(0).n(1).nn(4).n(0).n(0).n(0));
    assert_eq!(std::fs::read(root.join("f")).unwrap(), b"from");
    // Directories, links, devices.
    let mut reply = c.ok(9, Args::default().bytes(&top).bytes(b"d").mode(0o755));
    reply.n();
    let d = reply.bytes();
    c.ok(10, Args::default().bytes(&d).bytes(b"s").no_change().bytes(b"../f"));
    assert_eq!(std::fs::read(root.join("d/s")).unwrap(), b"from");
    let s = c.lookup(&d, "s").unwrap();
    let mut reply = c.ok(5, Args::default().bytes(&s));
    reply.maybe_attr();
    assert_eq!(reply.bytes(), b"../f");
    c.ok(11, Args::default().bytes(&d).bytes(b"pipe").n(7).mode(0o600));
    c.ok(15, Args::default().bytes(&f).bytes(&d).bytes(b"second"));
    c.ok(14, Args::default().bytes(&top).bytes(b"f").bytes(&d).bytes(b"moved"));
    assert!(!root.join("f").exists() && root.join("d/moved").exists());
    assert_eq!(c.lookup(&d, "moved").unwrap(), f, "a handle is the file's, not its name's");
    for i in 0..300 {
        std::fs::write(root.join(format!("d/{i}")), "").unwrap();
    }
    let mut expected: Vec<String> = (0..300).map(|i| i.to_string()).collect();
    expected.extend([".", "..", "s", "pipe", "second", "moved"].map(str::to_owned));
    expected.sort();
    for (plus, most) in [(false, 512), (false, 1 << 16), (true, 2048), (true, 1 << 16)] {
        let mut names = c.names(&d, plus, most);
        names.sort();
        assert_eq!(names, expected);
    }
    assert_eq!(c.nfs(16, Args::default().bytes(&d).nn(0).nn(0).n(64)).0, 10005, "TOOSMALL");
    assert_eq!(c.nfs(13, Args::default().bytes(&top).bytes(b"d")).0, 66, "NOTEMPTY");
    c.ok(12, Args::default().bytes(&d).bytes(b"second"));
    c.ok(12, Args::default().bytes(&d).bytes(b"moved"));
    assert_eq!(c.getattr(&f), Err(NFS3ERR_STALE));
    for procedure in [4, 18, 19, 20] {
        let args = Args::default().bytes(&d);
        c.ok(procedure, if procedure == 4 { args.n(0x3f) } else { args });
    }
    // An exclusive create that is asked for again is the same; another's is not.
    let exclusive = |v: u64| Args::default().bytes(&top).bytes(b"mine").n(2).nn(v);
    assert_eq!(c.nfs(8, exclusive(7)).0, OK);
    assert_eq!(c.nfs(8, exclusive(7)).0, OK);
    assert_eq!(c.nfs(8, exclusive(8)).0, 17);
    assert_eq!(c.call(NFS, 0, Args::default()).0, [0u8; 0]);
    // Wrong calls get the protocol's errors, and the connection lives.
    let refused = |mut r: Reply| r.n();
    assert_eq!(refused(c.raw(NFS, 22, Args::default()).unwrap()), 3);
    assert_eq!(refused(c.raw(NFS, 1, Args::default().n(4000)).unwrap()), 4);
    assert_eq!(refused(c.raw(100_000, 3, Args::default()).unwrap()), 1);
    assert_eq!(c.getattr(&[7; 44]), Err(10001), "BADHANDLE");
    assert_eq!(c.getattr(&top).map(|a| a.0), Ok(0o755));
    assert!(c.send(&[0; 3]).is_none(), "what is no call ends the connection");
    pool.judge();
}

#[test]
fn modes_and_owners_hold_for_clients() {
    if !can(&[Need::Fuse, Need::Root]) {
        return;
    }
    let sharing = Sharing::new();
    let pool = sharing.pool("tank", &["-O", "sharenfs=rw,insecure", "-O", "acltype=posix"]);
    let path = pool.root().to_string_lossy().into_owned();
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    std::fs::set_permissions(pool.root(), std::fs::Permissions::from_mode(0o1777)).unwrap();
    std::fs::write(pool.root().join("secret"), "x").unwrap();
    std::fs::set_permissions(pool.root().join("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut user = sharing.client(1000);
    let top = user.mount(&path).unwrap();
    let secret = user.lookup(&top, "secret").unwrap();
    let read = |f: &[u8]| Args::default().bytes(f).nn(0).n(10);
    assert_eq!(user.nfs(6, read(&secret)).0, NFS3ERR_ACCES);
    assert_eq!(user.nfs(12, Args::default().bytes(&top).bytes(b"secret")).0, 1, "the sticky bit");
    assert_eq!(user.nfs(2, Args::default().bytes(&secret).mode(0o666).n(0)).0, 1);
    // Nor does the owner that a file has already, given once more by another user, take its set-id
    // bits.
    std::fs::write(pool.root().join("program"), "x").unwrap();
    std::fs::set_permissions(pool.root().join("program"), std::fs::Permissions::from_mode(0o4755)).unwrap();
    let program = user.lookup(&top, "program").unwrap();
    let (uid, gid) = ([0, 1, 0, 0, 0, 0, 0], [0, 0, 1, 0, 0, 0, 0]);
    for same in [uid, gid] {
        let args = same.iter().fold(Args::default().bytes(&program), |args, n| args.n(*n)).n(0);
        assert_eq!(user.nfs(2, args).0, 1);
    }
    assert_eq!(user.getattr(&program).map(|a| a.0), Ok(0o4755));
    let own = user.create(&top, "own", 0o400);
    user.write(&own, 0, b"mine whatever its mode says", FILE_SYNC);
    assert_eq!(std::fs::metadata(pool.root().join("own")).unwrap().uid(), 1000);
    // Root is nobody, unless the share says so.
    let mut squashed = sharing.client(0);
    assert_eq!(squashed.nfs(6, read(&secret)).0, NFS3ERR_ACCES);
    squashed.create(&top, "root-s", 0o644);
    assert_eq!(std::fs::metadata(pool.root().join("root-s")).unwrap().uid(), 65534);
    sharing.world.zfs("set sharenfs=rw,insecure,no_root_squash tank").ok();
    assert_eq!(squashed.nfs(6, read(&secret)).0, OK);
    sharing.world.zfs("set sharenfs=rw,insecure,all_squash,anonuid=7,anongid=8 tank").ok();
    user.create(&top, "anybody", 0o644);
    assert_eq!(std::fs::metadata(pool.root().join("anybody")).unwrap().uid(), 7);
    sharing.world.zfs("set sharenfs=ro,insecure tank").ok();
    let (status, _) = user.nfs(12, Args::default().bytes(&top).bytes(b"own"));
    assert_eq!(status, NFS3ERR_ROFS);
    sharing.world.zfs("set sharenfs=rw=@10.0.0.0/8,insecure tank").ok();
    assert_eq!(user.getattr(&top), Err(NFS3ERR_ACCES));
    assert_eq!(user.mount(&path), Err(NFS3ERR_ACCES));
    // Only ports of root's, if nothing else is said: this client has another.
    sharing.world.zfs("set sharenfs=on tank").ok();
    assert_eq!(user.getattr(&top), Err(NFS3ERR_ACCES));
    chown(pool.root().join("own"), Some(0), Some(0)).unwrap();
    pool.judge();
}

#[test]
fn shares_come_and_go_as_the_property_says() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let mut sharing = Sharing::new();
    let path;
    let (top, snapped) = {
        let pool = sharing.pool("tank", &[]);
        path = pool.root().to_string_lossy().into_owned();
        let world = &sharing.world;
        let mut c = sharing.client(1000);
        assert!(c.mount(&path).is_err(), "nothing is shared unless it is said");
        let why = world.zfs("set sharenfs=rw,sec=krb5 tank").fails();
        assert!(why.contains("sec=krb5"), "{why}");
        assert!(world.zfs("share tank").fails().contains("legacy share"));
        world.zfs("set sharenfs=rw,insecure tank").ok();
        let top = c.mount(&path).unwrap();
        assert!(world.zfs("share tank").fails().contains("already shared"));
        world.zfs("unshare tank").ok();
        assert_eq!(c.getattr(&top), Err(NFS3ERR_STALE));
        assert!(world.zfs("unshare tank").fails().contains("not currently shared"));
        world.zfs("share -a").ok();
        assert!(c.getattr(&top).is_ok());
        // What inherits is shared too, and is a share of its own.
        world.zfs("create tank/below").ok();
        let below = c.mount(&format!("{path}/below")).unwrap();
        assert_ne!(below, c.lookup(&top, "below").unwrap());
        world.zfs(&format!("unmount {path}/below")).ok();
        assert_eq!(c.getattr(&below), Err(NFS3ERR_STALE));
        world.zfs("mount tank/below").ok();
        assert!(c.getattr(&below).is_ok(), "mounting shares");
        // Snapshots by `.zfs`, read-only.
        std::fs::write(pool.root().join("f"), "then").unwrap();
        world.zfs("snapshot tank@then").ok();
        std::fs::write(pool.root().join("f"), "now!").unwrap();
        let zfs = c.lookup(&top, ".zfs").unwrap();
        let dir = c.lookup(&zfs, "snapshot").unwrap();
        assert_eq!(c.names(&dir, true, 4096), [".", "..", "then"]);
        let then = c.lookup(&dir, "then").unwrap();
        let f = c.lookup(&then, "f").unwrap();
        assert_eq!(c.read(&f, 0, 10).0, b"then");
        let args = Args::default().bytes(&f).nn(0).n(1).n(0).bytes(b"x");
        assert_eq!(c.nfs(7, args).0, NFS3ERR_ROFS);
        (top, f)
    };
    // The same handles after a restart.
    sharing.world.stop();
    sharing.start();
    let mut c = sharing.client(1000);
    assert!(c.getattr(&top).is_ok());
    assert_eq!(c.read(&snapped, 0, 10).0, b"then");
    sharing.world.zfs("set snapdir=disabled tank").ok();
    assert_eq!(c.getattr(&snapped), Err(NFS3ERR_STALE), "no snapshot is to be seen");
    sharing.world.zfs("inherit snapdir tank").ok();
    assert!(c.getattr(&snapped).is_ok());
    sharing.world.zfs("destroy tank@then").ok();
    assert_eq!(c.getattr(&snapped), Err(NFS3ERR_STALE));
    sharing.world.zfs("unshare -a").ok();
    assert_eq!(c.getattr(&top), Err(NFS3ERR_STALE));
    sharing.world.zpool("export tank").ok();
    zdb_clean(&sharing.world.disks(), "tank");
}

#[test]
fn without_an_address_nothing_is_shared_and_it_is_said() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let world = World::new();
    let _pool = Pool::create(&world, "tank", Kind::Single, 128 << 20, &[]);
    let why = world.zfs("set sharenfs=on tank").fails();
    assert!(why.contains("cannot share 'tank'") && why.contains("--nfs"), "{why}");
    assert!(why.contains("unable to reshare filesystem"), "{why}");
    let why = world.zfs("create -o sharenfs=on tank/a").fails();
    assert!(why.contains("created, but not shared"), "{why}");
    assert!(world.zfs("share tank").fails().contains("--nfs"));
    world.zfs("create tank/b").ok();
    let mut command = world.command("zillad");
    command.args(["--nfs", "2049"]);
    assert!(finish(command).fails().contains("no address with a port"));
}

#[test]
fn what_was_committed_survives_a_kill() {
    if !can(&[Need::Fuse]) {
        return;
    }
    let kills: u64 = std::env::var("ZILLA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let mut sharing = Sharing::new();
    let path = {
        let pool = sharing.pool("tank", &["-O", "sharenfs=rw,insecure,all_squash,anonuid=0,anongid=0"]);
        pool.root().to_string_lossy().into_owned()
    };
    let mut random = Random::from_env();
    let mut verifiers = Vec::new();
    for round in 0..kills {
        let mut c = sharing.client(1000);
        let top = c.mount(&path).unwrap();
        let committed = {
            let len = 1 + random.below(900_000) as usize;
            random.bytes(len)
        };
        let file = c.create(&top, &format!("f{round}"), 0o600);
        let mut verifier = 0;
        for (i, part) in committed.chunks(100_000).enumerate() {
            verifier = c.write(&file, i as u64 * 100_000, part, UNSTABLE);
        }
        assert_eq!(c.commit(&file), verifier);
        assert!(!verifiers.contains(&verifier), "one verifier for two lives of the daemon");
        verifiers.push(verifier);
        // What nobody was promised, and a name that was promised by its reply alone.
        c.write(&file, committed.len() as u64, b"not committed", UNSTABLE);
        c.create(&top, &format!("name{round}"), 0o600);
        sharing.world.kill();
        sharing.start();
        let mut c = sharing.client(1000);
        let mut at = 0;
        while at < committed.len() {
            let (data, _) = c.read(&file, at as u64, 1 << 20);
            let n = data.len().min(committed.len() - at);
            assert!(n > 0 && data[..n] == committed[at..at + n], "round {round}: lost behind {at}");
            at += n;
        }
        assert!(c.lookup(&top, &format!("name{round}")).is_ok(), "round {round}: a name is lost");
    }
    sharing.world.zpool("export tank").ok();
    zdb_clean(&sharing.world.disks(), "tank");
}

#[test]
fn libnfs_copies_there_and_back() {
    if !can(&[Need::Fuse, Need::Libnfs]) {
        return;
    }
    let sharing = Sharing::new();
    let pool = sharing.pool("tank", &insecure());
    let url = |name: &str| {
        let (root, port) = (pool.root(), sharing.port);
        format!("nfs://127.0.0.1{}{name}?nfsport={port}&mountport={port}", root.display())
    };
    let run = |program: &str, words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words);
        finish(command).ok()
    };
    let bytes = Random::from_env().bytes(5_000_001);
    let here: PathBuf = sharing.world.path().join("here");
    std::fs::write(&here, &bytes).unwrap();
    run("/usr/bin/nfs-cp", &[here.to_str().unwrap(), &url("/there")]);
    assert_eq!(std::fs::read(pool.root().join("there")).unwrap(), bytes);
    let back: PathBuf = sharing.world.path().join("back");
    run("/usr/bin/nfs-cp", &[&url("/there"), back.to_str().unwrap()]);
    assert_eq!(std::fs::read(back).unwrap(), bytes);
    let list = run("/usr/bin/nfs-ls", &[&url("")]);
    assert!(list.contains("there") && list.contains("5000001"), "{list}");
    pool.judge();
}
