//! A connection whose other end must go on reading.
//!
//! A client that asks and never reads what it is answered would keep its place among the
//! connections for ever: what is written waits for it, and nothing else watches the time. So a
//! write, flush or shutdown that makes no progress for a while fails, and the connection ends with
//! it. Reading is not bounded here: a client may think as long as the protocol lets it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// So long may a client take nothing of what it asked for.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct WriteTimeout<S> {
    stream: S,
    timeout: Duration,
    /// While the other end takes nothing, the time when it is given up.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> WriteTimeout<S> {
    pub fn new(stream: S, timeout: Duration) -> WriteTimeout<S> {
        WriteTimeout { stream, timeout, stalled: None }
    }

    /// What the stream said, or an error if it has said nothing for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let timeout = self.timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        // Whoever asks again in spite of the error gets the same answer.
        stalled.as_mut().reset(Instant::now());
        let what = format!("the client has taken nothing for {} s", timeout.as_secs());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, what)))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, data);
        self.judge(cx, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, data);
        self.judge(cx, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.judge(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.judge(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_served_and_who_stops_is_given_up() {
        let (ours, mut theirs) = duplex(16);
        let mut stream = WriteTimeout::new(ours, PATIENCE);
        let writer = tokio::spawn(async move {
            // 64 bytes pass a pipe of 16 in pieces.
            stream.write_all(&[1; 64]).await?;
            stream.write_all(&[2; 64]).await
        });
        for _ in 0..4 {
            tokio::time::sleep(PATIENCE - Duration::from_secs(1)).await;
            theirs.read_exact(&mut [0; 16]).await.unwrap();
        }
        let stopped = Instant::now();
        let error = writer.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let took = stopped.elapsed();
        assert!(took >= PATIENCE && took < PATIENCE * 2, "{took:?}");
    }
}
