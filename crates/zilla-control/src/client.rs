//! A blocking client: one connection, HTTP/1.1 by hand, and the art of starting a daemon that is
//! not there.
//!
//! The commands must start in a few milliseconds, so there is no runtime and no HTTP library here:
//! a request is one `write`, a reply is a status line, a few headers and a body of known length.
//! The peer is our own daemon, yet the reply is bounded all the same: a broken daemon must not take
//! the command's memory with it.

use crate::error::ApiError;
use crate::operations::{Envelope, Operation, Outcome, PROTOCOL};
use crate::paths::{Access, Folder, LOG_FILE, START_LOCK, StateDir};
use crate::types::Hello;
use rustix::fs::{FlockOperation, flock};
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A listing of a hundred thousand snapshots with all their properties fits.
const REPLY_LIMIT: u64 = 1 << 30;
const HEADER_LIMIT: u64 = 64 << 10;
/// Importing the pools of the cache file may take a while on slow disks.
const START_LIMIT: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The daemon's own answer.
    #[error("{0}")]
    Api(#[from] ApiError),
    #[error("no daemon is running (state folder '{0}')")]
    NotRunning(PathBuf),
    #[error("cannot start zillad: {0}")]
    Start(String),
    #[error("cannot talk to zillad at '{path}': {error}")]
    Io { path: PathBuf, error: std::io::Error },
    #[error("zillad's answer makes no sense: {0}")]
    Protocol(String),
}

pub struct Client {
    stream: BufReader<UnixStream>,
    dir: StateDir,
    command: Option<String>,
}

impl Client {
    /// Connects to the daemon of `dir`; an error where none runs.
    pub fn connect(dir: &StateDir) -> Result<Client, ClientError> {
        match UnixStream::connect(dir.socket()) {
            Ok(stream) => {
                check_peer(&stream, dir)?;
                Ok(Client { stream: BufReader::new(stream), dir: dir.clone(), command: None })
            }
            Err(e) => match e.kind() {
                std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused => {
                    Err(ClientError::NotRunning(dir.path().to_owned()))
                }
                _ => Err(ClientError::Io { path: dir.socket(), error: e }),
            },
        }
    }

    /// Another connection to the same daemon, for the same command.
    pub fn another(&self) -> Result<Client, ClientError> {
        Ok(Client { command: self.command.clone(), ..Client::connect(&self.dir)? })
    }

    /// Connects, after starting a daemon where none runs.
    pub fn connect_or_start(dir: &StateDir) -> Result<Client, ClientError> {
        match Client::reach(dir) {
            Err(ClientError::NotRunning(_)) => start(dir),
            other => other,
        }
    }

    /// Connects to a daemon that answers. One that just died may have left a connection in its
    /// queue, which is then reset: better noticed with a question that changes nothing.
    fn reach(dir: &StateDir) -> Result<Client, ClientError> {
        use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
        let mut client = Client::connect(dir)?;
        match client.call(&Hello {}) {
            Err(ClientError::Io { error, .. })
                if matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof) =>
            {
                Err(ClientError::NotRunning(dir.path().to_owned()))
            }
            Err(e) => Err(e),
            Ok(_) => Ok(client),
        }
    }

    /// The folder of the daemon that it talks to.
    pub fn state_dir(&self) -> &StateDir {
        &self.dir
    }

    /// The command line to be written to the history of a pool that changes.
    pub fn set_command(&mut self, command: Option<String>) {
        self.command = command;
    }

    pub fn call<O: Operation>(&mut self, request: &O) -> Result<O::Reply, ClientError> {
        let envelope = Envelope { protocol: PROTOCOL, command: self.command.clone(), request };
        let reply = self.ask(O::NAME, serde_json::to_vec(&envelope))?;
        serde_json::from_str(open(&reply)?.get()).map_err(nonsense)
    }

    fn ask(&mut self, name: &str, body: serde_json::Result<Vec<u8>>) -> Result<Vec<u8>, ClientError> {
        let reply = self.exchange(name, &body.map_err(nonsense)?);
        reply.map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => ClientError::Protocol(error.to_string()),
            _ => ClientError::Io { path: self.dir.socket(), error },
        })
    }

    fn exchange(&mut self, name: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut message = format!(
            "POST /v1/{name} HTTP/1.1\r\nhost: zilla\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        )
        .into_bytes();
        message.extend_from_slice(body);
        self.stream.get_mut().write_all(&message)?;
        read_reply(&mut self.stream)
    }
}

fn nonsense(e: serde_json::Error) -> ClientError {
    ClientError::Protocol(e.to_string())
}

/// The reply in an outcome.
fn open(outcome: &[u8]) -> Result<&RawValue, ClientError> {
    match serde_json::from_slice(outcome).map_err(nonsense)? {
        Outcome::Ok(reply) => Ok(reply),
        Outcome::Err(e) => Err(ClientError::Api(e)),
    }
}

/// Whoever listens must be who could have done anyway what he is asked for: this user, or root.
/// Root may ask everyone.
pub(crate) fn check_peer(stream: &UnixStream, dir: &StateDir) -> Result<(), ClientError> {
    let fail = |error: std::io::Error| ClientError::Io { path: dir.socket(), error };
    let peer = rustix::net::sockopt::socket_peercred(stream).map_err(|e| fail(e.into()))?.uid;
    if peer.is_root() || rustix::process::geteuid().is_root() || peer == rustix::process::geteuid() {
        return Ok(());
    }
    let why = format!("whoever listens there is user {}", peer.as_raw());
    Err(fail(std::io::Error::new(std::io::ErrorKind::PermissionDenied, why)))
}

