//! `zed`: runs a folder's programs (zedlets) for what happens to pools, as OpenZFS's event daemon
//! does.
//!
//! What that daemon does of its own accord, faulting devices and putting in spares, `zillad` does
//! whether this runs or not, and it runs the programs of `zed.d` in its state folder as well; this
//! is for who has a folder of zedlets already, and services and scripts that start it.
//!
//! The last event that was looked at is kept in a file, so that none is missed or seen twice when
//! it is started again. Where `zillad` ends it waits until there is one again.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::{self, time};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use zilla_control::types::{EventInfo, EventQuery, EventReply};
use zilla_control::{Client, StateDir, zedlets};

pub const WORDS: &str = "[-fFhILMvVZ] [-d zedletdir] [-p pidfile] [-P path] [-s statefile] [-j jobs]";
const ZEDLETS: &str = "/etc/zfs/zed.d";
/// OpenZFS's limit for a zedlet, and how many run at once.
const LONGEST: Duration = Duration::from_secs(10);
const JOBS: usize = 16;
/// How often a program that runs is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// So long the daemon is to wait for an event, each time it is asked; and we for a daemon.
const WAIT_MS: u64 = 30_000;
const AGAIN: Duration = Duration::from_secs(1);
/// What a zedlet may want to run, by the variables that name them.
const TOOLS: [(&str, &str); 5] =
    [("ZDB", "zdb"), ("ZED", "zed"), ("ZFS", "zfs"), ("ZINJECT", "zinject"), ("ZPOOL", "zpool")];

fn usage(cx: &mut Cx, requested: bool) {
    let text = format!(
        "usage: zed {WORDS}\n\n\
         \x20 -d zedletdir\t run the programs of this folder instead of {ZEDLETS}\n\
         \x20 -f\t\t run them whoever can write into the folder\n\
         \x20 -F\t\t stay in the foreground, and say what is done on standard error\n\
         \x20 -h\t\t print this\n\
         \x20 -I\t\t wait for zillad rather than start it\n\
         \x20 -j jobs\t so many programs run at once, {JOBS} if nothing is said\n\
         \x20 -L\t\t say under which licence this is\n\
         \x20 -M\t\t keep all of it in memory\n\
         \x20 -p pidfile\t write the process's number there\n\
         \x20 -P path\t where the programs look for others\n\
         \x20 -s statefile\t keep there which event was the last\n\
         \x20 -v\t\t say more\n\
         \x20 -V\t\t say which version this is\n\
         \x20 -Z\t\t begin with the oldest event that is kept\n"
    );
    cx.put_usage(&text, requested);
}

/// Runs `zed` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zed", args, usage, run)
}

struct Config {
    zedlets: PathBuf,
    anybodys: bool,
    foreground: bool,
    patient: bool,
    jobs: usize,
    locked: bool,
    pid_file: Option<PathBuf>,
    path: Option<String>,
    state_file: Option<PathBuf>,
    verbose: bool,
    anew: bool,
}

