//! `zstream dump`: what is in a stream, and whether its checksums fit.

use super::records::{Head, Sum, fill, sum_of};
use super::{Done, failed, list, open, options, stdin};
use crate::terminal::tame;
use std::borrow::Cow;
use std::io::{BufReader, BufWriter, IsTerminal, Read, Write};
use zilla_codec::checksum::Fletcher4;
use zilla_ondisk::stream::{CHECKSUM_OFFSET, RECORD_SIZE, Record, order_of};
use zilla_ondisk::{ByteOrder, NvList};

/// Kinds of records, and those that the summary counts, in its order.
const KINDS: usize = 11;
const COUNTED: [(usize, &str); 9] = [
    (0, "BEGIN"),
    (5, "END"),
    (1, "OBJECT"),
    (2, "FREEOBJECTS"),
    (3, "WRITE"),
    (6, "WRITE_BYREF"),
    (8, "WRITE_EMBEDDED"),
    (4, "FREE"),
    (7, "SPILL"),
];

struct Dump<'a> {
    input: Box<dyn Read + 'a>,
    out: BufWriter<std::io::StdoutLock<'static>>,
    terminal: bool,
    check: bool,
    verbose: bool,
    very: bool,
    data: bool,
    order: ByteOrder,
    sum: Fletcher4,
    length: u64,
}

pub fn run(words: &[String]) -> Done {
    let (options, rest) = options("dump", words, ":vCd")?;
    let count = |letter| options.iter().filter(|(l, _)| *l == letter).count();
    let data = count('d') > 0;
    let input: Box<dyn Read> = match rest.first() {
        Some(file) => Box::new(BufReader::with_capacity(1 << 20, open(file)?)),
        None => Box::new(stdin(true)?),
    };
    let mut dump = Dump {
        input,
        out: BufWriter::new(std::io::stdout().lock()),
        terminal: std::io::stdout().is_terminal(),
        check: count('C') == 0,
        verbose: data || count('v') > 0,
        very: data || count('v') > 1,
        data,
        order: ByteOrder::NATIVE,
        sum: Fletcher4::new(false),
        length: 0,
    };
    let done = dump.all();
    match dump.out.flush() {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(failed(e)),
        _ => done.unwrap_or_else(|e| {
            if e.kind() == std::io::ErrorKind::BrokenPipe { Ok(()) } else { Err(failed(e)) }
        }),
    }
}

