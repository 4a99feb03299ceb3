//! ZFS's own access control lists, as far as a Linux system needs them: the list that says the same
//! as a file's mode.
//!
//! OpenZFS writes one for every new file and rewrites it at chmod, so that a system with NFSv4 ACLs
//! finds what it expects. Entries for `owner@`, `group@` and `everyone@` are 8 bytes, for named
//! users and groups 16, with object types 48:
//!
//! ```text
//!   | type u16 | flags u16 | access mask u32 | fuid u64, where flags name no abstract owner |
//! ```

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use super::types::{S_IFMT, S_ISGID, S_ISUID, S_ISVTX};
use super::{PFLAG_ACL_TRIVIAL, PFLAG_NO_EXECS_DENIED};

const READ_DATA: u32 = 0x1;
const WRITE_DATA: u32 = 0x2;
const APPEND_DATA: u32 = 0x4;
const READ_NAMED_ATTRS: u32 = 0x8;
const WRITE_NAMED_ATTRS: u32 = 0x10;
const EXECUTE: u32 = 0x20;
const DELETE_CHILD: u32 = 0x40;
const READ_ATTRIBUTES: u32 = 0x80;
const WRITE_ATTRIBUTES: u32 = 0x100;
const READ_ACL: u32 = 0x2_0000;
const WRITE_ACL: u32 = 0x4_0000;
const WRITE_OWNER: u32 = 0x8_0000;
const SYNCHRONIZE: u32 = 0x10_0000;

const ALLOW: u16 = 0;
const DENY: u16 = 1;
const INHERIT_ONLY: u16 = 0x8;
const IDENTIFIER_GROUP: u16 = 0x40;
const OWNER: u16 = 0x1000;
/// ACE_GROUP and ACE_IDENTIFIER_GROUP: the owning group.
const OWNING_GROUP: u16 = 0x2000 | IDENTIFIER_GROUP;
const EVERYONE: u16 = 0x4000;
const TYPE_FLAGS: u16 = 0x7000 | IDENTIFIER_GROUP;

/// File flags that the ACL decides.
const WIDE_FLAGS: u64 = 0x4 | 0x8 | 0x2 | 0x10 | 0x20 | 0x40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ace {
    kind: u16,
    flags: u16,
    mask: u32,
}

/// Bytes of an entry with this type and these flags.
pub(crate) fn ace_size(kind: u16, flags: u16) -> usize {
    match kind {
        // Object types, which only Windows clients set.
        5..=8 => 48,
        _ if matches!(flags & TYPE_FLAGS, OWNER | OWNING_GROUP | EVERYONE) => 8,
        _ => 16,
    }
}

/// The list that grants what `mode` grants.
///
/// Usually three entries that allow. Where the group may do less than others, or the owner less
/// than group or others, entries that deny (and one that allows the owner first) come before them,
/// because the first entry that matches wins.
pub(crate) fn trivial(mode: u32, is_dir: bool) -> Vec<Ace> {
    let write = WRITE_DATA | APPEND_DATA | if is_dir { DELETE_CHILD } else { 0 };
    let bits = |shift: u32| {
        let on = |bit: u32| mode >> shift & bit != 0;
        [on(4), on(2), on(1)]
    };
    let (u, g, o) = (bits(6), bits(3), bits(0));
    let rwx = [READ_DATA, write, EXECUTE];
    let pick = |f: &dyn Fn(bool, bool, bool) -> bool| -> u32 {
        let each = u.iter().zip(&g).zip(&o).zip(&rwx);
        each.filter(|(((u, g), o), _)| f(**u, **g, **o)).map(|(_, mask)| mask).sum()
    };
    let base = READ_ACL | READ_ATTRIBUTES | READ_NAMED_ATTRS | SYNCHRONIZE;
    let owner = WRITE_ATTRIBUTES | WRITE_OWNER | WRITE_ACL | WRITE_NAMED_ATTRS;
    let all = [
        (ALLOW, OWNER, pick(&|u, g, o| u && !g && o)),
        (DENY, OWNER, pick(&|u, g, o| !u && (g || o))),
        (DENY, OWNING_GROUP, pick(&|_, g, o| !g && o)),
        (ALLOW, OWNER, base | owner | pick(&|u, _, _| u)),
        (ALLOW, OWNING_GROUP, base | pick(&|_, g, _| g)),
        (ALLOW, EVERYONE, base | pick(&|_, _, o| o)),
    ];
    all.into_iter().filter(|a| a.2 != 0).map(|(kind, flags, mask)| Ace { kind, flags, mask }).collect()
}

