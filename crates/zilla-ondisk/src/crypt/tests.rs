#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::*;
use crate::bytes::{Field, Phys};
use crate::object_type::{DMU_OT_DNODE, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_SA};
use crate::zil::ZilChainPhys;

fn bp(level: u8) -> BlkPtr {
    let mut bp = BlkPtr::ZERO;
    bp.set_dva(0, crate::Dva { vdev: 0, offset: 4096, asize: 4096, gang: false });
    bp.set_otype(DMU_OT_PLAIN_FILE_CONTENTS);
    bp.set_crypt(true);
    bp.set_level(level);
    bp.set_psize(4096);
    bp.set_lsize(8192);
    bp.set_compress(15);
    bp.set_checksum_kind(7);
    bp.set_dedup(true);
    bp.set_byteorder(ByteOrder::Little);
    bp.set_mac(*b"0123456789abcdef");
    bp
}

#[test]
fn a_pointer_counts_with_its_code_and_what_is_portable() {
    let mut out = Vec::new();
    bp_auth(&bp(0), 1, &mut out);
    assert_eq!(out.len(), 32);
    assert_eq!(&out[8..24], b"0123456789abcdef");
    // How data are stored is fixed; where, under which checksum and whether shared is not.
    let mut other = bp(0);
    other.set_checksum_kind(8);
    other.set_dedup(false);
    other.set_dva(0, crate::Dva { vdev: 1, offset: 8192, asize: 8192, gang: false });
    let mut again = Vec::new();
    bp_auth(&other, 1, &mut again);
    assert_eq!(out, again);
    other.set_compress(2);
    again.clear();
    bp_auth(&other, 1, &mut again);
    assert_ne!(out, again);
    // Of an indirect block not even that.
    let (mut one, mut two) = (bp(1), bp(1));
    two.set_compress(2);
    two.set_psize(8192);
    two.set_byteorder(ByteOrder::Big);
    // (The code's bytes are the same; in which order the words are read says the bit.)
    two.set_mac(*b"0123456789abcdef");
    one.set_mac(*b"0123456789abcdef");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    bp_auth(&one, 1, &mut a);
    bp_auth(&two, 1, &mut b);
    assert_eq!(a, b);
    let mut hole = Vec::new();
    bp_auth(&BlkPtr::hole(4096, 19, 0, 77), 1, &mut hole);
    assert_eq!(hole, [0; 32]);
    let mut old = Vec::new();
    bp_auth(&bp(0), 0, &mut old);
    assert_eq!(old.len(), 24);
}

fn dnode(block: &mut [u8], slot: usize, bonustype: u8, bonuslen: u16, extra: u8) {
    let d = &mut block[slot << 9..];
    d[0] = DMU_OT_PLAIN_FILE_CONTENTS;
    d[3] = 1;
    d[4] = bonustype;
    d[7] = 3;
    d[10..12].copy_from_slice(&bonuslen.to_le_bytes());
    d[12] = extra;
    d[24..32].fill(9);
}

#[test]
fn of_a_block_of_dnodes_only_bonuses_are_secret() {
    let mut block = vec![0; 4 << 9];
    dnode(&mut block, 0, DMU_OT_SA, 100, 1);
    dnode(&mut block, 2, DMU_OT_DNODE, 0, 0);
    let parts = dnode_block(&block, ByteOrder::NATIVE, 1).unwrap();
    let bonus = 64 + 128..1024;
    assert_eq!(parts.secret, vec![bonus]);
    // Two cores and pointers, the second's empty bonus, and a free slot in whole.
    assert_eq!(parts.aad.len(), 64 + 32 + (64 + 32 + 512 - 192) + 512);
    assert!(parts.aad[24..32].iter().all(|b| *b == 0), "space is not portable");
    assert_eq!(parts.aad[7], 0, "nor are the flags");
    let message = parts.gather(&block);
    assert_eq!(message.len(), 1024 - 192);
    let mut copy = block.clone();
    parts.scatter(&vec![0xee; message.len()], &mut copy);
    assert_eq!(parts.gather(&copy), vec![0xee; message.len()]);
    parts.scatter(&message, &mut copy);
    assert_eq!(copy, block);
}

