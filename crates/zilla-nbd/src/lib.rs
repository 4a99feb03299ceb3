//! Volumes over NBD, the network block device protocol.
//!
//! ```text
//!   socket -> handshake: which export, which extensions -> requests, answered as they finish -> the facade's Volume
//! ```
//!
//! The handshake is fixed newstyle ([`handshake`]): it lists exports, tells of one, and settles
//! structured replies and the metadata context `base:allocation`. Then one task serves the
//! connection ([`transmit`]): it reads requests, has up to 128 of them under way at a time, and
//! writes replies as they come, several with one system call. A request whose data are in memory is
//! done on the spot.
//!
//! **What is promised.** A reply to a write with FUA, or to a flush, means that the data are on
//! stable storage; a flush covers all writes answered before on any connection (multi-conn).
//! Nothing is promised of a write that was not answered.
//!
//! **Hostile clients.** Everything a client sends is bounded: options by length, number and time;
//! requests by what is under way (32 MiB, and one request of 32 MiB at most beyond it, a
//! connection; a sixteenth of the machine's memory all together); a client that does not read its
//! replies is read from no more, and is sent away after a minute if others wait for the memory.
//! What breaks the framing ends the connection; what is only wrong gets the error that the protocol
//! has for it. Over TCP only a few at a time may be there who have not shown a certificate, and not
//! for long; of them one address has a quarter, and of all connections, and of the memory, one
//! certificate's key.
//!
//! **An export that goes.** When a volume is closed under its clients, requests under way end,
//! later ones get ESHUTDOWN, and the connection is closed. A volume that changes its size is used
//! by the new size at once; clients learn of it when they ask.
//!
//! **TCP** is served with TLS only ([`tls`]), and only where the caller asks for it. On the Unix
//! socket, which the file system guards, a client that asks for TLS is told that there is none.
//!
//! **Deliberately absent.** Extended headers; TCP without TLS. Pre-shared keys, which rustls does
//! not have: certificates serve the same end. `NBD_CMD_RESIZE`: the protocol's text only reserves
//! its number, for an experimental extension, and no client sends it; the server answers EINVAL, as
//! to any unknown command. `zfs set volsize` gives a volume another size.

mod door;
mod export;
mod handshake;
mod memory;
mod proto;
mod reader;
pub use zilla_tls as tls;
mod transmit;

pub use door::Door;
pub use export::{Export, Exports, Facts, Refused, VolumeExport};
pub use memory::Memory;
pub use zilla::{Extent, ReadData, Result};

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// As many clients at a time.
const CONNECTIONS: usize = 4096;
/// And as many of them over TCP who have not shown a certificate yet: each is a descriptor of the
/// process, and anybody can be one; a machine that comes up may bring some tens at once.
const STRANGERS: usize = 256;
/// One client may have a quarter of either.
const PART: usize = 4;
/// So long may a client take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(60);
/// And so long of that until it has shown its certificate.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// After accepting failed (no descriptors left, say) it is tried again after this.
const PAUSE: Duration = Duration::from_millis(50);
/// So long may requests that are under way take when the server ends.
const DRAIN: Duration = Duration::from_secs(2);

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the handshake takes too long")
}

/// Serves one client from its first byte to its last; its data have room in `memory`.
pub async fn serve_client<E, R, W>(reader: R, writer: W, exports: Arc<E>, memory: &Memory) -> io::Result<()>
where
    E: Exports,
    R: AsyncRead + Unpin + Send,
    W: AsyncWrite + Unpin + Send,
{
    let mut reader = reader::Reader::new(reader);
    let mut writer = writer;
    let agreed = tokio::time::timeout(HANDSHAKE, async {
        let greeted = handshake::greet(&mut reader, &mut writer).await?;
        handshake::negotiate(&mut reader, &mut writer, &*exports, greeted, false).await
    });
    match agreed.await.map_err(|_| too_slow())?? {
        Some(agreed) => transmit::serve(reader, writer, agreed, memory, false).await,
        None => Ok(()),
    }
}

