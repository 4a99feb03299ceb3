//! A mutant: some structures of a base image changed, and all above them sealed again.

use super::base::Base;
use super::image::Image;
use super::tree::{At, DnodeAt, Kind, pointer};
use super::{Dice, value};
use crate::Survivors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use zilla_ondisk::blkptr::BLKPTR_SIZE;
use zilla_ondisk::dnode::DNODE_CORE_SIZE;
use zilla_ondisk::object_type::{self, DMU_OT_PACKED_NVLIST};
use zilla_ondisk::zap::leaf::{ARRAY_BYTES, CHUNK_SIZE, hash_entries};
use zilla_ondisk::zap::{BlockKind, block_kind};
use zilla_ondisk::{ByteOrder, Field, NvList, Phys, Uberblock};

/// Fields of a dnode's head: offset and width.
const DNODE_FIELDS: [(usize, usize); 13] = [
    (0, 1),
    (1, 1),
    (2, 1),
    (3, 1),
    (4, 1),
    (5, 1),
    (6, 1),
    (7, 1),
    (8, 2),
    (10, 2),
    (12, 1),
    (16, 8),
    (24, 8),
];
/// Fields of an entry's chunk in a ZAP leaf.
const ENTRY_FIELDS: [(usize, usize); 9] =
    [(0, 1), (1, 1), (2, 2), (4, 2), (6, 2), (8, 2), (10, 2), (12, 4), (16, 8)];
const LEAF_HEAD: usize = 48;
const MICRO_ENTRY: usize = 64;
const CHUNK_ENTRY: u8 = 252;

/// Something that can be changed.
#[derive(Clone)]
pub(super) enum Target {
    Uberblock,
    Label(PathBuf),
    Dnode(usize),
    Bonus(usize),
    Node(usize),
}

/// Every structure there is, by kind, so that the rare ones are hit as often as the common ones.
pub(super) fn targets(base: &Base) -> Vec<(String, Vec<Target>)> {
    let mut all: BTreeMap<String, Vec<Target>> = BTreeMap::new();
    let mut add = |kind: String, t: Target| all.entry(kind).or_default().push(t);
    add("uberblock".into(), Target::Uberblock);
    for path in base.image.leaves() {
        add("label".into(), Target::Label(path));
    }
    for (i, dn) in base.tree.dnodes.iter().enumerate() {
        add(format!("dnode of {}", object_type::name(dn.phys.otype)), Target::Dnode(i));
        if !dn.phys.bonus.is_empty() {
            add(format!("bonus {}", object_type::name(dn.phys.bonustype)), Target::Bonus(i));
        }
    }
    for (i, node) in base.tree.nodes.iter().enumerate() {
        let kind = match node.kind {
            Kind::Objset => "objset".into(),
            Kind::Indirect => format!("indirect block of level {}", node.bp.level()),
            // Its dnodes are targets of their own.
            Kind::Dnodes => continue,
            Kind::Log => "log block".into(),
            Kind::Data(otype) if object_type::is_zap(otype) => {
                let shape = block_kind(&node.data, ByteOrder::NATIVE);
                format!("{:?} of {}", shape.unwrap_or(BlockKind::Table), object_type::name(otype))
            }
            Kind::Data(otype) => object_type::name(otype).into(),
        };
        add(kind, Target::Node(i));
    }
    all.into_iter().collect()
}

/// A changed image.
pub struct Mutant {
    pub disks: Survivors,
    /// What was changed.
    pub what: String,
}

struct Change<'a, 'd> {
    base: &'a Base,
    image: Image,
    dice: &'a mut Dice<'d>,
    /// Contents that differ from the base's.
    nodes: BTreeMap<usize, Vec<u8>>,
    uberblock: Uberblock,
}

impl Mutant {
    /// The mutant that the dice choose.
    pub fn new(base: &Base, dice: &mut Dice<'_>) -> Mutant {
        let (image, uberblock) = (base.image.clone(), base.uberblock);
        let mut change = Change { base, image, dice, nodes: BTreeMap::new(), uberblock };
        let mut what = Vec::new();
        let several = change.dice.one_in(4);
        for _ in 0..if several { 2 + change.dice.below(2) } else { 1 } {
            let Some((kind, all)) = change.dice.pick(&base.targets) else { break };
            let Some(target) = change.dice.pick(all) else { break };
            for _ in 0..1 + change.dice.below(2) {
                change.apply(target);
            }
            what.push(match target {
                Target::Dnode(i) | Target::Bonus(i) => {
                    let dn = &base.tree.dnodes[*i];
                    format!("{kind} (object {} of {})", dn.object, base.tree.nodes[dn.node].objset)
                }
                _ => kind.clone(),
            });
        }
        change.seal();
        Mutant { disks: change.image.disks, what: what.join(", ") }
    }
}

