//! `zpool status`.

use super::scripts::{self, Columns};
use super::status_activity::{checkpoint, expansion, removal, scans};
use super::{compat, status_json, status_text};
use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::color::{self, BLUE, RED, YELLOW, bold, paint};
use crate::fmt::interval::{Interval, Stamp};
use crate::fmt::vdev::{self, NameFlags};
use crate::fmt::{ddt, json, left, one_line, time};
use std::rc::Rc;
use zilla_control::props::nicenum::nicenum;
use zilla_control::status::{StatusReason, reason_of};
use zilla_control::types::{
    ActivityState, ErrorEntry, LeafProgress, PoolInfo, PoolQuery, RebuildStat, ScanFunc, ScanState, VdevAux,
    VdevKind, VdevNode, VdevState,
};

/// What to show.
#[derive(Debug, Clone, Default)]
pub struct Options {
    pub names: NameFlags,
    pub literal: bool,
    pub verbose: bool,
    pub explain: bool,
    pub dedup: bool,
    pub unhealthy_only: bool,
    pub initialize: bool,
    pub trim: bool,
    pub slow: bool,
    pub direct: bool,
    pub power: bool,
    pub json: bool,
    pub json_int: bool,
    pub flat: bool,
    pub key_guid: bool,
    /// The time printed and computed with; 0: now.
    pub now: u64,
    /// What the scripts of `-c` said.
    pub scripts: Option<Rc<Columns>>,
}

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[
        ("power", false, '\u{1}'),
        ("json", false, 'j'),
        ("json-int", false, '\u{2}'),
        ("json-flat-vdevs", false, '\u{3}'),
        ("json-pool-key-guid", false, '\u{4}'),
    ];
    let (options, mut operands) = args::parse(&args, "c:jdDegiLpPstT:vx", LONG);
    let mut opts = Options { names: NameFlags::from_env(), ..Options::default() };
    let (mut stamp, mut script_names) = (None, None);
    for option in options {
        match option {
            Opt::Flag('c', names) => {
                scripts::check(cx, script_names.as_ref())?;
                script_names = Some(names);
            }
            Opt::Unknown('c', _) => {
                scripts::list(cx, "status")?;
                return Ok(0);
            }
            Opt::Flag('d', _) => opts.direct = true,
            Opt::Flag('D', _) => opts.dedup = true,
            Opt::Flag('e', _) => opts.unhealthy_only = true,
            Opt::Flag('g', _) => opts.names.guid = true,
            Opt::Flag('i', _) => opts.initialize = true,
            Opt::Flag('L', _) => opts.names.follow_links = true,
            Opt::Flag('p', _) => opts.literal = true,
            Opt::Flag('P', _) => opts.names.path = true,
            Opt::Flag('s', _) => opts.slow = true,
            Opt::Flag('t', _) => opts.trim = true,
            Opt::Flag('T', text) => stamp = Some(Stamp::parse(cx, &text)?),
            Opt::Flag('v', _) => opts.verbose = true,
            Opt::Flag('j', _) => opts.json = true,
            Opt::Flag('x', _) => opts.explain = true,
            Opt::Flag('\u{1}', _) => opts.power = true,
            Opt::Flag('\u{2}', _) => (opts.json_int, opts.literal) = (true, true),
            Opt::Flag('\u{3}', _) => opts.flat = true,
            Opt::Flag('\u{4}', _) => opts.key_guid = true,
            other => return cx.bad_option(other),
        }
    }
    let mut interval = Interval::take(cx, &mut operands)?;
    if opts.flat && !opts.json {
        return cx.bad_usage("'--json-flat-vdevs' only works with '-j' option");
    }
    if opts.json_int && !opts.json {
        return cx.bad_usage("'--json-int' only works with '-j' option");
    }
    if opts.key_guid && !opts.json {
        return cx.bad_usage("'json-pool-key-guid' only works with '-j' option");
    }
    loop {
        opts.now = time::now();
        let query = PoolQuery { errors: opts.verbose, properties: true, ..PoolQuery::default() };
        let (pools, failed) = cx.pools(&operands, query)?;
        opts.scripts = script_names.as_ref().map(|names| Rc::new(Columns::ask(names, &pools, &|_| true)));
        if opts.json {
            let mut root = json::schema("zpool", "status");
            if let Some(stamp) = stamp {
                status_json::stamp(&mut root, stamp, &opts);
            }
            root.obj("pools", status_json::pools(&pools, &opts));
            if !failed {
                cx.out.line(root.render());
            }
        } else {
            if let Some(stamp) = stamp {
                cx.out.line(stamp.now());
            }
            show(cx, &pools, operands.is_empty(), &opts);
        }
        if failed {
            return Ok(1);
        }
        if !interval.next(cx) {
            return Ok(0);
        }
    }
}

