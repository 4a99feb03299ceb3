//! System attributes: what is known of a file, packed into a dnode's bonus and, where that is full,
//! its spill block.
//!
//! ```text
//! magic:4 | header size / 8 : 6, layout : 10 | lengths of variable attributes, 2 each ... | attributes, 8-aligned
//! ```
//!
//! A *layout* is a list of attribute numbers; its number stands in the header. An attribute's
//! number, length and kind are registered per dataset. Both tables are ZAPs under the SA master
//! node: `REGISTRY` maps a name to [`SaAttr::registration`], `LAYOUTS` maps a layout's number in
//! decimal to its list of 16-bit numbers. A length of 0 says that it varies; then it stands in the
//! header, in the order of the layout.
//!
//! The attributes of bonus and spill have a layout each. In the other byte order the header is read
//! by its magic, and each attribute is swapped as its kind says.

mod place;
mod registry;

#[cfg(test)]
mod tests;

pub use place::{Placement, place};
pub use registry::{SaAttr, SaByteswap, SaRegistry, ZplAttr};

use smallvec::SmallVec;

use crate::bytes::{Reader, u16_at, u64_at};
use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;
use crate::zap::ZapValue;

pub const SA_MAGIC: u32 = 0x2F_505A;
/// Header with room for one variable length.
pub const SA_HDR_SIZE: usize = 8;
pub const SA_LAYOUTS: &str = "LAYOUTS";
pub const SA_REGISTRY: &str = "REGISTRY";
/// Layouts are numbered below this.
pub const SA_MAX_LAYOUTS: u16 = 1 << 10;
/// The layout of old znodes, which have no header.
pub const SA_LAYOUT_ZNODE: u16 = 0;
/// The layout without attributes.
pub const SA_LAYOUT_EMPTY: u16 = 1;
const S: &str = "sa_hdr_phys";

/// A list of attributes that stand together.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SaLayout {
    pub number: u16,
    pub attrs: Vec<u16>,
}

impl SaLayout {
    /// From an entry of the `LAYOUTS` ZAP.
    pub fn from_zap(name: &str, value: &ZapValue) -> Result<SaLayout> {
        let number = name.parse().ok().filter(|n| *n < SA_MAX_LAYOUTS);
        let number = number.ok_or(FormatError::new("sa layout", "number", 0, Problem::String))?;
        if value.intlen() != 2 {
            return Err(FormatError::new("sa layout", "attributes", 0, Problem::WrongType));
        }
        Ok(SaLayout { number, attrs: value.ints().map(|v| v as u16).collect() })
    }

    /// The name and value of its entry in the `LAYOUTS` ZAP.
    pub fn to_zap(&self) -> (String, ZapValue) {
        (self.number.to_string(), ZapValue::u16s(&self.attrs))
    }
}

/// One attribute as it stands in a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaSlice<'a> {
    pub num: u16,
    /// From the front of the buffer.
    pub offset: usize,
    pub data: &'a [u8],
    pub order: ByteOrder,
}

impl SaSlice<'_> {
    /// The number at `i` of an attribute that is an array of 64-bit numbers.
    pub fn u64(&self, i: usize) -> Option<u64> {
        u64_at(self.data, i.checked_mul(8)?, self.order)
    }
}

/// A bonus or spill buffer of attributes, its header read.
#[derive(Clone, Copy, Debug)]
pub struct SaBuf<'a> {
    buf: &'a [u8],
    pub order: ByteOrder,
    pub layout: u16,
    pub hdrsize: usize,
}

