//! Changing the tree of a pool that is open: devices added, attached, detached, removed.
//!
//! A tree never changes; a changed one takes its place. It is made from the old one's
//! configuration, edited, and takes over what the old one knows beyond that: the leaves themselves
//! (device, queue, DTL, statistics), error counts, and the flag that the metaslabs share. Leaves
//! keep their index for as long as the pool is open, so that I/O that began on the old tree is
//! counted right at its end; the place of one that is gone stays empty.
//!
//! Nothing here touches a disk but the opening of new devices. A crash finds the tree that the last
//! synced txg's configuration describes: who makes a changed tree the pool's does so in the txg
//! that writes it down.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use zilla_env::Env;
use zilla_ondisk::NvList;

use super::config::{ConfigFor, Parser};
use super::distributed;
use super::leaf::Leaf;
use super::node::{Vdev, VdevKind};
use super::open::{LABELS, OpenArgs, min_asize};
use super::tree::{Top, VdevTree};
use super::widths::EXPANDING;
use super::within::{OPEN_TIMEOUT, within};
use super::{VdevAux, VdevState};
use crate::error::{Errno, Error, Result};

/// What only a top-level's configuration has.
const OF_TOPS: [&str; 12] = [
    "alloc_bias",
    "metaslab_array",
    "metaslab_shift",
    "ashift",
    "asize",
    "min_alloc",
    "is_log",
    "non_allocating",
    "removing",
    "com.delphix:vdev_zap_top",
    "com.delphix:indirect_object",
    "com.delphix:indirect_births",
];

/// What OpenZFS says of a device whose sectors are larger than the vdev's.
pub const OTHER_SECTORS: &str =
    "The new device cannot have a higher alignment requirement than the top-level vdev.";

fn no_such(guid: u64) -> Error {
    Error::os(Errno::NoDev, format!("there is no vdev {guid} in the pool"))
}

/// The children of a node; a node that has none gets an empty list.
fn children(nv: &mut NvList) -> &mut Vec<NvList> {
    if nv.lists_mut("children").is_none() {
        nv.set("children", Vec::<NvList>::new());
    }
    match nv.lists_mut("children") {
        Some(list) => list,
        None => unreachable!("the list was just put there"),
    }
}

/// Calls `f` with the node of that guid, and whether it is a top-level.
fn at_node<R>(
    nv: &mut NvList,
    guid: u64,
    depth: usize,
    f: &mut dyn FnMut(&mut NvList, bool) -> R,
) -> Option<R> {
    for child in nv.lists_mut("children").into_iter().flatten() {
        if child.u64("guid") == Some(guid) {
            return Some(f(child, depth == 0));
        }
        if let Some(r) = at_node(child, guid, depth + 1, f) {
            return Some(r);
        }
    }
    None
}

/// Moves what belongs to the top-level from one node to the one that takes its place.
fn hand_over(from: &mut NvList, to: &mut NvList) {
    for name in OF_TOPS {
        if let Some(value) = from.remove(name) {
            to.set(name, value);
        }
    }
    if let Some(id) = from.u64("id") {
        to.set("id", id);
    }
}

/// Who takes a top-level's place is as old as it: logs of space are asked by that.
fn as_old_as(top: &NvList, side: &mut NvList) {
    if let Some(txg) = top.u64("create_txg") {
        side.set("create_txg", txg);
    } else {
        side.remove("create_txg");
    }
}

fn renumber(list: &mut [NvList]) {
    for (i, c) in list.iter_mut().enumerate() {
        c.set("id", i as u64);
    }
}

/// The pool's guid is that of the root.
pub fn set_pool_guid(root: &mut NvList, guid: u64) {
    root.set("guid", guid);
}

/// A new top-level, on the first free number.
pub fn add_top(root: &mut NvList, mut top: NvList) {
    let list = children(root);
    let hole = list.iter().position(|c| c.str("type") == Some("hole"));
    let id = hole.unwrap_or(list.len());
    top.set("id", id as u64);
    match list.get_mut(id) {
        Some(place) => *place = top,
        None => list.push(top),
    }
}

