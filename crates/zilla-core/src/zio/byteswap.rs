//! Metadata of a pool from a machine of the other byte order, brought into this one's.
//!
//! The data of files is bytes and stays; everything the engine itself reads becomes as if this
//! machine had written it, so that nothing above needs to know. Pointers in indirect blocks keep
//! their order bit: it says how the block they point to lies on disk.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use bytes::Bytes;
use zilla_env::IoBuf;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::object_type::{self, ByteswapClass};

/// The block in this machine's order.
pub fn block(bp: &BlkPtr, data: Bytes) -> Bytes {
    if bp.byteorder().is_native() {
        return data;
    }
    let mut buf = IoBuf::from_slice(&data);
    let class = if bp.level() > 0 { ByteswapClass::Uint64 } else { object_type::byteswap_class(bp.otype()) };
    class_swap(class, &mut buf);
    buf.into_bytes()
}

fn swap<const N: usize>(buf: &mut [u8]) {
    buf.as_chunks_mut::<N>().0.iter_mut().for_each(|c| c.reverse());
}

fn swap_at<const N: usize>(buf: &mut [u8], at: usize) {
    if let Some(c) = buf.get_mut(at..at + N) {
        c.reverse();
    }
}

fn u64s(buf: &mut [u8], range: std::ops::Range<usize>) {
    let end = range.end.min(buf.len());
    if let Some(part) = buf.get_mut(range.start.min(end)..end) {
        swap::<8>(part);
    }
}

/// Swaps an object's block, or a bonus buffer, of a class.
pub fn class_swap(class: ByteswapClass, buf: &mut [u8]) {
    match class {
        ByteswapClass::Uint8 => {}
        ByteswapClass::Uint16 => swap::<2>(buf),
        ByteswapClass::Uint32 => swap::<4>(buf),
        ByteswapClass::Uint64 => swap::<8>(buf),
        ByteswapClass::Zap => zap(buf),
        ByteswapClass::Dnode => dnodes(buf),
        ByteswapClass::Objset => objset(buf),
        ByteswapClass::Znode => znode(buf),
        ByteswapClass::OldAcl => old_aces(buf),
        ByteswapClass::Acl => aces(buf),
    }
}

const ZBT_LEAF: u64 = 1 << 63;
const ZBT_MICRO: u64 = (1 << 63) + 3;

fn zap(buf: &mut [u8]) {
    u64s(buf, 0..8);
    let Some(kind) = buf.first_chunk::<8>().map(|c| u64::from_ne_bytes(*c)) else { return };
    match kind {
        ZBT_MICRO => {
            // Salt and flags, then entries of value, discriminator, pad and name.
            u64s(buf, 8..24);
            for entry in buf.get_mut(64..).unwrap_or_default().as_chunks_mut::<64>().0 {
                swap_at::<8>(entry, 0);
                swap_at::<4>(entry, 8);
                swap_at::<2>(entry, 12);
            }
        }
        ZBT_LEAF => zap_leaf(buf),
        _ => {
            let end = buf.len();
            u64s(buf, 8..end);
        }
    }
}

/// Header (next, prefix, magic, counts), hash table of u16, chunks of 24 bytes told apart by their
/// first byte.
fn zap_leaf(buf: &mut [u8]) {
    u64s(buf, 8..24);
    swap_at::<4>(buf, 24);
    for at in [28, 30, 32, 34] {
        swap_at::<2>(buf, at);
    }
    let table = buf.len() / 32 * 2;
    let start = 48;
    if let Some(t) = buf.get_mut(start..start + table) {
        swap::<2>(t);
    }
    for chunk in buf.get_mut(start + table..).unwrap_or_default().as_chunks_mut::<24>().0 {
        match chunk.first() {
            // Entry: type, length of integers, next, name chunk and count, value chunk and count,
            // cd, hash.
            Some(252) => {
                for at in [2, 4, 6, 8, 10] {
                    swap_at::<2>(chunk, at);
                }
                swap_at::<4>(chunk, 12);
                swap_at::<8>(chunk, 16);
            }
            // Array: its bytes are big-endian always; only the link is a number of the machine.
            Some(251) => swap_at::<2>(chunk, 22),
            _ => {
                // Free: the link stands behind the type and a pad.
                swap_at::<2>(chunk, 22);
            }
        }
    }
}

const DNODE: usize = 512;

fn dnodes(buf: &mut [u8]) {
    let mut at = 0;
    while let Some(rest) = buf.get_mut(at..).filter(|r| r.len() >= DNODE) {
        let extra = rest.get(12).copied().unwrap_or(0) as usize;
        let size = ((extra + 1) * DNODE).min(rest.len());
        if let Some(one) = rest.get_mut(..size) {
            dnode(one);
        }
        at += size;
    }
}

