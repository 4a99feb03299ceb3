//! `-R`: the bytes at some place of a vdev.
//!
//! `vdev:offset:size[:flags]`, numbers in hexadecimal but the vdev's. A top-level vdev is read as
//! the pool does (through mirrors and parity), a leaf (`0.1`: the second child of vdev 0) as it
//! lies on the device. Flags: `r` raw to standard output, `e` the other byte order, `i` as an
//! indirect block, `b` with an offset as one block pointer.

use super::{Zdb, put};
use std::io::Write;
use zilla_core::error::{Error, Result};
use zilla_core::types::Bookmark;
use zilla_core::zio::Priority;
use zilla_ondisk::blkptr::BLKPTR_SIZE;
use zilla_ondisk::enums::{ZIO_CHECKSUM_OFF, compress_name};
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;
use zilla_ondisk::{BlkPtr, ByteOrder, Dva, SPA_MAXBLOCKSIZE, SPA_MINBLOCKSIZE};

/// The number of no compression.
const OFF: u8 = 2;

#[derive(Debug, PartialEq, Eq)]
struct Spec {
    vdev: Vec<usize>,
    offset: u64,
    size: u64,
    raw: bool,
    swap: bool,
    indirect: bool,
    pointer: Option<usize>,
}

fn parse(word: &str) -> Result<Spec, String> {
    let mut parts = word.split(':');
    let vdev = parts.next().unwrap_or_default();
    let vdev = vdev
        .split('.')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .map_err(|_| format!("Invalid vdev: {vdev}"))?;
    let hex = |p: Option<&str>| u64::from_str_radix(p.unwrap_or_default().trim_start_matches("0x"), 16);
    let offset = hex(parts.next()).map_err(|_| "invalid offset")?;
    let size = hex(parts.next()).map_err(|_| "invalid size(s)")?;
    if !size.is_multiple_of(SPA_MINBLOCKSIZE) || size == 0 || size > SPA_MAXBLOCKSIZE {
        return Err("size must be a multiple of sector size, 16M at most".into());
    }
    if !offset.is_multiple_of(SPA_MINBLOCKSIZE) {
        return Err("offset must be a multiple of sector size".into());
    }
    let mut s = Spec { vdev, offset, size, raw: false, swap: false, indirect: false, pointer: None };
    for flags in parts {
        let mut chars = flags.chars().peekable();
        while let Some(flag) = chars.next() {
            match flag {
                'r' => s.raw = true,
                'e' => s.swap = true,
                'i' => s.indirect = true,
                'b' => {
                    let mut at = String::new();
                    while let Some(c) = chars.next_if(char::is_ascii_hexdigit) {
                        at.push(c);
                    }
                    let at = usize::from_str_radix(if at.is_empty() { "0" } else { &at }, 16);
                    s.pointer = Some(at.map_err(|_| "invalid offset of a block pointer")?);
                }
                'c' | 'd' | 'g' | 'v' => return Err(format!("flag '{flag}' is not supported by zilla yet")),
                _ => return Err(format!("Invalid flag arg: '{flag}'")),
            }
        }
    }
    Ok(s)
}

fn dump(word: &str, data: &[u8], swap: bool) -> String {
    let head = if swap { " 7 6 5 4 3 2 1 0   f e d c b a 9 8" } else { " 0 1 2 3 4 5 6 7   8 9 a b c d e f" };
    let mut out = format!("\n{word}\n{:6}   {head}  0123456789abcdef\n", "");
    for (i, row) in data.as_chunks::<16>().0.iter().enumerate() {
        let [a, b] = [0, 8].map(|at| {
            let word = row.get(at..at + 8).and_then(|w| w.try_into().ok()).unwrap_or([0; 8]);
            if swap { u64::from_le_bytes(word) } else { u64::from_be_bytes(word) }
        });
        let shown: String =
            row.iter().map(|c| if (0x20..0x7f).contains(c) { char::from(*c) } else { '.' }).collect();
        out += &format!("{:06x}:  {a:016x}  {b:016x}  {shown}\n", i * 16);
    }
    out
}

