//! POSIX ACLs, which Linux keeps in two extended attributes: a version and entries of tag,
//! permissions and id, little-endian.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

pub(crate) const ACCESS: &str = "system.posix_acl_access";
pub(crate) const DEFAULT: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// More entries than an extended attribute of 64K holds.
const MAX_ENTRIES: usize = 8191;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PosixAcl(Vec<Entry>);

impl PosixAcl {
    /// Reads a list; None if it is not a valid one.
    pub(crate) fn decode(value: &[u8]) -> Option<PosixAcl> {
        let (version, mut rest) = value.split_first_chunk::<4>()?;
        if u32::from_le_bytes(*version) != VERSION || rest.len() / 8 > MAX_ENTRIES {
            return None;
        }
        let mut out = Vec::with_capacity(rest.len() / 8);
        while let Some(([t0, t1, p0, p1, id @ ..], tail)) = rest.split_first_chunk::<8>() {
            let (tag, perm) = (u16::from_le_bytes([*t0, *t1]), u16::from_le_bytes([*p0, *p1]));
            if !matches!(tag, USER_OBJ | USER | GROUP_OBJ | GROUP | MASK | OTHER) || perm > 7 {
                return None;
            }
            out.push(Entry { tag, perm, id: u32::from_le_bytes(*id) });
            rest = tail;
        }
        let acl = PosixAcl(out);
        (rest.is_empty() && (acl.0.is_empty() || acl.is_valid())).then_some(acl)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            out.extend_from_slice(&e.tag.to_le_bytes());
            out.extend_from_slice(&e.perm.to_le_bytes());
            out.extend_from_slice(&e.id.to_le_bytes());
        }
        out
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One owner, one group, one other, and a mask if anyone is named; in the order of the tags.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let named = count(USER) + count(GROUP);
        self.0.is_sorted_by_key(|e| e.tag)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|t| count(*t) == 1)
            && count(MASK) <= 1
            && (named == 0 || count(MASK) == 1)
    }

    fn perm_mut(&mut self, tag: u16) -> Option<&mut u16> {
        self.0.iter_mut().find(|e| e.tag == tag).map(|e| &mut e.perm)
    }

    /// The permission bits the list amounts to, and whether it says nothing more than they do.
    pub(crate) fn equiv_mode(&self) -> (u32, bool) {
        let perm = |tag| self.0.iter().find(|e| e.tag == tag).map(|e| u32::from(e.perm));
        let group = perm(MASK).or(perm(GROUP_OBJ)).unwrap_or(0);
        let mode = perm(USER_OBJ).unwrap_or(0) << 6 | group << 3 | perm(OTHER).unwrap_or(0);
        (mode, self.0.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER)))
    }

    /// The list after a chmod: the group's bits are the mask's, if there is one.
    pub(crate) fn chmod(&mut self, mode: u32) {
        let bits = |shift: u32| (mode >> shift & 7) as u16;
        let group = if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        for (tag, perm) in [(USER_OBJ, bits(6)), (group, bits(3)), (OTHER, bits(0))] {
            if let Some(p) = self.perm_mut(tag) {
                *p = perm;
            }
        }
    }

    /// Makes of a default list the access list of a new file, and of the mode asked for the one it
    /// gets. True if the list says more than the mode and must be kept.
    pub(crate) fn create_masq(&mut self, mode: &mut u32) -> bool {
        let group = if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ };
        let mut out = *mode;
        for (tag, shift) in [(USER_OBJ, 6), (group, 3), (OTHER, 0)] {
            if let Some(p) = self.perm_mut(tag) {
                *p &= (*mode >> shift & 7) as u16;
                out = out & !(7 << shift) | u32::from(*p) << shift;
            }
        }
        *mode = out;
        !self.equiv_mode().1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> PosixAcl {
        PosixAcl(entries.iter().map(|&(tag, perm, id)| Entry { tag, perm, id }).collect())
    }

    #[test]
    fn survives_coding_and_refuses_nonsense() {
        let a = acl(&[(USER_OBJ, 7, !0), (USER, 5, 1000), (GROUP_OBJ, 5, !0), (MASK, 5, !0), (OTHER, 0, !0)]);
        let bytes = a.encode();
        assert_eq!(PosixAcl::decode(&bytes), Some(a));
        assert_eq!(PosixAcl::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(PosixAcl::decode(&[1, 0, 0, 0]), None);
        assert_eq!(
            PosixAcl::decode(&acl(&[(USER_OBJ, 7, 0), (USER, 5, 7)]).encode()),
            None,
            "no mask, no group"
        );
    }

    #[test]
    fn a_default_acl_limits_the_mode_of_new_files() {
        let mut a =
            acl(&[(USER_OBJ, 7, !0), (USER, 7, 9), (GROUP_OBJ, 5, !0), (MASK, 5, !0), (OTHER, 0, !0)]);
        let mut mode = 0o666;
        assert!(a.create_masq(&mut mode));
        assert_eq!(mode, 0o640);
        assert_eq!(a.equiv_mode(), (0o640, false));
        let mut plain = acl(&[(USER_OBJ, 7, !0), (GROUP_OBJ, 5, !0), (OTHER, 5, !0)]);
        let mut mode = 0o777;
        assert!(!plain.create_masq(&mut mode));
        assert_eq!(mode, 0o755);
    }

    #[test]
    fn chmod_changes_the_mask() {
        let mut a =
            acl(&[(USER_OBJ, 7, !0), (USER, 7, 9), (GROUP_OBJ, 5, !0), (MASK, 5, !0), (OTHER, 0, !0)]);
        a.chmod(0o600);
        assert_eq!(a.equiv_mode(), (0o600, false));
    }
}
