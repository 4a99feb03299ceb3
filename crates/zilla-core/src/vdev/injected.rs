//! What handlers of [`crate::inject`] do to a leaf's I/O.
//!
//! A device is asked about each I/O twice: when it is sent, since it may be swallowed then or be
//! given a lane that it has to wait for; and when it has been done well, since it may be called
//! failed then, or have a bit that is another. Neighbours that went to the device as one are judged
//! one by one, as whoever asked for them sees them. What a handler makes fail is not tried again
//! (it would only fail again), unless that was asked for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use smallvec::SmallVec;
use zilla_env::{Device, Io, IoBuf, IoOp};

use super::leaf::Leaf;
use super::queue::{QIo, QOp, Run};
use crate::inject::{DeviceIo, Failure, IoType, injections};

/// The handler that keeps an I/O back, and until when at most.
pub type Held = (u64, Duration);

impl Leaf {
    fn as_asked(&self, kind: IoType, offset: u64, retry: bool) -> DeviceIo {
        DeviceIo { vdev: self.guid(), kind, offset, psize: self.psize(), retry }
    }

    /// Does away with what is to be called done without being done; what was to be read is zeroes.
    pub(super) fn swallow(&self, batch: Vec<Io>) -> Vec<Io> {
        let mut sent = Vec::with_capacity(batch.len());
        for Io { op, done } in batch {
            let kind = match &op {
                IoOp::Read { .. } => IoType::Read,
                IoOp::Write { .. } | IoOp::WriteZeroes { .. } => IoType::Write,
                IoOp::Flush => IoType::Flush,
                IoOp::Discard { .. } => IoType::Trim,
            };
            if !injections().swallows(&self.as_asked(kind, op.range().0, false), &*self.env.rng) {
                sent.push(Io { op, done });
                continue;
            }
            match op {
                IoOp::Read { mut buf, .. } => {
                    buf.fill(0);
                    done.complete(Ok(Some(buf)));
                }
                _ => done.complete(Ok(None)),
            }
        }
        sent
    }

    /// Until when what is sent now is kept back.
    pub(super) fn held_back(&self, run: &Run, now: Duration) -> Option<Held> {
        let io = self.as_asked(kind_of(run.first()?), run.first()?.offset, false);
        injections().delay(&io, now, &*self.env.rng)
    }

    /// Does `then` when the time has come, or the handler is taken away.
    pub(super) fn hold(self: Arc<Self>, held: Held, then: impl FnOnce() + Send + 'static) {
        let env = self.env.clone();
        env.spawn(async move {
            self.wait_out(held).await;
            then();
        });
    }

    async fn wait_out(&self, (handler, until): Held) {
        loop {
            let cleared = injections().listen();
            let left = until.saturating_sub(self.env.clock.now());
            if left.is_zero() || !injections().has(handler) {
                return;
            }
            if let Either::Right(_) = select(cleared, self.env.clock.sleep(left)).await {
                return;
            }
        }
    }

    /// Judges what the device has done well: flips bits of what was read, and takes out of the run
    /// what is to have failed.
    pub(super) fn strike(
        self: &Arc<Self>,
        run: &mut Run,
        start: u64,
        mut buf: Option<&mut IoBuf>,
        now: Duration,
    ) {
        for mut io in std::mem::take(run) {
            let asked = self.as_asked(kind_of(&io), io.offset, io.retry);
            match injections().device(&asked, &*self.env.rng) {
                None => run.push(io),
                Some((Failure::Corrupt, _)) => {
                    let at = usize::try_from(io.offset.saturating_sub(start)).unwrap_or(usize::MAX);
                    let len = usize::try_from(io.len).unwrap_or(usize::MAX);
                    if let Some(bytes) = buf.as_mut().and_then(|b| b.get_mut(at..at.saturating_add(len))) {
                        self.flip(bytes);
                    }
                    run.push(io);
                }
                Some((failure, fail_fast)) => {
                    io.retry |= !fail_fast;
                    let e = io::Error::from_raw_os_error(failure.errno());
                    self.failed(SmallVec::from_iter([io]), now, &e);
                }
            }
        }
    }

    fn flip(&self, bytes: &mut [u8]) {
        let chance = self.env.rng.u64();
        let byte = ((u128::from(chance) * bytes.len() as u128) >> 64) as usize;
        if let Some(byte) = bytes.get_mut(byte) {
            *byte ^= 1 << (chance % 8);
        }
    }

    /// Whether the leaf is to be found not to work when it is looked at.
    pub(super) fn fails_probe(&self) -> bool {
        let asked = self.as_asked(IoType::Probe, 0, false);
        injections().is_gone(self.guid()) || injections().device(&asked, &*self.env.rng).is_some()
    }

    /// A flush, as the handlers would have it.
    pub(super) async fn flush_tampered(&self, device: &Arc<dyn Device>) -> io::Result<()> {
        let (asked, rng) = (self.as_asked(IoType::Flush, 0, false), &*self.env.rng);
        if injections().swallows(&asked, rng) {
            return Ok(());
        }
        let held = injections().delay(&asked, self.env.clock.now(), rng);
        let result = device.flush().await;
        if let Some(held) = held {
            self.wait_out(held).await;
        }
        match injections().device(&asked, rng) {
            Some((failure, _)) => Err(io::Error::from_raw_os_error(failure.errno())),
            None => result,
        }
    }
}

fn kind_of(io: &QIo) -> IoType {
    match io.op {
        QOp::Read(_) => IoType::Read,
        QOp::Write(_) | QOp::WriteZeroes => IoType::Write,
        QOp::Discard => IoType::Trim,
    }
}
