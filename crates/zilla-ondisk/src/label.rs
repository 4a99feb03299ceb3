//! The layout of a leaf device: four labels, the boot area, then the data.
//!
//! ```text
//! 0     256K   512K            4M                             psize-512K  psize
//! | L0  |  L1  | boot, 3.5M    | data: DVA offset 0 is here .... |  L2  |  L3  |
//!
//! a label:  0    8K      16K                128K                       256K
//!           | pad | bootenv | nvlist, 112K    | ring of uberblocks, 128K |
//! ```
//!
//! Two labels at each end, and each update writes the even ones, flushes, then the odd ones:
//! whatever write is torn, two labels of the pool as it was before or as it is after remain. Each
//! of the last three parts (each slot, of the ring) ends in an embedded checksum that is seeded
//! with its own offset on the device.

use crate::bytes::{Zero, phys};

pub const VDEV_LABELS: usize = 4;
pub const VDEV_PAD_SIZE: u64 = 8 << 10;
pub const VDEV_PHYS_SIZE: u64 = 112 << 10;
pub const VDEV_UBERBLOCK_RING: u64 = 128 << 10;
pub const VDEV_LABEL_SIZE: u64 = 256 << 10;
pub const VDEV_BOOT_SIZE: u64 = 7 << 19;
pub const VDEV_BOOT_OFFSET: u64 = 2 * VDEV_LABEL_SIZE;
/// What precedes the data: added to a DVA's offset.
pub const VDEV_LABEL_START_SIZE: u64 = 2 * VDEV_LABEL_SIZE + VDEV_BOOT_SIZE;
pub const VDEV_LABEL_END_SIZE: u64 = 2 * VDEV_LABEL_SIZE;
/// The least a device may have.
pub const SPA_MINDEVSIZE: u64 = 64 << 20;

/// Offsets within a label.
pub const BOOTENV_OFFSET: u64 = VDEV_PAD_SIZE;
pub const VDEV_PHYS_OFFSET: u64 = 2 * VDEV_PAD_SIZE;
pub const UBERBLOCK_RING_OFFSET: u64 = VDEV_PHYS_OFFSET + VDEV_PHYS_SIZE;

pub const UBERBLOCK_SHIFT: u32 = 10;
pub const MAX_UBERBLOCK_SHIFT: u32 = 13;
/// Slots at the end of the ring that a multihost pool keeps for its heartbeat.
pub const MMP_BLOCKS_PER_LABEL: u64 = 1;

/// Ends every block that carries its own checksum.
pub const ZEC_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
pub const ECK_SIZE: usize = 40;

phys! {
    /// `zio_eck_t`: the trailer of labels, gang headers and log blocks.
    pub struct EckPhys("zio_eck") {
        magic: u64,
        cksum: [u64; 4],
    }
}

impl Zero for EckPhys {
    const ZERO: Self = EckPhys { magic: 0, cksum: [0; 4] };
}

/// How the boot environment area is to be read (`vbe_version`).
pub const VB_RAW: u64 = 0;
pub const VB_NVLIST: u64 = 1;

/// A device's size as ZFS counts it: whole labels.
pub const fn usable_size(device_size: u64) -> u64 {
    device_size & !(VDEV_LABEL_SIZE - 1)
}

/// Where label `l` of a device lies, or `None` if there is no such label or the device is too small
/// for four.
pub const fn label_offset(device_size: u64, l: usize) -> Option<u64> {
    let psize = usable_size(device_size);
    if psize < VDEV_LABEL_START_SIZE + VDEV_LABEL_END_SIZE {
        return None;
    }
    match l {
        0 => Some(0),
        1 => Some(VDEV_LABEL_SIZE),
        2 => Some(psize - 2 * VDEV_LABEL_SIZE),
        3 => Some(psize - VDEV_LABEL_SIZE),
        _ => None,
    }
}

/// Bytes of a slot of the uberblock ring: a sector, but 1K at least and 8K at most.
pub const fn uberblock_size(ashift: u32) -> u64 {
    let shift = if ashift < UBERBLOCK_SHIFT {
        UBERBLOCK_SHIFT
    } else if ashift > MAX_UBERBLOCK_SHIFT {
        MAX_UBERBLOCK_SHIFT
    } else {
        ashift
    };
    1 << shift
}

pub const fn uberblock_count(ashift: u32) -> u64 {
    VDEV_UBERBLOCK_RING / uberblock_size(ashift)
}

/// Where slot `n` of the ring lies within a label.
pub const fn uberblock_offset(ashift: u32, n: u64) -> u64 {
    UBERBLOCK_RING_OFFSET + (n % uberblock_count(ashift)) * uberblock_size(ashift)
}

/// The slot that the uberblock of `txg` goes to.
pub const fn uberblock_slot(ashift: u32, txg: u64, multihost: bool) -> u64 {
    txg % (uberblock_count(ashift) - if multihost { MMP_BLOCKS_PER_LABEL } else { 0 })
}

/// The parts of one label's 256K.
#[derive(Clone, Copy, Debug)]
pub struct VdevLabel<'a> {
    pub pad1: &'a [u8],
    /// Boot environment: version, contents, checksum.
    pub bootenv: &'a [u8],
    /// Packed nvlist (XDR) and, in the last 40 bytes, checksum.
    pub vdev_phys: &'a [u8],
    pub uberblocks: &'a [u8],
}

impl<'a> VdevLabel<'a> {
    /// Cuts a label up; `None` when it is not 256K long.
    pub fn split(label: &'a [u8]) -> Option<VdevLabel<'a>> {
        if label.len() as u64 != VDEV_LABEL_SIZE {
            return None;
        }
        let (pad1, rest) = label.split_at_checked(VDEV_PAD_SIZE as usize)?;
        let (bootenv, rest) = rest.split_at_checked(VDEV_PAD_SIZE as usize)?;
        let (vdev_phys, uberblocks) = rest.split_at_checked(VDEV_PHYS_SIZE as usize)?;
        Some(VdevLabel { pad1, bootenv, vdev_phys, uberblocks })
    }

    /// The packed configuration, without its checksum.
    pub fn nvlist(&self) -> &'a [u8] {
        let n = self.vdev_phys.len().saturating_sub(ECK_SIZE);
        self.vdev_phys.get(..n).unwrap_or_default()
    }

    /// The slots of the ring, each with its offset within the label.
    pub fn slots(&self, ashift: u32) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        let size = uberblock_size(ashift);
        self.uberblocks
            .chunks_exact(size as usize)
            .enumerate()
            .map(move |(n, slot)| (UBERBLOCK_RING_OFFSET + n as u64 * size, slot))
    }
}

/// Fills the 112K of a label's configuration with a packed nvlist; the caller seals the checksum in
/// the last 40 bytes. `None` when the nvlist is too long.
pub fn encode_vdev_phys(packed: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; VDEV_PHYS_SIZE as usize];
    if packed.len() > out.len() - ECK_SIZE {
        return None;
    }
    crate::bytes::put_at(&mut out, 0, packed)?;
    Some(out)
}