fn bad(message: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, message.to_owned())
}

/// Reads one reply: status line, headers, a body of `content-length` bytes.
fn read_reply(stream: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut head = stream.by_ref().take(HEADER_LIMIT);
    let mut line = String::new();
    head.read_line(&mut line)?;
    if line.is_empty() {
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the daemon hung up"));
    }
    if !line.starts_with("HTTP/1.1 ") {
        return Err(bad("not HTTP/1.1"));
    }
    let mut length = None;
    loop {
        line.clear();
        if head.read_line(&mut line)? == 0 {
            return Err(bad("headers end too early or are too long"));
        }
        let trimmed = line.trim_end();
        if trimmed.is_empty() {
            break;
        }
        if let Some((name, value)) = trimmed.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse::<u64>().ok();
        }
    }
    let length = length.ok_or_else(|| bad("no content length"))?;
    if length > REPLY_LIMIT {
        return Err(bad("the answer is too long"));
    }
    let mut body = Vec::new();
    stream.by_ref().take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Err(std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "the daemon hung up"));
    }
    Ok(body)
}

/// Starts a daemon and waits until it answers. Of several clients that find none, one starts it.
fn start(dir: &StateDir) -> Result<Client, ClientError> {
    let folder = dir.open().map_err(ClientError::Start)?;
    let fail = |e: std::io::Error| {
        ClientError::Start(format!("'{}': {e}", folder.path().join(START_LOCK).display()))
    };
    let lock = folder.file(START_LOCK, Access::Write).map_err(fail)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|e| fail(e.into()))?;
    // Another client may have been faster.
    match Client::reach(dir) {
        Err(ClientError::NotRunning(_)) => {}
        other => return other,
    }
    let (mut child, log, log_start) = spawn(&folder)?;
    let begin = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Ok(mut client) = Client::connect(dir)
            && client.call(&Hello {}).is_ok()
        {
            return Ok(client);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let told = log_tail(log, log_start);
            return Err(ClientError::Start(format!("it ended with {status}{told}")));
        }
        if begin.elapsed() > START_LIMIT {
            let told = log_tail(log, log_start);
            return Err(ClientError::Start(format!(
                "it does not answer after {} s{told}",
                START_LIMIT.as_secs()
            )));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// `zillad` beside the command itself, else wherever PATH has it.
fn daemon_path() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.canonicalize().ok())
        .and_then(|exe| exe.parent().map(|dir| dir.join("zillad")))
        .filter(|path| path.is_file());
    beside.unwrap_or_else(|| PathBuf::from("zillad"))
}

fn spawn(folder: &Folder) -> Result<(Child, File, u64), ClientError> {
    let fail = |what: String| move |e: std::io::Error| ClientError::Start(format!("{what}: {e}"));
    let log_path = folder.path().join(LOG_FILE);
    let mut log = folder.file(LOG_FILE, Access::Append).map_err(fail(format!("'{}'", log_path.display())))?;
    let log_start = log.seek(SeekFrom::End(0)).map_err(fail(format!("'{}'", log_path.display())))?;
    let output = || log.try_clone().map(Stdio::from).map_err(fail(format!("'{}'", log_path.display())));
    let program = daemon_path();
    let child = Command::new(&program)
        .arg("--background")
        .env("ZILLA_DIR", folder.path())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(output()?)
        .stderr(output()?)
        // Its own group: an interrupt at the terminal is for the command, not for the daemon.
        .process_group(0)
        .spawn()
        .map_err(fail(format!("'{}'", program.display())))?;
    Ok((child, log, log_start))
}

/// What a daemon that did not come up said: its last lines, after a line break.
fn log_tail(mut log: File, from: u64) -> String {
    let mut text = Vec::new();
    if log.seek(SeekFrom::Start(from)).is_err() || log.take(1 << 20).read_to_end(&mut text).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
    let last = lines.get(lines.len().saturating_sub(10)..).unwrap_or_default();
    last.iter().map(|l| format!("\n  {l}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_a_reply_and_no_more() {
        let mut bytes: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}HTTP/1.1 ";
        assert_eq!(read_reply(&mut bytes).unwrap(), b"{}");
        assert_eq!(bytes, b"HTTP/1.1 ");
    }

    #[test]
    fn refuses_what_is_cut_short_or_has_no_end() {
        for bytes in [
            &b""[..],
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n{}",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n{}",
            b"220 smtp ready\r\n",
        ] {
            let mut bytes = bytes;
            assert!(read_reply(&mut bytes).is_err());
        }
        let endless = [b"HTTP/1.1 200 OK\r\n".to_vec(), vec![b'a'; 1 << 20]].concat();
        assert!(read_reply(&mut &endless[..]).is_err());
    }

    proptest! {
        #[test]
        fn survives_any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = read_reply(&mut &bytes[..]);
            let framed = [b"HTTP/1.1 200 OK\r\n".to_vec(), bytes].concat();
            let _ = read_reply(&mut &framed[..]);
        }
    }
}
