//! `zstream redup`: a deduplicated stream, which nothing receives any more, as one that is not.
//!
//! Such a stream says of a block that it is one that came before (WRITE_BYREF). Where each was in
//! the file is kept: 32 bytes for each record of at least 312, so no file makes this take more than
//! a small part of its own size.

use super::records::{Reader, Whole, Writer, payload};
use super::{Done, failed, open, options, usage};
use std::collections::HashMap;
use std::io::{BufReader, BufWriter, IsTerminal, Seek, SeekFrom};
use zilla_control::props::nicenum::nicenum;
use zilla_ondisk::ByteOrder;
use zilla_ondisk::stream::{Begin, RECORD_SIZE, Record, WriteByref, feature};

/// What OpenZFS takes for a block, in bytes: its message tells of them.
const ENTRY: u64 = 40;

pub fn run(words: &[String]) -> Done {
    let (options, rest) = options("redup", words, "v")?;
    let [file] = rest.as_slice() else { return Err(usage()) };
    if std::io::stdout().is_terminal() {
        let what = "Error: Stream can not be written to a terminal.\nYou must redirect standard output.";
        return Err(failed(what));
    }
    let (input, mut again) = (open(file)?, open(file)?);
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, input));
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, std::io::stdout().lock()));
    let mut seen = HashMap::new();
    let (mut records, mut references, mut at) = (0u64, 0u64, 0);
    while let Some(mut one) = reader.next()? {
        records += 1;
        match &mut one.record {
            Record::Begin(b) => {
                let features = b.features() & !(feature::DEDUP | feature::DEDUPPROPS);
                let plain = Begin::version(b.header_type(), features) | b.versioninfo & !0 << 32;
                if plain != b.versioninfo {
                    b.versioninfo = plain;
                    one.head = one.record.encode();
                }
            }
            Record::Write(w) => drop(seen.insert((w.toguid, w.object, w.offset), at)),
            Record::WriteByref(w) => {
                references += 1;
                let place = seen.get(&(w.refguid, w.refobject, w.refoffset));
                let Some(place) = place else {
                    let (object, offset) = (w.refobject, w.refoffset);
                    let what = format!(
                        "object {object} offset {offset}, which a record refers to, did not come before it"
                    );
                    return Err(failed(what));
                };
                one = referred(&mut again, *place, w)?;
            }
            _ => {}
        }
        writer.put(one)?;
        at = reader.at;
    }
    writer.finish()?;
    if !options.is_empty() {
        let memory = nicenum(seen.len() as u64 * ENTRY);
        eprintln!(
            "converted stream with {records} total records, including {references} dedup records, using {memory}B memory."
        );
    }
    Ok(())
}

/// The WRITE at a place of the file, as of the object that refers to it.
fn referred(file: &mut std::fs::File, place: u64, to: &WriteByref) -> Result<Whole, u8> {
    let changed = || failed("Error while reading file: it was changed meanwhile");
    file.seek(SeekFrom::Start(place)).map_err(failed)?;
    let bytes = payload(file, RECORD_SIZE as u64)?;
    let head = <[u8; RECORD_SIZE]>::try_from(bytes).map_err(|_| changed())?;
    let Ok(Record::Write(mut w)) = Record::decode(&head, ByteOrder::NATIVE) else { return Err(changed()) };
    let payload = payload(file, Record::Write(w).payload_len())?;
    (w.toguid, w.object, w.offset) = (to.toguid, to.object, to.offset);
    let record = Record::Write(w);
    Ok(Whole { head: record.encode(), record, payload })
}
