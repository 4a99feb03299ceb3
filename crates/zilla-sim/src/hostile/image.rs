//! A pool's disks as bytes: where its blocks lie, its uberblock, its labels.
//!
//! A device or a mirror of them; the mutator writes to every side, so no side heals another.

use crate::Survivors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zilla_codec::checksum::{self, ByteOrder as CodecOrder, Checksum, embedded};
use zilla_codec::compress::{self, Compress};
use zilla_ondisk::label::{
    UBERBLOCK_RING_OFFSET, VDEV_LABEL_START_SIZE, VDEV_LABELS, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE,
    encode_vdev_phys, label_offset, uberblock_count, uberblock_size,
};
use zilla_ondisk::{BlkPtr, ByteOrder, Dva, NvList, Uberblock};

/// The disks of one top-level vdev, all with the same contents.
#[derive(Clone)]
struct Top {
    leaves: Vec<PathBuf>,
    ashift: u32,
    /// Where the next block goes that has no place of its own; counted down from the end.
    spare: u64,
}

#[derive(Clone)]
pub(super) struct Image {
    pub disks: Survivors,
    tops: BTreeMap<u32, Top>,
}

fn verified(kind: Checksum, data: &[u8], bp: &BlkPtr) -> bool {
    match kind {
        Checksum::Off => true,
        k if k.is_embedded() => embedded::verify(k, data, &bp.cksum()).is_ok(),
        k => checksum::verify(k, data, !bp.byteorder().is_native(), None, &bp.cksum()),
    }
}

impl Image {
    /// None if this is no pool whose blocks lie in one piece on each of its devices.
    pub fn open(disks: Survivors) -> Option<Image> {
        let mut tops: BTreeMap<u32, Top> = BTreeMap::new();
        let mut image = Image { disks, tops: BTreeMap::new() };
        let paths: Vec<PathBuf> = image.disks.disks.keys().cloned().collect();
        for path in paths {
            let Some(config) = image.label(&path) else { continue };
            let tree = config.list("vdev_tree")?;
            if !matches!(tree.str("type"), Some("disk" | "file" | "mirror")) {
                return None;
            }
            let size = image.disks.disks.get(&path)?.0;
            let end = label_offset(size, 2)? - VDEV_LABEL_START_SIZE;
            let ashift = u32::try_from(tree.u64("ashift")?).ok()?;
            let id = u32::try_from(tree.u64("id").unwrap_or(0)).ok()?;
            let top = tops.entry(id).or_insert(Top { leaves: Vec::new(), ashift, spare: end & !0xf_ffff });
            top.leaves.push(path);
        }
        image.tops = tops;
        (!image.tops.is_empty()).then_some(image)
    }

    fn at(&self, path: &Path, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        if let Some((_, image)) = self.disks.disks.get(path) {
            image.read(offset, &mut out);
        }
        out
    }

    fn put(&mut self, path: &Path, offset: u64, data: &[u8]) {
        if let Some((_, image)) = self.disks.disks.get_mut(path) {
            image.write(offset, data);
        }
    }

    pub fn leaves(&self) -> Vec<PathBuf> {
        self.tops.values().flat_map(|t| t.leaves.iter().cloned()).collect()
    }

    /// The configuration in a disk's first label.
    pub fn label(&self, path: &Path) -> Option<NvList> {
        NvList::unpack(&self.at(path, VDEV_PHYS_OFFSET, VDEV_PHYS_SIZE as usize)).ok()
    }

    /// Puts a packed configuration into a disk's labels; false if it is too long for them.
    pub fn set_label(&mut self, path: &Path, packed: &[u8]) -> bool {
        let Some(phys) = encode_vdev_phys(packed) else { return false };
        let size = self.disks.disks.get(path).map_or(0, |d| d.0);
        for l in 0..VDEV_LABELS {
            let Some(offset) = label_offset(size, l) else { continue };
            let at = offset + VDEV_PHYS_OFFSET;
            let mut sealed = phys.clone();
            let verifier = embedded::label_verifier(at);
            if embedded::seal(Checksum::Label, &mut sealed, &verifier, CodecOrder::NATIVE).is_ok() {
                self.put(path, at, &sealed);
            }
        }
        true
    }

    /// The slots of a disk's uberblock rings: offset and length.
    fn slots(&self, path: &Path) -> Vec<(u64, u64)> {
        let size = self.disks.disks.get(path).map_or(0, |d| d.0);
        let ashift = self.tops.values().find(|t| t.leaves.iter().any(|l| l == path)).map_or(0, |t| t.ashift);
        let labels = (0..VDEV_LABELS).filter_map(|l| label_offset(size, l));
        labels
            .flat_map(|o| {
                (0..uberblock_count(ashift)).map(move |n| {
                    (o + UBERBLOCK_RING_OFFSET + n * uberblock_size(ashift), uberblock_size(ashift))
                })
            })
            .collect()
    }

    pub fn uberblock(&self) -> Option<Uberblock> {
        let all = self.leaves().into_iter().flat_map(|p| {
            let found: Vec<Uberblock> = self
                .slots(&p)
                .into_iter()
                .filter_map(|(at, len)| Uberblock::decode_slot(&self.at(&p, at, len as usize)).ok())
                .filter(|(_, order)| order.is_native())
                .map(|(ub, _)| ub)
                .collect();
            found
        });
        all.max_by_key(Uberblock::rank)
    }