/// Gives a RAID-Z one more child.
pub fn widen(root: &mut NvList, guid: u64, mut leaf: NvList) -> Result<()> {
    let made = at_node(root, guid, 0, &mut |nv, top| {
        let list = children(nv);
        leaf.set("id", list.len() as u64);
        list.push(leaf.clone());
        nv.add_flag(EXPANDING);
        top
    });
    made.filter(|m| *m).map(drop).ok_or_else(|| no_such(guid))
}

/// Leaves a top-level's number free.
pub fn make_hole(root: &mut NvList, guid: u64) -> Result<()> {
    let made = at_node(root, guid, 0, &mut |nv, top| {
        if !top {
            return false;
        }
        let id = nv.u64("id").unwrap_or(0);
        *nv = NvList::new().with("type", "hole").with("id", id).with("guid", 0u64).with("is_hole", 1u64);
        true
    });
    made.filter(|m| *m).map(drop).ok_or_else(|| no_such(guid))
}

/// What was a top-level with devices becomes one that only says where its blocks went.
pub fn make_indirect(root: &mut NvList, guid: u64, new_guid: u64, more: impl Fn(&mut NvList)) -> Result<()> {
    let made = at_node(root, guid, 0, &mut |nv, top| {
        if !top {
            return false;
        }
        let mut old = std::mem::take(nv);
        nv.set("type", "indirect").set("guid", new_guid);
        if let Some(txg) = old.u64("create_txg") {
            nv.set("create_txg", txg);
        }
        hand_over(&mut old, nv);
        nv.set("metaslab_array", 0u64).remove("removing");
        more(nv);
        true
    });
    made.filter(|m| *m).map(drop).ok_or_else(|| no_such(guid))
}

/// Puts `new` beside the leaf `guid`: into the mirror it is in, else into a new one of that kind
/// and guid in its place.
pub fn attach(root: &mut NvList, guid: u64, new: &NvList, kind: VdevKind, group_guid: u64) -> Result<()> {
    // A spare for a spare stands beside it.
    if kind != VdevKind::Replacing && join(root, guid, new, kind.type_name()) {
        return Ok(());
    }
    let done = at_node(root, guid, 0, &mut |nv, top| {
        let mut group = NvList::new();
        group.add("type", kind.type_name()).add("id", nv.u64("id").unwrap_or(0)).add("guid", group_guid);
        if let Some(txg) = nv.u64("create_txg") {
            group.add("create_txg", txg);
        }
        let mut old = std::mem::take(nv);
        if top {
            hand_over(&mut old, &mut group);
        }
        let mut pair = vec![old, new.clone()];
        renumber(&mut pair);
        group.set("children", pair);
        *nv = group;
    });
    done.ok_or_else(|| no_such(guid))
}

/// Adds a leaf to the group of that type that `guid` is in, if it is in one.
fn join(nv: &mut NvList, guid: u64, new: &NvList, kind: &str) -> bool {
    let fits = nv.str("type") == Some(kind);
    let list = children(nv);
    if fits && list.iter().any(|c| c.u64("guid") == Some(guid)) {
        list.push(new.clone());
        renumber(list);
        return true;
    }
    list.iter_mut().any(|c| c.contains("children") && join(c, guid, new, kind))
}

/// Of the top-level that the leaf `guid` is a side of only that leaf stays, with its own guid: the
/// pool is split.
pub fn keep_only(root: &mut NvList, guid: u64) -> Result<()> {
    for top in root.lists_mut("children").into_iter().flatten() {
        let Some(at) = children_of(top).iter().position(|c| c.u64("guid") == Some(guid)) else { continue };
        let mut side = children(top).swap_remove(at);
        hand_over(top, &mut side);
        as_old_as(top, &mut side);
        *top = side;
        return Ok(());
    }
    Err(no_such(guid))
}

fn children_of(nv: &NvList) -> &[NvList] {
    nv.lists("children").unwrap_or_default()
}

/// What the path of a device ends with while another one at that path takes its place.
const OLD: &str = "/old";

