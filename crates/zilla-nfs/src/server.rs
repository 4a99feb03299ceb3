//! Connections: records in, replies out, and bounds on both.
//!
//! A record comes in fragments, each behind its length with a bit that says whether it is the last
//! (RFC 5531, section 11). One task reads a connection, each call is a task of its own, and one
//! writes what they answer, in the order in which they are done.
//!
//! What a client can make us keep is bounded: [`UNDER_WAY`] calls a connection, a record of
//! [`MAX_RECORD`] bytes at most, and [`SMALL`] from who has no share to come to; all connections'
//! larger records together take [`ROOM`]. Of all that one client has a part only ([`parts`]), so
//! that who sends slowly, or takes no replies, is in nobody's way but his own. Who is slow in
//! sending what he began, or does not take his replies, loses his connection; a client makes a new
//! one by itself, and his calls again.

use crate::drc::ReplyCache;
use crate::export::Exports;
use crate::mountd;
use crate::nfs::{self, Caller, MAX_IO};
use crate::rpc::{self, Call, Parsed, Refusal, Reply};
use crate::server::parts::{Part, Parts, Room};
use bytes::{Buf, Bytes, BytesMut};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

/// As many clients at a time.
const CONNECTIONS: usize = 1024;
/// As many connections at a time of those whom no share lets in.
const STRANGERS: usize = 64;
/// As many calls of a connection at a time. Linux's client has 65 slots and waits for the rest.
const UNDER_WAY: usize = 32;
/// What surrounds the data of a WRITE: the call's header with its credential, and the other
/// arguments.
const MAX_HEAD: usize = 2048;
const MAX_RECORD: usize = MAX_IO + MAX_HEAD;
/// All that MOUNT needs.
const SMALL: usize = 4096;
/// Bytes that all larger records may take while they are received and done, and as many all replies
/// that hold bytes, names of files or shares until they are sent.
const ROOM: usize = 128 << 20;
/// Room is counted in such units.
const UNIT: usize = 4096;
/// The last fragment of a record.
const LAST: u32 = 1 << 31;
/// So long may the rest of a record take, or a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// After so long without a call a connection is closed. Linux's client comes back by itself.
const IDLE: Duration = Duration::from_secs(600);
/// After accepting failed (no descriptors left, say) it is tried again after this.
const PAUSE: Duration = Duration::from_millis(50);
/// So long may calls that are under way take when the server ends.
const DRAIN: Duration = Duration::from_secs(2);

const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;
/// The version of both.
const VERSION: u32 = 3;

struct Shared {
    exports: Arc<dyn Exports>,
    room: Arc<Semaphore>,
    /// The same of replies. Apart, since who holds room for a record waits for room for its reply.
    replies: Arc<Semaphore>,
    parts: Parts,
    recent: ReplyCache,
    /// True when the server ends.
    stop: watch::Sender<bool>,
}

/// What is sent, and what is free again when that is done: a call's slot, and its reply's room.
type Answer = (Reply, OwnedSemaphorePermit, Option<Room>);

impl Shared {
    fn new(exports: Arc<dyn Exports>) -> Arc<Shared> {
        let all = || Arc::new(Semaphore::new(ROOM / UNIT));
        Arc::new(Shared {
            exports,
            room: all(),
            replies: all(),
            parts: Parts::default(),
            recent: ReplyCache::default(),
            stop: watch::channel(false).0,
        })
    }

    /// Does a call, unless it was done before and is sent again.
    async fn perform(&self, peer: SocketAddr, call: Call) -> Reply {
        let perform = |call| perform(&*self.exports, peer, call);
        match (call.program, call.version) {
            (NFS, VERSION) => self.recent.once(peer, call, perform).await,
            _ => perform(call).await,
        }
    }

