//! `zpool status -j`, and the heads of pools and vdevs in every JSON output.

use super::compat;
use super::status::{self, Options};
use crate::fmt::interval::Stamp;
use crate::fmt::json::{Json, Obj};
use crate::fmt::time;
use crate::fmt::vdev::{self, NameFlags};
use zilla_control::props::nicenum::{Nice, format};
use zilla_control::status::{SPA_VERSION, reason_of};
use zilla_control::types::{
    ActivityState, AllocClass, CheckpointState, PoolInfo, ScanFunc, ScanStat, ScanState, VdevAux, VdevKind,
    VdevNode, VdevState,
};

const ZPL_VERSION: u64 = 5;

/// A number as text for the eye, as plain text (`-p`), or as a number (`--json-int`).
fn nice(object: &mut Obj, name: &str, value: u64, opts: &Options, how: Nice) {
    if opts.json_int || opts.literal {
        object.num(name, value, opts.json_int);
    } else {
        object.str(name, format(value, how));
    }
}

/// The same for a time.
fn nice_time(object: &mut Obj, name: &str, value: u64, opts: &Options) {
    if opts.json_int || opts.literal {
        object.num(name, value, opts.json_int);
    } else if value == 0 {
        object.str(name, "-");
    } else {
        object.str(name, time::ctime(value));
    }
}

pub fn stamp(root: &mut Obj, stamp: Stamp, opts: &Options) {
    if opts.json_int {
        root.set("time", Json::Num(opts.now));
    } else {
        root.str("time", stamp.now());
    }
}

/// Name, state, guid, txg and versions of a pool.
pub fn pool_info(pool: &PoolInfo, with_type: bool, as_int: bool) -> Obj {
    let mut object = Obj::new();
    object.str("name", pool.name.as_str());
    if with_type {
        object.str("type", "POOL");
    }
    object.str("state", vdev::pool_state(pool));
    for (name, value) in [("pool_guid", pool.guid), ("txg", pool.txg)] {
        if value != 0 {
            object.num(name, value, as_int);
        }
    }
    object.num("spa_version", SPA_VERSION, as_int);
    object.num("zpl_version", ZPL_VERSION, as_int);
    object
}

/// Name, type, guid, path, class and state of a vdev. `parent`: the class of the vdev it is part
/// of.
pub fn vdev_info(vdev: &VdevNode, name: &str, parent: AllocClass, with_type: bool, as_int: bool) -> Obj {
    let mut object = Obj::new();
    object.str("name", name);
    if with_type {
        object.str("type", "VDEV");
    }
    object.str("vdev_type", vdev.kind.type_name());
    if vdev.guid != 0 {
        object.num("guid", vdev.guid, as_int);
    }
    let strings = [("path", &vdev.path), ("phys_path", &vdev.phys_path), ("devid", &vdev.devid)];
    for (name, value) in strings {
        if let Some(value) = value {
            object.str(name, value.as_str());
        }
    }
    let class = if vdev.class == AllocClass::Normal { parent } else { vdev.class };
    object.str(
        "class",
        match class {
            _ if vdev.kind == VdevKind::Hole => "hole",
            AllocClass::Normal => "normal",
            AllocClass::Log => "log",
            AllocClass::Special => "special",
            AllocClass::Dedup => "dedup",
            AllocClass::Cache => "l2cache",
            AllocClass::Spare => "spare",
        },
    );
    object.str(
        "state",
        match vdev.stats.state {
            VdevState::Unknown => "UNKNOWN",
            VdevState::Closed => "CLOSED",
            VdevState::Offline => "OFFLINE",
            VdevState::Removed => "REMOVED",
            VdevState::CantOpen => "CANT_OPEN",
            VdevState::Faulted => "FAULTED",
            VdevState::Degraded => "DEGRADED",
            VdevState::Healthy => "ONLINE",
        },
    );
    object
}