/// Marks a device as one that is replaced by what is at its own path now.
pub fn make_old(root: &mut NvList, guid: u64) -> Result<()> {
    let done = at_node(root, guid, 0, &mut |nv, _| {
        let path = format!("{}{OLD}", nv.str("path").unwrap_or_default());
        nv.set("path", path).remove("devid");
    });
    done.ok_or_else(|| no_such(guid))
}

/// The mark is taken away: what was to replace the device has gone.
pub fn make_young(root: &mut NvList, guid: u64) {
    at_node(root, guid, 0, &mut |nv, _| {
        if let Some(path) = nv.str("path").and_then(|p| p.strip_suffix(OLD)).map(str::to_owned) {
            nv.set("path", path);
        }
    });
}

/// A spare that stays for good is none any more.
pub fn make_permanent(root: &mut NvList, guid: u64) {
    at_node(root, guid, 0, &mut |nv, _| {
        nv.remove("is_spare");
    });
}

/// Takes a leaf out of its mirror; a mirror of one gives its place to that one.
pub fn detach(root: &mut NvList, guid: u64) -> Result<()> {
    if detach_below(root, guid, 0) { Ok(()) } else { Err(no_such(guid)) }
}

fn detach_below(nv: &mut NvList, guid: u64, depth: usize) -> bool {
    for child in nv.lists_mut("children").into_iter().flatten() {
        if !child.contains("children") {
            continue;
        }
        let list = children(child);
        let before = list.len();
        list.retain(|c| c.u64("guid") != Some(guid));
        if list.len() == before {
            if detach_below(child, guid, depth + 1) {
                return true;
            }
            continue;
        }
        renumber(list);
        if list.len() == 1
            && let Some(mut last) = list.pop()
        {
            let id = child.u64("id").unwrap_or(0);
            if depth == 0 {
                hand_over(child, &mut last);
                as_old_as(child, &mut last);
                // Were it known by another guid, a side that was taken out while it was away would
                // look like a second top-level.
                if let (Some(own), Some(group)) = (last.u64("guid"), child.u64("guid")) {
                    last.set("orig_guid", own).set("guid", group);
                }
            }
            last.set("id", id);
            *child = last;
        }
        return true;
    }
    false
}

impl VdevTree {
    /// The configuration to be edited.
    pub fn to_edit(&self) -> NvList {
        let mut nv = self.generate_config(ConfigFor::Mos);
        // The bias is not written into configurations of pools that exist, but asked for when one
        // is parsed.
        for (child, top) in children(&mut nv).iter_mut().zip(&self.tops) {
            if let Some(bias) = top.vdev.bias() {
                child.set("alloc_bias", bias);
            }
        }
        nv
    }

    /// The tree that an edited configuration describes. New devices are not opened yet.
    pub fn changed(&self, env: &Env, config: &NvList) -> Result<VdevTree> {
        let widths = self.tops.iter().filter_map(|t| Some((t.vdev.guid, t.vdev.widths.clone()?)));
        let mut parser = Parser::new(env.clone(), self.leaves.clone());
        (parser.known, parser.widths) = (self.known_leaves(), widths.collect());
        let root = parser.vdev(config, config.u64("id").unwrap_or(0), 0)?;
        distributed::check(&root)?;
        let tree = VdevTree::assemble(env, root, parser.leaves, self.spares.clone(), self.cache.clone());
        let tree = tree.sharing_flags(self);
        for v in tree.root.walk() {
            if let Some(old) = self.find(v.guid).filter(|o| v.guid != 0 && !o.is_leaf() && !v.is_leaf()) {
                let (state, aux) = old.state();
                v.set_state(state, aux);
                for (to, from) in [
                    (&v.read_errors, &old.read_errors),
                    (&v.write_errors, &old.write_errors),
                    (&v.checksum_errors, &old.checksum_errors),
                ] {
                    to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
                }
            }
        }
        Ok(tree.like(self))
    }

    /// Makes leaves answer to the guids and paths that this tree gives them. To be called when it
    /// takes the old one's place.
    pub fn name_leaves(&self) {
        for v in self.root.walk() {
            if let Some(leaf) = &v.leaf {
                leaf.set_guid(v.guid);
                leaf.set_path(v.config_str("path").unwrap_or_default());
            }
        }
    }

