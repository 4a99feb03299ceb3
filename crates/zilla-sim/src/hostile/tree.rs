//! Every block that the uberblock leads to, decoded, with the place of the pointer to it.
//!
//! Contents of files and volumes are left out: nobody decodes them. A block that several trees
//! share is found once.

use super::image::Image;
use std::collections::BTreeSet;
use zilla_ondisk::blkptr::BLKPTR_SIZE;
use zilla_ondisk::dnode::{DNODE_CORE_SIZE, DNODE_MIN_SIZE, DNODE_SHIFT, DNODES_PER_BLOCK, dnodes};
use zilla_ondisk::object_type::{
    DMU_OT_DNODE, DMU_OT_DSL_DATASET, DMU_OT_PLAIN_FILE_CONTENTS, DMU_OT_SA, DMU_OT_ZVOL,
};
use zilla_ondisk::objset::{OBJSET_OLD_PHYS_SIZE, OBJSET_PHYS_SIZE_V2};
use zilla_ondisk::zil::{LogBlock, ZilChainPhys};
use zilla_ondisk::{BlkPtr, ByteOrder, DnodePhys, Field, ObjsetPhys};

/// Where the pointer stands in a `dsl_dataset_phys`: behind 16 words.
const DATASET_BP: usize = 128;
/// The intent log's first pointer in an objset: behind the meta-dnode and two words.
const LOG_BP: usize = DNODE_MIN_SIZE + 16;

/// Where a pointer stands.
#[derive(Clone, Copy)]
pub(super) enum At {
    Uberblock,
    In { node: usize, offset: usize },
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Objset,
    Indirect,
    Dnodes,
    Log,
    /// Level 0 of an object of this type.
    Data(u8),
}

/// A block. A parent comes before its children.
pub(super) struct Node {
    pub at: At,
    pub bp: BlkPtr,
    pub kind: Kind,
    pub data: Vec<u8>,
    /// The dataset's object; 0 in the MOS.
    pub objset: u64,
}

/// A dnode, and where it stands.
pub(super) struct DnodeAt {
    pub node: usize,
    pub offset: usize,
    pub object: u64,
    pub phys: DnodePhys,
}

impl DnodeAt {
    pub fn bonus_at(&self) -> usize {
        self.offset + DNODE_CORE_SIZE + usize::from(self.phys.nblkptr) * BLKPTR_SIZE
    }
}

#[derive(Default)]
pub(super) struct Tree {
    pub nodes: Vec<Node>,
    pub dnodes: Vec<DnodeAt>,
    /// Numbers of the MOS's objects, and of those of file systems.
    pub objects: [Vec<u64>; 2],
}

/// Whose blocks are walked.
#[derive(Clone, Copy)]
struct Owner {
    objset: u64,
    otype: u8,
}

pub(super) fn pointer(data: &[u8], at: usize) -> Option<BlkPtr> {
    BlkPtr::decode(data.get(at..)?, ByteOrder::NATIVE).ok()
}

impl Tree {
    pub fn walk(image: &Image, root: BlkPtr) -> Tree {
        let mut walk = Walk { image, tree: Tree::default(), seen: BTreeSet::new() };
        walk.objset(At::Uberblock, root, 0);
        walk.tree
    }
}

struct Walk<'a> {
    image: &'a Image,
    tree: Tree,
    seen: BTreeSet<[u64; 2]>,
}

