//! Name-value lists: the format's only self-describing structure. Pool configurations, cache files,
//! history records and send streams are packed nvlists.
//!
//! A packed nvlist begins with four bytes: encoding (0 native, 1 XDR), byte order of the writer (1
//! little), two zeros. XDR ([`xdr`]) is what lies on disks, save for the history log; its records,
//! and what passes through ioctls, are native ([`native`]), in the writer's byte order.
//!
//! Bounded against hostile bytes: nesting by [`MAX_DEPTH`], element counts by the bytes that are
//! there.

mod build;
pub mod native;
mod print;
pub mod xdr;

#[cfg(test)]
mod tests;

use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// Names are unique: what nearly every list says of itself.
pub const NV_UNIQUE_NAME: u32 = 1;
pub const NV_UNIQUE_NAME_TYPE: u32 = 2;
/// Deeper nesting is refused. OpenZFS's kernel allows 20 by default, its tools 100.
pub const MAX_DEPTH: usize = 64;

pub const NV_ENCODE_NATIVE: u8 = 0;
pub const NV_ENCODE_XDR: u8 = 1;

/// A value, of one of OpenZFS's 27 types.
#[derive(Clone, PartialEq, Debug)]
pub enum NvValue {
    /// The name alone is the value.
    Boolean,
    Byte(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    String(String),
    ByteArray(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<String>),
    Hrtime(i64),
    List(NvList),
    ListArray(Vec<NvList>),
    BooleanValue(bool),
    Int8(i8),
    Uint8(u8),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Double(f64),
}

impl NvValue {
    /// `data_type_t`.
    pub const fn type_number(&self) -> u32 {
        match self {
            NvValue::Boolean => 1,
            NvValue::Byte(_) => 2,
            NvValue::Int16(_) => 3,
            NvValue::Uint16(_) => 4,
            NvValue::Int32(_) => 5,
            NvValue::Uint32(_) => 6,
            NvValue::Int64(_) => 7,
            NvValue::Uint64(_) => 8,
            NvValue::String(_) => 9,
            NvValue::ByteArray(_) => 10,
            NvValue::Int16Array(_) => 11,
            NvValue::Uint16Array(_) => 12,
            NvValue::Int32Array(_) => 13,
            NvValue::Uint32Array(_) => 14,
            NvValue::Int64Array(_) => 15,
            NvValue::Uint64Array(_) => 16,
            NvValue::StringArray(_) => 17,
            NvValue::Hrtime(_) => 18,
            NvValue::List(_) => 19,
            NvValue::ListArray(_) => 20,
            NvValue::BooleanValue(_) => 21,
            NvValue::Int8(_) => 22,
            NvValue::Uint8(_) => 23,
            NvValue::BooleanArray(_) => 24,
            NvValue::Int8Array(_) => 25,
            NvValue::Uint8Array(_) => 26,
            NvValue::Double(_) => 27,
        }
    }

