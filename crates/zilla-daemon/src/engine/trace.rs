//! Recording a pool's trace: from the engine's lanes, as frames, into the descriptor that a client
//! has handed over.
//!
//! The client has made the file, or pipe, so that it is his; what is written to it is written by
//! the thread that `zfs send` has too. If that is slow the engine's lanes run full, and the trace
//! says how many records are missing; the pool waits for nobody. It ends after the time that was
//! asked for, with the client, with the pool, with the daemon, or if the client has read nothing
//! for half a minute. A frame is written each second though nothing happens: that is when a client
//! who has left is noticed.

use super::errors::Answer;
use super::streams::Writer;
use super::{Engine, Serves};
use bytes::Bytes;
use std::time::{Duration, Instant};
use zilla::error::Errno;
use zilla::streams::Sink;
use zilla::trace::Recording;
use zilla_control::types::{TraceRecord, TraceReply};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::trace::{End, end_frame, header_frame, preamble, records};

/// How often the lanes are emptied: they hold this long some two million reads a second.
const EVERY: Duration = Duration::from_millis(50);
/// The longest that nothing is written.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// The longest that a client may read nothing of it: while he is waited for nobody else can record,
/// and the pool pays for a recording.
const PATIENCE: Duration = Duration::from_secs(30);

fn of_file(e: zilla::error::Error) -> ApiError {
    match e.errno() {
        Errno::Intr => ErrorCode::Intr.into(),
        Errno::NoSpc => ErrorCode::NoSpc.into(),
        _ => ApiError::with(ErrorCode::Io, e.to_string()),
    }
}

/// What goes on while one records.
struct Tape {
    recording: Recording,
    out: Writer,
    end: End,
    written: Instant,
}

impl Tape {
    async fn put(&mut self, data: Vec<u8>) -> zilla::error::Result<()> {
        self.written = Instant::now();
        self.out.write(vec![Bytes::from(data)]).await
    }

    /// Writes what has come.
    async fn turn(&mut self) -> zilla::error::Result<()> {
        let (all, lost) = self.recording.take();
        if all.is_empty() && lost == 0 && self.written.elapsed() < SIGN_OF_LIFE {
            return Ok(());
        }
        self.end.records += all.len() as u64;
        self.end.lost += lost;
        self.put(records(&all, lost)).await
    }
}

impl Serves<TraceRecord> for Engine {
    async fn serve(&self, caller: &Caller, r: TraceRecord) -> Answer<TraceReply> {
        let stream = self.streams.take(&r.stream, caller)?;
        let pool = self.pool(&r.name)?;
        let load = pool.load_guid;
        let recording = pool.zilla.record_trace();
        let recording = recording
            .ok_or_else(|| ApiError::with(ErrorCode::Busy, "a trace of this pool is being recorded"))?;
        let header = pool.zilla.trace_header();
        // Whoever exports the pool must not wait for this.
        drop(pool);
        let out = stream.writer(Some(PATIENCE))?;
        let mut tape = Tape { recording, out, end: End::default(), written: Instant::now() };
        let taken = self.roll(&mut tape, &r, load, header_frame(&header)).await;
        let written = tape.out.finish().await;
        taken.and(written).map_err(of_file)?;
        let End { records, lost, micros } = tape.end;
        Ok(TraceReply { records, lost, micros })
    }
}

impl Engine {
    async fn roll(
        &self,
        tape: &mut Tape,
        r: &TraceRecord,
        load: u64,
        header: Vec<u8>,
    ) -> zilla::error::Result<()> {
        let begun = Instant::now();
        let limit = r.seconds.map(Duration::from_secs);
        let mut begin = preamble();
        begin.extend(header);
        tape.put(begin).await?;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
            let wait = left.map_or(EVERY, |left| left.min(EVERY));
            let stopped = tokio::time::timeout(wait, self.handle.stopped()).await.is_ok();
            tape.turn().await?;
            let there = self.pool(&r.name).is_ok_and(|p| p.load_guid == load);
            if stopped || !there || left.is_some_and(|left| left <= EVERY) {
                break;
            }
        }
        tape.end.micros = tape.recording.elapsed();
        let end = end_frame(&tape.end);
        tape.put(end).await
    }
}
