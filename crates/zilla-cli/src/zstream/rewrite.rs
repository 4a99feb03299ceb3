//! `zstream decompress` and `recompress`: a stream in, the same with other blocks out.

use super::records::{Reader, Writer};
use super::{Done, failed, options, stdin, usage};
use crate::args;
use std::collections::BTreeMap;
use std::io::BufWriter;
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_ondisk::SPA_MAXBLOCKSIZE;
use zilla_ondisk::stream::{CryptParams, Record, Write};

/// What compressed blocks are a multiple of, in bytes. Source: SPA_MINBLOCKSIZE.
const SECTOR: usize = 512;

/// Passes a stream from standard input on; `change` sees each WRITE.
fn pass(mut change: impl FnMut(&mut Write, Vec<u8>) -> Result<Vec<u8>, u8>) -> Done {
    let mut reader = Reader::new(stdin(false)?);
    let mut writer = Writer::new(BufWriter::with_capacity(1 << 20, std::io::stdout().lock()));
    while let Some(mut one) = reader.next()? {
        match &mut one.record {
            Record::WriteByref(_) => return Err(failed("Deduplicated streams are not supported")),
            Record::Write(w) => {
                let was = *w;
                one.payload = change(w, one.payload)?;
                if *w != was {
                    one.head = one.record.encode();
                }
            }
            _ => {}
        }
        writer.put(one)?;
    }
    writer.finish()
}

fn expand(kind: Compress, w: &Write, stored: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(w.logical_size).ok().filter(|_| w.logical_size <= SPA_MAXBLOCKSIZE)?;
    let mut out = vec![0; size];
    compress::decompress(kind, stored, &mut out).ok().map(|()| out)
}

fn warn(what: std::fmt::Arguments<'_>, w: &Write) {
    eprintln!("zstream: {what} for ino {} offset {}", w.object, w.offset);
}

pub fn decompress(words: &[String]) -> Done {
    let (options, rest) = options("decompress", words, "v")?;
    let verbose = !options.is_empty();
    let mut wanted = BTreeMap::new();
    for word in rest {
        let mut parts = word.splitn(3, ',');
        let (Some(object), Some(offset)) = (parts.next(), parts.next()) else { return Err(usage()) };
        let object = args::number(object).ok_or_else(|| failed("zstream: invalid value for object"))?;
        let offset = args::number(offset).ok_or_else(|| failed("zstream: invalid value for offset"))?;
        let kind = match parts.next() {
            None | Some("lz4") => Some(Compress::Lz4),
            Some("off") => None,
            Some("lzjb") => Some(Compress::Lzjb),
            Some("gzip") => Some(Compress::Gzip1),
            Some("zle") => Some(Compress::Zle),
            Some("zstd") => Some(Compress::Zstd),
            Some(other) => {
                eprintln!("Invalid compression type {other}.");
                eprintln!("Supported types are off, lz4, lzjb, gzip, zle, and zstd");
                return Err(2);
            }
        };
        wanted.insert((object, offset), kind);
    }
    pass(|w, payload| {
        let Some(kind) = wanted.get(&(w.object, w.offset)) else { return Ok(payload) };
        let plain = match kind {
            // It is so already, and only the record says otherwise.
            None => Some(payload.clone()).filter(|p| p.len() as u64 == w.logical_size),
            Some(kind) => expand(*kind, w, &payload),
        };
        let Some(plain) = plain else {
            let what = if kind.is_some() { "decompression failed" } else { "there is not a whole block" };
            warn(format_args!("{what}"), w);
            return Ok(payload);
        };
        (w.compressiontype, w.compressed_size) = (0, 0);
        if verbose {
            let what = match kind {
                None => "Resetting compression type to off for",
                Some(_) => "successfully decompressed",
            };
            eprintln!("{what} ino {} offset {}", w.object, w.offset);
        }
        Ok(plain)
    })
}

pub fn recompress(words: &[String]) -> Done {
    let (options, rest) = options("recompress", words, "l:")?;
    let [name] = rest.as_slice() else { return Err(usage()) };
    let spec = name.parse::<CompressSpec>().ok().filter(|s| s.kind == Compress::Off || s.kind.is_function());
    let Some(mut spec) = spec else {
        eprintln!("Invalid compression type {name}.");
        return Err(2);
    };
    if let Some((_, level)) = options.last() {
        let named = match spec.kind {
            Compress::Zstd => format!("zstd-{level}").parse(),
            Compress::Lzjb | Compress::Zle | Compress::Lz4 | Compress::Off => {
                eprintln!("compression type {name} has no levels");
                return Err(usage());
            }
            _ => format!("gzip-{level}").parse(),
        };
        spec = named.map_err(|_| {
            eprintln!("failed to parse level '{level}'");
            usage()
        })?;
    }
    pass(|w, payload| {
        // What is encrypted cannot be compressed otherwise.
        if w.crypt.salt != CryptParams::default().salt {
            return Ok(payload);
        }
        let Some(now) = Compress::from_u8(w.compressiontype) else {
            eprintln!("Invalid compression type in stream: {}", w.compressiontype);
            return Err(3);
        };
        let plain = if now.is_function() { expand(now, w, &payload) } else { Some(payload) };
        let Some(plain) = plain else {
            warn(format_args!("decompression type {} failed", w.compressiontype), w);
            return Err(4);
        };
        (w.compressiontype, w.compressed_size) = (0, 0);
        let mut stored = vec![0; plain.len().saturating_sub(SECTOR)];
        let fits = compress::compress(spec, &plain, &mut stored);
        match fits.map(|n| n.next_multiple_of(SECTOR)).filter(|n| *n <= stored.len() && *n > 0) {
            Some(n) => {
                stored.truncate(n);
                stored[fits.unwrap_or(n)..].fill(0);
                (w.compressiontype, w.compressed_size) = (spec.kind as u8, n as u64);
                Ok(stored)
            }
            None => Ok(plain),
        }
    })
}
