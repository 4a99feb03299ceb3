//! The duplicate request cache: a call that is sent again gets the answer of the first.
//!
//! A client whose connection broke does not know whether its calls were done, and sends them again
//! with the same number (xid). A second REMOVE would say that the name is gone, a second MKDIR that
//! it is there, and a second CREATE would cut a file short that others have written since. So
//! answers are remembered, as Juszczak describes ("Improving the Performance and Correctness of an
//! NFS Server", USENIX Winter 1989) and as all servers do.
//!
//! **What enters.** Of the procedures that are not the same done twice, the whole call
//! ([`Enters`]). A WRITE only while it is under way: its client sends nothing else for that place
//! before it has an answer, so doing it again is the same; but a first one that is slow must not
//! come behind a second that was answered. Whatever only looks does not enter.
//!
//! **What is kept true.**
//! - A call that is under way is not begun again: who sends it again waits for the first's answer.
//!   The wait takes one of its connection's calls. If the first ends without an answer (the server
//!   ends) the entry goes with it, and the one who waited does it.
//! - An answer is given only to the address *and port* that the first call came from, for the same
//!   xid, procedure, length of arguments, and sum over credential and first [`SUMMED`] bytes of the
//!   arguments. A wrong hit is worse than a miss (a client would believe that it had made a lock
//!   file), and programs of one host do choose the same xids; a port is one connection's at a time.
//!   Linux's server has the same key, and Linux's client comes back from the port that it had. Who
//!   comes back from another port is served as if there were no cache.
//! - An answer lasts [`LASTS`]: numbers come round again.
//! - Calls that were refused before anything was touched leave no answer behind ([`untouched`]):
//!   doing them again is as good as doing them late. So who is let into no share takes no room.
//!
//! **Bounds.** [`ENTRIES`] answers of [`BYTES`] together, the oldest go first; of an address at
//! most [`OF_ONE`], of which the oldest goes first, so that a busy or hostile client pushes out no
//! more than that of others. It loses nothing itself: answers can be lost of as many calls as a
//! client has under way, and it makes no other ones until they are answered. What is under way is
//! bounded by the calls of all connections (`server`).
//!
//! **A restart** forgets all of it, as it does in every server that keeps this in memory: a call
//! that was done by the old daemon and whose answer was lost is done again by the new one, and says
//! `EEXIST` or `ENOENT`. What was answered is stable all the same.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::attr::Status;
use crate::nfs;
use crate::rpc::{Call, Reply};
use crate::xdr::Out;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::hash::BuildHasher;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Answers that are kept at most, of all clients.
const ENTRIES: usize = 16 << 10;
/// Answers that are kept at most of one address. Linux's client has 65 calls under way unless it is
/// told otherwise.
const OF_ONE: usize = 1 << 10;
/// Bytes of answers that are kept at most.
const BYTES: usize = 4 << 20;
/// An answer of more bytes is not kept. A CREATE's is the longest that there is: RPC's words, a
/// handle, and attributes of two files make 260.
const LONGEST: usize = 512;
/// An answer is kept for so long. Source: RC_EXPIRE of Linux's server.
const LASTS: Duration = Duration::from_secs(120);
/// So many bytes of a call's arguments are summed: two handles and two names of 255 bytes, which
/// all that RENAME has, and no more than a little of a WRITE.
const SUMMED: usize = 1 << 10;

/// In which way a procedure enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enters {
    /// Until it is answered.
    UnderWay,
    /// And its answer stays.
    Answered,
}

/// None: done again it is the same.
pub(crate) fn enters(procedure: u32) -> Option<Enters> {
    match procedure {
        nfs::WRITE => Some(Enters::UnderWay),
        nfs::SETATTR | nfs::CREATE..=nfs::LINK => Some(Enters::Answered),
        _ => None,
    }
}

/// Answers of calls that found nothing that they might change.
fn untouched(reply: &Reply) -> bool {
    let refusals = [Status::Access, Status::RoFs, Status::Stale, Status::BadHandle, Status::Jukebox];
    reply.status().is_none_or(|status| refusals.iter().any(|r| *r as u32 == status))
}

/// What two sendings of one call have in common, and two calls do not. Program and version are
/// those of NFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    peer: SocketAddr,
    xid: u32,
    procedure: u32,
    len: usize,
    sum: u64,
}

enum State {
    /// Tells the answer to who waits for it; closed without one if there is none.
    UnderWay(watch::Receiver<Option<Bytes>>),
    Answered(Bytes),
}

/// Answers that are kept, by what they answer and by their age.
#[derive(Default)]
struct Kept {
    calls: HashMap<Key, State>,
    /// What has its answer, oldest first.
    by_age: BTreeMap<u64, (Key, Instant)>,
    /// The same of each address.
    of: HashMap<IpAddr, VecDeque<u64>>,
    next: u64,
    bytes: usize,
}