fn show(cx: &mut Cx, pools: &[PoolInfo], all: bool, opts: &Options) {
    let mut first = true;
    for pool in pools {
        let reason = reason_of(pool, &compat::of(pool));
        if opts.explain && harmless(reason) {
            if !all {
                cx.out.line(format!("pool '{}' is healthy", pool.name));
                first = false;
            }
            continue;
        }
        if !first {
            cx.out.line("");
        }
        first = false;
        cx.out.put(print(pool, reason, opts));
    }
    if all && pools.is_empty() {
        cx.err("no pools available");
    } else if opts.explain && first && all {
        cx.out.line("all pools are healthy");
    }
}

/// Reasons that `-x` does not count as problems.
pub fn harmless(reason: StatusReason) -> bool {
    use StatusReason::*;
    matches!(reason, Ok | VersionOlder | FeatDisabled | CompatibilityErr | IncompatibleFeat)
}

/// The whole report on one pool.
pub fn print(pool: &PoolInfo, reason: StatusReason, opts: &Options) -> String {
    let state = vdev::pool_state(pool);
    let mut text = format!("  {} {}\n", bold("pool:"), pool.name);
    text.push_str(&format!(" {}{}\n", bold("state: "), paint(color::of_health(state), state)));
    let (status, action) = status_text::explain(reason, pool);
    for (title, paragraph) in [("status: ", status), ("action: ", action)] {
        if !paragraph.is_empty() {
            text.push_str(&bold(title));
            text.push_str(&paint(Some(YELLOW), &paragraph));
        }
    }
    if let Some(id) = reason.message_id() {
        text.push_str(&format!("   {} https://openzfs.github.io/openzfs-docs/msg/{id}\n", bold("see:")));
    }
    text.push_str(&scans(pool, opts.now));
    text.push_str(&removal(pool, opts.now));
    text.push_str(&checkpoint(pool.checkpoint.as_ref()));
    text.push_str(&expansion(pool, opts.now));

    let width = vdev::max_width(pool, opts.names, true).max(10);
    let mut heading = format!(
        "config:\n\n\t{}  {:<8} {:>5} {:>5} {:>5}",
        left("NAME", width),
        "STATE",
        "READ",
        "WRITE",
        "CKSUM"
    );
    for (on, title) in [(opts.slow, "SLOW"), (opts.power, "POWER"), (opts.direct, "DIO")] {
        if on {
            heading.push_str(&format!(" {title:>5}"));
        }
    }
    heading.push_str(&opts.scripts.as_ref().map(|s| s.heading()).unwrap_or_default());
    text.push_str(&bold(&heading));
    text.push('\n');
    let mut tree = Tree { pool, opts, width, text };
    tree.vdev(&pool.name, &pool.root, 0, false, None);
    for &(class, title) in vdev::CLASSES {
        let mut members = vdev::class_children(&pool.root, class).peekable();
        if members.peek().is_some() {
            tree.text.push_str(&format!("\t{title}\t\n"));
        }
        for member in members {
            tree.vdev(&vdev::name(member, opts.names, true), member, 2, false, None);
        }
    }
    for (list, title, spare) in [(&pool.l2cache, "cache", false), (&pool.spares, "spares", true)] {
        if !list.is_empty() {
            tree.text.push_str(&format!("\t{title}\n"));
        }
        for member in list {
            tree.vdev(&vdev::name(member, opts.names, false), member, 2, spare, None);
        }
    }
    let mut text = tree.text;
    text.push('\n');
    text.push_str(&errors(pool, opts));
    if opts.dedup {
        text.push_str(&ddt::status(&pool.dedup, opts.literal));
    }
    text
}

