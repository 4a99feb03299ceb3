//! What the dbuf caches hold, a line a block, in the form of OpenZFS's kstat `dbufs` that
//! `dbufstat` reads.
//!
//! Of the columns those about the ARC's side of a block are 0: a block that is here is not looked
//! up there. `list` says what corresponds to the ARC's lists here: 3 of a block that was used since
//! the cache last thought of forgetting it, and 1 of others. Changed blocks that no txg has written
//! yet are not in the caches.

use super::pool::Pool;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use zilla::stats::DbufInfo;

/// So many blocks of all pools together are told: a line has some 300 bytes.
const MOST: usize = 64 << 10;

const COLUMNS: [&str; 36] = [
    "pool", "objset", "object", "level", "blkid", "offset", "dbsize", "usize", "meta", "state", "dbholds",
    "dbc", "list", "atype", "flags", "count", "asize", "access", "mru", "gmru", "mfu", "gmfu", "l2",
    "l2_dattr", "l2_asize", "l2_comp", "aholds", "dtype", "btype", "data_bs", "meta_bs", "bsize", "lvls",
    "dholds", "blocks", "dsize",
];

/// `DB_CACHED`
const CACHED: u64 = 4;
/// `ARC_STATE_MRU`, `ARC_STATE_MFU` as dbufstat numbers them.
const MRU: u64 = 1;
const MFU: u64 = 3;

pub(super) fn text(pools: &[Arc<Pool>], age: Duration) -> String {
    let mut left = MOST;
    let mut lines = String::new();
    for pool in pools {
        let found = pool.zilla.dbufs(left);
        left -= found.len().min(left);
        let name = pool.name();
        found.iter().for_each(|d| line(&mut lines, &name, d));
    }
    // Of a raw kstat the first line says only what it is.
    let (count, size) = (MOST - left, lines.len());
    let mut out = format!("0 0 0x01 {count} {size} 0 {}\ndbuf | arcbuf | dnode\n", age.as_nanos());
    out.push_str(&COLUMNS.join(" "));
    out.push('\n');
    out.push_str(&lines);
    out
}

fn line(out: &mut String, pool: &str, d: &DbufInfo) {
    let metadata = d.level > 0 || zilla_ondisk::object_type::is_metadata(d.otype);
    let offset = if d.level == 0 { d.blkid.saturating_mul(d.bytes) } else { 0 };
    let list = if d.again { MFU } else { MRU };
    let block =
        [d.objset, d.object, d.level.into(), d.blkid, offset, d.bytes, 0, metadata.into(), CACHED, 0, 1];
    // `ARC_BUFC_DATA` is 0 and metadata 1; the access time, hits and cache devices' columns follow.
    let cached = [list, metadata.into(), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let object = [
        d.otype.into(),
        d.bonus_type.into(),
        d.data_bytes,
        d.indirect_bytes,
        d.bonus_bytes,
        d.levels.into(),
        0,
        d.blocks,
        d.used,
    ];
    out.push_str(pool);
    block.iter().chain(&cached).chain(&object).for_each(|n| {
        let _ = write!(out, " {n}");
    });
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_column_has_its_value() {
        let d = DbufInfo {
            objset: 54,
            object: 8,
            level: 0,
            blkid: 3,
            bytes: 131_072,
            again: true,
            otype: 19,
            bonus_type: 44,
            bonus_bytes: 168,
            data_bytes: 131_072,
            indirect_bytes: 131_072,
            levels: 2,
            blocks: 8,
            used: 1_052_160,
        };
        let mut text = String::new();
        line(&mut text, "tank", &d);
        let values: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(values.len(), COLUMNS.len());
        let of = |name: &str| values[COLUMNS.iter().position(|c| *c == name).unwrap()];
        let told =
            ["pool", "objset", "object", "level", "blkid", "offset", "dbsize", "meta", "dbc", "list"].map(of);
        assert_eq!(told, ["tank", "54", "8", "0", "3", "393216", "131072", "0", "1", "3"]);
        let of_object = ["dtype", "btype", "data_bs", "meta_bs", "bsize", "lvls", "blocks", "dsize"].map(of);
        assert_eq!(of_object, ["19", "44", "131072", "131072", "168", "2", "8", "1052160"]);
        line(&mut text, "tank", &DbufInfo { level: 1, again: false, ..d });
        let second: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let at = |name: &str| second[COLUMNS.iter().position(|c| *c == name).unwrap()];
        assert_eq!(["level", "offset", "meta", "list"].map(at), ["1", "0", "1", "1"]);
    }
}
