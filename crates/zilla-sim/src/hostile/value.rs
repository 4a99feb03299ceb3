//! What an attacker would write into a field.

use super::Dice;
use zilla_ondisk::{NvList, NvValue};

/// Puts a number of `width` bytes at `at`, in the machine's order or the other.
pub(super) fn put(data: &mut [u8], at: usize, width: usize, value: u64, big: bool) {
    let bytes = if big { value.to_be_bytes() } else { value.to_le_bytes() };
    let part = if big { &bytes[8 - width..] } else { &bytes[..width] };
    if let Some(to) = data.get_mut(at..at + width) {
        to.copy_from_slice(part);
    }
}

fn get(data: &[u8], at: usize, width: usize) -> u64 {
    let part = data.get(at..at + width).unwrap_or_default();
    part.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// A number that is likely to be believed, or to overflow what is made of it: limits, neighbours of
/// what stands there, numbers of objects.
pub(super) fn number(dice: &mut Dice<'_>, old: u64, objects: &[u64]) -> u64 {
    match dice.below(12) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => i64::MAX as u64,
        4 => 1 << dice.below(64),
        5 => (1u64 << dice.below(64)).wrapping_sub(1),
        6 => old.wrapping_add(1),
        7 => old.wrapping_sub(1),
        8 => old.wrapping_shl(1 + dice.below(40) as u32),
        9 | 10 => dice.pick(objects).copied().unwrap_or(2),
        _ => dice.u64(),
    }
}

/// Changes a number of `width` bytes that stands at `at`.
pub(super) fn field(data: &mut [u8], at: usize, width: usize, dice: &mut Dice<'_>, objects: &[u64]) {
    let old = get(data, at, width);
    put(data, at, width, number(dice, old, objects), false);
}

/// Changes some field of `range`, where nothing is known of it: more often one that is in use.
pub(super) fn any_field(
    data: &mut [u8],
    range: std::ops::Range<usize>,
    dice: &mut Dice<'_>,
    objects: &[u64],
) {
    let width = [8, 8, 8, 8, 4, 2, 1][dice.below(7)];
    let places = range.len() / width;
    if places == 0 {
        return;
    }
    let mut at = range.start + dice.below(places) * width;
    for _ in 0..20 {
        if get(data, at, width) != 0 || dice.one_in(4) {
            break;
        }
        at = range.start + dice.below(places) * width;
    }
    field(data, at, width, dice, objects);
}

/// A text that is no name, or a path out of everything.
fn text(dice: &mut Dice<'_>) -> String {
    match dice.below(6) {
        0 => String::new(),
        1 => "x".repeat(1 << dice.below(15)),
        2 => "../../../../etc".into(),
        3 => "/dev/zero".into(),
        4 => ["mirror", "raidz", "root", "file", "disk", "hole", "missing", "replacing", "spare"]
            [dice.below(9)]
        .into(),
        _ => "\u{1b}[2J%s\n".into(),
    }
}

/// The list with something changed, somewhere down in it.
pub(super) fn nvlist(list: &NvList, dice: &mut Dice<'_>) -> NvList {
    let mut out = list.clone();
    if list.is_empty() {
        return out;
    }
    let at = dice.below(list.len());
    let Some((name, value)) = list.iter().nth(at).map(|(n, v)| (n.to_owned(), v.clone())) else {
        return out;
    };
    let changed = match value {
        NvValue::List(inner) if !dice.one_in(6) => NvValue::List(nvlist(&inner, dice)),
        NvValue::ListArray(mut all) if !dice.one_in(6) => {
            let which = dice.below(all.len());
            match dice.below(8) {
                // As deep, or as wide, as an nvlist may be.
                0 => {
                    for _ in 0..dice.below(60) {
                        let inner = all.clone();
                        if let Some(one) = all.get_mut(which) {
                            one.set(name.clone(), NvValue::ListArray(inner));
                        }
                    }
                }
                1 => {
                    let more = all.get(which).cloned();
                    all.extend(more.iter().cycle().take(dice.below(300)).cloned());
                }
                2 => all.truncate(which),
                _ => {
                    if let Some(one) = all.get_mut(which) {
                        *one = nvlist(one, dice);
                    }
                }
            }
            NvValue::ListArray(all)
        }
        NvValue::Uint64(old) if !dice.one_in(8) => NvValue::Uint64(number(dice, old, &[])),
        NvValue::String(_) if !dice.one_in(8) => NvValue::String(text(dice)),
        NvValue::Uint64Array(all) if !dice.one_in(8) => {
            NvValue::Uint64Array(all.iter().map(|n| number(dice, *n, &[])).collect())
        }
        other => match dice.below(5) {
            0 => {
                out.remove(&name);
                return out;
            }
            1 => {
                out.set(text(dice), other);
                return out;
            }
            2 => NvValue::Uint64(dice.u64()),
            3 => NvValue::String(text(dice)),
            _ => NvValue::Boolean,
        },
    };
    out.set(name, changed);
    out
}