fn errors(pool: &PoolInfo, opts: &Options) -> String {
    if pool.error_count == 0 {
        return "errors: No known data errors\n".to_owned();
    }
    if !opts.verbose {
        let text = format!("errors: {} data errors, use '-v' for a list\n", pool.error_count);
        return paint(Some(RED), &text);
    }
    if pool.errors.is_empty() {
        return "errors: List of errors unavailable: permission denied\n".to_owned();
    }
    let mut text = "errors: Permanent errors have been detected in the following files:\n\n".to_owned();
    for error in &pool.errors {
        text.push_str(&format!("{:>7} {}\n", "", one_line(&error_path(error))));
    }
    text
}

/// A damaged place as a path, or as numbers where no path can be told.
pub fn error_path(error: &ErrorEntry) -> String {
    match (&error.dataset, &error.path, &error.mountpoint) {
        (Some(_), Some(path), Some(mountpoint)) => format!("{}{path}", mountpoint.trim_end_matches('/')),
        (Some(dataset), Some(path), None) => format!("{dataset}:{path}"),
        (Some(dataset), None, _) => format!("{dataset}:<0x{:x}>", error.object),
        (None, ..) if error.dataset_id == 0 => format!("<metadata>:<0x{:x}>", error.object),
        (None, ..) => format!("<0x{:x}>:<0x{:x}>", error.dataset_id, error.object),
    }
}

struct Tree<'a> {
    pool: &'a PoolInfo,
    opts: &'a Options,
    width: usize,
    text: String,
}

impl Tree<'_> {
    fn vdev(
        &mut self,
        name: &str,
        vdev: &VdevNode,
        depth: usize,
        spare: bool,
        rebuild: Option<&RebuildStat>,
    ) {
        if vdev.kind == VdevKind::Indirect {
            return;
        }
        if self.opts.unhealthy_only && depth > 0 && healthy(vdev, self.opts.slow) {
            return;
        }
        let stats = &vdev.stats;
        let state =
            if spare { vdev::spare_state_name(vdev) } else { vdev::state_name(stats.state, stats.aux) };
        let name = left(name, self.width.saturating_sub(depth));
        let head = format!("\t{:depth$}{name}  {state:<8}", "");
        self.text.push_str(&paint(color::of_health(state), &head));
        if !spare {
            self.counters(vdev);
        }
        self.remarks(vdev, spare, rebuild);
        self.text.push('\n');
        for child in vdev::normal_children(vdev) {
            let rebuild = rebuild.or(vdev.rebuild.as_ref());
            let name = vdev::name(child, self.opts.names, true);
            self.vdev(&name, child, depth + 2, spare, rebuild);
        }
    }

    fn counters(&mut self, vdev: &VdevNode) {
        let stats = &vdev.stats;
        let number = |n: u64| if self.opts.literal { n.to_string() } else { nicenum(n) };
        for errors in [stats.read_errors, stats.write_errors, stats.checksum_errors] {
            let color = (errors > 0).then_some(RED);
            self.text.push(' ');
            self.text.push_str(&paint(color, &format!("{:>5}", number(errors))));
        }
        let leaf = vdev.children.is_empty();
        if self.opts.slow {
            let slow = if leaf || self.opts.literal { number(stats.slow_ios) } else { "-".to_owned() };
            let color = (stats.slow_ios > 0).then_some(BLUE);
            self.text.push_str(&paint(color, &format!(" {slow:>5}")));
        }
        if self.opts.power {
            self.text.push_str(&format!(" {:>5}", "-"));
        }
        if self.opts.direct {
            self.text.push_str(&format!(" {:>5}", number(stats.dio_verify_errors)));
        }
    }

    fn remarks(&mut self, vdev: &VdevNode, spare: bool, rebuild: Option<&RebuildStat>) {
        let stats = &vdev.stats;
        let leaf = vdev.children.is_empty();
        if vdev.not_present {
            self.text.push_str(&format!("  was {}", vdev.path.as_deref().unwrap_or("")));
        } else if let Some(other) = vdev.spared_by.as_deref().filter(|name| *name != self.pool.name) {
            self.text.push_str(&format!("  {}", paint(Some(RED), &format!("in use by pool '{other}'"))));
        } else if stats.aux != VdevAux::None {
            self.text.push_str(&format!("  {}", paint(Some(RED), aux_text(vdev))));
        } else if leaf && !spare && stats.configured_ashift < stats.physical_ashift {
            self.text.push_str(&format!(
                "  block size: {}B configured, {}B native",
                1u64.checked_shl(stats.configured_ashift as u32).unwrap_or(0),
                1u64.checked_shl(stats.physical_ashift as u32).unwrap_or(0)
            ));
        }
        if stats.scan_removing {
            self.text.push_str("  (removing)");
        } else if stats.noalloc {
            self.text.push_str("  (non-allocating)");
        }
        let healthy_leaf = leaf && stats.state == VdevState::Healthy;
        if let Some(scan) = self.pool.scan.as_ref().filter(|s| s.state == ScanState::Scanning)
            && healthy_leaf
        {
            if stats.scan_processed != 0 {
                let what = if scan.func == ScanFunc::Resilver { "resilvering" } else { "repairing" };
                self.text.push_str(&format!("  ({what})"));
            } else if stats.resilver_deferred {
                self.text.push_str("  (awaiting resilver)");
            }
        }
        let rebuilding = rebuild.is_some_and(|r| r.state == ActivityState::Active);
        if rebuilding && healthy_leaf && stats.rebuild_processed != 0 {
            self.text.push_str("  (resilvering)");
        }
        if let Some(scripts) = &self.opts.scripts {
            self.text.push_str(&scripts.cells(vdev));
        }
        if leaf {
            let initialize = progress(&stats.initialize, self.opts.initialize, "initialized", "initializing");
            let trim = progress(&stats.trim, self.opts.trim, "trimmed", "trimming");
            self.text.push_str(&initialize);
            self.text.push_str(&trim);
        }
    }
}