    fn admits(&self, peer: SocketAddr) -> bool {
        self.exports.all().iter().any(|e| e.options.admit(peer.ip(), peer.port()).is_some())
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Does a call.
async fn perform(exports: &dyn Exports, peer: SocketAddr, call: Call) -> Reply {
    let Call { xid, program, version, procedure, claim, args } = call;
    let caller = Caller { exports, peer, claim: &claim };
    let mut reply = rpc::accepted(xid);
    let done = match (program, version) {
        (NFS, VERSION) => nfs::answer(&caller, procedure, args, &mut reply).await,
        (MOUNT, VERSION) => mountd::answer(&caller, procedure, args, &mut reply).await,
        (NFS | MOUNT, _) => Err(Refusal::ProgramMismatch(VERSION, VERSION)),
        _ => Err(Refusal::ProgramUnavailable),
    };
    match done {
        Ok(()) => reply,
        Err(why) => rpc::refused(xid, why),
    }
}

/// Answers one record as a connection from `peer` would; None where the connection would end. For
/// fuzzing and tests.
pub async fn answer(exports: &dyn Exports, peer: SocketAddr, record: Bytes) -> Option<Vec<u8>> {
    let reply = match rpc::parse(record) {
        Parsed::Call(call) => perform(exports, peer, call).await,
        Parsed::Bad(xid, why) => rpc::refused(xid, why),
        Parsed::NoCall => return None,
    };
    let mut bytes = reply.head.0;
    reply.data.iter().for_each(|part| bytes.extend_from_slice(part));
    Some(bytes)
}

/// Whether a reply may be long: it holds a file's bytes, names of a directory, or all shares.
fn gives_much(call: &Call) -> bool {
    match call.program {
        NFS => nfs::gives_much(call.procedure),
        MOUNT => call.procedure == mountd::EXPORT,
        _ => false,
    }
}

/// Reads the rest of a record whose first fragment has this header.
async fn record<R: AsyncRead + Unpin>(
    reader: &mut R,
    first: u32,
    shared: &Shared,
    part: &Part,
    peer: SocketAddr,
) -> io::Result<(Bytes, Option<Room>)> {
    let (mut record, mut header, mut room) = (BytesMut::new(), first, None::<Room>);
    let mut most = SMALL;
    loop {
        let len = (header & !LAST) as usize;
        let whole = record.len() + len;
        if whole > most && most == SMALL && shared.admits(peer) {
            most = MAX_RECORD;
        }
        if whole > most {
            return Err(broken("a record is too long"));
        }
        if len == 0 && header & LAST == 0 {
            return Err(broken("an empty fragment"));
        }
        if whole > SMALL && room.is_none() {
            room = Some(Room::take(&part.room, &shared.room, MAX_RECORD).await?);
        }
        let begin = record.len();
        record.resize(whole, 0);
        reader.read_exact(record.get_mut(begin..).unwrap_or_default()).await?;
        if header & LAST != 0 {
            return Ok((record.freeze(), room));
        }
        header = reader.read_u32().await?;
    }
}

async fn send<W: AsyncWrite + Unpin>(writer: &mut W, reply: Reply) -> io::Result<()> {
    let len = reply.len() as u32 | LAST;
    let mut head = BytesMut::with_capacity(4 + reply.head.0.len());
    head.extend_from_slice(&len.to_be_bytes());
    head.extend_from_slice(&reply.head.0);
    // In one go with what follows, as far as the socket takes it.
    let mut parts = std::collections::VecDeque::from([head.freeze()]);
    parts.extend(reply.data);
    while !parts.is_empty() {
        let slices: Vec<io::IoSlice<'_>> = parts.iter().take(64).map(|p| io::IoSlice::new(p)).collect();
        let mut sent = writer.write_vectored(&slices).await?;
        if sent == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        while let Some(first) = parts.front_mut() {
            let n = sent.min(first.len());
            first.advance(n);
            sent -= n;
            if first.is_empty() {
                parts.pop_front();
            } else {
                break;
            }
        }
    }
    Ok(())
}

async fn write_replies<W: AsyncWrite + Unpin>(
    mut writer: W,
    mut replies: mpsc::Receiver<Answer>,
) -> io::Result<()> {
    while let Some((reply, _slot, _room)) = replies.recv().await {
        tokio::time::timeout(PATIENCE, send(&mut writer, reply))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "a client does not take its replies"))??;
    }
    writer.shutdown().await
}