fn words(sum: &Sum) -> String {
    format!("{:x}/{:x}/{:x}/{:x}", sum[0], sum[1], sum[2], sum[3])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

impl Dump<'_> {
    /// A text of the stream's, which may be a stranger's.
    fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.terminal { tame(text) } else { Cow::Borrowed(text) }
    }

    /// Reads all of a part, which counts only whole.
    fn part(&mut self, buf: &mut [u8]) -> std::io::Result<bool> {
        if fill(&mut self.input, buf)? < buf.len() {
            return Ok(false);
        }
        self.length += buf.len() as u64;
        Ok(true)
    }

    fn head(&mut self, first: bool) -> std::io::Result<Option<Head>> {
        let mut head = [0; RECORD_SIZE];
        let (front, end) = head.split_at_mut(CHECKSUM_OFFSET);
        if !self.part(front)? || !self.part(end)? {
            return Ok(None);
        }
        if first && let Ok(order) = order_of(&head) {
            self.order = order;
            self.sum = Fletcher4::new(order != ByteOrder::NATIVE);
        }
        if self.check {
            self.sum.update(&head[..CHECKSUM_OFFSET]);
            let (stored, expected) = (sum_of(&head, self.order), self.sum.finish());
            // BEGIN has its name there.
            let begin = self.kind(&head) == 0;
            if !begin && stored != [0; 4] && stored != expected {
                self.out.flush()?;
                eprintln!("invalid checksum");
                writeln!(self.out, "Incorrect checksum in record header.")?;
                writeln!(self.out, "Expected checksum = {}", words(&expected))?;
                return Ok(None);
            }
            self.sum.update(&head[CHECKSUM_OFFSET..]);
        }
        Ok(Some(head))
    }

    fn kind(&self, head: &Head) -> u32 {
        self.order.u32([head[0], head[1], head[2], head[3]])
    }

    fn payload(&mut self, len: u64) -> std::io::Result<Vec<u8>> {
        // Filled as it comes: a head may announce more than there is.
        let mut payload = Vec::new();
        (&mut self.input).take(len).read_to_end(&mut payload)?;
        if payload.len() as u64 == len {
            self.length += len;
            if self.check {
                self.sum.update(&payload);
            }
        }
        Ok(payload)
    }

    fn all(&mut self) -> std::io::Result<Done> {
        let (mut counts, mut bytes) = ([0u64; KINDS], [0u64; KINDS]);
        let mut before: Sum = [0; 4];
        let mut first = true;
        while let Some(head) = self.head(first)? {
            if std::mem::take(&mut first) && order_of(&head).is_err() {
                self.out.flush()?;
                return Ok(Err(failed("Invalid stream (bad magic number)")));
            }
            let kind = self.kind(&head);
            if kind as usize >= KINDS {
                writeln!(self.out, "INVALID record found: type 0x{kind:x}\nAborting.")?;
                return Ok(Err(1));
            }
            let record = match Record::decode(&head, self.order) {
                Ok(record) => record,
                Err(e) => {
                    self.out.flush()?;
                    return Ok(Err(failed(e)));
                }
            };
            let size = self.record(&record, &before)?;
            if self.very && kind != 0 {
                writeln!(self.out, "    checksum = {}", words(&sum_of(&head, ByteOrder::NATIVE)))?;
            }
            before = self.sum.finish();
            let (Some(count), Some(sum)) = (counts.get_mut(kind as usize), bytes.get_mut(kind as usize))
            else {
                continue;
            };
            *count += 1;
            *sum += size;
        }
        writeln!(self.out, "SUMMARY:")?;
        for (kind, name) in COUNTED {
            writeln!(self.out, "\tTotal DRR_{name} records = {} ({} bytes)", counts[kind], bytes[kind])?;
        }
        let (records, payload): (u64, u64) = (counts.iter().sum(), bytes.iter().sum());
        let heads = records * RECORD_SIZE as u64;
        writeln!(self.out, "\tTotal records = {records}")?;
        for (what, n) in
            [("payload size", payload), ("header overhead", heads), ("stream length", self.length)]
        {
            writeln!(self.out, "\tTotal {what} = {n} (0x{n:x})")?;
        }
        Ok(Ok(()))
    }

    /// Shows a record; gives its payload's size.
    fn record(&mut self, record: &Record, before: &Sum) -> std::io::Result<u64> {
        let size = record.payload_len();
        if self.verbose
            && let Some(line) = line(record)
        {
            writeln!(self.out, "{line}")?;
        }
        match record {
            Record::Begin(b) => {
                writeln!(self.out, "BEGIN record")?;
                writeln!(self.out, "\thdrtype = {}", b.header_type())?;
                writeln!(self.out, "\tfeatures = {:x}", b.features())?;
                writeln!(self.out, "\tmagic = {:x}", zilla_ondisk::stream::DMU_BACKUP_MAGIC)?;
                writeln!(self.out, "\tcreation_time = {:x}", b.creation_time)?;
                writeln!(self.out, "\ttype = {}\n\tflags = 0x{:x}", b.objset_type, b.flags)?;
                writeln!(self.out, "\ttoguid = {:x}\n\tfromguid = {:x}", b.toguid, b.fromguid)?;
                let toname = self.shown(&b.toname);
                writeln!(self.out, "\ttoname = {toname}\n\tpayloadlen = {}", b.payloadlen)?;
                if self.verbose {
                    writeln!(self.out)?;
                }
                if size > 0 {
                    let payload = self.payload(size)?;
                    match NvList::unpack(&payload) {
                        Ok(nv) => {
                            let mut text = String::new();
                            list::print(&mut text, &nv, 0);
                            let text = self.shown(&text);
                            self.out.write_all(text.as_bytes())?;
                        }
                        Err(e) => {
                            self.out.flush()?;
                            eprintln!("{e}");
                        }
                    }
                }
            }
            Record::End(end) => {
                if self.check && end.checksum != *before {
                    writeln!(self.out, "Expected checksum differs from checksum in stream.")?;
                    writeln!(self.out, "Expected checksum = {}", words(before))?;
                }
                writeln!(self.out, "END checksum = {}", words(&end.checksum))?;
                self.sum = Fletcher4::new(self.order != ByteOrder::NATIVE);
            }
            Record::Object(o) if o.bonuslen == 0 => {}
            _ if size > 0 => {
                let payload = self.payload(size)?;
                if self.data {
                    self.block(&payload)?;
                }
            }
            _ => {}
        }
        Ok(size)
    }

    /// Sixteen bytes a line, in groups of four: as numbers, and as letters where they are.
    fn block(&mut self, data: &[u8]) -> std::io::Result<()> {
        for part in data.chunks(16) {
            let numbers: String = part
                .chunks(4)
                .map(|group| group.iter().fold(" ".to_owned(), |text, b| text + &format!("{b:02x} ")))
                .collect();
            let letter = |b: &u8| if (b' '..=b'~').contains(b) { char::from(*b) } else { '.' };
            let letters: Vec<String> = part.chunks(4).map(|g| g.iter().map(letter).collect()).collect();
            writeln!(self.out, "{numbers:<53} {}", letters.join(" "))?;
        }
        Ok(())
    }
}