/// None: what was asked for has been said.
fn configure(cx: &mut Cx, args: &[String]) -> Result<Option<Config>, Exit> {
    let (options, operands) = args::parse(args, "hLVvfFMIZd:p:P:s:j:b:", &[]);
    let mut c = Config {
        zedlets: PathBuf::from(ZEDLETS),
        anybodys: false,
        foreground: false,
        patient: false,
        jobs: JOBS,
        locked: false,
        pid_file: None,
        path: None,
        state_file: None,
        verbose: false,
        anew: false,
    };
    for option in options {
        match option {
            Opt::Flag('d', dir) => c.zedlets = PathBuf::from(dir),
            Opt::Flag('f', _) => c.anybodys = true,
            Opt::Flag('F', _) => c.foreground = true,
            Opt::Flag('h', _) => {
                usage(cx, true);
                return Ok(None);
            }
            Opt::Flag('I', _) => c.patient = true,
            Opt::Flag('j', n) => match n.parse() {
                Ok(jobs) if jobs > 0 => c.jobs = jobs,
                _ => return cx.bad_usage(format!("zed: invalid number '{n}' of -j")),
            },
            Opt::Flag('b', _) => {
                return cx.bad_usage("zed: -b is not supported: what is kept of events does not grow");
            }
            Opt::Flag('L', _) => {
                cx.out.line("zilla is licensed under MIT or Apache-2.0, at your option.");
                return Ok(None);
            }
            Opt::Flag('M', _) => c.locked = true,
            Opt::Flag('p', file) => c.pid_file = Some(PathBuf::from(file)),
            Opt::Flag('P', path) => c.path = Some(path),
            Opt::Flag('s', file) => c.state_file = Some(PathBuf::from(file)),
            Opt::Flag('v', _) => c.verbose = true,
            Opt::Flag('V', _) => {
                cx.out.put(format!("{}\n", fmt::version()));
                return Ok(None);
            }
            Opt::Flag('Z', _) => c.anew = true,
            other => return cx.bad_option(other),
        }
    }
    match operands.as_slice() {
        [] => Ok(Some(c)),
        _ => cx.bad_usage("zed: too many arguments"),
    }
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let Some(config) = configure(cx, &args)? else { return Ok(0) };
    let fail = |cx: &mut Cx, what: String| {
        cx.err(format!("zed: {what}"));
        Err(Exit(1))
    };
    if !config.zedlets.is_dir() {
        return fail(cx, format!("'{}' is no folder", config.zedlets.display()));
    }
    if !config.anybodys && !zedlets::own(&config.zedlets) {
        let dir = config.zedlets.display();
        return fail(cx, format!("'{dir}' must be root's or yours, and writable by nobody else"));
    }
    let dir = match StateDir::to_ask() {
        Ok(dir) => dir,
        Err(e) => return fail(cx, e.to_string()),
    };
    if !config.foreground {
        return match background(&args) {
            Ok(()) => Ok(0),
            Err(e) => fail(cx, format!("cannot go into the background: {e}")),
        };
    }
    let pid_file = config.pid_file.clone().unwrap_or_else(|| dir.path().join("zed.pid"));
    // Locked as long as this process lives.
    let _only = match claim(&pid_file) {
        Ok(file) => file,
        Err(e) => return fail(cx, format!("'{}': {e}", pid_file.display())),
    };
    if config.locked
        && let Err(e) =
            rustix::mm::mlockall(rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE)
    {
        return fail(cx, format!("cannot keep itself in memory: {e}"));
    }
    ignore_hangup();
    keep_files();
    if !config.patient
        && let Err(e) = Client::connect_or_start(&dir)
    {
        return fail(cx, e.to_string());
    }
    let state_file = config.state_file.clone().unwrap_or_else(|| dir.path().join("zed.state"));
    follow(&Zed { config, jobs: Jobs::default() }, &dir, &state_file)
}

/// Starts this program once more, apart from the terminal.
fn background(args: &[String]) -> std::io::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg0("zed").arg("-F").args(args).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    // What is wrong is found out at once.
    std::thread::sleep(Duration::from_millis(300));
    match child.try_wait()? {
        Some(status) => Err(std::io::Error::other(format!("{status}; -F says why"))),
        None => Ok(()),
    }
}

fn claim(path: &Path) -> std::io::Result<File> {
    let mut file = File::options().create(true).read(true).write(true).truncate(false).open(path)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| std::io::Error::other("another zed is running"))?;
    file.set_len(0)?;
    writeln!(file, "{}", std::process::id())?;
    Ok(file)
}

/// Services send it so that a folder is looked at again, which is done for each event.
fn ignore_hangup() {
    // SAFETY: no code of ours runs when the signal comes.
    unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
}

/// What this process was given open is none of the programs' business.
fn keep_files() {
    // SAFETY: the call takes three numbers and changes a flag of descriptors; where a kernel does
    // not know it nothing is changed.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
}