/// The `pools` member.
pub fn pools(pools: &[PoolInfo], opts: &Options) -> Obj {
    let mut all = Obj::new();
    for pool in pools {
        let reason = reason_of(pool, &compat::of(pool));
        if opts.explain && status::harmless(reason) {
            continue;
        }
        let mut item = pool_info(pool, false, opts.json_int);
        let (status, action) = super::status_text::explain(reason, pool);
        for (name, text) in [("status", status), ("action", action)] {
            if !text.is_empty() {
                item.str(name, text);
            }
        }
        if let Some(id) = reason.message_id() {
            item.str("msgid", id);
            item.str("moreinfo", format!("https://openzfs.github.io/openzfs-docs/msg/{id}"));
        }
        scan(&mut item, pool, opts);
        checkpoint(&mut item, pool, opts);
        let mut vdevs = Obj::new();
        tree(&mut vdevs, &pool.root, &pool.name, AllocClass::Normal, 0, None, opts);
        if !opts.flat {
            item.obj("vdevs", std::mem::take(&mut vdevs));
        }
        for &(class, title) in vdev::CLASSES {
            let mut members = Obj::new();
            for member in vdev::class_children(&pool.root, class) {
                let name = vdev::name(member, opts.names, true);
                tree(if opts.flat { &mut vdevs } else { &mut members }, member, &name, class, 2, None, opts);
            }
            if !members.is_empty() {
                item.obj(title, members);
            }
        }
        let lists =
            [(&pool.l2cache, "l2cache", AllocClass::Cache), (&pool.spares, "spares", AllocClass::Spare)];
        for (list, title, class) in lists {
            let mut members = Obj::new();
            for member in list {
                let name = vdev::name(member, opts.names, true);
                tree(if opts.flat { &mut vdevs } else { &mut members }, member, &name, class, 2, None, opts);
            }
            if !members.is_empty() {
                item.obj(title, members);
            }
        }
        if opts.flat {
            item.obj("vdevs", vdevs);
        }
        nice(&mut item, "error_count", pool.error_count, opts, Nice::Num);
        if pool.error_count != 0 && opts.verbose {
            let list = pool.errors.iter().map(|e| Json::Str(status::error_path(e))).collect();
            item.set("errlist", Json::Arr(list));
        }
        let key = if opts.key_guid { pool.guid.to_string() } else { pool.name.clone() };
        all.obj(key, item);
    }
    all
}

/// One vdev and what is below it. Flat output repeats the leaves beside the tree, which is how
/// OpenZFS does it.
fn tree(
    into: &mut Obj,
    vdev: &VdevNode,
    name: &str,
    class: AllocClass,
    depth: usize,
    parent: Option<&str>,
    opts: &Options,
) {
    if vdev.kind == VdevKind::Indirect
        || (opts.unhealthy_only && depth > 0 && status::healthy(vdev, opts.slow))
    {
        return;
    }
    let mut object = vdev_info(vdev, name, class, false, opts.json_int);
    if let Some(parent) = parent.filter(|_| opts.flat) {
        object.str("parent", parent);
    }
    if class == AllocClass::Spare {
        object.str("state", vdev::spare_state_name(vdev));
    } else {
        counters(&mut object, vdev, opts);
    }
    remarks(&mut object, vdev, class == AllocClass::Spare, opts);
    if let Some(scripts) = &opts.scripts {
        scripts.json(&mut object, vdev);
    }
    if vdev.children.is_empty() && opts.flat {
        into.obj(name, object.clone());
    }
    let mut below = Obj::new();
    for child in vdev::normal_children(vdev) {
        let child_name = vdev::name(child, opts.names, true);
        if opts.flat {
            tree(into, child, &child_name, class, depth + 2, Some(name), opts);
        }
        tree(&mut below, child, &child_name, class, depth + 2, Some(name), opts);
    }
    if !below.is_empty() {
        object.obj("vdevs", below);
    }
    into.obj(name, object);
}

fn counters(object: &mut Obj, vdev: &VdevNode, opts: &Options) {
    let s = &vdev.stats;
    let leaf = vdev.children.is_empty();
    let sizes = [
        ("alloc_space", s.alloc),
        ("total_space", s.space),
        ("def_space", s.dspace),
        ("rep_dev_size", s.rsize),
        ("ex_dev_size", s.esize),
        ("self_healed", s.self_healed),
        ("phys_space", s.pspace),
    ];
    for (name, value) in sizes {
        if value != 0 {
            nice(object, name, value, opts, Nice::Bytes);
        }
    }
    nice(object, "read_errors", s.read_errors, opts, Nice::Num);
    nice(object, "write_errors", s.write_errors, opts, Nice::Num);
    nice(object, "checksum_errors", s.checksum_errors, opts, Nice::Num);
    for (name, value) in [("scan_processed", s.scan_processed), ("checkpoint_space", s.checkpoint_space)] {
        if value != 0 {
            nice(object, name, value, opts, Nice::Bytes);
        }
    }
    if s.resilver_deferred {
        object.num("resilver_deferred", 1, opts.json_int);
    }
    if leaf {
        nice(object, "slow_ios", s.slow_ios, opts, Nice::Num);
    }
    if opts.power {
        object.str("power_state", "-");
    }
}

