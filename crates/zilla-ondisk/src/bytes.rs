//! Reading and writing numbers at the front of a byte slice, with the place remembered for errors.

use crate::error::{FormatError, Problem, Result};
use crate::order::ByteOrder;

/// A cursor over bytes of a disk. Every failure names the structure it was made for.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    buf: &'a [u8],
    pos: usize,
    order: ByteOrder,
    structure: &'static str,
}

impl<'a> Reader<'a> {
    pub const fn new(buf: &'a [u8], order: ByteOrder, structure: &'static str) -> Reader<'a> {
        Reader { buf, pos: 0, order, structure }
    }

    pub const fn pos(&self) -> usize {
        self.pos
    }

    pub const fn order(&self) -> ByteOrder {
        self.order
    }

    pub const fn structure(&self) -> &'static str {
        self.structure
    }

    /// Bytes not yet read.
    pub fn rest(&self) -> &'a [u8] {
        self.buf.get(self.pos..).unwrap_or_default()
    }

    pub fn remaining(&self) -> usize {
        self.rest().len()
    }

    /// The error for the field that begins here.
    pub const fn error(&self, field: &'static str, problem: Problem) -> FormatError {
        FormatError::new(self.structure, field, self.pos, problem)
    }

    pub fn bytes(&mut self, n: usize, field: &'static str) -> Result<&'a [u8]> {
        let rest = self.rest();
        let out = rest.get(..n).ok_or(self.error(field, Problem::Truncated { need: n, have: rest.len() }))?;
        self.pos += n;
        Ok(out)
    }

    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N]> {
        let rest = self.rest();
        let out =
            *rest.first_chunk().ok_or(self.error(field, Problem::Truncated { need: N, have: rest.len() }))?;
        self.pos += N;
        Ok(out)
    }

    pub fn skip(&mut self, n: usize, field: &'static str) -> Result<()> {
        self.bytes(n, field).map(drop)
    }

    pub fn u8(&mut self, field: &'static str) -> Result<u8> {
        self.array::<1>(field).map(|[b]| b)
    }

    pub fn u16(&mut self, field: &'static str) -> Result<u16> {
        let order = self.order;
        self.array(field).map(|b| order.u16(b))
    }

    pub fn u32(&mut self, field: &'static str) -> Result<u32> {
        let order = self.order;
        self.array(field).map(|b| order.u32(b))
    }

    pub fn u64(&mut self, field: &'static str) -> Result<u64> {
        let order = self.order;
        self.array(field).map(|b| order.u64(b))
    }
}

/// Bytes being written. The order is the machine's for everything that reaches a disk.
#[derive(Clone, Debug)]
pub struct Writer {
    out: Vec<u8>,
    order: ByteOrder,
}

impl Writer {
    pub fn new(order: ByteOrder, capacity: usize) -> Writer {
        Writer { out: Vec::with_capacity(capacity), order }
    }

    pub fn native(capacity: usize) -> Writer {
        Writer::new(ByteOrder::NATIVE, capacity)
    }

    pub fn len(&self) -> usize {
        self.out.len()
    }

    pub fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    pub const fn order(&self) -> ByteOrder {
        self.order
    }

    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    pub fn bytes(&mut self, b: &[u8]) {
        self.out.extend_from_slice(b);
    }

    pub fn zeros(&mut self, n: usize) {
        self.out.resize(self.out.len().saturating_add(n), 0);
    }

    /// Zeros up to `len` bytes in all.
    pub fn pad_to(&mut self, len: usize) {
        self.zeros(len.saturating_sub(self.out.len()));
    }

    pub fn u8(&mut self, v: u8) {
        self.out.push(v);
    }

    pub fn u16(&mut self, v: u16) {
        self.out.extend_from_slice(&self.order.put_u16(v));
    }

    pub fn u32(&mut self, v: u32) {
        self.out.extend_from_slice(&self.order.put_u32(v));
    }

    pub fn u64(&mut self, v: u64) {
        self.out.extend_from_slice(&self.order.put_u64(v));
    }
}

/// Something of a fixed size that stands in a structure.
pub trait Field: Sized {
    const SIZE: usize;
    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self>;
    fn write(&self, w: &mut Writer);
}

