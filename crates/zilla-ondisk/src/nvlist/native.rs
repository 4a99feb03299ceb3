//! The native encoding: OpenZFS's structures in memory, with pointers zeroed, in the writer's byte
//! order.
//!
//! ```text
//! list:  version, flags, pairs..., 0          (an inner list's version and flags stand in its pair's value)
//! pair:  size:4, name_sz:2, 0:2, elements:4, type:4, name and NUL to 8 bytes, value to 8 bytes
//! ```
//!
//! The pairs of an inner list follow the pair that holds its 24-byte head; those of an array, one
//! after another.

use super::{MAX_DEPTH, NV_ENCODE_NATIVE, NvList, NvValue, pair_size};
use crate::bytes::{Reader, Writer};
use crate::error::{Problem, Result};
use crate::order::ByteOrder;

const S: &str = "nvlist(native)";
const PAIR_HEAD: usize = 16;
const LIST_HEAD: usize = 24;

/// Decodes a packed list, header included; also gives the bytes it takes.
pub fn decode(buf: &[u8], order: ByteOrder) -> Result<(NvList, usize)> {
    let mut r = Reader::new(buf, order, S);
    r.skip(4, "header")?;
    let mut out = NvList::new();
    (out.version, out.flags) = head(&mut r)?;
    pairs(&mut r, &mut out, 0)?;
    Ok((out, r.pos()))
}

fn head(r: &mut Reader<'_>) -> Result<(i32, u32)> {
    let version = r.u32("nvl_version")?;
    if version != 0 {
        let problem = Problem::Impossible { value: version.into(), why: "only 0 is known" };
        return Err(r.error("nvl_version", problem));
    }
    Ok((0, r.u32("nvl_nvflag")?))
}

fn pairs(r: &mut Reader<'_>, out: &mut NvList, depth: usize) -> Result<()> {
    if depth >= MAX_DEPTH {
        return Err(r.error("nvlist", Problem::TooDeep { limit: MAX_DEPTH }));
    }
    loop {
        let at = *r;
        let size = r.u32("nvp_size")? as usize;
        if size == 0 {
            return Ok(());
        }
        let mut p = at;
        let whole = r_pair(&mut p, size)?;
        let (name, value) = pair(whole, size, &mut p, depth)?;
        out.push(name, value);
        *r = p;
    }
}

/// Takes the `size` bytes of a pair off, and gives a reader of the pair alone that counts from the
/// same start.
fn r_pair<'a>(r: &mut Reader<'a>, size: usize) -> Result<Reader<'a>> {
    let whole = *r;
    r.skip(size, "nvp_size")?;
    Ok(whole)
}

fn string(raw: &[u8]) -> Option<String> {
    let (text, _) = raw.split_at_checked(raw.iter().position(|b| *b == 0)?)?;
    String::from_utf8(text.to_vec()).ok()
}

fn pair(mut p: Reader<'_>, size: usize, after: &mut Reader<'_>, depth: usize) -> Result<(String, NvValue)> {
    let start = p;
    p.skip(4, "nvp_size")?;
    let name_sz = usize::from(p.u16("nvp_name_sz")?);
    p.skip(2, "nvp_reserve")?;
    let n = p.u32("nvp_value_elem")? as usize;
    let kind = p.u32("nvp_type")?;
    let name = string(p.bytes(name_sz, "nvp_name")?).ok_or(start.error("nvp_name", Problem::String))?;
    let value_at = (PAIR_HEAD + name_sz).next_multiple_of(8);
    if value_at > size {
        return Err(start.error("nvp_size", Problem::Truncated { need: value_at, have: size }));
    }
    let mut p = start;
    p.skip(value_at, "value")?;
    let raw = p.bytes(size - value_at, "value")?;
    if n != 1 && matches!(kind, 2..=9 | 18 | 19 | 21..=23 | 27) {
        return Err(
            start.error("nvp_value_elem", Problem::Impossible { value: n as u64, why: "a single value" })
        );
    }
    Ok((name, value(kind, n, Reader::new(raw, start.order(), S), after, depth)?))
}

/// `n` elements of `unit` bytes must be there before room is made for them.
fn array<T>(
    v: &mut Reader<'_>,
    n: usize,
    unit: usize,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let need = n.saturating_mul(unit);
    if need > v.remaining() {
        return Err(v.error("value", Problem::Truncated { need, have: v.remaining() }));
    }
    let mut out = Vec::with_capacity(n);
    for _ in 0..n {
        out.push(one(v)?);
    }
    Ok(out)
}