    fn known_leaves(&self) -> std::collections::HashMap<u64, Arc<Leaf>> {
        let here = self.root.walk();
        here.iter().filter_map(|v| Some((v.guid, v.leaf.clone()?))).collect()
    }

    /// Top-levels that stay share their flag with their metaslabs as before.
    fn sharing_flags(mut self, old: &VdevTree) -> VdevTree {
        for top in &mut self.tops {
            let before = old.tops.get(top.id as usize).filter(|t| t.vdev.is_concrete());
            if let Some(before) = before.filter(|_| top.vdev.is_concrete()) {
                top.vdev.share_flag(&before.vdev);
            }
            if let Some(before) = old.tops.get(top.id as usize) {
                top.vdev.set_indirect(before.vdev.indirect());
            }
        }
        self
    }

    /// Leaves that `old` does not have.
    pub fn new_leaves<'a>(&'a self, old: &'a VdevTree) -> impl Iterator<Item = &'a Arc<Leaf>> {
        self.leaves.iter().skip(old.leaves.len())
    }

    /// Opens the devices that `old` does not have. All of them must be there, and fit where they
    /// are put.
    pub async fn open_new(&self, old: &VdevTree, ashift: Option<u32>) -> Result<()> {
        let args = OpenArgs { write: true, ..OpenArgs::default() };
        join_all(self.new_leaves(old).map(|l| self.in_time(l, self.open_leaf(l, &args)))).await;
        let result = self.check_new(old, ashift);
        if result.is_err() {
            join_all(self.new_leaves(old).map(|l| l.close())).await;
        }
        result?;
        self.measure_rooms();
        self.propagate();
        Ok(())
    }

    /// Refuses a device that the pool has twice; `spares`: one that waits as a spare counts.
    /// Nothing has a device open that is offline, or that is a spare: to open it alone would not
    /// fail.
    pub fn check_once(&self, path: &str, spares: bool) -> Result<()> {
        let listed = if spares { &self.spares[..] } else { &[] };
        let all = self.root.walk();
        let all = all.iter().chain(&self.cache).chain(listed);
        match all.filter(|v| v.leaf.is_some() && v.config_str("path").as_deref() == Some(path)).count() {
            0 | 1 => Ok(()),
            _ => Err(Error::os(Errno::Busy, format!("{path} is in the pool already"))),
        }
    }

    fn check_new(&self, old: &VdevTree, ashift: Option<u32>) -> Result<()> {
        for leaf in self.new_leaves(old) {
            if let Some(e) = leaf.open_error() {
                return Err(e);
            }
            if !leaf.writable() {
                let why = match leaf.state().1 {
                    VdevAux::TooSmall => "device is too small",
                    _ => "cannot be opened for writing, or is in use",
                };
                return Err(Error::os(Errno::Busy, format!("{}: {why}", leaf.path())));
            }
            // (One that is replaced in its place has another path by now. A spare that steps in is
            // listed as a spare, too.)
            self.check_once(&leaf.path(), false)?;
        }
        for top in &self.tops {
            let fresh = |l: &Arc<Leaf>| l.index >= old.leaves.len();
            if !top.leaves().any(fresh) {
                continue;
            }
            if top.id as usize >= old.tops.len() {
                top.leaves().filter(|l| !l.is_room()).try_for_each(|l| self.check_once(&l.path(), true))?;
            }
            if top.vdev.asize() == 0 {
                self.open_top(&top.vdev)?;
                continue;
            }
            for v in top.vdev.walk() {
                let Some(leaf) = v.leaf.as_ref().filter(|l| fresh(l) && !l.is_room()) else { continue };
                let sector = leaf.device().map_or(0, |d| super::open::sectors(&d.info()).0);
                if sector.max(ashift.unwrap_or(0)) > top.ashift() {
                    return Err(Error::os(Errno::Dom, OTHER_SECTORS));
                }
                if leaf.psize().saturating_sub(LABELS) < min_asize(&top.vdev, &v) {
                    return Err(Error::os(Errno::Overflow, "device is too small"));
                }
            }
        }
        Ok(())
    }