/// Nothing below is in trouble, for `-e`; slow I/Os count where they are shown.
pub fn healthy(vdev: &VdevNode, slow: bool) -> bool {
    if !vdev.children.is_empty() {
        return vdev.children.iter().all(|c| healthy(c, slow));
    }
    let s = &vdev.stats;
    s.state == VdevState::Healthy
        && s.read_errors == 0
        && s.write_errors == 0
        && s.checksum_errors == 0
        && (!slow || s.slow_ios == 0)
}

/// What lies behind a state.
pub fn aux_text(vdev: &VdevNode) -> &'static str {
    let s = &vdev.stats;
    match s.aux {
        VdevAux::None => "",
        VdevAux::OpenFailed => "cannot open",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::VersionNewer => "newer version",
        VdevAux::UnsupFeat => "unsupported feature(s)",
        VdevAux::AshiftTooBig => "unsupported minimum blocksize",
        VdevAux::Spared => "currently in use",
        VdevAux::ErrExceeded => {
            let quiet = s.read_errors == 0 && s.write_errors == 0 && s.checksum_errors == 0;
            if quiet && vdev.children.is_empty() && s.slow_ios > 0 {
                "too many slow I/Os"
            } else {
                "too many errors"
            }
        }
        VdevAux::IoFailure => "experienced I/O failures",
        VdevAux::BadLog => "bad intent log",
        VdevAux::External => "external device fault",
        VdevAux::SplitPool => "split into new pool",
        VdevAux::Active => "currently in use",
        VdevAux::ChildrenOffline => "all children offline",
        VdevAux::BadLabel => "invalid label",
        _ => "corrupted data",
    }
}

/// How far an initialize or trim is: always told while it runs, at length where asked for.
fn progress(progress: &LeafProgress, long: bool, done: &str, running: &str) -> String {
    let when = match progress.state {
        ActivityState::Active if !long => return format!("  ({running})"),
        _ if !long => return String::new(),
        ActivityState::Active => "started at",
        ActivityState::Suspended => "suspended, started at",
        ActivityState::Complete => "completed at",
        _ if progress.unsupported => return "  (trim unsupported)".to_owned(),
        _ => return format!("  (un{done})"),
    };
    let percent = match progress.state {
        ActivityState::Complete => 100,
        _ => u128::from(progress.done) * 100 / (u128::from(progress.estimate) + 1),
    };
    format!("  ({percent}% {done}, {when} {})", time::ctime(progress.action_time))
}
