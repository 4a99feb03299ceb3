//! Those who live on `fsync`: SQLite, PostgreSQL and a maildir on a mount whose daemon is killed
//! again and again.
//!
//! Each says what it has made stable - a transaction whose commit returned, a message whose folder
//! was synced - and after every kill all of that must be there, and the database must find itself
//! sound. `ZILLA_KILLS` says how often (100 for the proof, a few in every run), `ZILLA_SEED`
//! repeats a run.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};
use zilla_e2e::world::finish;
use zilla_e2e::{Kind, Need, Pool, Random, World, can};

/// Something that makes things stable on a mount, one after the other.
trait Client {
    /// Starts in its folder, where it may have been before.
    fn start(&mut self, folder: &Path);
    /// Makes thing `n` stable; false when it could not be done.
    fn put(&mut self, n: u64) -> bool;
    /// After the daemon was killed: nothing of it may hold the mount.
    fn kill(&mut self);
    /// Whether all of 0..n is there, on a pool that is back, and it is sound.
    fn check(&mut self, folder: &Path, n: u64);
}

fn kills(few: usize) -> usize {
    std::env::var("ZILLA_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// Lets the client work, kills the daemon, brings the pool back, and has the client look, `kills`
/// times.
fn through_kills(kills: usize, pause: Duration, mut client: impl Client) {
    let mut random = Random::from_env();
    let world = World::new();
    // The database's user has to get at the mount.
    fs::set_permissions(world.path(), fs::Permissions::from_mode(0o755)).expect("mode");
    let pool = Pool::create(&world, "tank", Kind::Mirror, 1 << 30, &[]);
    let folder = pool.root().join("data");
    fs::create_dir(&folder).expect("folder");
    let mut stable = 0;
    for round in 0..kills {
        let begin = stable;
        client.start(&folder);
        // From here on the clock runs, whatever the client does.
        let moment = pause + Duration::from_millis(random.below(1200));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(moment);
                world.kill();
            });
            while client.put(stable) {
                stable += 1;
            }
        });
        client.kill();
        pool.again();
        client.check(&folder, stable);
        eprintln!("kill {}: {} more were stable, {stable} are there", round + 1, stable - begin);
    }
    client.kill();
    assert!(stable as usize >= kills, "in most rounds nothing was made stable: this proves little");
    pool.scrub();
    pool.judge();
}

/// A program that is given lines and answers each with one.
struct Dialog {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Dialog {
    fn start(mut command: Command) -> Dialog {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("program");
        let (to, from) = (child.stdin.take().expect("pipe"), child.stdout.take().expect("pipe"));
        Dialog { child, to, from: BufReader::new(from) }
    }

    /// Says something, and whether the answer is the one that is waited for.
    fn say(&mut self, text: &str, answer: &str) -> bool {
        let mut line = String::new();
        writeln!(self.to, "{text}").and_then(|()| self.to.flush()).is_ok()
            && self.from.read_line(&mut line).is_ok()
            && line.trim_end() == answer
    }

    fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// SQLite's shell, with a journal in one round and a write-ahead log in the next.
#[derive(Default)]
struct Sqlite {
    dialog: Option<Dialog>,
    rounds: usize,
    folder: PathBuf,
}

impl Sqlite {
    fn ask(folder: &Path, text: &str) -> String {
        let mut command = Command::new("sqlite3");
        command.arg("-bail").arg(folder.join("db")).arg(text);
        finish(command).ok()
    }
}

impl Client for Sqlite {
    fn start(&mut self, folder: &Path) {
        let journal = if self.rounds.is_multiple_of(2) { "delete" } else { "wal" };
        self.rounds += 1;
        self.folder = folder.to_owned();
        Sqlite::ask(folder, "CREATE TABLE IF NOT EXISTS t(id INTEGER PRIMARY KEY, v BLOB UNIQUE)");
        let mut command = Command::new("stdbuf");
        command.args(["-oL", "sqlite3", "-bail"]).arg(folder.join("db"));
        let mut dialog = Dialog::start(command);
        // With less than EXTRA, SQLite does not sync the folder after it removed its journal, so a
        // commit that returned may be undone.
        let mode = format!("PRAGMA synchronous=EXTRA; PRAGMA journal_mode={journal};");
        assert!(dialog.say(&mode, journal), "SQLite does not take {mode}");
        self.dialog = Some(dialog);
    }