fn dnode(buf: &mut [u8]) {
    let byte = |buf: &[u8], at: usize| buf.get(at).copied().unwrap_or(0);
    let (otype, nblkptr, bonustype, flags) = (byte(buf, 0), byte(buf, 3), byte(buf, 4), byte(buf, 7));
    if otype == 0 {
        return;
    }
    swap_at::<2>(buf, 8);
    swap_at::<2>(buf, 10);
    u64s(buf, 16..32);
    let bps = 64 + usize::from(nblkptr.min(3)) * 128;
    u64s(buf, 64..bps);
    let bonuslen =
        buf.get(10..12).and_then(|b| b.first_chunk()).map_or(0, |c| usize::from(u16::from_ne_bytes(*c)));
    let spill = flags & 4 != 0;
    let end = if spill { buf.len() - 128 } else { buf.len() };
    if bonuslen > 0 {
        let stop = (bps + bonuslen).min(end);
        if let Some(bonus) = buf.get_mut(bps..stop) {
            class_swap(object_type::byteswap_class(bonustype), bonus);
        }
    }
    if spill {
        let len = buf.len();
        u64s(buf, len - 128..len);
    }
}

/// Meta dnode, log header, type and flags, codes (bytes), then the accounting dnodes.
fn objset(buf: &mut [u8]) {
    if let Some(d) = buf.get_mut(..DNODE) {
        dnode(d);
    }
    u64s(buf, 512..720);
    for at in [1024, 1536, 2048] {
        if let Some(d) = buf.get_mut(at..at + DNODE) {
            dnode(d);
        }
    }
}

/// Times, numbers, then the ACL: external object and count, version and count, up to six entries in
/// place.
fn znode(buf: &mut [u8]) {
    let version =
        buf.get(182..184).and_then(|b| b.first_chunk()).map_or(0, |c| u16::from_ne_bytes(*c).swap_bytes());
    u64s(buf, 0..168);
    u64s(buf, 168..176);
    swap_at::<4>(buf, 176);
    swap_at::<2>(buf, 180);
    swap_at::<2>(buf, 182);
    let Some(acl) = buf.get_mut(184..) else { return };
    let n = acl.len().min(72);
    if let Some(entries) = acl.get_mut(..n) {
        if version == 0 { old_aces(entries) } else { aces(entries) }
    }
}

/// Old entries: fuid u32, mask u32, flags u16, type u16.
fn old_aces(buf: &mut [u8]) {
    for ace in buf.as_chunks_mut::<12>().0 {
        swap_at::<4>(ace, 0);
        swap_at::<4>(ace, 4);
        swap_at::<2>(ace, 8);
        swap_at::<2>(ace, 10);
    }
}

/// Entries of type, flags, mask, and for some an id; those with an object id carry two guids of
/// bytes.
fn aces(buf: &mut [u8]) {
    const OWNER: u16 = 0x1000;
    const GROUP: u16 = 0x2000 | 0x40;
    const EVERYONE: u16 = 0x4000;
    let mut at = 0;
    while at + 8 <= buf.len() {
        swap_at::<2>(buf, at);
        swap_at::<2>(buf, at + 2);
        swap_at::<4>(buf, at + 4);
        let number =
            |o: usize| buf.get(o..o + 2).and_then(|b| b.first_chunk()).map_or(0, |c| u16::from_ne_bytes(*c));
        let (kind, flags) = (number(at), number(at + 2));
        let who = flags & 0x7040;
        if matches!(kind, 5..=8) {
            swap_at::<8>(buf, at + 8);
            at += 48;
        } else if matches!(who, OWNER | GROUP | EVERYONE) {
            at += 8;
        } else {
            swap_at::<8>(buf, at + 8);
            at += 16;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use zilla_ondisk::{ByteOrder, DnodePhys};

    #[test]
    fn a_foreign_dnode_reads_as_ours() {
        let dn = DnodePhys {
            otype: 19,
            nblkptr: 1,
            indblkshift: 17,
            nlevels: 2,
            datablkszsec: 256,
            maxblkid: 0x0102_0304,
            blkptr: [BlkPtr([7; 16])].into_iter().collect(),
            ..DnodePhys::default()
        };
        let mut native = [0; 512];
        dn.encode_into(&mut native).unwrap();
        let mut foreign = native;
        dnode(&mut foreign);
        assert_ne!(foreign, native);
        let mut read = DnodePhys::decode(&foreign, ByteOrder::NATIVE.swapped()).unwrap();
        read.bonus_order = ByteOrder::NATIVE;
        assert_eq!(read, DnodePhys::decode(&native, ByteOrder::NATIVE).unwrap());
        // Twice is where it was, bonus length aside, which is read after it was swapped.
        let mut back = foreign;
        dnode(&mut back);
        assert_eq!(back, native);
    }
}
