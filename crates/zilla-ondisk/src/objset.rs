//! The head of a set of objects: the dnode of its dnodes, the intent log's header, the accounting
//! objects.
//!
//! It has grown twice, always in the tail: 1K (before accounting), 2K (user and group accounting),
//! 4K (project accounting). The size of the block tells which it is, and the size is kept when it
//! is written again.

use crate::bytes::{Field, Reader, Writer};
use crate::dnode::{DNODE_MIN_SIZE, DnodePhys};
use crate::error::{FormatError, Result};
use crate::order::ByteOrder;
use crate::zil::ZilHeader;

pub const OBJSET_OLD_PHYS_SIZE: usize = 1024;
pub const OBJSET_PHYS_SIZE_V2: usize = 2048;
pub const OBJSET_PHYS_SIZE_V3: usize = 4096;

pub const OBJSET_FLAG_USERACCOUNTING_COMPLETE: u64 = 1 << 0;
pub const OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE: u64 = 1 << 1;
pub const OBJSET_FLAG_PROJECTQUOTA_COMPLETE: u64 = 1 << 2;

/// Length of the two authentication codes of an encrypted objset.
pub const ZIO_OBJSET_MAC_LEN: usize = 32;

/// Which fields an objset has room for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ObjsetSize {
    V1,
    V2,
    V3,
}

impl ObjsetSize {
    pub const fn bytes(self) -> usize {
        match self {
            ObjsetSize::V1 => OBJSET_OLD_PHYS_SIZE,
            ObjsetSize::V2 => OBJSET_PHYS_SIZE_V2,
            ObjsetSize::V3 => OBJSET_PHYS_SIZE_V3,
        }
    }
}

/// The block a dataset (or the pool's own MOS) hangs from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjsetPhys {
    pub size: ObjsetSize,
    pub meta_dnode: DnodePhys,
    pub zil_header: ZilHeader,
    /// See [`crate::enums::ObjsetType`].
    pub os_type: u64,
    pub flags: u64,
    /// What survives a raw send is authenticated by this.
    pub portable_mac: [u8; ZIO_OBJSET_MAC_LEN],
    /// What belongs to this pool only (accounting) is authenticated by this.
    pub local_mac: [u8; ZIO_OBJSET_MAC_LEN],
    pub userused_dnode: DnodePhys,
    pub groupused_dnode: DnodePhys,
    pub projectused_dnode: DnodePhys,
}

impl ObjsetPhys {
    pub fn new(size: ObjsetSize, os_type: u64) -> ObjsetPhys {
        ObjsetPhys {
            size,
            meta_dnode: DnodePhys::default(),
            zil_header: ZilHeader::default(),
            os_type,
            flags: 0,
            portable_mac: [0; ZIO_OBJSET_MAC_LEN],
            local_mac: [0; ZIO_OBJSET_MAC_LEN],
            userused_dnode: DnodePhys::default(),
            groupused_dnode: DnodePhys::default(),
            projectused_dnode: DnodePhys::default(),
        }
    }

    pub fn decode(buf: &[u8], order: ByteOrder) -> Result<ObjsetPhys> {
        let size = match buf.len() {
            OBJSET_OLD_PHYS_SIZE..OBJSET_PHYS_SIZE_V2 => ObjsetSize::V1,
            OBJSET_PHYS_SIZE_V2..OBJSET_PHYS_SIZE_V3 => ObjsetSize::V2,
            OBJSET_PHYS_SIZE_V3.. => ObjsetSize::V3,
            n => return Err(FormatError::impossible("objset_phys", "size", 0, n as u64, "under 1K")),
        };
        let mut r = Reader::new(buf, order, "objset_phys");
        let mut out = ObjsetPhys::new(size, 0);
        out.meta_dnode = dnode(&mut r, "os_meta_dnode")?;
        out.zil_header = ZilHeader::read(&mut r, "os_zil_header")?;
        out.os_type = r.u64("os_type")?;
        out.flags = r.u64("os_flags")?;
        out.portable_mac = r.array("os_portable_mac")?;
        out.local_mac = r.array("os_local_mac")?;
        if size >= ObjsetSize::V2 {
            r.skip(OBJSET_OLD_PHYS_SIZE - r.pos(), "os_pad0")?;
            out.userused_dnode = dnode(&mut r, "os_userused_dnode")?;
            out.groupused_dnode = dnode(&mut r, "os_groupused_dnode")?;
        }
        if size >= ObjsetSize::V3 {
            out.projectused_dnode = dnode(&mut r, "os_projectused_dnode")?;
        }
        Ok(out)
    }

    pub fn encode(&self) -> Result<Vec<u8>> {
        let mut w = Writer::native(self.size.bytes());
        w.bytes(&slot(&self.meta_dnode)?);
        self.zil_header.write(&mut w);
        w.u64(self.os_type);
        w.u64(self.flags);
        w.bytes(&self.portable_mac);
        w.bytes(&self.local_mac);
        w.pad_to(OBJSET_OLD_PHYS_SIZE);
        if self.size >= ObjsetSize::V2 {
            w.bytes(&slot(&self.userused_dnode)?);
            w.bytes(&slot(&self.groupused_dnode)?);
        }
        if self.size >= ObjsetSize::V3 {
            w.bytes(&slot(&self.projectused_dnode)?);
        }
        w.pad_to(self.size.bytes());
        Ok(w.finish())
    }
}

/// The dnodes in an objset are always of one slot.
fn dnode(r: &mut Reader<'_>, field: &'static str) -> Result<DnodePhys> {
    let order = r.order();
    DnodePhys::decode(r.bytes(DNODE_MIN_SIZE, field)?, order)
}

fn slot(dn: &DnodePhys) -> Result<[u8; DNODE_MIN_SIZE]> {
    let mut out = [0; DNODE_MIN_SIZE];
    dn.encode_into(&mut out)?;
    Ok(out)
}
