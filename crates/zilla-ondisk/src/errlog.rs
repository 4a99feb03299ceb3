//! The persistent log of damaged blocks: ZAPs whose names are places.
//!
//! Without the feature `head_errlog` a name is `objset:object:level:blkid` in hex, its value the
//! affected file's name or nothing. With it, the log maps a head dataset (hex) to a ZAP whose names
//! are `object:level:blkid:birth`.

use crate::error::{FormatError, Problem, Result};
use crate::zbookmark::ZbookmarkPhys;

/// A damaged block of a head dataset or its snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ErrPhys {
    pub object: u64,
    pub level: i64,
    pub blkid: u64,
    /// Which version of the block: it tells which snapshots have it.
    pub birth: u64,
}

fn four(name: &[u8]) -> Result<[u64; 4]> {
    let bad = FormatError::new("error log", "name", 0, Problem::String);
    let text = std::str::from_utf8(name).map_err(|_| bad)?;
    let mut parts = text.split(':');
    let mut out = [0; 4];
    for v in &mut out {
        let part = parts.next().filter(|p| !p.starts_with('+')).ok_or(bad)?;
        *v = u64::from_str_radix(part, 16).map_err(|_| bad)?;
    }
    if parts.next().is_some() { Err(bad) } else { Ok(out) }
}

pub fn bookmark_name(zb: &ZbookmarkPhys) -> String {
    format!("{:x}:{:x}:{:x}:{:x}", zb.objset, zb.object, zb.level_bits, zb.blkid)
}

/// A level is read as OpenZFS does: cut to 32 bits, with its sign.
fn level(v: u64) -> i64 {
    i64::from(v as i32)
}

pub fn parse_bookmark(name: &[u8]) -> Result<ZbookmarkPhys> {
    let [objset, object, l, blkid] = four(name)?;
    Ok(ZbookmarkPhys::new(objset, object, level(l), blkid))
}

impl ErrPhys {
    pub fn name(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.object, self.level, self.blkid, self.birth)
    }

    pub fn parse(name: &[u8]) -> Result<ErrPhys> {
        let [object, l, blkid, birth] = four(name)?;
        Ok(ErrPhys { object, level: level(l), blkid, birth })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let zb = ZbookmarkPhys::new(54, 0, -1, 255);
        assert_eq!(bookmark_name(&zb), "36:0:ffffffffffffffff:ff");
        assert_eq!(parse_bookmark(b"36:0:ffffffffffffffff:ff").unwrap(), zb);
        let e = ErrPhys { object: 10, level: 2, blkid: 3, birth: 77 };
        assert_eq!(ErrPhys::parse(e.name().as_bytes()).unwrap(), e);
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "1:2:3:+4"] {
            assert!(ErrPhys::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
