//! `-l`: a device's four labels, those that are alike once; with `-u` the rings of uberblocks.
//!
//! A configuration is shown although its checksum is wrong, with a note, as long as it can be
//! unpacked.

use super::config;
use super::options::Opts;
use crate::cx::Out;
use std::fmt::Write;
use std::path::Path;
use zilla_core::vdev::{label, open_device};
use zilla_env::{Env, OpenMode};
use zilla_ondisk::label::{MMP_BLOCKS_PER_LABEL, VDEV_LABELS, VdevLabel, uberblock_count};
use zilla_ondisk::uberblock::MMP_MAGIC;
use zilla_ondisk::{Field, NvList, Uberblock};

struct Shown {
    number: usize,
    config: Option<NvList>,
    valid: bool,
    /// Slot and uberblock.
    uberblocks: Vec<(u64, Uberblock)>,
    slots: u64,
}

fn look(number: usize, raw: &[u8], valid: bool) -> Shown {
    let parts = VdevLabel::split(raw);
    let config = parts.and_then(|p| NvList::unpack(p.nvlist()).ok());
    let tree = config.as_ref().and_then(|c| c.list("vdev_tree"));
    let ashift = tree.and_then(|t| t.u64("ashift")).and_then(|a| u32::try_from(a).ok()).unwrap_or(9);
    let slots = parts.into_iter().flat_map(|p| p.slots(ashift)).zip(0..);
    let uberblocks = slots
        .filter_map(|((_, slot), n)| Some((n, Uberblock::decode_slot(slot.get(..Uberblock::SIZE)?).ok()?.0)));
    Shown { number, config, valid, uberblocks: uberblocks.collect(), slots: uberblock_count(ashift) }
}

fn header(s: &Shown, printed: &mut bool, out: &mut String) {
    if !std::mem::replace(printed, true) {
        let line = "-".repeat(36);
        let bad = if s.valid { "" } else { "(Bad label cksum)" };
        let _ = writeln!(out, "{line}\nLABEL {} {bad}\n{line}", s.number);
    }
}

/// The labels for which `test` holds.
fn numbers(prefix: &str, all: &[Shown], test: impl Fn(&Shown) -> bool) -> String {
    let list: String = all.iter().filter(|s| test(s)).map(|s| format!("{} ", s.number)).collect();
    format!("{prefix}{list}\n")
}

fn text(all: &[Shown], s: &Shown, opts: &Opts) -> String {
    let (mut out, mut printed) = (String::new(), false);
    if !opts.on('q') {
        match &s.config {
            None => {
                let _ = writeln!(out, "failed to unpack label {}", s.number);
            }
            Some(config) => {
                let first = all.iter().find(|o| o.config.as_ref() == Some(config)).map(|o| o.number);
                if first == Some(s.number) || opts.level('l') > 2 {
                    header(s, &mut printed, &mut out);
                    out.push_str(&config::nvlist(config, 4));
                    out.push_str(&numbers("    labels = ", all, |o| o.config.as_ref() == Some(config)));
                }
            }
        }
    }
    for n in (0..s.slots).filter(|_| opts.on('u')) {
        let Some((_, ub)) = s.uberblocks.iter().find(|(slot, _)| *slot == n) else {
            if opts.level('u') >= 2 {
                header(s, &mut printed, &mut out);
                let _ = writeln!(out, "    Uberblock[{n}] invalid");
            }
            continue;
        };
        let heartbeat = ub.mmp_magic == MMP_MAGIC && ub.mmp_delay > 0 && n >= s.slots - MMP_BLOCKS_PER_LABEL;
        let same = |o: &Shown| o.uberblocks.iter().any(|(_, u)| u == ub);
        let first = all.iter().find(|o| same(o)).map(|o| o.number);
        if (heartbeat && opts.level('u') < 4) || (opts.level('u') < 3 && first != Some(s.number)) {
            continue;
        }
        header(s, &mut printed, &mut out);
        let _ = write!(out, "    Uberblock[{n}]\n{}", config::uberblock(ub));
        out.push_str(&numbers("        labels = ", all, same));
    }
    out
}

pub async fn run(env: &Env, opts: &Opts) -> u8 {
    let Some(path) = opts.operands.first() else { return 2 };
    let device = match open_device(env, Path::new(path), OpenMode::default()).await {
        Ok(device) => device,
        Err(e) => {
            println!("cannot open '{path}': {e}");
            return 1;
        }
    };
    let labels = label::read_labels(&device).await;
    let mut failed = labels.len() < VDEV_LABELS;
    let mut all = Vec::new();
    let mut out = Out::new();
    for (number, l) in labels.iter().enumerate() {
        if l.raw.is_empty() {
            out.line(format!("failed to read label {number}"));
            failed = true;
        } else {
            all.push(look(number, &l.raw, l.config.is_some()));
        }
    }
    if labels.is_empty() {
        out.line(format!("'{path}' is too small for labels: {} bytes", device.size()));
    }
    for s in &all {
        out.put(text(&all, s, opts));
        failed |= s.config.is_none();
    }
    out.flush();
    match all.iter().any(|s| s.config.is_some()) {
        false => 2,
        true => u8::from(failed),
    }
}
