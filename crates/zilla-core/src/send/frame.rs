//! Records on their way out and in, with the checksum that runs through a stream.
//!
//! The sum is a fletcher4 of all bytes so far. Each head but BEGIN's ends in the sum of what comes
//! before that place; the sum then goes on over these bytes too, and over the payload. END has in
//! addition the sum of everything before it. A reader checks both before anyone acts on a record,
//! so what was damaged on the way is refused at the record where it happened.
//!
//! **Bounds.** A reader holds one record's payload, which [`Record::decode`] has bounded.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::error::{Errno, Error, Result};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use zilla_codec::checksum::Fletcher4;
use zilla_ondisk::stream::{self, CHECKSUM_OFFSET, End, RECORD_SIZE, Record};
use zilla_ondisk::{ByteOrder, SPA_MAXBLOCKSIZE};

/// Where a stream goes.
pub trait Sink: Send {
    /// Takes buffers, one behind the other. Waits while too much is under way.
    fn write(&mut self, data: Vec<Bytes>) -> BoxFuture<'_, Result<()>>;
}

/// Where a stream comes from.
pub trait Source: Send {
    /// The next `len` bytes, or fewer where the stream ends before.
    fn read(&mut self, len: usize) -> BoxFuture<'_, Result<Bytes>>;
}

/// Bytes in memory, for tests and small streams.
impl Sink for Vec<u8> {
    fn write(&mut self, data: Vec<Bytes>) -> BoxFuture<'_, Result<()>> {
        data.iter().for_each(|d| self.extend_from_slice(d));
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Source for Bytes {
    fn read(&mut self, len: usize) -> BoxFuture<'_, Result<Bytes>> {
        let part = self.split_to(len.min(self.len()));
        Box::pin(std::future::ready(Ok(part)))
    }
}

/// Where a stream goes of which only the length is wanted.
pub(super) struct Nowhere;

impl Sink for Nowhere {
    fn write(&mut self, _: Vec<Bytes>) -> BoxFuture<'_, Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

/// So much is gathered before it is handed to the sink, in bytes: a pipe's reader is woken seldom.
const GATHER: usize = 256 << 10;

pub struct RecordWriter<'a> {
    sink: &'a mut dyn Sink,
    sum: Fletcher4,
    waiting: Vec<Bytes>,
    gathered: usize,
    sent: u64,
    /// Stands for payloads where they are only counted.
    zeros: Option<Bytes>,
}

