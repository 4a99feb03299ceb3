//! Node numbers of directories whose files are a list of names.
//!
//! A path has one number as long as the kernel remembers it. Whether there is a file of the name is
//! asked each time.

use crate::abi::{ROOT_ID, Short, op};
use crate::reply::{Out, Reply, put_dirent};
use crate::request::Request;
use std::collections::HashMap;
use zilla::DirEntry;

pub(crate) struct Tree {
    /// Path and how often the kernel was told of it.
    nodes: HashMap<u64, (String, u64)>,
    numbers: HashMap<String, u64>,
    next: u64,
}

impl Default for Tree {
    fn default() -> Tree {
        Tree { nodes: HashMap::new(), numbers: HashMap::new(), next: ROOT_ID + 1 }
    }
}

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    File,
}

/// What is at `path`, where there are files of these names.
pub(crate) fn kind(path: &str, names: &[String]) -> Option<Kind> {
    if names.iter().any(|n| n == path) {
        return Some(Kind::File);
    }
    let above = |n: &String| n.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    (path.is_empty() || names.iter().any(above)).then_some(Kind::Directory)
}

/// The entries of a directory, sorted.
pub(crate) fn entries(path: &str, names: &[String]) -> Vec<(String, Kind)> {
    let mut out: Vec<(String, Kind)> = Vec::new();
    for name in names {
        let rest = if path.is_empty() {
            Some(name.as_str())
        } else {
            name.strip_prefix(path).and_then(|r| r.strip_prefix('/'))
        };
        let Some(rest) = rest.filter(|r| !r.is_empty()) else { continue };
        let entry = match rest.split_once('/') {
            Some((first, _)) => (first.to_owned(), Kind::Directory),
            None => (rest.to_owned(), Kind::File),
        };
        if !out.contains(&entry) {
            out.push(entry);
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

/// What is answered to who reads a directory, from `cookie` on.
pub(crate) fn listing(path: &str, names: &[String], cookie: u64, room: usize) -> Reply {
    let mut all = vec![(".".to_owned(), Kind::Directory), ("..".to_owned(), Kind::Directory)];
    all.extend(entries(path, names));
    let mut out = Out::with(room.min(64 << 10));
    for (i, (name, kind)) in all.into_iter().enumerate().skip(cookie as usize) {
        let dtype = if kind == Kind::Directory { 4 } else { 8 };
        // The number is found out when the name is looked up.
        let entry = DirEntry { name: name.into_bytes(), ino: u64::MAX, dtype, cookie: i as u64 + 1 };
        if !put_dirent(&mut out, room, &entry, ROOT_ID, None) {
            break;
        }
    }
    Reply::head(out.0)
}

impl Tree {
    /// What the kernel says that it forgets.
    pub(crate) fn forgets(&mut self, request: &Request) -> Result<(), Short> {
        let mut a = request.args();
        match request.header.opcode {
            op::FORGET => self.forget(request.header.node, a.u64()?),
            op::BATCH_FORGET => {
                let count = a.u32()?;
                a.skip(4)?;
                for _ in 0..count {
                    let (node, n) = (a.u64()?, a.u64()?);
                    self.forget(node, n);
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(crate) fn path(&self, node: u64) -> Option<String> {
        if node == ROOT_ID { Some(String::new()) } else { self.nodes.get(&node).map(|(p, _)| p.clone()) }
    }

    /// The kernel is told of a path once more.
    pub(crate) fn told(&mut self, path: &str) -> u64 {
        if let Some(&node) = self.numbers.get(path) {
            if let Some((_, told)) = self.nodes.get_mut(&node) {
                *told += 1;
            }
            return node;
        }
        let node = self.next;
        self.next += 1;
        self.numbers.insert(path.to_owned(), node);
        self.nodes.insert(node, (path.to_owned(), 1));
        node
    }

    /// It forgets what it was told `n` times.
    fn forget(&mut self, node: u64, n: u64) {
        let Some((path, told)) = self.nodes.get_mut(&node) else { return };
        *told = told.saturating_sub(n);
        if *told == 0 {
            let path = std::mem::take(path);
            self.numbers.remove(&path);
            self.nodes.remove(&node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_make_a_tree() {
        let names: Vec<String> = ["a/v", "a/b/w", "a/b/x@s", "c/v"].map(String::from).into();
        let of = |path| entries(path, &names).into_iter().map(|e| e.0).collect::<Vec<_>>();
        assert_eq!(of(""), ["a", "c"]);
        assert_eq!(of("a"), ["b", "v"]);
        assert_eq!(of("a/b"), ["w", "x@s"]);
        assert_eq!(of("a/v"), [""; 0]);
        assert_eq!(kind("", &names), Some(Kind::Directory));
        assert_eq!(kind("a/b", &names), Some(Kind::Directory));
        assert_eq!(kind("a/b/w", &names), Some(Kind::File));
        assert_eq!(kind("a/bw", &names), None);
        assert_eq!(kind("a/", &names), None);
    }

    #[test]
    fn a_number_lasts_as_long_as_the_kernel_knows_it() {
        let mut tree = Tree::default();
        let a = tree.told("a");
        assert_eq!(tree.told("a"), a);
        assert_ne!(tree.told("b"), a);
        tree.forget(a, 1);
        assert_eq!(tree.path(a).as_deref(), Some("a"));
        tree.forget(a, 5);
        assert_eq!(tree.path(a), None);
        assert_ne!(tree.told("a"), a);
    }
}