    /// Puts `new` where `old` stands, sealed.
    pub fn set_uberblock(&mut self, old: &Uberblock, new: &Uberblock) {
        for path in self.leaves() {
            for (at, len) in self.slots(&path) {
                let mut slot = self.at(&path, at, len as usize);
                if !Uberblock::decode_slot(&slot).is_ok_and(|(ub, _)| ub.txg == old.txg) {
                    continue;
                }
                let verifier = embedded::label_verifier(at);
                if new.encode_slot(&mut slot).is_ok()
                    && embedded::seal(Checksum::Label, &mut slot, &verifier, CodecOrder::NATIVE).is_ok()
                {
                    self.put(&path, at, &slot);
                }
            }
        }
    }

    /// A block as it is stored.
    fn stored(&self, dva: &Dva, len: usize) -> Option<Vec<u8>> {
        let leaf = self.tops.get(&dva.vdev)?.leaves.first()?;
        Some(self.at(leaf, dva.offset.checked_add(VDEV_LABEL_START_SIZE)?, len))
    }

    /// A block's contents, if it is one that this mutator can also write.
    pub fn read(&self, bp: &BlkPtr) -> Option<Vec<u8>> {
        bp.validate().ok()?;
        let usable = !bp.is_hole() && !bp.is_gang() && !bp.uses_crypt() && bp.byteorder().is_native();
        if !usable {
            return None;
        }
        let kind = Compress::from_u8(bp.compress())?;
        if bp.is_embedded() {
            let data = bp.embedded_data();
            return expand(kind, data.get(..bp.embedded_psize())?, u64::from(bp.embedded_lsize()));
        }
        let raw = self.stored(&bp.dva(0), bp.psize() as usize)?;
        let sum = Checksum::from_u8(bp.checksum_kind()).filter(|k| k.is_function() && !k.is_salted())?;
        if !verified(sum, &raw, bp) {
            return None;
        }
        expand(kind, &raw, bp.lsize())
    }

    /// Puts contents behind a pointer and gives the pointer that seals them: in the block's own
    /// place where they fit, in unused space otherwise. None for what cannot be written.
    pub fn write(&mut self, bp: &BlkPtr, data: &[u8]) -> Option<BlkPtr> {
        let kind = Compress::from_u8(bp.compress())?;
        if bp.is_embedded() {
            let mut small = vec![0; data.len()];
            let n = match kind {
                Compress::Off => {
                    small.copy_from_slice(data);
                    data.len()
                }
                _ => compress::compress(compress::CompressSpec::new(kind), data, &mut small)?,
            };
            let lsize = data.len() as u64;
            let embedded = small
                .get(..n)
                .and_then(|d| BlkPtr::embedded(d, kind as u8, lsize, bp.otype(), bp.level(), bp.birth()));
            return embedded.or_else(|| self.elsewhere(bp, data));
        }
        let psize = bp.psize() as usize;
        let mut raw = vec![0; psize];
        if kind == Compress::Off {
            raw = data.to_vec();
        } else if compress::compress(compress::CompressSpec::new(kind), data, &mut raw).is_none() {
            return self.elsewhere(bp, data);
        }
        let mut out = *bp;
        self.seal(&mut out, &mut raw)?;
        for dva in bp.dvas() {
            self.put_block(&dva, &raw);
        }
        Some(out)
    }

    fn seal(&self, bp: &mut BlkPtr, raw: &mut [u8]) -> Option<()> {
        let sum = Checksum::from_u8(bp.checksum_kind())?;
        if sum.is_embedded() {
            return embedded::seal(sum, raw, &bp.cksum(), CodecOrder::NATIVE).ok();
        }
        bp.set_cksum(checksum::compute(sum, raw, false, None));
        Some(())
    }

    fn put_block(&mut self, dva: &Dva, raw: &[u8]) {
        let leaves = self.tops.get(&dva.vdev).map(|t| t.leaves.clone()).unwrap_or_default();
        for leaf in leaves {
            self.put(&leaf, dva.offset + VDEV_LABEL_START_SIZE, raw);
        }
    }

    /// Uncompressed, in space that nobody has.
    fn elsewhere(&mut self, bp: &BlkPtr, data: &[u8]) -> Option<BlkPtr> {
        let (&vdev, top) = self.tops.iter_mut().next()?;
        let lsize = (data.len() as u64).next_multiple_of(512);
        let asize = lsize.next_multiple_of(1 << top.ashift);
        top.spare = top.spare.checked_sub(asize)?;
        let offset = top.spare;
        let mut out = BlkPtr::ZERO;
        out.set_dva(0, Dva { vdev, offset, asize, gang: false });
        out.set_lsize(lsize);
        out.set_psize(lsize);
        out.set_compress(Compress::Off as u8);
        out.set_checksum_kind(Checksum::Fletcher4 as u8);
        out.set_otype(bp.otype());
        out.set_level(bp.level());
        out.set_byteorder(ByteOrder::NATIVE);
        out.set_birth(bp.birth());
        out.set_fill(bp.fill());
        let mut raw = data.to_vec();
        raw.resize(lsize as usize, 0);
        self.seal(&mut out, &mut raw)?;
        self.put_block(&out.dva(0), &raw);
        Some(out)
    }
}

fn expand(kind: Compress, raw: &[u8], lsize: u64) -> Option<Vec<u8>> {
    if kind == Compress::Off {
        return Some(raw.to_vec());
    }
    let mut out = vec![0; lsize as usize];
    compress::decompress(kind, raw, &mut out).ok()?;
    Some(out)
}