pub(crate) fn encode(aces: &[Ace]) -> Vec<u8> {
    let mut out = Vec::with_capacity(aces.len() * 8);
    for a in aces {
        out.extend_from_slice(&a.kind.to_ne_bytes());
        out.extend_from_slice(&a.flags.to_ne_bytes());
        out.extend_from_slice(&a.mask.to_ne_bytes());
    }
    out
}

/// `zfs_acl_phys`, the 88 bytes in an old znode: where an ACL too long for it lies, sizes, and up
/// to six entries. A trivial one is never outside; who replaces one that was frees its object.
pub(crate) fn legacy_phys(aces: &[Ace], fuids: bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(88);
    out.extend_from_slice(&0u64.to_ne_bytes());
    if fuids {
        let data = encode(aces);
        out.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        out.extend_from_slice(&1u16.to_ne_bytes());
        out.extend_from_slice(&(aces.len() as u16).to_ne_bytes());
        out.extend_from_slice(&data);
    } else {
        out.extend_from_slice(&(aces.len() as u32).to_ne_bytes());
        out.extend_from_slice(&0u16.to_ne_bytes());
        out.extend_from_slice(&0u16.to_ne_bytes());
        for a in aces {
            out.extend_from_slice(&u32::MAX.to_ne_bytes());
            out.extend_from_slice(&a.mask.to_ne_bytes());
            out.extend_from_slice(&a.flags.to_ne_bytes());
            out.extend_from_slice(&a.kind.to_ne_bytes());
        }
    }
    out.resize(88, 0);
    out
}

/// The object that holds an old znode's ACL, if it is outside; 0 otherwise.
pub(crate) fn legacy_extern(phys: &[u8]) -> u64 {
    phys.get(..8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// A file's flags once it has the trivial ACL of `mode`.
pub(crate) fn trivial_pflags(pflags: u64, mode: u32) -> u64 {
    let inherit = pflags & (0x10 | 0x20 | 0x40);
    let mut out = pflags & !WIDE_FLAGS | PFLAG_ACL_TRIVIAL | inherit;
    if mode & 0o111 == 0o111 {
        out |= PFLAG_NO_EXECS_DENIED;
    } else {
        out &= !PFLAG_NO_EXECS_DENIED;
    }
    out
}

/// The permission bits an ACL amounts to: what a chown leaves of a mode whose ACL names users.
pub(crate) fn mode_of(mode: u64, mut aces: &[u8], uid: u64, gid: u64) -> u64 {
    let mut out = mode & u64::from(S_IFMT | S_ISUID | S_ISGID | S_ISVTX);
    let mut seen = 0u64;
    while aces.len() >= 8 {
        let half =
            |at: usize| aces.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes);
        let (kind, flags) = (half(0), half(2));
        let mask = aces.get(4..8).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes);
        let who = aces.get(8..16).and_then(|b| b.try_into().ok()).map_or(u64::MAX, u64::from_ne_bytes);
        let classes = match flags & TYPE_FLAGS {
            OWNER => 0o700,
            OWNING_GROUP => 0o070,
            EVERYONE => 0o777,
            0 if who == uid => 0o700,
            IDENTIFIER_GROUP if who == gid => 0o070,
            _ => 0,
        };
        if flags & INHERIT_ONLY == 0 && kind <= DENY {
            for (data, bit) in [(READ_DATA, 0o444), (WRITE_DATA, 0o222), (EXECUTE, 0o111)] {
                if mask & data != 0 {
                    let new = bit & classes & !seen;
                    seen |= new;
                    if kind == ALLOW {
                        out |= new;
                    }
                }
            }
        }
        aces = aces.get(ace_size(kind, flags)..).unwrap_or_default();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_comes_back_from_its_trivial_acl() {
        for mode in 0..0o1000u32 {
            for dir in [false, true] {
                let aces = trivial(mode, dir);
                assert!((3..=6).contains(&aces.len()));
                assert_eq!(mode_of(0, &encode(&aces), 5, 6), u64::from(mode), "{mode:o}: {aces:?}");
                assert_eq!(legacy_phys(&aces, true).len(), 88);
                assert_eq!(legacy_phys(&aces, false).len(), 88);
            }
        }
    }

    #[test]
    fn a_plain_file_has_the_three_entries_openzfs_writes() {
        let aces = trivial(0o644, false);
        let masks: Vec<u32> = aces.iter().map(|a| a.mask).collect();
        assert_eq!(masks, [0x1e_019f, 0x12_0089, 0x12_0089]);
        assert!(aces.iter().all(|a| a.kind == ALLOW));
    }
}
