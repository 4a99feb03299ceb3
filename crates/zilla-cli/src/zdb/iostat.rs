//! `-s`: what this program itself read.

use super::{Zdb, put};
use std::sync::Arc;
use zilla_control::props::nicenum::nicenum;
use zilla_core::vdev::{IoKind, Vdev};

struct Row {
    used: Option<(u64, u64)>,
    indent: usize,
    name: String,
}

impl Zdb {
    pub(super) fn io_stats(&mut self) {
        put!(self, "{:28}capacity   operations   bandwidth  ---- errors ----\n", "");
        put!(self, "description                used avail  read write  read write  read write cksum\n");
        let tree = self.spa.tree();
        let (mut used, mut avail) = (0, 0);
        let mut stats = Vec::new();
        for top in tree.tops.iter().filter(|t| t.vdev.is_concrete()) {
            let s = self.spa.metaslabs.vdev_stat(top.id).unwrap_or_default();
            let space = (s.alloc, s.space.saturating_sub(s.alloc));
            if !top.vdev.is_log {
                used += space.0;
                avail += space.1;
            }
            stats.push((top.vdev.clone(), space));
        }
        let name = self.spa.name();
        self.row(&tree.root, Row { used: Some((used, avail)), indent: 0, name });
        for (vdev, space) in stats {
            self.vdev_rows(&vdev, 2, Some(space));
        }
    }

    fn vdev_rows(&mut self, vdev: &Arc<Vdev>, indent: usize, used: Option<(u64, u64)>) {
        let mut name = match &vdev.leaf {
            Some(leaf) => leaf.path(),
            None => {
                let parity = vdev.kind.nparity().map(|n| n.to_string()).unwrap_or_default();
                vdev.kind.type_name().to_owned() + &parity
            }
        };
        if vdev.is_log && used.is_some() {
            name += " (log)";
        }
        self.row(vdev, Row { used, indent, name });
        for child in &vdev.children {
            self.vdev_rows(child, indent + 2, None);
        }
    }

    fn row(&mut self, vdev: &Arc<Vdev>, row: Row) {
        let s = vdev.stats();
        let millis = (self.env.now().saturating_sub(self.opened)).as_millis().max(1) as u64;
        let rate = |n: u64| nicenum((u128::from(n) * 1000 / u128::from(millis)) as u64);
        let [read, write] = [IoKind::Read, IoKind::Write].map(|k| k as usize);
        let get = |a: &[u64], i: usize| a.get(i).copied().unwrap_or(0);
        let (used, avail) = match row.used {
            Some((used, avail)) => (nicenum(used), nicenum(avail)),
            None => (String::new(), String::new()),
        };
        let Row { indent, name, .. } = row;
        let width = 25usize.saturating_sub(indent).saturating_sub(name.len());
        put!(
            self,
            "{:indent$}{name}{:width$} {used:>5} {avail:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5} {:>5}\n",
            "",
            "",
            rate(get(&s.ops, read)),
            rate(get(&s.ops, write)),
            rate(get(&s.bytes, read)),
            rate(get(&s.bytes, write)),
            nicenum(s.read_errors),
            nicenum(s.write_errors),
            nicenum(s.checksum_errors)
        );
    }
}
