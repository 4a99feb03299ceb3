//! The two codes of an objset's head.
//!
//! The portable one covers what a raw send carries: the kind of objset and the dnode of the dnodes.
//! The local one covers the accounts of users, which each pool keeps for itself. Both are taken of
//! little-endian values, because a head may be written again without the key, in another machine's
//! order: claiming a log changes its header, which neither covers.

use super::blocks::dnode_auth;
use crate::bytes::{put_at, u64_at};
use crate::dnode::DNODE_MIN_SIZE;
use crate::error::{FormatError, Problem, Result};
use crate::objset::{
    OBJSET_FLAG_USERACCOUNTING_COMPLETE, OBJSET_OLD_PHYS_SIZE, OBJSET_PHYS_SIZE_V2, OBJSET_PHYS_SIZE_V3,
    ZIO_OBJSET_MAC_LEN,
};
use crate::order::ByteOrder;

/// Where things are. Source: objset_phys_t in sys/dmu_objset.h.
const OS_META_DNODE: usize = 0;
const OS_TYPE: usize = 704;
const OS_FLAGS: usize = 712;
const OS_PORTABLE_MAC: usize = 720;
const OS_LOCAL_MAC: usize = OS_PORTABLE_MAC + ZIO_OBJSET_MAC_LEN;
const OS_USERUSED: usize = 1024;
const OS_GROUPUSED: usize = 1536;
const OS_PROJECTUSED: usize = 2048;

/// What the codes of an objset cover, and the codes that it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjsetParts {
    pub portable: Vec<u8>,
    /// None: there are no accounts, and the code is of zeroes.
    pub local: Option<Vec<u8>>,
    pub portable_mac: [u8; ZIO_OBJSET_MAC_LEN],
    pub local_mac: [u8; ZIO_OBJSET_MAC_LEN],
}

pub fn objset_parts(block: &[u8], order: ByteOrder, version: u64) -> Result<ObjsetParts> {
    let short = FormatError::new(
        "objset_phys",
        "os_type",
        0,
        Problem::Truncated { need: OBJSET_OLD_PHYS_SIZE, have: block.len() },
    );
    let dnode = |at: usize| block.get(at..at + DNODE_MIN_SIZE).filter(|d| d.first() != Some(&0));
    let mac = |at: usize| block.get(at..).and_then(|b| b.first_chunk()).copied().ok_or(short);
    let (os_type, flags) =
        (u64_at(block, OS_TYPE, order).ok_or(short)?, u64_at(block, OS_FLAGS, order).ok_or(short)?);
    let (portable_mac, local_mac) = (mac(OS_PORTABLE_MAC)?, mac(OS_LOCAL_MAC)?);
    // The kind goes in big endian (OpenZFS swaps it on the machines where the rest is not); of the
    // flags none is portable.
    let mut portable = os_type.to_be_bytes().to_vec();
    portable.extend_from_slice(&[0; 8]);
    let meta = block.get(OS_META_DNODE..DNODE_MIN_SIZE).ok_or(short)?;
    dnode_auth(meta, order, version, true, &mut portable)?;
    let project = dnode(OS_PROJECTUSED).filter(|_| block.len() >= OBJSET_PHYS_SIZE_V3);
    let (user, group) = (dnode(OS_USERUSED), dnode(OS_GROUPUSED));
    let none = flags & OBJSET_FLAG_USERACCOUNTING_COMPLETE == 0
        || block.len() < OBJSET_PHYS_SIZE_V2
        || (user.is_none() && group.is_none());
    let mut local = None;
    if !none {
        let mut out = flags.to_le_bytes().to_vec();
        for dn in [user, group, project].into_iter().flatten() {
            dnode_auth(dn, order, version, true, &mut out)?;
        }
        local = Some(out);
    }
    Ok(ObjsetParts { portable, local, portable_mac, local_mac })
}

/// Puts the codes into an objset's head.
pub fn put_objset_macs(
    block: &mut [u8],
    portable: &[u8; ZIO_OBJSET_MAC_LEN],
    local: &[u8; ZIO_OBJSET_MAC_LEN],
) {
    // A head is at least a kilobyte.
    let done = put_at(block, OS_PORTABLE_MAC, portable).and(put_at(block, OS_LOCAL_MAC, local));
    debug_assert!(done.is_some());
}