    fn put(&mut self, n: u64) -> bool {
        let Some(dialog) = &mut self.dialog else { return false };
        let text = format!("INSERT INTO t VALUES({n}, randomblob(700)); SELECT 'stable {n}';");
        // SQLite calls a commit done whose journal it removed and whose folder it then could not
        // open to sync it (unixDelete). So what it says right before the file system is gone is not
        // believed: asked for its free space, a daemon must answer.
        dialog.say(&text, &format!("stable {n}")) && rustix::fs::statvfs(&self.folder).is_ok()
    }

    fn kill(&mut self) {
        if let Some(dialog) = self.dialog.take() {
            dialog.kill();
        }
    }

    fn check(&mut self, folder: &Path, n: u64) {
        assert_eq!(Sqlite::ask(folder, "PRAGMA integrity_check").trim(), "ok");
        let found = Sqlite::ask(folder, &format!("SELECT count(*) FROM t WHERE id < {n}"));
        assert_eq!(found.trim(), n.to_string(), "transactions whose commit returned are lost");
        // One more may have become stable without anybody having been told.
        Sqlite::ask(folder, &format!("DELETE FROM t WHERE id >= {n}"));
    }
}

/// A PostgreSQL server with its data on the mount, `fsync` and checksums on, and one client.
struct Postgres {
    /// Its socket, and what else must not lie on the mount.
    run: tempfile::TempDir,
    server: Option<Child>,
    dialog: Option<Dialog>,
}

impl Postgres {
    fn new() -> Postgres {
        let run = tempfile::tempdir().expect("folder");
        fs::set_permissions(run.path(), fs::Permissions::from_mode(0o777)).expect("mode");
        Postgres { run, server: None, dialog: None }
    }

    /// One of Debian's programs, as the user `postgres` where we are root: as root it refuses to
    /// run.
    fn program(name: &str) -> Command {
        let versions =
            fs::read_dir("/usr/lib/postgresql").expect("Debian's package postgresql is not installed");
        let newest = versions.map(|e| e.expect("entry").path()).max().expect("a version of PostgreSQL");
        let path = newest.join("bin").join(name);
        if !zilla_e2e::needs::is_root() {
            return Command::new(path);
        }
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"])
            .arg(path);
        command
    }

