//! The XDR encoding: big endian, everything in units of four bytes.
//!
//! ```text
//! list:  version, flags, pairs..., 0, 0
//! pair:  bytes of the pair, its size in memory, name (length, bytes), type, elements, value
//! ```
//!
//! An array of small integers spends four bytes an element and repeats its count; a byte array does
//! neither.

use super::{MAX_DEPTH, NvList, NvValue, pair_size};
use crate::bytes::{Reader, Writer};
use crate::error::{Problem, Result};
use crate::order::ByteOrder;

/// A name's length, with its NUL, is a signed 16-bit number in the native encoding.
const MAX_NAME: usize = i16::MAX as usize - 1;

/// Decodes a packed list, header included; also gives the bytes it takes.
pub fn decode(buf: &[u8]) -> Result<(NvList, usize)> {
    let mut r = Reader::new(buf, ByteOrder::Big, "nvlist(xdr)");
    r.skip(4, "header")?;
    let list = list(&mut r, 0)?;
    Ok((list, r.pos()))
}

fn list(r: &mut Reader<'_>, depth: usize) -> Result<NvList> {
    if depth >= MAX_DEPTH {
        return Err(r.error("nvlist", Problem::TooDeep { limit: MAX_DEPTH }));
    }
    let mut out = NvList::new();
    out.version = r.u32("nvl_version")? as i32;
    if out.version != 0 {
        let problem = Problem::Impossible { value: out.version as u32 as u64, why: "only 0 is known" };
        return Err(r.error("nvl_version", problem));
    }
    out.flags = r.u32("nvl_nvflag")?;
    loop {
        let start = r.pos();
        let encoded = r.u32("encode_size")? as usize;
        let decoded = r.u32("decode_size")?;
        if decoded == 0 {
            return Ok(out);
        }
        let (name, value) = pair(r, depth)?;
        if r.pos() - start != encoded {
            let why = "the pair has another length";
            return Err(r.error("encode_size", Problem::Impossible { value: encoded as u64, why }));
        }
        out.push(name, value);
    }
}

fn string(r: &mut Reader<'_>, field: &'static str) -> Result<String> {
    let n = r.u32(field)? as usize;
    let at = *r;
    let raw = r.bytes(n, field)?;
    let text = std::str::from_utf8(raw).ok().filter(|s| !s.contains('\0'));
    let text = text.ok_or(at.error(field, Problem::String))?;
    r.skip(n.next_multiple_of(4) - n, field)?;
    Ok(text.to_owned())
}

/// `n` elements of at least `unit` bytes each must still be there before room is made for them.
fn count(r: &Reader<'_>, n: usize, unit: usize) -> Result<usize> {
    match n.checked_mul(unit) {
        Some(need) if need <= r.remaining() => Ok(n),
        need => {
            Err(r
                .error("nelem", Problem::Truncated { need: need.unwrap_or(usize::MAX), have: r.remaining() }))
        }
    }
}

/// An array that repeats its count.
fn array<T>(
    r: &mut Reader<'_>,
    nelem: usize,
    unit: usize,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    if nelem == 0 {
        return Ok(Vec::new());
    }
    let n = r.u32("array count")? as usize;
    if n != nelem {
        return Err(
            r.error("array count", Problem::Impossible { value: n as u64, why: "not the pair's count" })
        );
    }
    let n = count(r, n, unit)?;
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        out.push(one(r)?);
    }
    Ok(out)
}

fn pair(r: &mut Reader<'_>, depth: usize) -> Result<(String, NvValue)> {
    let at = *r;
    let name = string(r, "name")?;
    if name.len() > MAX_NAME {
        return Err(
            at.error("name", Problem::Impossible { value: name.len() as u64, why: "over 32766 bytes" })
        );
    }
    let kind = r.u32("type")?;
    let n = r.u32("nelem")? as usize;
    if n != 1 && matches!(kind, 2..=9 | 18 | 19 | 21..=23 | 27) {
        return Err(r.error("nelem", Problem::Impossible { value: n as u64, why: "a single value" }));
    }
    const V: &str = "value";
    let value = match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(r.u32(V)? as u8),
        3 => NvValue::Int16(r.u32(V)? as i16),
        4 => NvValue::Uint16(r.u32(V)? as u16),
        5 => NvValue::Int32(r.u32(V)? as i32),
        6 => NvValue::Uint32(r.u32(V)?),
        7 => NvValue::Int64(r.u64(V)? as i64),
        8 => NvValue::Uint64(r.u64(V)?),
        9 => NvValue::String(string(r, V)?),
        10 => {
            let raw = r.bytes(n, V)?.to_vec();
            r.skip(n.next_multiple_of(4) - n, V)?;
            NvValue::ByteArray(raw)
        }
        11 => NvValue::Int16Array(array(r, n, 4, |r| r.u32(V).map(|v| v as i16))?),
        12 => NvValue::Uint16Array(array(r, n, 4, |r| r.u32(V).map(|v| v as u16))?),
        13 => NvValue::Int32Array(array(r, n, 4, |r| r.u32(V).map(|v| v as i32))?),
        14 => NvValue::Uint32Array(array(r, n, 4, |r| r.u32(V))?),
        15 => NvValue::Int64Array(array(r, n, 8, |r| r.u64(V).map(|v| v as i64))?),
        16 => NvValue::Uint64Array(array(r, n, 8, |r| r.u64(V))?),
        17 => {
            let mut out = Vec::with_capacity(count(r, n, 4)?);
            for _ in 0..n {
                out.push(string(r, V)?);
            }
            NvValue::StringArray(out)
        }
        18 => NvValue::Hrtime(r.u64(V)? as i64),
        19 => NvValue::List(list(r, depth + 1)?),
        20 => {
            let mut out = Vec::with_capacity(count(r, n, 16)?);
            for _ in 0..n {
                out.push(list(r, depth + 1)?);
            }
            NvValue::ListArray(out)
        }
        21 => NvValue::BooleanValue(r.u32(V)? != 0),
        22 => NvValue::Int8(r.u32(V)? as i8),
        23 => NvValue::Uint8(r.u32(V)? as u8),
        24 => NvValue::BooleanArray(array(r, n, 4, |r| r.u32(V).map(|v| v != 0))?),
        25 => NvValue::Int8Array(array(r, n, 4, |r| r.u32(V).map(|v| v as i8))?),
        26 => NvValue::Uint8Array(array(r, n, 4, |r| r.u32(V).map(|v| v as u8))?),
        27 => NvValue::Double(f64::from_bits(r.u64(V)?)),
        k => return Err(r.error("type", Problem::Impossible { value: k.into(), why: "1 to 27" })),
    };
    Ok((name, value))
}

