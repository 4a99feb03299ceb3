//! Records as they come and go, with the checksum that runs through a stream.
//!
//! What is not changed is passed on byte by byte, pads and all; the checksums are made anew.

use super::{Done, failed};
use std::io::{ErrorKind, Read, Write};
use zilla_codec::checksum::Fletcher4;
use zilla_env::strerror;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::stream::{CHECKSUM_OFFSET, RECORD_SIZE, Record, order_of};

pub type Head = [u8; RECORD_SIZE];
pub type Sum = [u64; 4];

/// Reads as much as there is, at most what fits.
pub fn fill(input: &mut dyn Read, buf: &mut [u8]) -> std::io::Result<usize> {
    let mut have = 0;
    while have < buf.len() {
        match input.read(&mut buf[have..]) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}

/// The checksum in a head, in an order.
pub fn sum_of(head: &Head, order: ByteOrder) -> Sum {
    let words = head[CHECKSUM_OFFSET..].as_chunks::<8>().0;
    std::array::from_fn(|i| words.get(i).map_or(0, |w| order.u64(*w)))
}

fn read_failed(e: &std::io::Error) -> u8 {
    failed(format_args!("Error while reading file: {}", strerror(e)))
}

/// A record that was read whole.
pub struct Whole {
    pub head: Head,
    pub record: Record,
    pub payload: Vec<u8>,
}

/// Reads a stream of this machine's byte order, and believes nothing whose checksum does not fit.
pub struct Reader<R> {
    input: R,
    sum: Fletcher4,
    first: bool,
    /// Bytes so far.
    pub at: u64,
}

impl<R: Read> Reader<R> {
    pub fn new(input: R) -> Reader<R> {
        Reader { input, sum: Fletcher4::new(false), first: true, at: 0 }
    }

    /// The next record; None at the end.
    pub fn next(&mut self) -> Result<Option<Whole>, u8> {
        let mut head = [0; RECORD_SIZE];
        match fill(&mut self.input, &mut head).map_err(|e| read_failed(&e))? {
            0 => return Ok(None),
            RECORD_SIZE => {}
            _ => return Err(failed("Error: unexpected end-of-file")),
        }
        if std::mem::take(&mut self.first) {
            match order_of(&head) {
                Ok(ByteOrder::NATIVE) => {}
                Ok(_) => return Err(failed("Streams of the other byte order are not supported")),
                Err(_) => return Err(failed("Invalid stream (bad magic number)")),
            }
        }
        let kind = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]);
        let record = Record::decode(&head, ByteOrder::NATIVE).map_err(|e| {
            if kind > 10 { failed(format_args!("INVALID record type 0x{kind:x}")) } else { failed(e) }
        })?;
        if matches!(record, Record::Begin(_)) {
            self.sum = Fletcher4::new(false);
        }
        self.sum.update(&head[..CHECKSUM_OFFSET]);
        let stored = sum_of(&head, ByteOrder::NATIVE);
        if !matches!(record, Record::Begin(_)) && stored != [0; 4] && stored != self.sum.finish() {
            return Err(failed("invalid checksum"));
        }
        self.sum.update(&head[CHECKSUM_OFFSET..]);
        let payload = payload(&mut self.input, record.payload_len())?;
        self.sum.update(&payload);
        if matches!(record, Record::End(_)) {
            self.sum = Fletcher4::new(false);
        }
        self.at += (RECORD_SIZE + payload.len()) as u64;
        Ok(Some(Whole { head, record, payload }))
    }
}

/// Reads a payload, whose length a head's decoding has bounded.
pub fn payload(input: &mut dyn Read, len: u64) -> Result<Vec<u8>, u8> {
    let mut payload = Vec::new();
    let read = input.take(len).read_to_end(&mut payload).map_err(|e| read_failed(&e))?;
    if read as u64 != len {
        return Err(failed("Error: unexpected end-of-file"));
    }
    Ok(payload)
}

/// Writes records, each with its checksum.
pub struct Writer<W> {
    out: W,
    sum: Fletcher4,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Writer<W> {
        Writer { out, sum: Fletcher4::new(false) }
    }

    pub fn put(&mut self, mut one: Whole) -> Done {
        let begin = matches!(one.record, Record::Begin(_));
        if begin {
            self.sum = Fletcher4::new(false);
        }
        if let Record::End(end) = &mut one.record
            && end.checksum != [0; 4]
        {
            end.checksum = self.sum.finish();
            one.head = one.record.encode();
        }
        self.sum.update(&one.head[..CHECKSUM_OFFSET]);
        if !begin {
            let words = one.head[CHECKSUM_OFFSET..].as_chunks_mut::<8>().0;
            for (to, word) in words.iter_mut().zip(self.sum.finish()) {
                *to = word.to_ne_bytes();
            }
        }
        self.sum.update(&one.head[CHECKSUM_OFFSET..]);
        self.sum.update(&one.payload);
        if matches!(one.record, Record::End(_)) {
            self.sum = Fletcher4::new(false);
        }
        let done = self.out.write_all(&one.head).and_then(|()| self.out.write_all(&one.payload));
        done.map_err(write_failed)
    }

    pub fn finish(mut self) -> Done {
        self.out.flush().map_err(write_failed)
    }
}

fn write_failed(e: std::io::Error) -> u8 {
    failed(format_args!("Error while writing: {}", strerror(&e)))
}