/// An event's number and time, by which it is known again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mark {
    eid: u64,
    seconds: u64,
    nanoseconds: u32,
}

impl Mark {
    fn of(event: &EventInfo) -> Mark {
        Mark { eid: event.eid, seconds: event.seconds, nanoseconds: event.nanoseconds }
    }

    fn parse(text: &str) -> Option<Mark> {
        let mut words = text.split_whitespace();
        let (eid, seconds) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Mark { eid, seconds, nanoseconds: words.next()?.parse().ok()? })
    }

    /// Whether it was looked at before: numbers begin anew with each zillad.
    fn covers(&self, event: &EventInfo) -> bool {
        (event.seconds, event.nanoseconds, event.eid) <= (self.seconds, self.nanoseconds, self.eid)
    }
}

struct Zed {
    config: Config,
    jobs: Jobs,
}

fn follow(zed: &Zed, dir: &StateDir, state_file: &Path) -> Run {
    zed.say(format!("zed {} runs the programs of '{}'", std::process::id(), zed.config.zedlets.display()));
    let mut state = match File::options().create(true).read(true).write(true).truncate(false).open(state_file)
    {
        Ok(file) => file,
        Err(e) => {
            zed.say(format!("'{}': {e}", state_file.display()));
            return Err(Exit(1));
        }
    };
    let kept = std::fs::read_to_string(state_file).ok().and_then(|text| Mark::parse(&text));
    let mut last = kept.filter(|_| !zed.config.anew).unwrap_or_default();
    loop {
        // Each daemon counts from 1.
        let mut after = 0;
        if let Ok(mut client) = Client::connect(dir) {
            while let Ok(reply) = client.call(&EventQuery { after, wait_ms: WAIT_MS }) {
                zed.handle(&reply, &mut last, &mut after);
                if let Err(e) = keep(&mut state, &last) {
                    zed.say(format!("'{}': {e}", state_file.display()));
                }
            }
        }
        std::thread::sleep(AGAIN);
    }
}

fn keep(state: &mut File, last: &Mark) -> std::io::Result<()> {
    // Numbers only grow, or fill their places: no state is shorter than one before.
    let text = format!("{:020} {:020} {:09}\n", last.eid, last.seconds, last.nanoseconds);
    state.seek(SeekFrom::Start(0))?;
    state.write_all(text.as_bytes())
}

impl Zed {
    fn say(&self, what: String) {
        eprintln!("{what}");
    }

    fn handle(&self, reply: &EventReply, last: &mut Mark, after: &mut u64) {
        if reply.dropped > 0 {
            self.say(format!("{} events came faster than they were looked at", reply.dropped));
        }
        for event in &reply.events {
            *after = event.eid;
            if last.covers(event) {
                continue;
            }
            for program in zedlets::programs(&self.config.zedlets, &event.class, self.config.anybodys) {
                self.start(event, &program);
            }
            *last = Mark::of(event);
        }
    }

    /// Begins a program for an event as soon as there is room for one more.
    fn start(&self, event: &EventInfo, program: &Path) {
        self.jobs.begin(self.config.jobs);
        let path = self.config.path.as_deref().unwrap_or(zedlets::PATH);
        let mut command = Command::new(program);
        command.env_clear().env("PATH", path).envs(zedlets::environment(event)).envs(tools(path));
        let stamp = time::stamp(event.seconds);
        command.env("ZEVENT_TIME_STRING", stamp).env("ZED_ZEDLET_DIR", &self.config.zedlets);
        let version = env!("CARGO_PKG_VERSION");
        command
            .env("ZFS_ALIAS", format!("zilla-{version}"))
            .env("ZFS_VERSION", version)
            .env("ZFS_RELEASE", "1");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.current_dir("/").process_group(0);
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let child = match command.spawn() {
            Ok(child) => child,
            Err(e) => {
                self.jobs.end();
                return self.say(format!("cannot run '{}': {e}", program.display()));
            }
        };
        let (eid, pid, verbose) = (event.eid, child.id(), self.config.verbose);
        if verbose {
            self.say(format!("Invoking \"{name}\" eid={eid} pid={pid}"));
        }
        let jobs = self.jobs.clone();
        let wait = move || {
            let said = watch(child);
            jobs.end();
            if verbose {
                eprintln!("Finished \"{name}\" eid={eid} pid={pid} {said}");
            }
        };
        if let Err(e) = std::thread::Builder::new().name("zedlet".into()).spawn(wait) {
            self.jobs.end();
            self.say(format!("cannot wait for a program: {e}"));
        }
    }
}

