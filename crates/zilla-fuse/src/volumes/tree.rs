//! Node numbers of the directory of volumes.
//!
//! A path has one number as long as the kernel remembers it. Whether there is a volume of the name
//! is asked each time.

use crate::abi::ROOT_ID;
use std::collections::HashMap;

pub(super) struct Tree {
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
pub(super) enum Kind {
    Directory,
    Volume,
}

/// What is at `path`, where there are volumes of these names.
pub(super) fn kind(path: &str, names: &[String]) -> Option<Kind> {
    if names.iter().any(|n| n == path) {
        return Some(Kind::Volume);
    }
    let above = |n: &String| n.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    (path.is_empty() || names.iter().any(above)).then_some(Kind::Directory)
}

/// The entries of a directory, sorted.
pub(super) fn entries(path: &str, names: &[String]) -> Vec<(String, Kind)> {
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
            None => (rest.to_owned(), Kind::Volume),
        };
        if !out.contains(&entry) {
            out.push(entry);
        }
    }
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}

impl Tree {
    pub(super) fn path(&self, node: u64) -> Option<String> {
        if node == ROOT_ID { Some(String::new()) } else { self.nodes.get(&node).map(|(p, _)| p.clone()) }
    }

    /// The kernel is told of a path once more.
    pub(super) fn told(&mut self, path: &str) -> u64 {
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
    pub(super) fn forget(&mut self, node: u64, n: u64) {
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
        assert_eq!(kind("a/b/w", &names), Some(Kind::Volume));
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