impl Kept {
    /// Lets the oldest go, of all or of one address. False: there is none.
    fn drop_oldest(&mut self, of: Option<IpAddr>) -> bool {
        let oldest = match of {
            Some(ip) => self.of.get(&ip).and_then(|ages| ages.front().copied()),
            None => self.by_age.keys().next().copied(),
        };
        let Some((key, _)) = oldest.and_then(|age| self.by_age.remove(&age)) else { return false };
        if let Some(State::Answered(reply)) = self.calls.remove(&key) {
            self.bytes -= reply.len();
        }
        // The oldest of all is its address' oldest.
        if let Entry::Occupied(mut ages) = self.of.entry(key.peer.ip()) {
            ages.get_mut().pop_front();
            if ages.get().is_empty() {
                ages.remove();
            }
        }
        true
    }

    fn drop_older(&mut self, now: Instant) {
        while self.by_age.values().next().is_some_and(|(_, at)| now.duration_since(*at) >= LASTS) {
            self.drop_oldest(None);
        }
    }

    fn keep(&mut self, key: Key, reply: Bytes, now: Instant) {
        let ip = key.peer.ip();
        if self.of.get(&ip).is_some_and(|ages| ages.len() >= OF_ONE) {
            self.drop_oldest(Some(ip));
        }
        while self.by_age.len() >= ENTRIES || self.bytes + reply.len() > BYTES {
            if !self.drop_oldest(None) {
                break;
            }
        }
        self.bytes += reply.len();
        self.calls.insert(key, State::Answered(reply));
        self.by_age.insert(self.next, (key, now));
        self.of.entry(ip).or_default().push_back(self.next);
        self.next += 1;
    }
}

/// The answers of one server.
#[derive(Default)]
pub(crate) struct ReplyCache {
    kept: Mutex<Kept>,
    sums: RandomState,
}

/// What is known of a call.
enum Known<'a> {
    /// Nothing: it is to be done, and is under way as long as this lives.
    New(UnderWay<'a>),
    UnderWay(watch::Receiver<Option<Bytes>>),
    Answered(Bytes),
}

/// The right to do a call, whose entry goes with it if no answer takes its place.
struct UnderWay<'a> {
    cache: &'a ReplyCache,
    key: Key,
    done: watch::Sender<Option<Bytes>>,
    kept: bool,
}

impl UnderWay<'_> {
    fn finish(mut self, reply: &Reply, enters: Enters) {
        let bytes = Bytes::copy_from_slice(&reply.head.0);
        // Whoever asks from here on has the answer, kept or not.
        self.done.send_replace(Some(bytes.clone()));
        if enters == Enters::Answered && bytes.len() <= LONGEST && !untouched(reply) {
            self.cache.kept.lock().keep(self.key, bytes, Instant::now());
            self.kept = true;
        }
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.cache.kept.lock().calls.remove(&self.key);
        }
    }
}

impl ReplyCache {
    fn key(&self, peer: SocketAddr, call: &Call) -> Key {
        let args = &call.args.0;
        let head = args.get(..SUMMED).unwrap_or(args);
        let sum = self.sums.hash_one((&call.claim, head));
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        Key { peer, xid: call.xid, procedure: call.procedure, len: args.len(), sum }
    }

    fn ask(&self, key: Key, now: Instant) -> Known<'_> {
        let mut kept = self.kept.lock();
        kept.drop_older(now);
        match kept.calls.entry(key) {
            Entry::Occupied(call) => match call.get() {
                State::UnderWay(done) => Known::UnderWay(done.clone()),
                State::Answered(reply) => Known::Answered(reply.clone()),
            },
            Entry::Vacant(place) => {
                let (done, told) = watch::channel(None);
                place.insert(State::UnderWay(told));
                Known::New(UnderWay { cache: self, key, done, kept: false })
            }
        }
    }

    /// Does a call of NFS's with `perform`, or answers it as it was answered before.
    pub(crate) async fn once<F>(&self, peer: SocketAddr, call: Call, perform: impl FnOnce(Call) -> F) -> Reply
    where
        F: Future<Output = Reply>,
    {
        let Some(enters) = enters(call.procedure) else { return perform(call).await };
        let key = self.key(peer, &call);
        let answered = loop {
            match self.ask(key, Instant::now()) {
                Known::New(under_way) => {
                    let reply = perform(call).await;
                    under_way.finish(&reply, enters);
                    return reply;
                }
                Known::Answered(reply) => break reply,
                Known::UnderWay(mut done) => {
                    if let Ok(reply) = done.wait_for(Option::is_some).await
                        && let Some(reply) = &*reply
                    {
                        break reply.clone();
                    }
                }
            }
        };
        tracing::debug!("nfs: {peer} sent call {:#x} again and gets its first answer", call.xid);
        Reply { head: Out(answered.to_vec()), data: Vec::new() }
    }
}

#[cfg(test)]
mod tests;