impl<'a> Change<'a, '_> {
    fn apply(&mut self, target: &Target) {
        match target {
            Target::Uberblock => self.change_uberblock(),
            Target::Label(path) => self.change_label(path),
            Target::Dnode(i) => self.change_dnode(&self.base.tree.dnodes[*i]),
            Target::Bonus(i) => self.change_bonus(&self.base.tree.dnodes[*i]),
            Target::Node(i) => {
                let mut data = self.take(*i);
                self.change_node(*i, &mut data);
                self.nodes.insert(*i, data);
            }
        }
    }

    fn take(&mut self, node: usize) -> Vec<u8> {
        self.nodes.remove(&node).unwrap_or_else(|| self.base.tree.nodes[node].data.clone())
    }

    /// Numbers of objects that might be meant in a block.
    fn objects(&self, node: usize) -> &'a [u64] {
        let base = self.base;
        &base.tree.objects[usize::from(base.tree.nodes[node].objset != 0)]
    }

    fn change_uberblock(&mut self) {
        let mut raw = self.uberblock.encode();
        value::any_field(&mut raw, 0..Uberblock::SIZE, self.dice, &[]);
        if let Ok(ub) = Uberblock::decode(&raw, ByteOrder::NATIVE) {
            self.uberblock = ub;
        }
    }

    fn change_label(&mut self, path: &Path) {
        let Some(config) = self.image.label(path) else { return };
        let mut packed = value::nvlist(&config, self.dice).pack();
        if self.dice.one_in(8) {
            let all = 0..packed.len();
            value::any_field(&mut packed, all, self.dice, &[]);
        }
        self.image.set_label(path, &packed);
    }

    fn change_dnode(&mut self, dn: &DnodeAt) {
        let objects = self.objects(dn.node);
        let mut data = self.take(dn.node);
        if self.dice.one_in(3) {
            let which = self.dice.below(usize::from(dn.phys.nblkptr));
            self.change_pointer(&mut data, dn.offset + DNODE_CORE_SIZE + which * BLKPTR_SIZE);
        } else {
            let (at, width) = DNODE_FIELDS[self.dice.below(DNODE_FIELDS.len())];
            value::field(&mut data, dn.offset + at, width, self.dice, objects);
        }
        self.nodes.insert(dn.node, data);
    }

    fn change_bonus(&mut self, dn: &DnodeAt) {
        let objects = self.objects(dn.node);
        let mut data = self.take(dn.node);
        // Many begin with a header that says how to read the rest.
        let len = if self.dice.one_in(4) { 8 } else { usize::MAX };
        let at = dn.bonus_at();
        value::any_field(&mut data, at..at + dn.phys.bonus.len().min(len), self.dice, objects);
        self.nodes.insert(dn.node, data);
    }

    /// One field of a block pointer, or all of another pointer.
    fn change_pointer(&mut self, data: &mut [u8], at: usize) {
        if self.dice.one_in(5) {
            let from = self.dice.below(self.base.tree.nodes.len());
            let mut bp = self.base.tree.nodes[from].bp;
            if self.dice.one_in(2) {
                // Unchecked, it may lead anywhere: to its own block too.
                bp.set_checksum_kind(zilla_ondisk::enums::ZIO_CHECKSUM_OFF);
            }
            if let Some(to) = data.get_mut(at..at + BLKPTR_SIZE) {
                to.copy_from_slice(&bp.encode());
            }
            return;
        }
        if self.dice.one_in(3) {
            // The properties: sizes, compression, checksum, type, level, order.
            let (field, width) = [(48, 2), (50, 2), (52, 1), (53, 1), (54, 1), (55, 1)][self.dice.below(6)];
            return value::field(data, at + field, width, self.dice, &[]);
        }
        value::any_field(data, at..at + BLKPTR_SIZE, self.dice, &[]);
    }

    fn change_node(&mut self, node: usize, data: &mut Vec<u8>) {
        let objects = self.objects(node);
        let all = 0..data.len();
        match self.base.tree.nodes[node].kind {
            Kind::Indirect => {
                let which = self.dice.below(data.len() / BLKPTR_SIZE);
                let used = (0..data.len() / BLKPTR_SIZE)
                    .map(|i| (which + i) % (data.len() / BLKPTR_SIZE))
                    .find(|i| pointer(data, i * BLKPTR_SIZE).is_some_and(|bp| !bp.is_hole()));
                let which = if self.dice.one_in(6) { which } else { used.unwrap_or(which) };
                self.change_pointer(data, which * BLKPTR_SIZE);
            }
            Kind::Data(DMU_OT_PACKED_NVLIST) if !self.dice.one_in(8) => {
                let Ok(list) = NvList::unpack(data) else { return };
                let len = data.len();
                let packed = value::nvlist(&list, self.dice).pack();
                // What is longer than the object is cut, which is one more thing that can be wrong
                // with it.
                *data = packed;
                data.resize(len, 0);
            }
            Kind::Data(otype) if object_type::is_zap(otype) => self.change_zap(data, objects),
            _ => value::any_field(data, all, self.dice, objects),
        }
    }

    fn change_zap(&mut self, data: &mut [u8], objects: &[u64]) {
        let all = 0..data.len();
        match block_kind(data, ByteOrder::NATIVE) {
            Ok(BlockKind::Micro) if !self.dice.one_in(8) => {
                let used: Vec<usize> =
                    (MICRO_ENTRY..data.len()).step_by(MICRO_ENTRY).filter(|at| data[at + 14] != 0).collect();
                let Some(&at) = self.dice.pick(&used) else { return };
                let (field, width) = [(0, 8), (0, 8), (0, 8), (8, 4), (14, 1), (62, 2)][self.dice.below(6)];
                value::field(data, at + field, width, self.dice, objects);
            }
            Ok(BlockKind::Leaf) if !self.dice.one_in(6) => {
                let chunks = LEAF_HEAD + 2 * hash_entries(data.len().trailing_zeros());
                let entries: Vec<usize> = (chunks..data.len().saturating_sub(CHUNK_SIZE))
                    .step_by(CHUNK_SIZE)
                    .filter(|at| data[*at] == CHUNK_ENTRY)
                    .collect();
                let Some(&at) = self.dice.pick(&entries) else { return };
                if self.dice.one_in(2) {
                    // The entry's value, whose numbers are big-endian.
                    let chunk = u16::from_le_bytes([data[at + 8], data[at + 9]]);
                    let value = chunks + usize::from(chunk) * CHUNK_SIZE + 1;
                    let new = value::number(self.dice, 0, objects);
                    if value + ARRAY_BYTES <= data.len() {
                        value::put(data, value, 8, new, true);
                    }
                } else {
                    let (field, width) = ENTRY_FIELDS[self.dice.below(ENTRY_FIELDS.len())];
                    value::field(data, at + field, width, self.dice, objects);
                }
            }
            Ok(BlockKind::Leaf | BlockKind::Header) if !self.dice.one_in(3) => {
                let words = self.dice.below(2) == 0;
                let (at, width) =
                    if words { (self.dice.below(13) * 8, 8) } else { (self.dice.below(52) * 2, 2) };
                value::field(data, at, width, self.dice, objects);
            }
            _ => value::any_field(data, all, self.dice, objects),
        }
    }

    /// Writes what was changed, and every pointer on the way up.
    fn seal(&mut self) {
        while let Some((node, data)) = self.nodes.pop_last() {
            let n = &self.base.tree.nodes[node];
            let Some(bp) = self.image.write(&n.bp, &data) else { continue };
            match n.at {
                At::Uberblock => self.uberblock.rootbp = bp,
                At::In { .. } if bp == n.bp => {}
                At::In { node: parent, offset } => {
                    let mut above = self.take(parent);
                    // Only where the pointer was not made to lead elsewhere.
                    if pointer(&above, offset) == Some(n.bp)
                        && let Some(to) = above.get_mut(offset..offset + BLKPTR_SIZE)
                    {
                        to.copy_from_slice(&bp.encode());
                    }
                    self.nodes.insert(parent, above);
                }
            }
        }
        if self.uberblock != self.base.uberblock {
            self.image.set_uberblock(&self.base.uberblock, &self.uberblock);
        }
    }
}
