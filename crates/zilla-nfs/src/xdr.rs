//! XDR (RFC 4506): numbers of four and eight bytes, big-endian; byte strings with their length
//! before and zeroes behind, up to a multiple of four.
//!
//! What is read comes from a stranger: each string has the greatest length it may have, and nothing
//! is read past the end. The bytes of a WRITE are not copied: they stay in the buffer that they
//! were received in.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use bytes::{Buf, Bytes};

/// The arguments are not what the procedure takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Garbage;

pub(crate) type Read<T> = Result<T, Garbage>;

/// Bytes that are being read.
#[derive(Debug, Clone)]
pub(crate) struct In(pub(crate) Bytes);

impl In {
    pub(crate) fn u32(&mut self) -> Read<u32> {
        self.0.try_get_u32().map_err(|_| Garbage)
    }

    pub(crate) fn u64(&mut self) -> Read<u64> {
        self.0.try_get_u64().map_err(|_| Garbage)
    }

    pub(crate) fn bool(&mut self) -> Read<bool> {
        match self.u32()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Garbage),
        }
    }

    /// An optional part, which `read` reads.
    pub(crate) fn option<T>(&mut self, read: impl FnOnce(&mut In) -> Read<T>) -> Read<Option<T>> {
        if self.bool()? { read(self).map(Some) } else { Ok(None) }
    }

    /// As many bytes.
    pub(crate) fn fixed(&mut self, len: usize) -> Read<Bytes> {
        let padded = len.next_multiple_of(4);
        if self.0.len() < padded {
            return Err(Garbage);
        }
        let bytes = self.0.slice(..len);
        self.0.advance(padded);
        Ok(bytes)
    }

    /// A string of at most so many bytes.
    pub(crate) fn opaque(&mut self, most: usize) -> Read<Bytes> {
        let len = self.u32()? as usize;
        if len > most { Err(Garbage) } else { self.fixed(len) }
    }
}

/// Bytes that are being written.
#[derive(Debug, Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn u32(&mut self, n: u32) -> &mut Out {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(crate) fn u64(&mut self, n: u64) -> &mut Out {
        self.0.extend_from_slice(&n.to_be_bytes());
        self
    }

    pub(crate) fn bool(&mut self, on: bool) -> &mut Out {
        self.u32(u32::from(on))
    }

    pub(crate) fn opaque(&mut self, bytes: &[u8]) -> &mut Out {
        self.u32(bytes.len() as u32).fixed(bytes)
    }

    pub(crate) fn fixed(&mut self, bytes: &[u8]) -> &mut Out {
        self.0.extend_from_slice(bytes);
        self.0.resize(self.0.len() + padding(bytes.len()), 0);
        self
    }
}

/// So many zeroes follow a string.
pub(crate) fn padding(len: usize) -> usize {
    len.next_multiple_of(4) - len
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_padded_and_bounded() {
        let mut out = Out::default();
        out.u32(7).opaque(b"hello").u64(9).bool(true);
        let known = [
            0, 0, 0, 7, 0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 1,
        ];
        assert_eq!(out.0, known);
        let mut input = In(out.0.into());
        assert_eq!(input.u32(), Ok(7));
        assert_eq!(input.clone().opaque(4), Err(Garbage));
        assert_eq!(input.opaque(5).unwrap(), "hello");
        assert_eq!((input.u64(), input.bool(), input.u32()), (Ok(9), Ok(true), Err(Garbage)));
    }

    #[test]
    fn what_is_cut_short_is_garbage() {
        assert_eq!(In(Bytes::from_static(&[0, 0, 0, 3, b'a', b'b', b'c'])).opaque(8), Err(Garbage));
        assert_eq!(In(Bytes::from_static(&[0, 0, 0, 2])).bool(), Err(Garbage));
        assert_eq!(In(Bytes::from_static(&[0, 0])).u32(), Err(Garbage));
    }
}