/// Who of those who have shown a certificate has how many connections.
pub type Known = Arc<tls::Shares<Vec<u8>>>;

/// Serves one client that must speak TLS; `stranger` is dropped when it has shown a certificate,
/// for which there must be room among the `known`.
pub async fn serve_tls_client<E, S>(
    mut stream: S,
    exports: Arc<E>,
    tls: &tls::Acceptor,
    memory: &Memory,
    known: &Known,
    stranger: impl Send,
) -> io::Result<()>
where
    E: Exports,
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let introduced = tokio::time::timeout(INTRODUCTION, async {
        let greeted = {
            let (reader, mut writer) = tokio::io::split(&mut stream);
            let mut reader = reader::Reader::new(reader);
            let greeted = handshake::greet(&mut reader, &mut writer).await?;
            if !handshake::until_tls(&mut reader, &mut writer).await? {
                return Ok(None);
            }
            greeted
        };
        io::Result::Ok(Some((greeted, tls.accept(stream).await?)))
    });
    let Some((greeted, stream)) = introduced.await.map_err(|_| too_slow())?? else { return Ok(()) };
    let key = tls::client_key(&stream).ok_or_else(|| io::Error::other("a client without a certificate"))?;
    let too_many = || io::Error::other("a client has too many connections");
    let memory = memory.of_client(&key);
    let _share = known.take(key).ok_or_else(too_many)?;
    drop(stranger);
    let (reader, mut writer) = tokio::io::split(stream);
    let mut reader = reader::Reader::new(reader);
    let agreed = handshake::negotiate(&mut reader, &mut writer, &*exports, greeted, true);
    match tokio::time::timeout(HANDSHAKE, agreed).await.map_err(|_| too_slow())?? {
        Some(agreed) => transmit::serve(reader, writer, agreed, &memory, true).await,
        None => Ok(()),
    }
}

/// Serves clients until `shutdown` completes, then lets requests under way finish. Their data have
/// room in `memory`, which other doors may share.
pub async fn serve<E: Exports>(
    door: Door,
    exports: Arc<E>,
    memory: Memory,
    shutdown: impl Future<Output = ()> + Send,
) {
    let door = Arc::new(door);
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let strangers = Arc::new(Semaphore::new(STRANGERS));
    let (known, addresses) = (tls::Shares::new(CONNECTIONS / PART), tls::Shares::new(STRANGERS / PART));
    let mut clients = JoinSet::new();
    tokio::pin!(shutdown);
    loop {
        // A slot first: with none free, clients wait in the kernel's queue.
        let room = async {
            let slot = slots.clone().acquire_owned().await;
            let stranger = match &*door {
                Door::Tls(..) => Some(strangers.clone().acquire_owned().await),
                Door::Unix(_) => None,
            };
            (slot, stranger)
        };
        let (slot, stranger) = tokio::select! {
            room = room => room,
            () = &mut shutdown => break,
        };
        let guest = tokio::select! {
            accepted = door.accept() => match accepted {
                Ok(guest) => guest,
                Err(e) => {
                    tracing::warn!("nbd: accept: {e}");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
            () = &mut shutdown => break,
        };
        while clients.try_join_next().is_some() {}
        let address = match guest.address() {
            None => None,
            Some(ip) => match addresses.take(tls::client_at(ip)) {
                Some(share) => Some(share),
                None => {
                    tracing::debug!("nbd: {ip} has too many connections without a certificate");
                    continue;
                }
            },
        };
        let (exports, door, memory, known) = (exports.clone(), door.clone(), memory.clone(), known.clone());
        clients.spawn(async move {
            let _slot = slot;
            if let Err(e) = door.serve(guest, exports, &memory, &known, (stranger, address)).await {
                tracing::info!("nbd: a connection ends: {e}");
            }
        });
    }
    let _ = tokio::time::timeout(DRAIN, async { while clients.join_next().await.is_some() {} }).await;
}