    /// The top-level that a node is in.
    pub fn top_of(&self, guid: u64) -> Option<&Top> {
        self.tops.iter().find(|t| t.vdev.walk().iter().any(|v| v.guid == guid))
    }

    /// The node whose child has this guid.
    pub fn parent_of(&self, guid: u64) -> Option<Arc<Vdev>> {
        self.root.walk().into_iter().find(|v| v.children.iter().any(|c| c.guid == guid))
    }
}

impl Leaf {
    /// Closes the device of a leaf that leaves the pool, or goes offline: what it has is made
    /// stable first, and nothing more is sent to it.
    pub async fn retire(self: &Arc<Self>, state: VdevState) {
        self.state.set(state, VdevAux::None);
        // What is lost here is in nobody's way: the others have it, or nothing is on it. Nor is a
        // device that does not answer waited for.
        match within(&self.env, OPEN_TIMEOUT, self.flush(self.mark())).await {
            Some(Ok(())) => {}
            Some(Err(e)) => {
                tracing::warn!(path = %self.path(), error = %e, "not flushed before it was closed");
            }
            None => self.give_up(),
        }
        self.close().await;
        self.state.set(state, VdevAux::None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64) -> NvList {
        NvList::new()
            .with("type", "file")
            .with("id", 0u64)
            .with("guid", guid)
            .with("path", format!("/f{guid}"))
    }

    fn root() -> NvList {
        let mut top = leaf(10);
        top.set("ashift", 12u64).set("asize", 1u64 << 30).set("metaslab_array", 7u64).set("is_log", 1u64);
        NvList::new().with("type", "root").with("id", 0u64).with("guid", 1u64).with("children", vec![top])
    }

    /// type:guid[children], with `*` where the top-level's own numbers are.
    fn shape(nv: &NvList) -> String {
        let below: Vec<String> = nv
            .lists("children")
            .unwrap_or_default()
            .iter()
            .enumerate()
            .map(|(i, c)| {
                assert_eq!(c.u64("id"), Some(i as u64));
                shape(c)
            })
            .collect();
        let star = if nv.u64("metaslab_array") == Some(7) { "*" } else { "" };
        let own = format!("{}:{}{star}", nv.str("type").unwrap(), nv.u64("guid").unwrap());
        if below.is_empty() { own } else { format!("{own}[{}]", below.join(" ")) }
    }

    #[test]
    fn a_mirror_comes_and_goes() {
        let mut nv = root();
        attach(&mut nv, 10, &leaf(11), VdevKind::Mirror, 20).unwrap();
        assert_eq!(shape(&nv), "root:1[mirror:20*[file:10 file:11]]");
        attach(&mut nv, 11, &leaf(12), VdevKind::Mirror, 21).unwrap();
        assert_eq!(shape(&nv), "root:1[mirror:20*[file:10 file:11 file:12]]");
        attach(&mut nv, 11, &leaf(13), VdevKind::Replacing, 22).unwrap();
        assert_eq!(shape(&nv), "root:1[mirror:20*[file:10 replacing:22[file:11 file:13] file:12]]");
        detach(&mut nv, 11).unwrap();
        detach(&mut nv, 10).unwrap();
        assert_eq!(shape(&nv), "root:1[mirror:20*[file:13 file:12]]");
        detach(&mut nv, 13).unwrap();
        assert_eq!(shape(&nv), "root:1[file:20*]", "it takes the mirror's guid");
        assert_eq!(nv.lists("children").unwrap()[0].u64("orig_guid"), Some(12));
        assert!(detach(&mut nv, 99).is_err());
    }

    #[test]
    fn holes_are_filled_again() {
        let mut nv = root();
        add_top(&mut nv, leaf(30));
        make_hole(&mut nv, 10).unwrap();
        assert_eq!(shape(&nv), "root:1[hole:0 file:30]");
        add_top(&mut nv, leaf(31));
        assert_eq!(shape(&nv), "root:1[file:31 file:30]");
        assert!(make_hole(&mut nv, 10).is_err());
    }
}