#[test]
fn hostile_blocks_are_refused() {
    let mut block = vec![0; 4 << 9];
    dnode(&mut block, 3, DMU_OT_SA, 100, 1);
    assert!(dnode_block(&block, ByteOrder::NATIVE, 1).is_err());
    dnode(&mut block, 3, DMU_OT_SA, 100, 0);
    block[(3 << 9) + 3] = 200;
    assert!(dnode_block(&block, ByteOrder::NATIVE, 1).is_err());
    block[(3 << 9) + 3] = 3;
    block[(3 << 9) + 7] = 4;
    assert!(dnode_block(&block, ByteOrder::NATIVE, 1).is_err(), "no room for a spill pointer");

    let head = ZilChainPhys::SIZE;
    let mut log = vec![0u8; 4096];
    let nused = |log: &mut Vec<u8>, n: u64| log[136..144].copy_from_slice(&n.to_ne_bytes());
    for bad in [0, head as u64 - 1, 4097, u64::MAX] {
        nused(&mut log, bad);
        assert!(log_block(&log, ByteOrder::NATIVE).is_err(), "{bad}");
    }
    nused(&mut log, head as u64 + 40);
    for bad in [0u64, 31, 41, u64::MAX] {
        log[head + 8..head + 16].copy_from_slice(&bad.to_ne_bytes());
        assert!(log_block(&log, ByteOrder::NATIVE).is_err(), "{bad}");
    }
    log[head + 8..head + 16].copy_from_slice(&40u64.to_ne_bytes());
    log[head..head + 8].copy_from_slice(&9u64.to_ne_bytes());
    assert!(log_block(&log, ByteOrder::NATIVE).is_err(), "a write needs its pointer");
    assert!(objset_parts(&[0; 700], ByteOrder::NATIVE, 1).is_err());
}

#[test]
fn of_a_log_block_headers_and_pointers_are_plain() {
    let head = ZilChainPhys::SIZE;
    let mut log = vec![7u8; 4096];
    let mut put = |at: usize, v: u64| log[at..at + 8].copy_from_slice(&v.to_ne_bytes());
    put(136, (head + 200 + 48) as u64);
    put(head, 9);
    put(head + 8, 200);
    put(head + 200, 1);
    put(head + 208, 48);
    let parts = log_block(&log, ByteOrder::NATIVE).unwrap();
    let at = |r: Range<usize>| head + r.start..head + r.end;
    assert_eq!(parts.secret, [at(32..64), at(192..200), at(232..248)]);
    assert_eq!(parts.aad.len(), head - 40 + 32 + 128 + 32);
    let _ = ZilChainPhys::decode(&log, ByteOrder::NATIVE).unwrap();
    assert_eq!(BlkPtr::SIZE, 128);
}

#[test]
fn an_objsets_codes_cover_the_same_in_either_order() {
    use crate::objset::{ObjsetPhys, ObjsetSize};
    let mut os = ObjsetPhys::new(ObjsetSize::V3, 2);
    os.flags = 7;
    os.meta_dnode.otype = DMU_OT_DNODE;
    os.meta_dnode.nlevels = 1;
    os.meta_dnode.datablkszsec = 32;
    os.meta_dnode.indblkshift = 17;
    os.meta_dnode.maxblkid = 5;
    os.meta_dnode.nblkptr = 1;
    os.meta_dnode.blkptr = smallvec::smallvec![bp(0)];
    let mut block = os.encode().unwrap();
    let parts = objset_parts(&block, ByteOrder::NATIVE, 1).unwrap();
    assert_eq!(parts.local, None, "no accounts");
    assert_eq!(parts.portable.len(), 16 + 64 + 32);
    assert_eq!(parts.portable[..8], 2u64.to_be_bytes());
    os.userused_dnode = os.meta_dnode.clone();
    os.zil_header.claim_txg = 9;
    os.meta_dnode.used = 12345;
    block = os.encode().unwrap();
    let more = objset_parts(&block, ByteOrder::NATIVE, 1).unwrap();
    assert_eq!(more.portable, parts.portable, "neither log nor space is covered");
    assert_eq!(more.local.unwrap().len(), 8 + 64 + 32);
    put_objset_macs(&mut block, &[1; 32], &[2; 32]);
    let back = ObjsetPhys::decode(&block, ByteOrder::NATIVE).unwrap();
    assert_eq!((back.portable_mac, back.local_mac), ([1; 32], [2; 32]));
}
