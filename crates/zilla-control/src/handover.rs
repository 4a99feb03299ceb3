//! Handing a descriptor to the daemon: the pipe a stream goes through.
//!
//! HTTP carries no descriptors, so a client that wants to send or receive a stream opens a second
//! connection, to a socket of its own in the daemon's folder, and sends one message: a random key,
//! and the descriptor with it. The daemon answers with one byte when it has it. The request that
//! follows on the first connection names the key. The second connection stays open as long as the
//! stream lasts: what the daemon has to say meanwhile comes through it as lines, and when it is
//! closed, because the client died, the daemon stops.

use crate::client::ClientError;
use crate::paths::StateDir;
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{AtFlags, FileType, StatxFlags, statx};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{BufRead, BufReader, IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

/// Bytes of a key as it is sent; twice as many digits in a request.
pub const KEY_BYTES: usize = 16;
/// What the daemon answers when it has the descriptor.
pub const TAKEN: u8 = b'+';
/// A line begins with where it belongs: standard output or standard error.
pub const TO_STDOUT: u8 = b'1';
pub const TO_STDERR: u8 = b'2';
/// What the client is to be called by those who list processes.
pub const TO_TITLE: u8 = b't';
/// Stands for the client's time of day in a line.
pub const LOCAL_TIME: &str = "%T";
/// No line of the daemon's is longer.
const LINE_LIMIT: u64 = 64 << 10;

/// A descriptor the daemon has.
pub struct Handed {
    pub key: String,
    conn: UnixStream,
}

/// What kind of file a descriptor is of, and on which device, without asking whoever serves its
/// file system.
fn kind(fd: &impl AsFd) -> Option<(FileType, (u32, u32))> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = statx(fd, "", how, StatxFlags::TYPE).ok()?;
    let device = (found.stx_dev_major, found.stx_dev_minor);
    Some((FileType::from_raw_mode(found.stx_mode.into()), device))
}

pub fn file_type(fd: &impl AsFd) -> Option<FileType> {
    kind(fd).map(|(of, _)| of)
}

/// Whether a descriptor is of a pipe without a name. One that has a name lies in a file system:
/// who opens it anew may wait for whoever serves that.
pub fn is_nameless_pipe(fd: &impl AsFd) -> bool {
    static PIPES: OnceLock<Option<(u32, u32)>> = OnceLock::new();
    let pipes = PIPES.get_or_init(|| kind(&std::io::pipe().ok()?.0).map(|(_, device)| device));
    matches!((kind(fd), pipes), (Some((FileType::Fifo, device)), Some(pipes)) if device == *pipes)
}

/// Gives the daemon of `dir` a descriptor.
pub fn hand_over(dir: &StateDir, fd: BorrowedFd<'_>) -> Result<Handed, ClientError> {
    let path = dir.path().join(crate::paths::STREAM_SOCKET);
    let io = |error: std::io::Error| ClientError::Io { path: path.clone(), error };
    let mut conn = UnixStream::connect(&path).map_err(io)?;
    crate::client::check_peer(&conn, dir)?;
    let mut raw = [0; KEY_BYTES];
    std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut raw)).map_err(io)?;
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(conn.as_fd(), &[IoSlice::new(&raw)], &mut control, SendFlags::NOSIGNAL)
        .map_err(|e| io(e.into()))?;
    let mut answer = [0];
    conn.read_exact(&mut answer).map_err(io)?;
    if answer != [TAKEN] {
        return Err(ClientError::Protocol("the daemon did not take the stream".to_owned()));
    }
    let key = raw.iter().map(|b| format!("{b:02x}")).collect();
    Ok(Handed { key, conn })
}

impl Handed {
    /// Gives each line to `show`, after the byte that says where it belongs, until the daemon has
    /// no more to say.
    pub fn lines(self, mut show: impl FnMut(u8, &str)) {
        let mut lines = BufReader::new(self.conn);
        let mut line = Vec::new();
        loop {
            line.clear();
            match lines.by_ref().take(LINE_LIMIT).read_until(b'\n', &mut line) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
            if let [to, text @ ..] = line.as_slice() {
                let text = String::from_utf8_lossy(text);
                show(*to, text.trim_end_matches('\n'));
            }
        }
    }

    /// Nothing more is to come; lines that are on their way are still read.
    pub fn end(&self) {
        let _ = self.conn.shutdown(std::net::Shutdown::Both);
    }

    /// Another handle of the connection, for the thread that shows the lines.
    pub fn try_clone(&self) -> std::io::Result<Handed> {
        Ok(Handed { key: self.key.clone(), conn: self.conn.try_clone()? })
    }
}