/// Serves one client from its first byte to its last.
async fn client<S>(stream: S, peer: SocketAddr, shared: Arc<Shared>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let part = shared.parts.of(peer.ip());
    let (mut reader, writer) = tokio::io::split(stream);
    let slots = Arc::new(Semaphore::new(UNDER_WAY));
    let (answers, replies) = mpsc::channel(UNDER_WAY);
    let mut writing = tokio::spawn(write_replies(writer, replies));
    let mut calls = JoinSet::new();
    let mut stopped = shared.stop.subscribe();
    let late = || io::Error::new(io::ErrorKind::TimedOut, "a record does not come to its end");
    let ended = loop {
        let next = async {
            let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((slot, tokio::time::timeout(IDLE, reader.read_u32()).await))
        };
        let next = tokio::select! {
            next = next => next,
            () = async { let _ = stopped.wait_for(|stop| *stop).await; } => break Ok(()),
            written = &mut writing => {
                // Calls that are under way are done all the same.
                while calls.join_next().await.is_some() {}
                return written.unwrap_or_else(|e| Err(io::Error::other(e)));
            }
        };
        let (slot, header) = match next {
            Ok((slot, Ok(Ok(header)))) => (slot, header),
            Ok((_, Ok(Err(e)))) if e.kind() == io::ErrorKind::UnexpectedEof => break Ok(()),
            Ok((_, Ok(Err(e)))) | Err(e) => break Err(e),
            Ok((_, Err(_))) => break Ok(()),
        };
        let received = tokio::time::timeout(PATIENCE, record(&mut reader, header, &shared, &part, peer));
        let (bytes, room) = match received.await.map_err(|_| late()).flatten() {
            Ok(received) => received,
            Err(e) => break Err(e),
        };
        while calls.try_join_next().is_some() {}
        match rpc::parse(bytes) {
            Parsed::NoCall => break Err(broken("what came is no call")),
            Parsed::Bad(xid, why) => {
                let _ = answers.send((rpc::refused(xid, why), slot, None)).await;
            }
            Parsed::Call(call) => {
                let (shared, part, answers) = (shared.clone(), part.clone(), answers.clone());
                calls.spawn(async move {
                    let reply_room = match gives_much(&call) {
                        true => Room::take(&part.replies, &shared.replies, MAX_RECORD).await.ok(),
                        false => None,
                    };
                    let reply = shared.perform(peer, call).await;
                    drop(room);
                    // A refusal then holds next to nothing while it waits to be sent.
                    let reply_room = reply_room.map(|room| room.only_for(reply.len()));
                    let _ = answers.send((reply, slot, reply_room)).await;
                });
            }
        }
    };
    // What a client asked for before it went is done; a crash could not tell the difference, but
    // others can.
    while calls.join_next().await.is_some() {}
    drop(answers);
    let written = writing.await.unwrap_or_else(|e| Err(io::Error::other(e)));
    ended.and(written)
}

/// Serves clients until `shutdown` completes, then lets calls under way finish.
pub async fn serve(
    listener: TcpListener,
    exports: Arc<dyn Exports>,
    shutdown: impl Future<Output = ()> + Send,
) {
    let shared = Shared::new(exports);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let mut clients = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        // A slot first: with none free, clients wait in the kernel's queue.
        let slot = tokio::select! {
            slot = slots.clone().acquire_owned() => slot,
            () = &mut shutdown => break,
        };
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(guest) => guest,
                Err(e) => {
                    tracing::warn!("nfs: accept: {e}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        // Replies are small and waited for.
        let _ = stream.set_nodelay(true);
        while clients.try_join_next().is_some() {}
        let stranger = match shared.admits(peer) {
            true => None,
            false => match strangers.clone().try_acquire_owned() {
                Ok(taken) => Some(taken),
                Err(_) => continue,
            },
        };
        let part = shared.parts.of(peer.ip());
        let Ok(own_slot) = part.connections.clone().try_acquire_owned() else {
            tracing::debug!("nfs: {peer} has too many connections");
            continue;
        };
        let shared = shared.clone();
        clients.spawn(async move {
            let _slots = (slot, own_slot, stranger, part);
            if let Err(e) = client(stream, peer, shared).await {
                tracing::debug!("nfs: the connection of {peer} ends: {e}");
            }
        });
    }
    drop(listener);
    shared.stop.send_replace(true);
    let _ = tokio::time::timeout(DRAIN, async { while clients.join_next().await.is_some() {} }).await;
}

mod parts;
#[cfg(test)]
mod tests;
