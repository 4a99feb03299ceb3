//! The threads that serve all mounts of the process.
//!
//! What a program waits for when it works on files is less the answer to a request than the
//! wakings: of the thread that takes the request, and of itself. So the thread that has answered a
//! request reads the next one of that mount itself; nothing is handed from thread to thread. And as
//! most mounts are idle, none has threads of its own: a quiet mount costs a descriptor in the
//! crew's epoll set.
//!
//! **The turn.** Each mount has one turn. Whoever has it reads the mount's requests: the epoll set,
//! which wakes one thread when there is a request and by that gives it the turn (`EPOLLONESHOT`),
//! or that thread. It keeps the turn over requests that are short. Before it does what may keep it
//! longer (much data, waiting for a disk) or when it sees that more requests wait than one thread
//! should answer, it passes the turn back to the set ([`Turn::pass`]), so that another thread takes
//! the next request meanwhile. A request that must wait becomes a task of the engine, and its
//! thread reads on.
//!
//! **Lingering.** A thread with the turn and no request waits for the next one at the mount itself,
//! for [`LINGER`]: a client that asks again and again wakes it there with one system call less than
//! through the set. It does so only while another thread waits at the set, so that there is always
//! one for all other mounts.
//!
//! **How many.** A thread that comes back from the set and leaves nobody there starts another, up
//! to a bound. At the bound no one lingers, and a busy mount's thread gives the turn back every
//! [`ROUND`] requests: then each of many busy mounts is served in its turn, for the set reports
//! those that are ready one after the other. Threads that nobody needs end after [`IDLE`].
//!
//! What is kept true: nothing that a thread does with a request waits for another mount's answer.
//! What may (a device that is a file of such a mount, a call by path) waits elsewhere
//! ([`zilla_env::apart`]); so a bounded crew is always enough. What a panic leaves half done nobody
//! may go on with, and a mount that nobody serves would hang its users: as with the engine's own
//! threads, dying is the safe way out.
//!
//! **Deliberately absent**: looking for the next request in a loop before sleeping, and scheduling
//! classes that draw the client to the server's core. Both made a lone client faster and took time
//! from everyone else on a busy machine.

use crate::abi::Short;
use crate::dev::{Dev, Read};
use crate::request::{Buffer, Request};
use futures_util::FutureExt;
use parking_lot::Mutex;
use rustix::event::{Timespec, epoll};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zilla_env::Env;

/// How long a thread waits at its mount for the next request: long beside a client's pauses between
/// requests, short beside what people call idle.
const LINGER: Duration = Duration::from_millis(20);
/// Requests of one mount after which others are looked at, where all threads are at work.
const ROUND: u32 = 64;
/// How long a thread stays that nobody needs.
const IDLE: Duration = Duration::from_secs(10);
/// Threads for each core, and at least and at most. What they do is computing; whoever waits for a
/// disk is no thread, but for a log's block that a thread writes itself (`zilla_env::patience`).
const PER_CORE: usize = 2;
const AT_LEAST: usize = 4;
const AT_MOST: usize = 16;
/// The most data in one request, in bytes.
pub(crate) const MAX_WRITE: usize = 1 << 20;

/// Answers a request here as far as that goes; if it has to wait, the rest becomes a task.
pub(crate) fn begin(env: &Env, answer: impl Future<Output = ()> + Send + 'static) {
    let mut answer = Box::pin(answer);
    if (&mut answer).now_or_never().is_none() {
        env.spawn(answer);
    }
}

/// A mount, as the crew sees it.
pub(crate) trait Served: Send + Sync + 'static {
    fn dev(&self) -> &Arc<Dev>;
    /// The length of the buffers in which a large write's data come to lie.
    fn record(&self) -> usize;
    /// Answers a request, or sees to it that it is answered.
    fn handle(self: Arc<Self>, request: Request, turn: &mut Turn<'_>);
    /// It is unmounted, and no thread is in it any more.
    fn end(self: Arc<Self>);
}

struct Place {
    served: Arc<dyn Served>,
    key: u64,
    state: Mutex<PlaceState>,
}

#[derive(Default)]
struct PlaceState {
    /// Threads that are at work on it.
    inside: usize,
    gone: bool,
}

impl Place {
    fn enter(&self) {
        self.state.lock().inside += 1;
    }

    fn leave(&self) {
        let mut state = self.state.lock();
        state.inside -= 1;
        if state.gone && state.inside == 0 {
            drop(state);
            self.served.clone().end();
        }
    }
}

/// A thread's turn at a mount, while it has a request in hand.
pub(crate) struct Turn<'a> {
    crew: &'a Crew,
    place: &'a Place,
    passed: bool,
}

impl Turn<'_> {
    /// Lets another thread take the next request.
    pub(crate) fn pass(&mut self) {
        if !std::mem::replace(&mut self.passed, true) {
            self.crew.arm(self.place);
        }
    }
}