/// A whole structure of a fixed size.
pub trait Phys: Field {
    const NAME: &'static str;

    /// Reads the structure from the front of `buf`; bytes behind it are not looked at.
    fn decode(buf: &[u8], order: ByteOrder) -> Result<Self> {
        Self::read(&mut Reader::new(buf, order, Self::NAME), "")
    }

    /// The bytes as this machine writes them.
    fn encode(&self) -> Vec<u8> {
        self.encode_in(ByteOrder::NATIVE)
    }

    /// The bytes as a machine of `order` would write them.
    fn encode_in(&self, order: ByteOrder) -> Vec<u8> {
        let mut w = Writer::new(order, Self::SIZE);
        self.write(&mut w);
        w.finish()
    }
}

macro_rules! int_field {
    ($($t:ident $n:literal),*) => {$(
        impl Field for $t {
            const SIZE: usize = $n;
            fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self> { r.$t(field) }
            fn write(&self, w: &mut Writer) { w.$t(*self) }
        }
    )*};
}
int_field!(u8 1, u16 2, u32 4, u64 8);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;

    fn read(r: &mut Reader<'_>, field: &'static str) -> Result<Self> {
        let mut out = [T::default(); N];
        for v in &mut out {
            *v = T::read(r, field)?;
        }
        Ok(out)
    }

    fn write(&self, w: &mut Writer) {
        for v in self {
            v.write(w);
        }
    }
}

/// Declares a structure whose fields follow each other on disk without gaps, as all of ZFS's do.
macro_rules! phys {
    ($(#[$m:meta])* pub struct $name:ident ($label:literal) {
        $( $(#[$fm:meta])* $f:ident : $t:ty ),* $(,)?
    }) => {
        $(#[$m])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub struct $name { $( $(#[$fm])* pub $f: $t ),* }

        impl $crate::bytes::Field for $name {
            const SIZE: usize = 0 $( + <$t as $crate::bytes::Field>::SIZE )*;

            fn read(r: &mut $crate::bytes::Reader<'_>, _: &'static str) -> $crate::error::Result<Self> {
                Ok($name { $( $f: <$t as $crate::bytes::Field>::read(r, stringify!($f))? ),* })
            }

            fn write(&self, w: &mut $crate::bytes::Writer) {
                $( $crate::bytes::Field::write(&self.$f, w); )*
            }
        }

        impl $crate::bytes::Phys for $name {
            const NAME: &'static str = $label;
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $( $f: <$t as $crate::bytes::Zero>::ZERO ),* }
            }
        }
    };
}
pub(crate) use phys;

/// All zeros: what a structure is before anything is put into it. Arrays of any length have it,
/// which `Default` does not give.
pub trait Zero {
    const ZERO: Self;
}

macro_rules! zero {
    ($($t:ty),*) => {$( impl Zero for $t { const ZERO: Self = 0; } )*};
}
zero!(u8, u16, u32, u64);

impl<T: Zero + Copy, const N: usize> Zero for [T; N] {
    const ZERO: Self = [T::ZERO; N];
}

/// The `N` bytes of `buf` at `off`, if they are there.
pub(crate) fn array_at<const N: usize>(buf: &[u8], off: usize) -> Option<[u8; N]> {
    buf.get(off..)?.first_chunk().copied()
}

pub(crate) fn u16_at(buf: &[u8], off: usize, order: ByteOrder) -> Option<u16> {
    array_at(buf, off).map(|b| order.u16(b))
}

pub(crate) fn u32_at(buf: &[u8], off: usize, order: ByteOrder) -> Option<u32> {
    array_at(buf, off).map(|b| order.u32(b))
}

pub(crate) fn u64_at(buf: &[u8], off: usize, order: ByteOrder) -> Option<u64> {
    array_at(buf, off).map(|b| order.u64(b))
}

/// Copies `src` to `buf` at `off`; `None` and nothing done when it does not fit.
pub(crate) fn put_at(buf: &mut [u8], off: usize, src: &[u8]) -> Option<()> {
    buf.get_mut(off..)?.get_mut(..src.len())?.copy_from_slice(src);
    Some(())
}
