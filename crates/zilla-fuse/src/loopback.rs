//! A session without a kernel: requests come from whoever calls, and answers go back to him. So
//! tests and fuzzers can send what no kernel would.

use crate::abi::Short;
use crate::crew::{MAX_WRITE, Served};
use crate::dev::Dev;
use crate::reply::{Reply, from_kernel};
use crate::request::Buffer;
use crate::session::{Options, Session};
use std::io;
use std::sync::Arc;
use zilla::Filesystem;
use zilla_env::Env;

pub struct Loopback {
    session: Arc<Session>,
    buf: Buffer,
}

const EINVAL: i32 = 22;

impl Loopback {
    pub fn new(fs: Arc<Filesystem>, env: Env) -> io::Result<Loopback> {
        // What the kernel would be told unasked is not of interest.
        let null = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
        let session = Session::new(fs, Arc::new(Dev::new(null.into())), env, &Options::new("loopback"));
        Ok(Loopback { session: Arc::new(session), buf: Buffer::new(MAX_WRITE) })
    }

    /// Answers the bytes of a request with an errno (or 0) and what follows the answer's header;
    /// None where there is none to be given.
    pub async fn answer(&mut self, request: &[u8]) -> Option<(i32, Vec<u8>)> {
        let mut rest = request;
        for space in &mut self.buf.space(|| self.session.record()) {
            let (now, later) = rest.split_at(rest.len().min(space.len()));
            space[..now.len()].copy_from_slice(now);
            rest = later;
        }
        let taken = self.buf.take(request.len() - rest.len());
        let reply = match taken {
            Err(Short) => Err(Short),
            Ok(mut request) => {
                request.header.node = from_kernel(request.header.node, self.session.root());
                match self.session.at_once(&request) {
                    Some(Ok(None)) => return None,
                    Some(Ok(Some(reply))) => Ok(reply),
                    Some(Err(short)) => Err(short),
                    None => self.session.perform(&request).await,
                }
            }
        };
        let reply = reply.unwrap_or_else(|Short| Reply::errno(EINVAL));
        let mut body = reply.head;
        reply.data.iter().for_each(|d| body.extend_from_slice(d));
        Some((reply.error, body))
    }
}