    fn psql(&self) -> Command {
        let mut command = Command::new("stdbuf");
        let user = if zilla_e2e::needs::is_root() { "postgres".to_owned() } else { whoami() };
        command.args(["-oL", "psql", "-XqtA", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-U", &user, "-h"]);
        command.arg(self.run.path());
        command
    }

    fn ask(&self, text: &str) -> String {
        let mut command = self.psql();
        command.args(["-c", text]);
        finish(command).ok()
    }

    fn serve(&mut self, data: &Path) {
        let begin = Instant::now();
        loop {
            let mut command = Postgres::program("postgres");
            command.arg("-D").arg(data).arg("-k").arg(self.run.path());
            command.args(["-c", "listen_addresses=", "-c", "fsync=on", "-c", "max_wal_size=64MB"]);
            let log = fs::File::options().create(true).append(true).open(self.run.path().join("log"));
            let log = log.expect("log");
            command.stdin(Stdio::null()).stdout(log.try_clone().expect("log")).stderr(log);
            let mut server = command.spawn().expect("postgres");
            // It recovers first. What is left of the one before may hold its memory for a moment:
            // then it ends, and is tried again.
            while server.try_wait().expect("wait").is_none() {
                let mut command = self.psql();
                command.args(["-c", "SELECT 1"]).stdout(Stdio::null()).stderr(Stdio::null());
                if command.status().is_ok_and(|s| s.success()) {
                    self.server = Some(server);
                    return;
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let log = fs::read_to_string(self.run.path().join("log")).unwrap_or_default();
            assert!(begin.elapsed() < Duration::from_secs(60), "PostgreSQL does not start:\n{log}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn stop(&mut self) {
        if let Some(dialog) = self.dialog.take() {
            dialog.kill();
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn whoami() -> String {
    finish(Command::new("whoami")).ok().trim().to_owned()
}

impl Client for Postgres {
    fn start(&mut self, folder: &Path) {
        let data = folder.join("pg");
        if !data.exists() {
            if zilla_e2e::needs::is_root() {
                let mut command = Command::new("chown");
                command.arg("postgres").arg(folder);
                finish(command).ok();
            }
            let mut command = Postgres::program("initdb");
            command.args(["--auth=trust", "--no-locale", "--data-checksums", "-D"]).arg(&data);
            finish(command).ok();
        }
        if self.server.is_none() {
            self.serve(&data);
        }
        self.ask("CREATE TABLE IF NOT EXISTS t(id bigint PRIMARY KEY, v text)");
        self.dialog = Some(Dialog::start(self.psql()));
    }

    fn put(&mut self, n: u64) -> bool {
        let Some(dialog) = &mut self.dialog else { return false };
        let text = format!("INSERT INTO t VALUES({n}, repeat(md5('{n}'), 20));\n\\echo stable {n}");
        dialog.say(&text, &format!("stable {n}"))
    }

    fn kill(&mut self) {
        self.stop();
    }

    fn check(&mut self, folder: &Path, n: u64) {
        self.serve(&folder.join("pg"));
        let sound = format!("SELECT count(*) FROM t WHERE id < {n} AND v = repeat(md5(id::text), 20)");
        assert_eq!(self.ask(&sound).trim(), n.to_string(), "transactions whose commit returned are lost");
        self.ask(&format!("DELETE FROM t WHERE id >= {n}"));
        self.ask("CREATE EXTENSION IF NOT EXISTS amcheck");
        self.ask("SELECT bt_index_check('t_pkey', true)");
        // Every page has a checksum; pg_dump reads every page.
        let mut dump = Postgres::program("pg_dump");
        let user = if zilla_e2e::needs::is_root() { "postgres".to_owned() } else { whoami() };
        dump.args(["-d", "postgres", "-U", &user, "-h"]).arg(self.run.path());
        finish(dump).ok();
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Delivery to a maildir: the message is synced in `tmp`, moved to `new`, and the folder synced.
#[derive(Default)]
struct Maildir {
    folder: PathBuf,
}

fn message(n: u64) -> Vec<u8> {
    let mut random = Random::new(n);
    let size = 500 + random.below(20_000) as usize;
    random.text(size)
}

impl Client for Maildir {
    fn start(&mut self, folder: &Path) {
        self.folder = folder.to_owned();
        for name in ["tmp", "new", "cur"] {
            fs::create_dir_all(folder.join(name)).expect("folder");
        }
        fs::File::open(folder).and_then(|f| f.sync_all()).expect("sync");
    }

    fn put(&mut self, n: u64) -> bool {
        let deliver = || -> std::io::Result<()> {
            let (tmp, new) = (self.folder.join("tmp"), self.folder.join("new"));
            let mut file = fs::File::create(tmp.join(n.to_string()))?;
            file.write_all(&message(n))?;
            file.sync_all()?;
            fs::rename(tmp.join(n.to_string()), new.join(n.to_string()))?;
            fs::File::open(&new)?.sync_all()
        };
        deliver().is_ok()
    }

    fn kill(&mut self) {}

    fn check(&mut self, folder: &Path, n: u64) {
        for i in 0..n {
            let found = fs::read(folder.join("new").join(i.to_string()));
            let found =
                found.unwrap_or_else(|e| panic!("message {i} of {n} was delivered, and is lost: {e}"));
            assert!(found == message(i), "message {i} was delivered, and is different");
        }
        // Whoever delivers next begins anew.
        for file in fs::read_dir(folder.join("tmp")).expect("tmp") {
            fs::remove_file(file.expect("entry").path()).expect("remove");
        }
    }
}

#[test]
fn sqlite() {
    if can(&[Need::Fuse]) {
        through_kills(kills(3), Duration::from_millis(300), Sqlite::default());
    }
}

#[test]
fn maildir() {
    if can(&[Need::Fuse]) {
        through_kills(kills(3), Duration::from_millis(100), Maildir::default());
    }
}

#[test]
#[ignore = "needs PostgreSQL: make judges"]
fn postgresql() {
    if can(&[Need::Fuse]) {
        through_kills(kills(3), Duration::from_millis(500), Postgres::new());
    }
}