fn value(kind: u32, n: usize, mut v: Reader<'_>, after: &mut Reader<'_>, depth: usize) -> Result<NvValue> {
    const V: &str = "value";
    Ok(match kind {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(v.u8(V)?),
        3 => NvValue::Int16(v.u16(V)? as i16),
        4 => NvValue::Uint16(v.u16(V)?),
        5 => NvValue::Int32(v.u32(V)? as i32),
        6 => NvValue::Uint32(v.u32(V)?),
        7 => NvValue::Int64(v.u64(V)? as i64),
        8 => NvValue::Uint64(v.u64(V)?),
        9 => NvValue::String(string(v.rest()).ok_or(v.error(V, Problem::String))?),
        10 => NvValue::ByteArray(v.bytes(n, V)?.to_vec()),
        11 => NvValue::Int16Array(array(&mut v, n, 2, |r| r.u16(V).map(|x| x as i16))?),
        12 => NvValue::Uint16Array(array(&mut v, n, 2, |r| r.u16(V))?),
        13 => NvValue::Int32Array(array(&mut v, n, 4, |r| r.u32(V).map(|x| x as i32))?),
        14 => NvValue::Uint32Array(array(&mut v, n, 4, |r| r.u32(V))?),
        15 => NvValue::Int64Array(array(&mut v, n, 8, |r| r.u64(V).map(|x| x as i64))?),
        16 => NvValue::Uint64Array(array(&mut v, n, 8, |r| r.u64(V))?),
        17 => {
            v.skip(n.saturating_mul(8), V)?;
            NvValue::StringArray(array(&mut v, n, 1, |r| {
                let s = string(r.rest()).ok_or(r.error(V, Problem::String))?;
                r.skip(s.len() + 1, V)?;
                Ok(s)
            })?)
        }
        18 => NvValue::Hrtime(v.u64(V)? as i64),
        19 => NvValue::List(inner(&mut v, after, depth)?),
        20 => {
            v.skip(n.saturating_mul(8), V)?;
            NvValue::ListArray(array(&mut v, n, LIST_HEAD, |r| inner(r, after, depth))?)
        }
        21 => NvValue::BooleanValue(v.u32(V)? != 0),
        22 => NvValue::Int8(v.u8(V)? as i8),
        23 => NvValue::Uint8(v.u8(V)?),
        24 => NvValue::BooleanArray(array(&mut v, n, 4, |r| r.u32(V).map(|x| x != 0))?),
        25 => NvValue::Int8Array(array(&mut v, n, 1, |r| r.u8(V).map(|x| x as i8))?),
        26 => NvValue::Uint8Array(v.bytes(n, V)?.to_vec()),
        27 => NvValue::Double(f64::from_bits(v.u64(V)?)),
        k => return Err(after.error("nvp_type", Problem::Impossible { value: k.into(), why: "1 to 27" })),
    })
}

/// A list whose head stands in `v` and whose pairs follow in `after`.
fn inner(v: &mut Reader<'_>, after: &mut Reader<'_>, depth: usize) -> Result<NvList> {
    let mut out = NvList::new();
    (out.version, out.flags) = head(v)?;
    v.skip(LIST_HEAD - 8, "nvlist")?;
    pairs(after, &mut out, depth + 1)?;
    Ok(out)
}

/// Packs a list, header included, as a machine of `order` would.
pub fn encode(list: &NvList, order: ByteOrder) -> Vec<u8> {
    let mut w = Writer::new(order, 1024);
    w.bytes(&[NV_ENCODE_NATIVE, u8::from(order.bit()), 0, 0]);
    w.u32(list.version as u32);
    w.u32(list.flags);
    put_pairs(&mut w, list);
    w.finish()
}

fn put_pairs(w: &mut Writer, list: &NvList) {
    for (name, value) in list.iter() {
        let end = w.len() + pair_size(name, value);
        w.u32(pair_size(name, value) as u32);
        w.u16(name.len() as u16 + 1);
        w.u16(0);
        w.u32(value.elements() as u32);
        w.u32(value.type_number());
        w.bytes(name.as_bytes());
        w.zeros((PAIR_HEAD + name.len() + 1).next_multiple_of(8) - PAIR_HEAD - name.len());
        put_value(w, value);
        w.pad_to(end);
        match value {
            NvValue::List(l) => put_pairs(w, l),
            NvValue::ListArray(v) => v.iter().for_each(|l| put_pairs(w, l)),
            _ => {}
        }
    }
    w.u32(0);
}

fn put_head(w: &mut Writer, list: &NvList) {
    w.u32(list.version as u32);
    w.u32(list.flags);
    w.zeros(LIST_HEAD - 8);
}

fn put_value(w: &mut Writer, value: &NvValue) {
    match value {
        NvValue::Boolean => {}
        NvValue::Byte(v) | NvValue::Uint8(v) => w.u8(*v),
        NvValue::Int8(v) => w.u8(*v as u8),
        NvValue::Int16(v) => w.u16(*v as u16),
        NvValue::Uint16(v) => w.u16(*v),
        NvValue::Int32(v) => w.u32(*v as u32),
        NvValue::Uint32(v) => w.u32(*v),
        NvValue::Int64(v) | NvValue::Hrtime(v) => w.u64(*v as u64),
        NvValue::Uint64(v) => w.u64(*v),
        NvValue::String(s) => {
            w.bytes(s.as_bytes());
            w.u8(0);
        }
        NvValue::ByteArray(v) | NvValue::Uint8Array(v) => w.bytes(v),
        NvValue::Int16Array(v) => v.iter().for_each(|x| w.u16(*x as u16)),
        NvValue::Uint16Array(v) => v.iter().for_each(|x| w.u16(*x)),
        NvValue::Int32Array(v) => v.iter().for_each(|x| w.u32(*x as u32)),
        NvValue::Uint32Array(v) => v.iter().for_each(|x| w.u32(*x)),
        NvValue::Int64Array(v) => v.iter().for_each(|x| w.u64(*x as u64)),
        NvValue::Uint64Array(v) => v.iter().for_each(|x| w.u64(*x)),
        NvValue::StringArray(v) => {
            w.zeros(8 * v.len());
            for s in v {
                w.bytes(s.as_bytes());
                w.u8(0);
            }
        }
        NvValue::List(l) => put_head(w, l),
        NvValue::ListArray(v) => {
            w.zeros(8 * v.len());
            v.iter().for_each(|l| put_head(w, l));
        }
        NvValue::BooleanValue(v) => w.u32(u32::from(*v)),
        NvValue::BooleanArray(v) => v.iter().for_each(|x| w.u32(u32::from(*x))),
        NvValue::Int8Array(v) => v.iter().for_each(|x| w.u8(*x as u8)),
        NvValue::Double(v) => w.u64(v.to_bits()),
    }
}