impl<'a> SaBuf<'a> {
    /// Reads the header. Its magic tells the byte order; a buffer of zeros has no attributes.
    pub fn parse(buf: &'a [u8]) -> Result<SaBuf<'a>> {
        let mut r = Reader::new(buf, ByteOrder::NATIVE, S);
        if buf.len() < SA_HDR_SIZE {
            return Err(r.error("sa_magic", Problem::Truncated { need: SA_HDR_SIZE, have: buf.len() }));
        }
        let magic = r.u32("sa_magic")?;
        let order = match magic {
            SA_MAGIC => ByteOrder::NATIVE,
            m if m == SA_MAGIC.swap_bytes() => ByteOrder::NATIVE.swapped(),
            0 => return Ok(SaBuf { buf, order: r.order(), layout: SA_LAYOUT_EMPTY, hdrsize: SA_HDR_SIZE }),
            m => {
                let problem = Problem::Magic { found: m.into(), wanted: SA_MAGIC.into() };
                return Err(FormatError::new(S, "sa_magic", 0, problem));
            }
        };
        let info = u16_at(buf, 4, order).unwrap_or(0);
        let hdrsize = usize::from(info >> 10) * 8;
        if hdrsize < SA_HDR_SIZE || hdrsize > buf.len() {
            let why = "no header of this size";
            return Err(FormatError::impossible(S, "sa_layout_info", 4, info.into(), why));
        }
        let layout = match info & (SA_MAX_LAYOUTS - 1) {
            0 => SA_LAYOUT_EMPTY,
            n => n,
        };
        Ok(SaBuf { buf, order, layout, hdrsize })
    }

    /// The bonus of an old znode, which has the fixed attributes of layout 0 and no header.
    pub const fn znode(buf: &'a [u8], order: ByteOrder) -> SaBuf<'a> {
        SaBuf { buf, order, layout: SA_LAYOUT_ZNODE, hdrsize: 0 }
    }

    /// Finds the attributes that `layout` lists.
    pub fn attrs(&self, layout: &[u16], reg: &SaRegistry) -> Result<SmallVec<[SaSlice<'a>; 24]>> {
        let mut out = SmallVec::new();
        let (mut at, mut var) = (self.hdrsize, 0);
        for &num in layout {
            let unknown = FormatError::impossible("sa layout", "attribute", 0, num.into(), "not registered");
            let attr = reg.get(num).ok_or(unknown)?;
            let len = if attr.length != 0 {
                usize::from(attr.length)
            } else {
                let off = 6 + 2 * var;
                var += 1;
                let there = off + 2 <= self.hdrsize;
                let problem = Problem::Truncated { need: off + 2, have: self.hdrsize };
                let len = u16_at(self.buf, off, self.order).filter(|_| there);
                usize::from(len.ok_or(FormatError::new(S, "sa_lengths", off, problem))?)
            };
            let data = self.buf.get(at..).and_then(|b| b.get(..len));
            let problem = Problem::Truncated { need: at + len, have: self.buf.len() };
            let data = data.ok_or(FormatError::new(S, "attribute", at, problem))?;
            out.push(SaSlice { num, offset: at, data, order: self.order });
            at = (at + len).next_multiple_of(8);
        }
        Ok(out)
    }
}

/// Bytes of the header for attributes of which `variable` have no fixed length.
pub const fn header_size(variable: usize) -> usize {
    if variable > 1 { SA_HDR_SIZE + ((variable - 1) * 2).next_multiple_of(8) } else { SA_HDR_SIZE }
}

/// Packs attributes, in the order of the layout of this number, into a buffer in the machine's
/// order. Their data is in that order already.
pub fn build(layout: u16, attrs: &[(u16, &[u8])], reg: &SaRegistry) -> Result<Vec<u8>> {
    let bad = |v, why| FormatError::impossible("sa layout", "attribute", 0, v, why);
    let mut lengths: SmallVec<[u16; 8]> = SmallVec::new();
    for (num, data) in attrs {
        let attr = reg.get(*num).ok_or(bad((*num).into(), "not registered"))?;
        let len = u16::try_from(data.len()).map_err(|_| bad(data.len() as u64, "too long"))?;
        if attr.length == 0 {
            lengths.push(len);
        } else if attr.length != len {
            return Err(bad(len.into(), "not the registered length"));
        }
    }
    let hdrsize = header_size(lengths.len());
    if layout >= SA_MAX_LAYOUTS || hdrsize > 63 * 8 {
        return Err(bad(layout.into(), "layout number or header too large"));
    }
    let mut w = crate::bytes::Writer::native(512);
    w.u32(SA_MAGIC);
    w.u16(((hdrsize / 8) as u16) << 10 | layout);
    lengths.iter().for_each(|l| w.u16(*l));
    w.pad_to(hdrsize);
    for (_, data) in attrs {
        w.pad_to(w.len().next_multiple_of(8));
        w.bytes(data);
    }
    Ok(w.finish())
}