impl<'a> RecordWriter<'a> {
    pub fn new(sink: &'a mut dyn Sink) -> RecordWriter<'a> {
        RecordWriter {
            sink,
            sum: Fletcher4::new(false),
            waiting: Vec::new(),
            gathered: 0,
            sent: 0,
            zeros: None,
        }
    }

    /// One that only counts.
    pub(super) fn counting(sink: &'a mut dyn Sink) -> RecordWriter<'a> {
        RecordWriter { zeros: Some(vec![0; SPA_MAXBLOCKSIZE as usize].into()), ..Self::new(sink) }
    }

    /// What is given as a payload of so many bytes, if they are only counted.
    pub(super) fn stand_in(&self, bytes: u64) -> Option<Bytes> {
        let zeros = self.zeros.as_ref()?;
        Some(zeros.slice(..zeros.len().min(usize::try_from(bytes).unwrap_or(usize::MAX))))
    }

    /// Bytes so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Writes a record; the payload's length is a multiple of 4.
    #[crate::boxed]
    pub async fn record(&mut self, record: &Record, payload: Bytes) -> Result<()> {
        debug_assert_eq!(record.payload_len(), payload.len() as u64);
        if self.zeros.is_some() {
            self.sent += (RECORD_SIZE + payload.len()) as u64;
            return Ok(());
        }
        let mut head = record.encode();
        let (front, end) = head.split_at_mut(CHECKSUM_OFFSET);
        self.sum.update(front);
        if !matches!(record, Record::Begin(_)) {
            for (to, word) in end.as_chunks_mut::<8>().0.iter_mut().zip(self.sum.finish()) {
                *to = word.to_ne_bytes();
            }
        }
        self.sum.update(end);
        self.sum.update(&payload);
        self.push(Bytes::copy_from_slice(&head)).await?;
        if !payload.is_empty() {
            self.push(payload).await?;
        }
        Ok(())
    }

    /// Ends a snapshot's stream.
    #[crate::boxed]
    pub async fn end(&mut self, toguid: u64) -> Result<()> {
        let end = Record::End(End { checksum: self.sum.finish(), toguid });
        self.record(&end, Bytes::new()).await?;
        self.flush().await
    }

    /// Ends what a package says of itself: such an END has no checksum of its own.
    #[crate::boxed]
    pub async fn end_of_package(&mut self) -> Result<()> {
        let end = Record::End(End { checksum: self.sum.finish(), ..End::default() });
        self.push(Bytes::copy_from_slice(&end.encode())).await?;
        self.flush().await
    }

    /// The end of a compound stream: a bare END.
    #[crate::boxed]
    pub async fn end_of_all(sink: &mut dyn Sink) -> Result<()> {
        let end = Record::End(End::default()).encode();
        sink.write(vec![Bytes::copy_from_slice(&end)]).await
    }

    async fn push(&mut self, data: Bytes) -> Result<()> {
        self.gathered += data.len();
        self.sent += data.len() as u64;
        self.waiting.push(data);
        if self.gathered >= GATHER { self.flush().await } else { Ok(()) }
    }

    #[crate::boxed]
    pub async fn flush(&mut self) -> Result<()> {
        self.gathered = 0;
        let waiting = std::mem::take(&mut self.waiting);
        if waiting.is_empty() { Ok(()) } else { self.sink.write(waiting).await }
    }
}

/// Why a stream cannot be read on.
pub fn bad_stream(what: impl Into<String>) -> Error {
    Error::inval(format!("invalid stream ({})", what.into()))
}

/// It ends within the records of a snapshot.
fn cut() -> Error {
    Error::os(Errno::Canceled, "incomplete stream")
}

/// It ends where a snapshot's stream or a package begins or ends.
pub fn unread() -> Error {
    Error::os(Errno::Canceled, "failed to read from stream")
}

fn damaged(what: &'static str) -> Error {
    Error::os(Errno::Cksum, what)
}

pub struct RecordReader<'a> {
    source: &'a mut dyn Source,
    order: ByteOrder,
    sum: Fletcher4,
    /// Bytes since the stream's beginning.
    read: u64,
    /// Bytes that a stream's beginning may bring, which are held while it is received.
    most_at_begin: usize,
}

impl<'a> RecordReader<'a> {
    pub fn new(source: &'a mut dyn Source) -> RecordReader<'a> {
        let order = ByteOrder::NATIVE;
        RecordReader { source, order, sum: Fletcher4::new(false), read: 0, most_at_begin: usize::MAX }
    }

    /// Of somebody who may not have so much memory as the format allows a stream's beginning.
    pub fn bounded(source: &'a mut dyn Source, most_at_begin: usize) -> RecordReader<'a> {
        RecordReader { most_at_begin, ..RecordReader::new(source) }
    }

    pub fn order(&self) -> ByteOrder {
        self.order
    }

    pub fn bytes_read(&self) -> u64 {
        self.read
    }

    /// The next record of a substream or package begins anew: so does its checksum.
    pub fn restart(&mut self) {
        self.sum = Fletcher4::new(!self.order.is_native());
        self.read = 0;
    }

    /// A head; None where the stream ends before it.
    async fn head(&mut self, cut: fn() -> Error) -> Result<Option<[u8; RECORD_SIZE]>> {
        let raw = self.source.read(RECORD_SIZE).await?;
        if raw.is_empty() {
            return Ok(None);
        }
        let head = raw.first_chunk().copied().ok_or_else(cut)?;
        self.read += RECORD_SIZE as u64;
        Ok(Some(head))
    }

    /// The record that begins a stream, with its payload, or the END of a compound stream. None at
    /// the end of all.
    #[crate::boxed]
    pub async fn begin(&mut self) -> Result<Option<(Record, Bytes)>> {
        self.read = 0;
        let Some(head) = self.head(unread).await? else { return Ok(None) };
        // The END of a compound stream has no magic number; all zeros but for its type, it reads in
        // either order.
        if let Ok(order) = stream::order_of(&head) {
            self.order = order;
        }
        self.restart();
        self.read = RECORD_SIZE as u64;
        let record = Record::decode(&head, self.order).map_err(|e| bad_stream(e.to_string()))?;
        match record {
            Record::Begin(_) => {
                self.sum.update(&head);
                let payload = self.payload(&record).await?;
                Ok(Some((record, payload)))
            }
            Record::End(_) => Ok(Some((record, Bytes::new()))),
            other => Err(bad_stream(format!("it begins with {}", other.name()))),
        }
    }

    async fn payload(&mut self, record: &Record) -> Result<Bytes> {
        let len = usize::try_from(record.payload_len()).map_err(|e| bad_stream(e.to_string()))?;
        if len == 0 {
            return Ok(Bytes::new());
        }
        if !len.is_multiple_of(4) {
            return Err(bad_stream(format!("{} with a payload of {len} bytes", record.name())));
        }
        if matches!(record, Record::Begin(_)) && len > self.most_at_begin {
            let most = self.most_at_begin;
            return Err(bad_stream(format!("its beginning has {len} bytes, {most} may be read here")));
        }
        let data = self.source.read(len).await?;
        if data.len() != len {
            return Err(if matches!(record, Record::Begin(_)) { unread() } else { cut() });
        }
        self.sum.update(&data);
        self.read += len as u64;
        Ok(data)
    }

    /// The next record of a snapshot's stream and its payload, both known to be what was sent.
    #[crate::boxed]
    pub async fn next(&mut self) -> Result<(Record, Bytes)> {
        let head = self.head(cut).await?.ok_or_else(cut)?;
        let before = self.sum.finish();
        let (front, end) = head.split_at(CHECKSUM_OFFSET);
        self.sum.update(front);
        let found = self.words(end);
        // Very old senders had no checksum here; END's own then is the only one.
        if found != [0; 4] && found != self.sum.finish() {
            return Err(damaged("checksum mismatch"));
        }
        self.sum.update(end);
        let record = Record::decode(&head, self.order).map_err(|e| bad_stream(e.to_string()))?;
        if let Record::End(e) = &record
            && e.checksum != before
        {
            return Err(damaged("checksum mismatch"));
        }
        let payload = self.payload(&record).await?;
        Ok((record, payload))
    }

    /// The END of a package's own part.
    #[crate::boxed]
    pub async fn end_of_package(&mut self) -> Result<()> {
        let head = self.head(unread).await?.ok_or_else(unread)?;
        match Record::decode(&head, self.order) {
            Ok(Record::End(e)) if e.checksum == self.sum.finish() => Ok(()),
            Ok(Record::End(_)) => Err(damaged("incorrect header checksum")),
            _ => Err(bad_stream("the package does not end where it should")),
        }
    }

    fn words(&self, raw: &[u8]) -> [u64; 4] {
        let mut out = [0; 4];
        for (to, from) in out.iter_mut().zip(raw.as_chunks::<8>().0) {
            *to = self.order.u64(*from);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_env::block_on;
    use zilla_ondisk::stream::{Begin, Free, Write};

    fn sample() -> Vec<u8> {
        let mut out = Vec::new();
        block_on(async {
            let mut w = RecordWriter::new(&mut out);
            let begin = Begin { toguid: 5, toname: "a@b".into(), ..Begin::default() };
            w.record(&Record::Begin(begin), Bytes::new()).await.unwrap();
            let write = Write { object: 2, logical_size: 512, toguid: 5, ..Write::default() };
            w.record(&Record::Write(write), vec![7; 512].into()).await.unwrap();
            let free = Free { object: 2, offset: 512, length: u64::MAX, toguid: 5 };
            w.record(&Record::Free(free), Bytes::new()).await.unwrap();
            w.end(5).await.unwrap();
        });
        out
    }

    fn read(raw: &[u8]) -> Result<usize> {
        let mut source = Bytes::copy_from_slice(raw);
        block_on(async {
            let mut r = RecordReader::new(&mut source);
            r.begin().await?.ok_or_else(cut)?;
            for n in 1.. {
                if let (Record::End(_), _) = r.next().await? {
                    return Ok(n);
                }
            }
            Ok(0)
        })
    }

    #[test]
    fn a_beginning_may_be_bounded() {
        let mut raw = Vec::new();
        let begin = Begin { toguid: 5, toname: "a@b".into(), payloadlen: 1024, ..Begin::default() };
        block_on(async {
            let mut w = RecordWriter::new(&mut raw);
            w.record(&Record::Begin(begin), vec![0; 1024].into()).await.unwrap();
            w.flush().await.unwrap();
        });
        for (most, taken) in [(1024, true), (1020, false)] {
            let mut source = Bytes::copy_from_slice(&raw);
            let read = block_on(RecordReader::bounded(&mut source, most).begin());
            assert_eq!(read.is_ok(), taken, "{most}");
        }
    }

    #[test]
    fn every_flipped_bit_and_every_cut_is_noticed() {
        let raw = sample();
        assert_eq!(read(&raw).unwrap(), 3);
        // (A BEGIN's own fields are covered from the next record on.)
        for at in 0..raw.len() {
            let mut bad = raw.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(read(&bad).is_err(), "byte {at}");
        }
        for len in 0..raw.len() {
            assert!(read(&raw[..len]).is_err(), "cut at {len}");
        }
    }
}