    /// `nvp_value_elem`: 0 for a bare boolean, 1 for a single value.
    pub fn elements(&self) -> usize {
        match self {
            NvValue::Boolean => 0,
            NvValue::ByteArray(v) | NvValue::Uint8Array(v) => v.len(),
            NvValue::Int16Array(v) => v.len(),
            NvValue::Uint16Array(v) => v.len(),
            NvValue::Int32Array(v) => v.len(),
            NvValue::Uint32Array(v) => v.len(),
            NvValue::Int64Array(v) => v.len(),
            NvValue::Uint64Array(v) => v.len(),
            NvValue::StringArray(v) => v.len(),
            NvValue::ListArray(v) => v.len(),
            NvValue::BooleanArray(v) => v.len(),
            NvValue::Int8Array(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes of the value as OpenZFS holds it in memory, which both encodings state for each pair.
    /// Lists are counted as their 24-byte heads, arrays of strings and lists with 8 bytes of
    /// pointer an element.
    fn memory_size(&self) -> usize {
        const LIST_HEAD: usize = 24;
        let n = self.elements();
        match self {
            NvValue::Boolean => 0,
            NvValue::Byte(_) | NvValue::Int8(_) | NvValue::Uint8(_) => 1,
            NvValue::Int16(_) | NvValue::Uint16(_) => 2,
            NvValue::Int32(_) | NvValue::Uint32(_) | NvValue::BooleanValue(_) => 4,
            NvValue::Int64(_) | NvValue::Uint64(_) | NvValue::Hrtime(_) | NvValue::Double(_) => 8,
            NvValue::String(s) => s.len() + 1,
            NvValue::ByteArray(_) | NvValue::Int8Array(_) | NvValue::Uint8Array(_) => n,
            NvValue::Int16Array(_) | NvValue::Uint16Array(_) => 2 * n,
            NvValue::Int32Array(_) | NvValue::Uint32Array(_) | NvValue::BooleanArray(_) => 4 * n,
            NvValue::Int64Array(_) | NvValue::Uint64Array(_) => 8 * n,
            NvValue::StringArray(v) => 8 * n + v.iter().map(|s| s.len() + 1).sum::<usize>(),
            NvValue::List(_) => LIST_HEAD,
            NvValue::ListArray(_) => (8 + LIST_HEAD) * n,
        }
    }
}

/// Bytes of a pair in OpenZFS's memory: `nvp_size`.
fn pair_size(name: &str, value: &NvValue) -> usize {
    const PAIR_HEAD: usize = 16;
    (PAIR_HEAD + name.len() + 1).next_multiple_of(8) + value.memory_size().next_multiple_of(8)
}

/// Names and values, in the order they were added.
#[derive(Clone, PartialEq, Debug)]
pub struct NvList {
    pub version: i32,
    /// `nvl_nvflag`: [`NV_UNIQUE_NAME`] or [`NV_UNIQUE_NAME_TYPE`] or neither.
    pub flags: u32,
    pairs: Vec<(String, NvValue)>,
}

impl Default for NvList {
    fn default() -> Self {
        NvList::new()
    }
}

impl NvList {
    /// An empty list of unique names.
    pub const fn new() -> NvList {
        NvList { version: 0, flags: NV_UNIQUE_NAME, pairs: Vec::new() }
    }

    /// Reads a packed list; its first bytes say how it is encoded. Bytes behind its end are not
    /// looked at.
    pub fn unpack(buf: &[u8]) -> Result<NvList> {
        NvList::unpack_prefix(buf).map(|(list, _)| list)
    }

    /// The same, and how many bytes the list takes.
    pub fn unpack_prefix(buf: &[u8]) -> Result<(NvList, usize)> {
        let short = Problem::Truncated { need: 4, have: buf.len() };
        let [encoding, endian, _, _] =
            *buf.first_chunk().ok_or(FormatError::new("nvlist", "header", 0, short))?;
        let order = match endian {
            0 => ByteOrder::Big,
            1 => ByteOrder::Little,
            n => return Err(FormatError::impossible("nvlist", "nvh_endian", 1, n.into(), "0 or 1")),
        };
        match encoding {
            NV_ENCODE_XDR => xdr::decode(buf),
            NV_ENCODE_NATIVE => native::decode(buf, order),
            n => Err(FormatError::impossible("nvlist", "nvh_encoding", 0, n.into(), "0 or 1")),
        }
    }

    /// Packs with XDR, as everything on disk is but the history.
    pub fn pack(&self) -> Vec<u8> {
        xdr::encode(self)
    }

    /// Packs in the machine's own form, as it passes between programs.
    pub fn pack_native(&self) -> Vec<u8> {
        native::encode(self, ByteOrder::NATIVE)
    }

    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&str, &NvValue)> + ExactSizeIterator {
        self.pairs.iter().map(|(n, v)| (n.as_str(), v))
    }
}