fn remarks(object: &mut Obj, vdev: &VdevNode, spare: bool, opts: &Options) {
    let s = &vdev.stats;
    let leaf = vdev.children.is_empty();
    if opts.direct {
        nice(object, "dio_verify_errors", s.dio_verify_errors, opts, Nice::Num);
    }
    if vdev.not_present {
        object.num("not_present", 1, opts.json_int);
        object.str("was", vdev.path.clone().unwrap_or_default());
    } else if s.aux != VdevAux::None {
        object.str("aux", aux_name(s.aux));
    } else if leaf && !spare && s.configured_ashift < s.physical_ashift {
        object.num("configured_ashift", s.configured_ashift, opts.json_int);
        object.num("physical_ashift", s.physical_ashift, opts.json_int);
    }
    if s.scan_removing {
        object.num("removing", 1, opts.json_int);
    } else if s.noalloc {
        object.num("noalloc", 1, opts.json_int);
    }
    if !leaf {
        return;
    }
    if opts.initialize {
        let i = &s.initialize;
        if i.state == ActivityState::None {
            object.str("init_state", "UNINITIALIZED");
        } else {
            object.str("init_state", activity_name(i.state));
            nice(object, "initialized", i.done, opts, Nice::Bytes);
            nice(object, "to_initialize", i.estimate, opts, Nice::Bytes);
            nice_time(object, "init_time", i.action_time, opts);
            nice(object, "init_errors", i.errors, opts, Nice::Num);
        }
    }
    if opts.trim {
        let t = &s.trim;
        if !t.unsupported && t.state == ActivityState::None {
            object.str("trim_state", "UNTRIMMED");
        } else if !t.unsupported {
            object.str("trim_state", activity_name(t.state));
            nice(object, "trimmed", t.done, opts, Nice::Bytes);
            nice(object, "to_trim", t.estimate, opts, Nice::Bytes);
            nice_time(object, "trim_time", t.action_time, opts);
            nice(object, "trim_errors", t.errors, opts, Nice::Num);
        }
        object.num("trim_notsup", u64::from(t.unsupported), opts.json_int);
    }
}

fn scan(item: &mut Obj, pool: &PoolInfo, opts: &Options) {
    let mut object = Obj::new();
    if let Some(s) = pool.scan.as_ref() {
        scan_stats(&mut object, s, opts);
    }
    let rebuilds = rebuilds(pool, opts);
    if !rebuilds.is_empty() {
        object.obj("rebuild_stats", rebuilds);
    }
    if !object.is_empty() {
        item.obj("scan_stats", object);
    }
}

fn rebuilds(pool: &PoolInfo, opts: &Options) -> Obj {
    let mut all = Obj::new();
    for top in &pool.root.children {
        let Some(r) = top.rebuild.as_ref().filter(|r| r.state != ActivityState::None) else { continue };
        let name = vdev::name(top, NameFlags::default(), true);
        let mut object = vdev_info(top, &name, top.class, false, opts.json_int);
        object.str("state", activity_name(r.state));
        nice_time(&mut object, "start_time", r.start_time, opts);
        nice_time(&mut object, "end_time", r.end_time, opts);
        let nanos = |ms: u64| ms.saturating_mul(1_000_000);
        nice(&mut object, "scan_time", nanos(r.scan_time_ms), opts, Nice::Time);
        nice(&mut object, "scanned", r.bytes_scanned, opts, Nice::Bytes);
        nice(&mut object, "issued", r.bytes_issued, opts, Nice::Bytes);
        nice(&mut object, "rebuilt", r.bytes_rebuilt, opts, Nice::Bytes);
        nice(&mut object, "to_scan", r.bytes_est, opts, Nice::Bytes);
        nice(&mut object, "errors", r.errors, opts, Nice::Num);
        nice(&mut object, "pass_time", nanos(r.pass_time_ms), opts, Nice::Time);
        nice(&mut object, "pass_scanned", r.pass_bytes_scanned, opts, Nice::Bytes);
        nice(&mut object, "pass_issued", r.pass_bytes_issued, opts, Nice::Bytes);
        nice(&mut object, "pass_skipped", r.pass_bytes_skipped, opts, Nice::Bytes);
        all.obj(name, object);
    }
    all
}

