//! Deduplication tables as text: what `zpool status -D` and `zdb -S` print.

use std::collections::BTreeMap;
use zilla_control::props::nicenum::{nicebytes, nicenum};
use zilla_control::types::DedupTables;

/// Blocks and their logical, physical and allocated sizes, each counted once, then as often as it
/// is referred to.
pub type Sums = [u64; 8];

fn half(sums: &[u64]) -> String {
    let mut out = String::new();
    for (i, n) in sums.iter().enumerate() {
        let text = if i == 0 { format!("{:>6}", nicenum(*n)) } else { format!("{:>5}", nicebytes(*n)) };
        out.push_str("   ");
        out.push_str(&text);
    }
    out
}

fn row(name: &str, sums: &Sums) -> String {
    let (once, often) = sums.split_at(4);
    format!("{name:>6}{}{}\n", half(once), half(often))
}

/// What stands above the rows.
pub const HEAD: &str = "
bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
";

/// Rows by the power of two of references.
pub fn rows(rows: &BTreeMap<u32, Sums>) -> String {
    let name = |bucket: u32| nicenum(1u64.checked_shl(bucket).unwrap_or(u64::MAX));
    let some = rows.iter().filter(|(_, sums)| sums[0] > 0);
    some.map(|(bucket, sums)| row(&name(*bucket), sums)).collect()
}

/// The same, and their total.
pub fn histogram(all: &BTreeMap<u32, Sums>) -> String {
    format!("{HEAD}{}{}\n", rows(all), row("Total", &total(all)))
}

pub fn total(rows: &BTreeMap<u32, Sums>) -> Sums {
    let mut sum = Sums::default();
    for sums in rows.values() {
        sum.iter_mut().zip(sums).for_each(|(to, n)| *to = to.saturating_add(*n));
    }
    sum
}

/// What `zpool status -D` adds.
pub fn status(tables: &DedupTables, exact: bool) -> String {
    if tables.entries == 0 {
        return "\n dedup: no DDT entries\n".to_owned();
    }
    let size = |n: u64| if exact { n.to_string() } else { nicenum(n) };
    let (on_disk, in_core) = (size(tables.on_disk), size(tables.in_core));
    let head =
        format!("\n dedup: DDT entries {}, size {on_disk} on disk, {in_core} in core\n", tables.entries);
    head + &histogram(&tables.histogram)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_openzfs_prints_them() {
        assert_eq!(status(&DedupTables::default(), false), "\n dedup: no DDT entries\n");
        let sums = [5, 640 << 10, 640 << 10, 640 << 10, 15, 1920 << 10, 1920 << 10, 1920 << 10];
        let tables =
            DedupTables { entries: 5, on_disk: 7168, in_core: 96 << 10, histogram: [(1, sums)].into() };
        let want = "
 dedup: DDT entries 5, size 7K on disk, 96K in core

bucket              allocated                       referenced          
______   ______________________________   ______________________________
refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE
------   ------   -----   -----   -----   ------   -----   -----   -----
     2        5    640K    640K    640K       15   1.88M   1.88M   1.88M
 Total        5    640K    640K    640K       15   1.88M   1.88M   1.88M

";
        assert_eq!(status(&tables, false), want);
    }
}
