//! POSIX ACLs as the model has them: always with one named user and a mask, so that the list says
//! more than the mode does.

const VERSION: u32 = 2;
/// Tags of the owner, a named user, the group, the mask and all others.
const TAGS: [u16; 5] = [0x01, 0x02, 0x04, 0x10, 0x20];
const NOBODY: u32 = u32::MAX;
const NAMED: u32 = 77;

pub const ACCESS: &str = "system.posix_acl_access";
pub const DEFAULT: &str = "system.posix_acl_default";

/// Permissions in the order of the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl(pub [u8; 5]);

impl Acl {
    pub fn encode(self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for (tag, perm) in TAGS.into_iter().zip(self.0) {
            out.extend(tag.to_le_bytes());
            out.extend(u16::from(perm).to_le_bytes());
            out.extend(if tag == TAGS[1] { NAMED } else { NOBODY }.to_le_bytes());
        }
        out
    }

    pub fn decode(value: &[u8]) -> Option<Acl> {
        let mut out = Acl([0; 5]);
        for (i, perm) in out.0.iter_mut().enumerate() {
            *perm = *value.get(4 + 8 * i + 2)?;
        }
        Some(out)
    }

    pub fn mode(self) -> u32 {
        let [user, _, _, mask, other] = self.0.map(u32::from);
        user << 6 | mask << 3 | other
    }

    /// After a chmod: the group's bits are the mask's.
    pub fn chmod(&mut self, mode: u32) {
        for (i, shift) in [(0, 6), (3, 3), (4, 0)] {
            self.0[i] = (mode >> shift & 7) as u8;
        }
    }

    /// Of a default list: the access list of a new file that is asked for with `mode`.
    pub fn inherited(mut self, mode: u32) -> Acl {
        for (i, shift) in [(0, 6), (3, 3), (4, 0)] {
            self.0[i] &= (mode >> shift & 7) as u8;
        }
        self
    }
}