fn scan_stats(object: &mut Obj, s: &ScanStat, opts: &Options) {
    object.str(
        "function",
        match s.func {
            ScanFunc::None => "NONE",
            ScanFunc::Scrub => "SCRUB",
            ScanFunc::Resilver => "RESILVER",
        },
    );
    object.str(
        "state",
        match s.state {
            ScanState::None => "NONE",
            ScanState::Scanning => "SCANNING",
            ScanState::Finished => "FINISHED",
            ScanState::Canceled => "CANCELED",
        },
    );
    nice_time(object, "start_time", s.start_time, opts);
    nice_time(object, "end_time", s.end_time, opts);
    nice(object, "to_examine", s.to_examine, opts, Nice::Bytes);
    nice(object, "examined", s.examined, opts, Nice::Bytes);
    nice(object, "skipped", s.skipped, opts, Nice::Bytes);
    nice(object, "processed", s.processed, opts, Nice::Bytes);
    nice(object, "errors", s.errors, opts, Nice::Num);
    nice(object, "bytes_per_scan", s.pass_exam, opts, Nice::Bytes);
    object.num("pass_start", s.pass_start, opts.json_int);
    nice_time(object, "scrub_pause", s.pass_scrub_pause, opts);
    object.num("scrub_spent_paused", s.pass_scrub_spent_paused, opts.json_int);
    nice(object, "issued_bytes_per_scan", s.pass_issued, opts, Nice::Bytes);
    nice(object, "issued", s.issued, opts, Nice::Bytes);
}

fn checkpoint(item: &mut Obj, pool: &PoolInfo, opts: &Options) {
    let Some(c) = pool.checkpoint.as_ref() else { return };
    let mut object = Obj::new();
    object.str(
        "state",
        match c.state {
            CheckpointState::None => "NONE",
            CheckpointState::Exists => "EXISTS",
            CheckpointState::Discarding => "DISCARDING",
        },
    );
    nice_time(&mut object, "start_time", c.start_time, opts);
    nice(&mut object, "space", c.space, opts, Nice::Bytes);
    item.obj("checkpoint_stats", object);
}

fn activity_name(state: ActivityState) -> &'static str {
    match state {
        ActivityState::None => "NONE",
        ActivityState::Active => "ACTIVE",
        ActivityState::Canceled => "CANCELED",
        ActivityState::Suspended => "SUSPENDED",
        ActivityState::Complete => "COMPLETE",
    }
}

fn aux_name(aux: VdevAux) -> &'static str {
    match aux {
        VdevAux::None => "NONE",
        VdevAux::OpenFailed => "OPEN_FAILED",
        VdevAux::CorruptData => "CORRUPT_DATA",
        VdevAux::NoReplicas => "NO_REPLICAS",
        VdevAux::BadGuidSum => "BAD_GUID_SUM",
        VdevAux::TooSmall => "TOO_SMALL",
        VdevAux::BadLabel => "BAD_LABEL",
        VdevAux::VersionNewer => "VERSION_NEWER",
        VdevAux::VersionOlder => "VERSION_OLDER",
        VdevAux::UnsupFeat => "UNSUP_FEAT",
        VdevAux::Spared => "SPARED",
        VdevAux::ErrExceeded => "ERR_EXCEEDED",
        VdevAux::IoFailure => "IO_FAILURE",
        VdevAux::BadLog => "BAD_LOG",
        VdevAux::External => "EXTERNAL",
        VdevAux::SplitPool => "SPLIT_POOL",
        VdevAux::BadAshift => "BAD_ASHIFT",
        VdevAux::ExternalPersist => "EXTERNAL_PERSIST",
        VdevAux::Active => "ACTIVE",
        VdevAux::ChildrenOffline => "CHILDREN_OFFLINE",
        VdevAux::AshiftTooBig => "ASHIFT_TOO_BIG",
    }
}