impl Zdb {
    pub(super) async fn raw_blocks(&mut self) -> Result<()> {
        for word in self.opts.operands.clone().iter().skip(1) {
            let spec =
                parse(word).map_err(|e| Error::inval(format!("Invalid block specifier: {word}  - {e}")))?;
            let data = self.bytes_at(&spec).await?;
            let order = if spec.swap { ByteOrder::NATIVE.swapped() } else { ByteOrder::NATIVE };
            if let Some(at) = spec.pointer {
                let slot =
                    data.get(at..).filter(|s| at.is_multiple_of(BLKPTR_SIZE) && s.len() >= BLKPTR_SIZE);
                let slot = slot.ok_or_else(|| Error::inval(format!("no block pointer at {at:#x}")))?;
                let bp = BlkPtr::decode(slot, order).map_err(|e| Error::inval(e.to_string()))?;
                put!(self, "{bp}\n");
            } else if spec.raw {
                self.out.flush();
                let outcome = std::io::stdout().write_all(&data);
                outcome.map_err(Error::from)?;
            } else if spec.indirect {
                let all: String = BlkPtr::iter(&data, order).map(|bp| format!("{bp}\n")).collect();
                self.out.put(all);
            } else {
                self.out.put(dump(word, &data, spec.swap));
            }
        }
        Ok(())
    }

    async fn bytes_at(&self, s: &Spec) -> Result<Vec<u8>> {
        let invalid = || Error::inval("Invalid vdev: there is none of this number");
        let tree = self.spa.tree();
        let (first, rest) = s.vdev.split_first().ok_or_else(invalid)?;
        let top = tree.tops.get(*first).filter(|t| t.vdev.is_concrete()).ok_or_else(invalid)?;
        let mut vdev = top.vdev.clone();
        for child in rest {
            vdev = vdev.children.get(*child).ok_or_else(invalid)?.clone();
        }
        match &vdev.leaf {
            Some(leaf) => eprintln!("Found vdev: {}", leaf.path()),
            None => eprintln!("Found vdev type: {}", vdev.kind.type_name()),
        }
        if rest.is_empty() {
            let mut bp = BlkPtr::ZERO;
            let asize = top.psize_to_asize(s.size, zilla_core::types::TXG_INITIAL.0);
            bp.set_dva(0, Dva { vdev: top.id, offset: s.offset, asize, gang: false });
            bp.set_lsize(s.size);
            bp.set_psize(s.size);
            bp.set_compress(OFF);
            debug_assert_eq!(compress_name(OFF), "uncompressed");
            bp.set_checksum_kind(ZIO_CHECKSUM_OFF);
            bp.set_byteorder(ByteOrder::NATIVE);
            bp.set_birth(zilla_core::types::TXG_INITIAL.0);
            let data = self.spa.ctx.store.read(bp, Bookmark::default(), Priority::SyncRead).await?;
            return Ok(data.to_vec());
        }
        let device =
            vdev.leaf.as_ref().and_then(|l| l.device()).ok_or_else(|| Error::inval("not an open device"))?;
        let at = s.offset.checked_add(VDEV_LABEL_START_SIZE).filter(|at| *at < device.size());
        let at = at.ok_or_else(|| Error::inval("the place is beyond the device's end"))?;
        Ok(device.read(at, s.size as usize).await?.into_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_openzfs_s() {
        let s = parse("0.1:4e800:200:ie").unwrap();
        assert_eq!((s.vdev, s.offset, s.size, s.indirect, s.swap), (vec![0, 1], 0x4e800, 0x200, true, true));
        assert_eq!(parse("0:0:400:b80").unwrap().pointer, Some(0x80));
        for bad in ["", "x:0:200", "0:1:200", "0:0:0", "0:0:201", "0:0:2000000", "0:0:200:q", "0:0:200:d"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn dumps_are_openzfs_s() {
        let text = dump("x", b"0123456789abcde\n", false);
        assert!(text.ends_with("000000:  3031323334353637  383961626364650a  0123456789abcde.\n"), "{text}");
    }
}