impl Walk<'_> {
    fn add(&mut self, at: At, bp: BlkPtr, kind: Kind, objset: u64) -> Option<usize> {
        if bp.is_hole() || (!bp.is_embedded() && !self.seen.insert(bp.dva(0).to_words())) {
            return None;
        }
        let data = self.image.read(&bp)?;
        self.tree.nodes.push(Node { at, bp, kind, data, objset });
        Some(self.tree.nodes.len() - 1)
    }

    fn objset(&mut self, at: At, bp: BlkPtr, objset: u64) {
        let Some(node) = self.add(at, bp, Kind::Objset, objset) else { return };
        let Some(phys) = self.decoded(node) else { return };
        let places = [0, OBJSET_OLD_PHYS_SIZE, OBJSET_OLD_PHYS_SIZE + DNODE_MIN_SIZE, OBJSET_PHYS_SIZE_V2];
        let all = [phys.meta_dnode, phys.userused_dnode, phys.groupused_dnode, phys.projectused_dnode];
        for (offset, phys) in places.into_iter().zip(all).filter(|(_, dn)| !dn.is_free()) {
            self.dnode(DnodeAt { node, offset, object: 0, phys }, objset);
        }
        self.log(At::In { node, offset: LOG_BP }, phys.zil_header.log, objset);
    }

    fn decoded(&self, node: usize) -> Option<ObjsetPhys> {
        ObjsetPhys::decode(&self.tree.nodes.get(node)?.data, ByteOrder::NATIVE).ok()
    }

    fn log(&mut self, mut at: At, mut bp: BlkPtr, objset: u64) {
        while let Some(node) = self.add(at, bp, Kind::Log, objset) {
            let data = &self.tree.nodes[node].data;
            // A log block ends with its chain structure, or (`zilog2`) begins with it.
            let zilog2 = bp.checksum_kind() == zilla_codec::checksum::Checksum::Zilog2 as u8;
            let chain = if zilog2 { 0 } else { data.len().saturating_sub(ZilChainPhys::SIZE) };
            let Ok(block) = LogBlock::parse(data, ByteOrder::NATIVE, zilog2) else { return };
            (at, bp) = (At::In { node, offset: chain + 8 }, block.chain.next_blk);
        }
    }

    fn dnode(&mut self, dn: DnodeAt, objset: u64) {
        if dn.object != 0 {
            self.tree.objects[usize::from(objset != 0)].push(dn.object);
        }
        let (node, phys) = (dn.node, dn.phys.clone());
        let (pointers, bonus) = (dn.offset + DNODE_CORE_SIZE, dn.bonus_at());
        let (end, object) = (dn.offset + phys.size(), dn.object);
        self.tree.dnodes.push(dn);
        let owner = Owner { objset, otype: phys.otype };
        for (i, bp) in phys.blkptr.iter().enumerate() {
            let at = At::In { node, offset: pointers + i * BLKPTR_SIZE };
            self.block(at, *bp, phys.nlevels - 1, i as u64, owner);
        }
        if let Some(bp) = phys.spill {
            self.add(At::In { node, offset: end - BLKPTR_SIZE }, bp, Kind::Data(DMU_OT_SA), objset);
        }
        if objset == 0 && phys.bonustype == DMU_OT_DSL_DATASET {
            let offset = bonus + DATASET_BP;
            if let Some(bp) = pointer(&self.tree.nodes[node].data, offset) {
                self.objset(At::In { node, offset }, bp, object);
            }
        }
    }

    fn block(&mut self, at: At, bp: BlkPtr, level: u8, blkid: u64, owner: Owner) {
        let contents = matches!(owner.otype, DMU_OT_PLAIN_FILE_CONTENTS | DMU_OT_ZVOL);
        if level == 0 && contents {
            return;
        }
        let kind = match (level, owner.otype) {
            (1.., _) => Kind::Indirect,
            (0, DMU_OT_DNODE) => Kind::Dnodes,
            (0, otype) => Kind::Data(otype),
        };
        let Some(node) = self.add(at, bp, kind, owner.objset) else { return };
        let data = self.tree.nodes[node].data.clone();
        if level > 0 {
            let all = data.len() / BLKPTR_SIZE;
            for (i, bp) in BlkPtr::iter(&data, ByteOrder::NATIVE).enumerate() {
                let at = At::In { node, offset: i * BLKPTR_SIZE };
                self.block(at, bp, level - 1, blkid * all as u64 + i as u64, owner);
            }
        } else if kind == Kind::Dnodes {
            for (slot, phys) in dnodes(&data, ByteOrder::NATIVE) {
                let Ok(phys) = phys else { continue };
                let object = blkid * DNODES_PER_BLOCK + slot as u64;
                self.dnode(DnodeAt { node, offset: slot << DNODE_SHIFT, object, phys }, owner.objset);
            }
        }
    }
}
