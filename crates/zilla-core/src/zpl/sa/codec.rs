//! A bonus or spill block to attribute values and back.

use super::table::{SaTable, Swap};
use crate::dmu::Now;
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use zilla_ondisk::sa::{SA_MAGIC, header_size, place};

const BLKPTR: usize = 128;
/// A spill block is at most as large as blocks were before large ones.
pub(crate) const SA_MAX_SPILL: usize = 128 << 10;
/// Lengths have 16 bits.
pub(crate) const SA_ATTR_MAX_LEN: usize = 65535;

/// The attributes of one buffer in the order of its layout, in the machine's byte order.
pub(crate) type Values = Vec<(u16, Vec<u8>)>;

fn u16_at(buf: &[u8], off: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(buf.get(off..off + 2)?.try_into().ok()?))
}

fn swap_value(swap: Swap, v: &mut [u8]) {
    let unit = match swap {
        Swap::U64 => 8,
        Swap::U32 => 4,
        Swap::U16 => 2,
        Swap::U8 => return,
        Swap::Acl => return swap_aces(v),
    };
    v.chunks_exact_mut(unit).for_each(<[u8]>::reverse);
}

/// ACEs are two 16-bit numbers and one of 32, some with one of 64 behind; which, the (swapped)
/// flags say.
fn swap_aces(mut v: &mut [u8]) {
    while v.len() >= 8 {
        for (a, b) in [(0, 2), (2, 4), (4, 8)] {
            if let Some(part) = v.get_mut(a..b) {
                part.reverse();
            }
        }
        let flags = u16_at(v, 2).unwrap_or(0);
        let size = crate::zpl::acl::ace_size(u16_at(v, 0).unwrap_or(0), flags).min(v.len());
        if let Some(part) = v.get_mut(8..16).filter(|_| size >= 16) {
            part.reverse();
        }
        v = v.get_mut(size..).unwrap_or_default();
    }
}

/// Reads a buffer. `what` names it in errors.
pub(crate) fn decode(table: &SaTable, buf: &[u8], what: &dyn Fn() -> String) -> Result<Values> {
    let bad = |why: String| Error::corrupt(None, what(), why);
    let short = || bad("shorter than its header".into());
    let magic = u32::from_ne_bytes(buf.get(..4).and_then(|b| b.try_into().ok()).ok_or_else(short)?);
    let foreign = magic == SA_MAGIC.swap_bytes();
    if magic != SA_MAGIC && !foreign {
        return Err(bad(format!("system attributes begin with {magic:#x}")));
    }
    let half = |off| u16_at(buf, off).map(|v| if foreign { v.swap_bytes() } else { v });
    let info = half(4).ok_or_else(short)?;
    let (hdr, number) = (usize::from(info >> 10) * 8, info & 0x3ff);
    let layout = match number {
        // Buffers with nothing in them were written with layout 0 or 1.
        0 | 1 => return Ok(Values::new()),
        n => table.layout(n).ok_or_else(|| bad(format!("layout {n} does not exist")))?,
    };
    let mut out = Values::with_capacity(layout.len());
    let (mut at, mut var) = (hdr, 0);
    for &attr in layout.iter() {
        let (fixed, swap) = table.shape(attr);
        let len = match fixed {
            0 => {
                let off = 6 + 2 * var;
                var += 1;
                if off + 2 > hdr {
                    return Err(bad(format!("the header has no length of attribute {attr}")));
                }
                half(off).ok_or_else(short)?
            }
            n => n,
        };
        let end = at + usize::from(len);
        let mut v =
            buf.get(at..end).ok_or_else(|| bad(format!("attribute {attr} reaches beyond the end")))?.to_vec();
        if foreign {
            swap_value(swap, &mut v);
        }
        out.push((attr, v));
        at = end.next_multiple_of(8);
    }
    Ok(out)
}

/// A file's attributes as they go to disk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Packed {
    pub(crate) bonus: Vec<u8>,
    pub(crate) spill: Option<Vec<u8>>,
}

fn pack_one(
    table: &SaTable,
    tx: &Tx,
    attrs: &[(u16, usize, bool)],
    put: &mut dyn FnMut(u16, &mut Vec<u8>),
) -> Now<Vec<u8>> {
    let numbers: smallvec::SmallVec<[u16; 24]> = attrs.iter().map(|a| a.0).collect();
    let layout = table.find_layout(tx, &numbers)?;
    let header = header_size(attrs.iter().filter(|(_, _, var)| *var).count());
    let mut out = Vec::with_capacity(512);
    out.extend_from_slice(&SA_MAGIC.to_ne_bytes());
    out.extend_from_slice(&(((header / 8) as u16) << 10 | layout).to_ne_bytes());
    for (_, len, _) in attrs.iter().filter(|(_, _, var)| *var) {
        out.extend_from_slice(&(*len as u16).to_ne_bytes());
    }
    out.resize(header, 0);
    for (attr, len, _) in attrs {
        out.resize(out.len().next_multiple_of(8), 0);
        let end = out.len() + len;
        put(*attr, &mut out);
        out.resize(end, 0);
    }
    Ok(out)
}

/// Packs the attributes `order`, whose lengths `len` tells and whose bytes `put` appends. `room` is
/// the dnode's bonus space without a spill pointer. Changes nothing but, perhaps, the table of
/// layouts.
pub(crate) fn pack(
    table: &SaTable,
    tx: &Tx,
    order: &[u16],
    room: usize,
    len: impl Fn(u16) -> usize,
    mut put: impl FnMut(u16, &mut Vec<u8>),
) -> Now<Packed> {
    let mut attrs: smallvec::SmallVec<[(u16, usize, bool); 24]> = smallvec::SmallVec::new();
    for &a in order {
        let (fixed, _) = table.shape(a);
        let n = if fixed == 0 { len(a) } else { usize::from(fixed) };
        if n > SA_ATTR_MAX_LEN {
            return Err(Error::os(Errno::FBig, "a system attribute is too long").into());
        }
        attrs.push((a, n, fixed == 0));
    }
    let lens = |part: &[(u16, usize, bool)]| {
        part.iter().map(|a| (a.1, a.2)).collect::<smallvec::SmallVec<[_; 24]>>()
    };
    let Some(stays) = place(&lens(&attrs), room, false).spill_at else {
        return Ok(Packed { bonus: pack_one(table, tx, &attrs, &mut put)?, spill: None });
    };
    let (here, there) = attrs.split_at(stays);
    let s = place(&lens(there), 0, true);
    if s.total + s.hdrsize > SA_MAX_SPILL {
        return Err(Error::os(Errno::FBig, "the system attributes are too long together").into());
    }
    let mut bonus = pack_one(table, tx, here, &mut put)?;
    let mut spill = pack_one(table, tx, there, &mut put)?;
    bonus.resize(room - BLKPTR, 0);
    spill.resize(spill.len().next_multiple_of(512), 0);
    Ok(Packed { bonus, spill: Some(spill) })
}