pub(crate) struct Crew {
    set: OwnedFd,
    most: usize,
    /// Threads that wait at the set or are on their way there.
    waiting: AtomicUsize,
    state: Mutex<CrewState>,
}

#[derive(Default)]
struct CrewState {
    places: HashMap<u64, Arc<Place>>,
    next: u64,
    threads: usize,
}

/// The crew of this process.
pub(crate) fn crew() -> io::Result<&'static Crew> {
    static CREW: OnceLock<Crew> = OnceLock::new();
    if let Some(crew) = CREW.get() {
        return Ok(crew);
    }
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let most = (cores * PER_CORE).clamp(AT_LEAST, AT_MOST);
    let new = Crew { set, most, waiting: AtomicUsize::new(0), state: Mutex::default() };
    Ok(CREW.get_or_init(|| new))
}

impl Crew {
    /// Serves a mount from now on, whose device does not block.
    pub(crate) fn add(&'static self, served: Arc<dyn Served>) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.threads == 0 {
            self.start(&mut state)?;
        }
        let key = state.next;
        state.next += 1;
        let place = Arc::new(Place { served, key, state: Mutex::default() });
        state.places.insert(key, place.clone());
        let added = epoll::add(&self.set, place.served.dev(), epoll::EventData::new_u64(key), READY);
        if added.is_err() {
            state.places.remove(&key);
        }
        Ok(added?)
    }

    /// Another thread, which counts as one that waits at the set.
    fn start(&'static self, state: &mut CrewState) -> io::Result<()> {
        let name = format!("fuse-{}", state.threads);
        let run = || {
            if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
                std::process::abort();
            }
        };
        std::thread::Builder::new().name(name).spawn(run)?;
        state.threads += 1;
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// A thread's life.
    fn run(&'static self) {
        let mut buf = Buffer::new(MAX_WRITE);
        loop {
            let found = self.wait();
            let mut state = self.state.lock();
            let others = self.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
            let Some(key) = found else {
                // The last one stays as long as there is anything to wait for.
                if others > 0 || state.places.is_empty() {
                    state.threads -= 1;
                    return;
                }
                self.waiting.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if others == 0 && state.threads < self.most {
                // Without it this one has more to do.
                let _ = self.start(&mut state);
            }
            let place = state.places.get(&key).cloned();
            drop(state);
            if let Some(place) = place {
                self.serve(&place, &mut buf);
            }
            self.waiting.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits at the set; None: for long nobody was needed.
    fn wait(&self) -> Option<u64> {
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
        match epoll::wait(&self.set, &mut events[..], Some(&timespec(IDLE))) {
            Ok(0) => None,
            Ok(_) => Some(events[0].data.u64()),
            Err(rustix::io::Errno::INTR) => Some(NOTHING),
            Err(e) => {
                tracing::error!("waiting for requests: {e}");
                std::process::abort();
            }
        }
    }

    /// Serves a mount whose turn the calling thread has, until it passes it on.
    fn serve(&self, place: &Place, buf: &mut Buffer) {
        let (served, dev) = (&place.served, place.served.dev());
        let mut turn = Turn { crew: self, place, passed: false };
        let mut taken = 0;
        buf.renew(served.record());
        place.enter();
        while !turn.passed {
            match dev.read(buf, || served.record()) {
                Ok(Read::Request(n)) => {
                    match buf.take(n) {
                        Ok(request) => served.clone().handle(request, &mut turn),
                        Err(Short) => tracing::error!("a request of the kernel is cut short"),
                    }
                    taken += 1;
                    if taken % ROUND == 0 && self.all_at_work() {
                        turn.pass();
                    }
                }
                Ok(Read::Again) => {}
                Ok(Read::Empty) => {
                    if self.all_at_work() || !dev.wait(LINGER) {
                        turn.pass();
                    }
                }
                Ok(Read::Gone) => {
                    self.remove(place);
                    turn.passed = true;
                }
                Err(e) => {
                    tracing::error!("reading from /dev/fuse: {e}");
                    self.remove(place);
                    turn.passed = true;
                }
            }
        }
        place.leave();
    }

    fn all_at_work(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Gives the turn to the set.
    fn arm(&self, place: &Place) {
        let armed = epoll::modify(&self.set, place.served.dev(), epoll::EventData::new_u64(place.key), READY);
        // It is there until the thread that has the turn takes it out.
        if let Err(e) = armed {
            tracing::error!("a mount cannot be waited for: {e}");
            std::process::abort();
        }
    }

    fn remove(&self, place: &Place) {
        let _ = epoll::delete(&self.set, place.served.dev());
        self.state.lock().places.remove(&place.key);
        place.state.lock().gone = true;
    }
}

/// A key that no mount has.
const NOTHING: u64 = u64::MAX;
/// One thread is told, and then none until the turn is the set's again.
const READY: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

pub(crate) fn timespec(d: Duration) -> Timespec {
    // Both are small constants.
    Timespec { tv_sec: d.as_secs() as i64, tv_nsec: i64::from(d.subsec_nanos()) }
}
