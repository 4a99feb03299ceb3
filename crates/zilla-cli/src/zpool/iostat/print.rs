//! The tables of `zpool iostat`.

use super::Columns;
use crate::fmt::vdev::{self, NameFlags};
use crate::fmt::{left, right};
use zilla_control::props::nicenum::{Nice, format, nicenum, nicetime};
use zilla_control::types::{PoolInfo, QueueDepth, VdevKind, VdevNode, VdevStats, VdevStatsEx};

/// A group of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Default,
    Latency,
    Queues,
    LatencyHistogram,
    SizeHistogram,
}

impl Kind {
    /// Labels above columns: text and how many columns it is centred over.
    fn top(self) -> &'static [(&'static str, usize)] {
        match self {
            Kind::Default => &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
            Kind::Latency => &[
                ("total_wait", 2),
                ("disk_wait", 2),
                ("syncq_wait", 2),
                ("asyncq_wait", 2),
                ("scrub", 1),
                ("trim", 1),
                ("rebuild", 1),
            ],
            Kind::Queues => &[
                ("syncq_read", 2),
                ("syncq_write", 2),
                ("asyncq_read", 2),
                ("asyncq_write", 2),
                ("scrubq_read", 2),
                ("trimq_write", 2),
                ("rebuildq_write", 2),
            ],
            Kind::LatencyHistogram => {
                &[("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)]
            }
            Kind::SizeHistogram => &[
                ("sync_read", 2),
                ("sync_write", 2),
                ("async_read", 2),
                ("async_write", 2),
                ("scrub", 2),
                ("trim", 2),
                ("rebuild", 2),
            ],
        }
    }

    /// Labels of the columns themselves.
    fn bottom(self) -> &'static [&'static str] {
        match self {
            Kind::Default => &["alloc", "free", "read", "write", "read", "write"],
            Kind::Latency => {
                &["read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait"]
            }
            Kind::Queues => &[
                "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend",
                "activ", "pend", "activ",
            ],
            Kind::LatencyHistogram => &[
                "read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim",
                "rebuild",
            ],
            Kind::SizeHistogram => &[
                "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind",
                "agg",
            ],
        }
    }

    /// Width of a column: `-p` makes room for whole numbers.
    fn width(self, literal: bool) -> usize {
        match self {
            _ if !literal => 5,
            Kind::Default => 15,
            Kind::Latency | Kind::LatencyHistogram => 10,
            Kind::Queues | Kind::SizeHistogram => 6,
        }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Options {
    pub names: NameFlags,
    pub literal: bool,
    pub scripted: bool,
    pub verbose: bool,
    pub kinds: Vec<Kind>,
    /// Only these; empty: all.
    pub vdevs: Vec<String>,
}

impl Options {
    pub fn histogram(&self) -> bool {
        self.kinds.iter().any(|k| matches!(k, Kind::LatencyHistogram | Kind::SizeHistogram))
    }
}

pub struct Printer<'a> {
    opts: &'a Options,
    names: usize,
    /// What the scripts of `-c` said; nothing without them.
    scripts: Columns,
}

impl<'a> Printer<'a> {
    /// `columns`: of the terminal. The numbers take 42; longer names make their own lines longer,
    /// not all.
    pub fn new(opts: &'a Options, pools: &[PoolInfo], columns: usize, scripts: Columns) -> Printer<'a> {
        let mut names = 0;
        for pool in pools {
            let own = if opts.verbose { vdev::max_width(pool, opts.names, true) } else { pool.name.len() };
            names = names.max(own).min(columns.saturating_sub(42)).max(10);
        }
        Printer { opts, names, scripts }
    }

    fn title(&self) -> &'static str {
        match self.opts.kinds.first() {
            Some(Kind::LatencyHistogram) => "latency",
            Some(Kind::SizeHistogram) => "req_size",
            _ if self.opts.vdevs.is_empty() => "pool",
            _ => "vdev",
        }
    }

    pub fn header(&self) -> String {
        self.header_with(None, None)
    }

    fn header_with(&self, width: Option<usize>, name: Option<&str>) -> String {
        let title = self.title();
        let names = self.names.max(title.len()).max(name.map_or(0, str::len));
        let mut text = left(name.unwrap_or(""), names);
        for &kind in &self.opts.kinds {
            let width = width.unwrap_or(kind.width(self.opts.literal));
            for &(label, columns) in kind.top() {
                label_over(&mut text, label, columns, width);
            }
        }
        text.push('\n');
        text.push_str(&left(title, names));
        for &kind in &self.opts.kinds {
            let width = width.unwrap_or(kind.width(self.opts.literal));
            for label in kind.bottom() {
                label_over(&mut text, label, 1, width);
            }
        }
        text.push_str(&self.scripts.heading());
        text.push('\n');
        text.push_str(&self.dashes(width, None, names));
        text.push_str(&self.scripts.dashes());
        text.push('\n');
        crate::fmt::color::bold(&text)
    }

    /// A line of dashes, or a heading with a dash for every number.
    fn dashes(&self, width: Option<usize>, name: Option<&str>, names: usize) -> String {
        let mut text = match name {
            Some(name) => left(name, names.max(name.len())),
            None => "-".repeat(names),
        };
        for &kind in &self.opts.kinds {
            let width = width.unwrap_or(kind.width(self.opts.literal));
            for _ in kind.bottom() {
                text.push_str("  ");
                match name {
                    Some(_) => text.push_str(&right("-", width)),
                    None => text.push_str(&"-".repeat(width.min(20))),
                }
            }
        }
        text
    }

    pub fn separator(&self) -> String {
        self.dashes(None, None, self.names.max(self.title().len())) + &self.scripts.dashes()
    }

    /// Whether a separator ends a round.
    pub fn closes(&self, pools: usize, verbose: bool) -> bool {
        let many = pools > 1 && !verbose;
        (many || !self.opts.vdevs.is_empty()) && !self.opts.histogram() && !self.opts.scripted
    }

    /// One pool, with what it had before.
    pub fn pool(&self, pool: &PoolInfo, old: Option<&PoolInfo>) -> String {
        let mut text = String::new();
        let mut lines = self.vdev(&mut text, &pool.name, &pool.root, old.map(|p| &p.root), 0);
        if self.opts.verbose {
            for &(class, title) in vdev::CLASSES {
                let mut titled = false;
                for (i, child) in pool.root.children.iter().enumerate() {
                    if !vdev::class_children(&pool.root, class).any(|c| std::ptr::eq(c, child)) {
                        continue;
                    }
                    if !titled {
                        self.heading(&mut text, title);
                        titled = true;
                    }
                    let name = vdev::name(child, self.opts.names, true);
                    let before = old.and_then(|p| p.root.children.get(i));
                    lines += self.vdev(&mut text, &name, child, before, 2);
                }
            }
            if !pool.l2cache.is_empty() {
                self.heading(&mut text, "cache");
            }
            for (i, child) in pool.l2cache.iter().enumerate() {
                let name = vdev::name(child, self.opts.names, false);
                let before = old.and_then(|p| p.l2cache.get(i));
                lines += self.vdev(&mut text, &name, child, before, 2);
            }
        }
        let separate = lines != 0 && !self.opts.histogram() && !self.opts.scripted && self.opts.verbose;
        if separate && self.opts.vdevs.is_empty() {
            text.push_str(&self.separator());
            text.push('\n');
        }
        text
    }

    fn heading(&self, text: &mut String, title: &str) {
        if !self.opts.histogram() && !self.opts.scripted && self.opts.vdevs.is_empty() {
            text.push_str(&self.dashes(None, Some(title), self.names.max(self.title().len())));
        }
        text.push('\n');
    }

    fn vdev(
        &self,
        text: &mut String,
        name: &str,
        new: &VdevNode,
        old: Option<&VdevNode>,
        depth: usize,
    ) -> usize {
        if new.kind == VdevKind::Indirect {
            return 0;
        }
        // A vdev that was replaced between two rounds starts anew.
        let old = old.filter(|o| o.guid == new.guid);
        let chosen = self.opts.vdevs.iter().any(|v| v == name);
        let mut lines = 0;
        if self.opts.vdevs.is_empty() || chosen {
            self.numbers(text, name, new, old, if chosen { 0 } else { depth });
            lines += 1;
        }
        if !self.opts.verbose {
            return lines;
        }
        for (i, child) in new.children.iter().enumerate() {
            if !vdev::normal_children(new).any(|c| std::ptr::eq(c, child)) {
                continue;
            }
            let child_name = vdev::name(child, self.opts.names, true);
            let before = old.and_then(|o| o.children.get(i));
            lines += self.vdev(text, &child_name, child, before, depth + 2);
        }
        lines
    }

    fn numbers(&self, text: &mut String, name: &str, new: &VdevNode, old: Option<&VdevNode>, depth: usize) {
        let zero = VdevStats::default();
        let before = old.map_or(&zero, |o| &o.stats);
        let elapsed = new.stats.timestamp.saturating_sub(before.timestamp);
        // A histogram without an interval is over the vdev's whole life, not per second.
        let lifetime = before.timestamp == 0 && self.opts.histogram();
        let scale = if lifetime || elapsed == 0 { 1.0 } else { 1e9 / elapsed as f64 };
        if self.opts.histogram() {
            text.push('\n');
            self.histogram(text, name, new, old, scale);
            return;
        }
        if self.opts.scripted {
            text.push_str(name);
        } else {
            text.push_str(&format!("{:depth$}{}", "", left(name, self.names.saturating_sub(depth))));
        }
        let none = VdevStatsEx::default();
        let ex = new.stats_ex.as_ref().unwrap_or(&none);
        let ex_old = old.and_then(|o| o.stats_ex.as_ref()).unwrap_or(&none);
        for &kind in &self.opts.kinds {
            let width = kind.width(self.opts.literal);
            match kind {
                Kind::Default => self.default_columns(text, &new.stats, before, scale, width),
                Kind::Latency => {
                    let how = if self.opts.literal { Nice::RawTime } else { Nice::Time };
                    for (new, old) in latencies(ex).into_iter().zip(latencies(ex_old)) {
                        self.cell(text, &format(average(&difference(new, old)), how), width);
                    }
                }
                _ => {
                    for queue in queues(ex) {
                        for n in [queue.pending, queue.active] {
                            self.cell(text, &format(n, self.how()), width);
                        }
                    }
                }
            }
        }
        text.push_str(&self.scripts.cells(new));
        text.push('\n');
    }

    fn how(&self) -> Nice {
        if self.opts.literal { Nice::Raw } else { Nice::Num }
    }

    fn cell(&self, text: &mut String, value: &str, width: usize) {
        if self.opts.scripted {
            text.push_str(&format!("\t{value}"));
        } else {
            text.push_str(&format!("  {}", right(value, width)));
        }
    }

    fn default_columns(&self, text: &mut String, new: &VdevStats, old: &VdevStats, scale: f64, width: usize) {
        if new.space == 0 {
            // Only top-level vdevs have space of their own.
            let none = if self.opts.literal { "0" } else { "-" };
            self.cell(text, none, width);
            self.cell(text, none, width);
        } else {
            self.cell(text, &format(new.alloc, self.how()), width);
            self.cell(text, &format(new.space.saturating_sub(new.alloc), self.how()), width);
        }
        let counters = [
            (new.read_ops, old.read_ops),
            (new.write_ops, old.write_ops),
            (new.read_bytes, old.read_bytes),
            (new.write_bytes, old.write_bytes),
        ];
        for (new, old) in counters {
            let rate = (new.saturating_sub(old) as f64 * scale) as u64;
            self.cell(text, &format(rate, self.how()), width);
        }
    }

    fn histogram(&self, text: &mut String, name: &str, new: &VdevNode, old: Option<&VdevNode>, scale: f64) {
        let none = VdevStatsEx::default();
        let ex = new.stats_ex.as_ref().unwrap_or(&none);
        let ex_old = old.and_then(|o| o.stats_ex.as_ref()).unwrap_or(&none);
        let latency = self.opts.kinds.first() == Some(&Kind::LatencyHistogram);
        let (news, olds) =
            if latency { (latencies(ex), latencies(ex_old)) } else { (sizes(ex), sizes(ex_old)) };
        let columns: Vec<Vec<u64>> = news.into_iter().zip(olds).map(|(n, o)| difference(n, o)).collect();
        let buckets = if latency {
            zilla_control::types::LATENCY_BUCKETS
        } else {
            zilla_control::types::REQUEST_BUCKETS
        };
        let largest = columns.iter().flatten().copied().max().unwrap_or(0);
        let width = if self.opts.literal { largest.to_string().len().max(5) } else { 5 };
        let names = self.names.max(self.title().len());
        if self.opts.scripted {
            text.push_str(&format!("{name}\n"));
        } else {
            text.push_str(&self.header_with(Some(width), Some(name)));
        }
        // No request is smaller than a sector.
        let first = if latency { 0 } else { 9 };
        for bucket in first..buckets {
            let bound = if latency { (2u64 << bucket) - 1 } else { 1u64 << bucket };
            if self.opts.scripted {
                text.push_str(&bound.to_string());
            } else {
                let label = if latency { nicetime(bound) } else { nicenum(bound) };
                text.push_str(&left(&label, names));
            }
            for column in &columns {
                let count = column.get(bucket).copied().unwrap_or(0);
                self.cell(text, &format((count as f64 * scale) as u64, self.how()), width);
            }
            text.push('\n');
        }
        if !self.opts.scripted {
            text.push_str(&"-".repeat(names + (width + 2) * columns.len()));
            text.push('\n');
        }
    }
}

fn label_over(text: &mut String, label: &str, columns: usize, width: usize) {
    let whole = width * columns + 2 * (columns - 1);
    let start = (whole / columns).saturating_sub(label.len() / columns);
    let rest = whole.saturating_sub(start + label.len());
    text.push_str(&format!("  {:start$}{label}{:rest$}", "", ""));
}

/// In the order of the columns.
fn latencies(ex: &VdevStatsEx) -> Vec<&[u64]> {
    vec![
        &ex.total_wait_read,
        &ex.total_wait_write,
        &ex.disk_wait_read,
        &ex.disk_wait_write,
        &ex.sync_read.wait,
        &ex.sync_write.wait,
        &ex.async_read.wait,
        &ex.async_write.wait,
        &ex.scrub.wait,
        &ex.trim.wait,
        &ex.rebuild.wait,
    ]
}

fn queues(ex: &VdevStatsEx) -> [&QueueDepth; 7] {
    [&ex.sync_read, &ex.sync_write, &ex.async_read, &ex.async_write, &ex.scrub, &ex.trim, &ex.rebuild]
}

fn sizes(ex: &VdevStatsEx) -> Vec<&[u64]> {
    queues(ex).into_iter().flat_map(|q| [q.individual.as_slice(), q.aggregate.as_slice()]).collect()
}

fn difference(new: &[u64], old: &[u64]) -> Vec<u64> {
    let before = old.iter().copied().chain(std::iter::repeat(0));
    new.iter().zip(before).map(|(n, o)| n.saturating_sub(o)).collect()
}

/// The mean of a histogram, every request taken to lie in the middle of its bucket.
fn average(buckets: &[u64]) -> u64 {
    let (mut count, mut total) = (0u128, 0u128);
    for (i, &n) in buckets.iter().enumerate().take(64) {
        let floor = 1u128 << i;
        total += u128::from(n) * (floor + floor / 2);
        count += u128::from(n);
    }
    u64::try_from(total.checked_div(count).unwrap_or(0)).unwrap_or(u64::MAX)
}