/// Packs a list, header included. The header's second byte says in which order the writing machine
/// counts, though the encoding does not depend on it.
pub fn encode(list: &NvList) -> Vec<u8> {
    let mut w = Writer::new(ByteOrder::Big, 1024);
    w.bytes(&[super::NV_ENCODE_XDR, u8::from(ByteOrder::NATIVE.bit()), 0, 0]);
    put_list(&mut w, list);
    w.finish()
}

fn put_list(w: &mut Writer, list: &NvList) {
    w.u32(list.version as u32);
    w.u32(list.flags);
    for (name, value) in list.iter() {
        let mut p = Writer::new(ByteOrder::Big, 64);
        put_string(&mut p, name);
        p.u32(value.type_number());
        p.u32(value.elements() as u32);
        put_value(&mut p, value);
        w.u32(p.len() as u32 + 8);
        w.u32(pair_size(name, value) as u32);
        w.bytes(&p.finish());
    }
    w.zeros(8);
}

fn put_string(w: &mut Writer, s: &str) {
    w.u32(s.len() as u32);
    w.bytes(s.as_bytes());
    w.zeros(s.len().next_multiple_of(4) - s.len());
}

fn put_array<T: Copy>(w: &mut Writer, v: &[T], mut one: impl FnMut(&mut Writer, T)) {
    if !v.is_empty() {
        w.u32(v.len() as u32);
        v.iter().for_each(|x| one(w, *x));
    }
}

fn put_value(w: &mut Writer, value: &NvValue) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => w.u32(i32::from(*v as i8) as u32),
        NvValue::Int8(v) => w.u32(i32::from(*v) as u32),
        NvValue::Int16(v) => w.u32(i32::from(*v) as u32),
        NvValue::Uint16(v) => w.u32(u32::from(*v)),
        NvValue::Int32(v) => w.u32(*v as u32),
        NvValue::Uint32(v) => w.u32(*v),
        NvValue::Int64(v) | NvValue::Hrtime(v) => w.u64(*v as u64),
        NvValue::Uint64(v) => w.u64(*v),
        NvValue::String(s) => put_string(w, s),
        NvValue::ByteArray(v) => {
            w.bytes(v);
            w.zeros(v.len().next_multiple_of(4) - v.len());
        }
        NvValue::Int16Array(v) => put_array(w, v, |w, x| w.u32(i32::from(x) as u32)),
        NvValue::Uint16Array(v) => put_array(w, v, |w, x| w.u32(u32::from(x))),
        NvValue::Int32Array(v) => put_array(w, v, |w, x| w.u32(x as u32)),
        NvValue::Uint32Array(v) => put_array(w, v, |w, x| w.u32(x)),
        NvValue::Int64Array(v) => put_array(w, v, |w, x| w.u64(x as u64)),
        NvValue::Uint64Array(v) => put_array(w, v, |w, x| w.u64(x)),
        NvValue::StringArray(v) => v.iter().for_each(|s| put_string(w, s)),
        NvValue::List(l) => put_list(w, l),
        NvValue::ListArray(v) => v.iter().for_each(|l| put_list(w, l)),
        NvValue::BooleanValue(v) => w.u32(u32::from(*v)),
        NvValue::BooleanArray(v) => put_array(w, v, |w, x| w.u32(u32::from(x))),
        NvValue::Int8Array(v) => put_array(w, v, |w, x| w.u32(i32::from(x) as u32)),
        NvValue::Uint8Array(v) => put_array(w, v, |w, x| w.u32(i32::from(x as i8) as u32)),
        NvValue::Double(v) => w.u64(v.to_bits()),
    }
}