/// Waits for a program's end, and brings it about where it is late; what became of it.
fn watch(mut child: Child) -> String {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return format!("time={:.6} {status}", begun.elapsed().as_secs_f64()),
            Ok(None) if begun.elapsed() < LONGEST => std::thread::sleep(LOOK),
            Ok(None) => {
                if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = child.wait();
                return format!("ended after {} s", LONGEST.as_secs());
            }
            Err(e) => return e.to_string(),
        }
    }
}

/// Where the tools are, for who names them by variables.
fn tools(path: &str) -> Vec<(&'static str, PathBuf)> {
    let find = |name: &str| path.split(':').map(|dir| Path::new(dir).join(name)).find(|file| file.is_file());
    TOOLS.into_iter().filter_map(|(variable, name)| Some((variable, find(name)?))).collect()
}

/// How many programs run.
#[derive(Clone, Default)]
struct Jobs(Arc<(Mutex<usize>, Condvar)>);

impl Jobs {
    /// Waits until fewer than `most` run; then one more does.
    fn begin(&self, most: usize) {
        let (running, ended) = &*self.0;
        let running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut running =
            ended.wait_while(running, |running| *running >= most).unwrap_or_else(PoisonError::into_inner);
        *running += 1;
    }

    fn end(&self) {
        let (running, ended) = &*self.0;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(eid: u64, seconds: u64) -> EventInfo {
        EventInfo { eid, seconds, class: "sysevent.fs.zfs.scrub_finish".into(), ..EventInfo::default() }
    }

    #[test]
    fn no_event_is_looked_at_twice() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = File::options()
            .create(true)
            .read(true)
            .write(true)
            .truncate(false)
            .open(dir.path().join("s"))
            .unwrap();
        for last in [
            Mark { eid: 1 << 40, seconds: 5, nanoseconds: 999_999_999 },
            Mark { eid: 7, ..Mark::of(&event(7, 9)) },
        ] {
            keep(&mut file, &last).unwrap();
            let text = std::fs::read_to_string(dir.path().join("s")).unwrap();
            assert_eq!(Mark::parse(&text), Some(last));
        }
        let last = Mark::of(&event(7, 9));
        assert!(last.covers(&event(7, 9)) && last.covers(&event(8, 8)));
        // Of the same moment, or of another daemon.
        assert!(!last.covers(&event(8, 9)) && !last.covers(&event(1, 10)));
        assert_eq!(Mark::parse("1 2"), None);
    }

    #[test]
    fn no_more_run_at_once_than_may() {
        let jobs = Jobs::default();
        jobs.begin(1);
        let (other, begun) = (jobs.clone(), Instant::now());
        let ender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            other.end();
        });
        jobs.begin(1);
        assert!(begun.elapsed() >= Duration::from_millis(100));
        ender.join().unwrap();
    }

    #[test]
    fn what_became_of_a_program_is_told() {
        let said = watch(Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap());
        assert!(said.starts_with("time=0.") && said.ends_with("exit status: 3"), "{said}");
    }

    #[test]
    fn tools_are_looked_for_along_the_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("zpool"), "").unwrap();
        let path = format!("/nonexistent:{}", dir.path().display());
        assert_eq!(tools(&path), [("ZPOOL", dir.path().join("zpool"))]);
    }
}