/// What `-v` says of a record.
fn line(record: &Record) -> Option<String> {
    Some(match record {
        Record::Begin(_) | Record::End(_) => return None,
        Record::Object(o) => format!(
            "OBJECT object = {} type = {} bonustype = {} blksz = {} bonuslen = {} dn_slots = {} \
             raw_bonuslen = {} flags = {} maxblkid = {} indblkshift = {} nlevels = {} nblkptr = {}",
            o.object,
            o.otype,
            o.bonustype,
            o.blksz,
            o.bonuslen,
            o.dn_slots,
            o.raw_bonuslen,
            o.flags,
            o.maxblkid,
            o.indblkshift,
            o.nlevels,
            o.nblkptr
        ),
        Record::FreeObjects(f) => format!("FREEOBJECTS firstobj = {} numobjs = {}", f.firstobj, f.numobjs),
        Record::Write(w) => format!(
            "WRITE object = {} type = {} checksum type = {} compression type = {} flags = {} offset = {} \
             logical_size = {} compressed_size = {} payload_size = {} props = {:x} salt = {} iv = {} mac = {}",
            w.object,
            w.otype,
            w.checksumtype,
            w.compressiontype,
            w.flags,
            w.offset,
            w.logical_size,
            w.compressed_size,
            record.payload_len(),
            w.key.prop,
            hex(&w.crypt.salt),
            hex(&w.crypt.iv),
            hex(&w.crypt.mac)
        ),
        Record::WriteByref(w) => format!(
            "WRITE_BYREF object = {} checksum type = {} props = {:x} offset = {} length = {} toguid = {:x} \
             refguid = {:x} refobject = {} refoffset = {}",
            w.object,
            w.checksumtype,
            w.key.prop,
            w.offset,
            w.length,
            w.toguid,
            w.refguid,
            w.refobject,
            w.refoffset
        ),
        Record::Free(f) => {
            format!("FREE object = {} offset = {} length = {}", f.object, f.offset, f.length as i64)
        }
        Record::Spill(s) => format!(
            "SPILL block for object = {} length = {} flags = {} compression type = {} compressed_size = {} \
             payload_size = {} salt = {} iv = {} mac = {}",
            s.object,
            s.length,
            s.flags,
            s.compressiontype,
            s.compressed_size,
            record.payload_len(),
            hex(&s.crypt.salt),
            hex(&s.crypt.iv),
            hex(&s.crypt.mac)
        ),
        Record::WriteEmbedded(w) => format!(
            "WRITE_EMBEDDED object = {} offset = {} length = {} toguid = {:x} comp = {} etype = {} lsize = {} psize = {}",
            w.object, w.offset, w.length, w.toguid, w.compression, w.etype, w.lsize, w.psize
        ),
        Record::ObjectRange(r) => format!(
            "OBJECT_RANGE firstobj = {} numslots = {} flags = {} salt = {} iv = {} mac = {}",
            r.firstobj,
            r.numslots,
            r.flags,
            hex(&r.crypt.salt),
            hex(&r.crypt.iv),
            hex(&r.crypt.mac)
        ),
        Record::Redact(r) => {
            format!("REDACT object = {} offset = {} length = {}", r.object, r.offset, r.length)
        }
    })
}
