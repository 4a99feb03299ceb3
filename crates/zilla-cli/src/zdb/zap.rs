//! ZAPs: how full they are, and their entries.

use super::object::Context;
use super::{Zdb, put, text};
use zilla_core::dmu::resident;
use zilla_core::error::{Error, Result};
use zilla_core::types::ObjectId;
use zilla_core::zap::{Entry, Zap};
use zilla_ondisk::dsl::DMU_POOL_CHECKSUM_SALT;
use zilla_ondisk::zap::{Leaf, MicroZap, ZAP_FLAG_UINT64_KEY, ZapPhys, leaf};
use zilla_ondisk::znode::Dirent;
use zilla_ondisk::{ByteOrder, DnodePhys};

/// How entries are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Plain,
    Directory,
    /// Registered attributes: number, length, how they are swapped.
    Attributes,
    Layouts,
}

const CLASSES: usize = 10;
/// No ZAP has more blocks than this that are worth counting one by one.
const MAX_LEAVES: u64 = 1 << 20;
/// What a free chunk counts in OpenZFS's reckoning of how full a leaf is.
const FREE_CHUNK: usize = leaf::ARRAY_BYTES + 1;
/// Values that are bytes, not text.
const BINARY: [&str; 5] = [
    "DSL_CRYPTO_MASTER_KEY_1",
    "DSL_CRYPTO_HMAC_KEY_1",
    "DSL_CRYPTO_IV",
    "DSL_CRYPTO_MAC",
    DMU_POOL_CHECKSUM_SALT,
];

const DTYPES: [&str; 16] = [
    "not specified",
    "FIFO",
    "Character Device",
    "3 (invalid)",
    "Directory",
    "5 (invalid)",
    "Block Device",
    "7 (invalid)",
    "Regular File",
    "9 (invalid)",
    "Symbolic Link",
    "11 (invalid)",
    "Socket",
    "Door",
    "Event Port",
    "15 (invalid)",
];

#[derive(Default)]
struct Stats {
    leafs_with_2n_pointers: [u64; CLASSES],
    blocks_with_n5_entries: [u64; CLASSES],
    blocks_n_tenths_full: [u64; CLASSES],
    entries_using_n_chunks: [u64; CLASSES],
    buckets_with_n_entries: [u64; CLASSES],
}

fn count(classes: &mut [u64; CLASSES], n: usize) {
    if let Some(c) = classes.get_mut(n.min(CLASSES - 1)) {
        *c += 1;
    }
}

impl Stats {
    fn leaf(&mut self, leaf: &Leaf<'_>, bytes: usize, zap: &ZapPhys) {
        let int_keys = zap.flags & ZAP_FLAG_UINT64_KEY != 0;
        let h = leaf.header();
        let pointers = zap.ptrtbl.shift.saturating_sub(h.prefix_len.into()) as usize;
        count(&mut self.leafs_with_2n_pointers, pointers);
        count(&mut self.blocks_with_n5_entries, usize::from(h.nentries) / 5);
        let used = bytes.saturating_sub(usize::from(h.nfree) * FREE_CHUNK);
        count(&mut self.blocks_n_tenths_full, used * 10 / bytes.max(1));
        let buckets = leaf::hash_entries(bytes.max(1).ilog2());
        let mut chains = vec![0usize; buckets];
        for e in leaf.iter().flatten() {
            let name = usize::from(e.name_numints) * if int_keys { 8 } else { 1 };
            let value = usize::from(e.value_numints) * usize::from(e.value_intlen);
            count(&mut self.entries_using_n_chunks, 1 + leaf::array_chunks(name) + leaf::array_chunks(value));
            let shift = 64u32.saturating_sub(buckets.ilog2()).saturating_sub(h.prefix_len.into());
            let bucket = e.hash.checked_shr(shift).unwrap_or(0) as usize & (buckets - 1);
            if let Some(c) = chains.get_mut(bucket) {
                *c += 1;
            }
        }
        chains.into_iter().for_each(|n| count(&mut self.buckets_with_n_entries, n));
    }
}

/// An entry's value.
fn value(e: &Entry) -> String {
    let name = e.name_str();
    if let (Some(bytes), true) = (e.value.as_bytes(), e.key.is_empty()) {
        if BINARY.contains(&&*name) {
            return bytes.iter().map(|b| format!("{b:02x}")).collect();
        }
        return text::name(bytes.split(|b| *b == 0).next().unwrap_or_default());
    }
    let signed = e.value.intlen() == 8;
    e.value.ints().map(|n| if signed { format!("{} ", n as i64) } else { format!("{n} ") }).collect()
}

fn line(e: &Entry, style: Style) -> String {
    let name = match e.key.first() {
        Some(key) => format!("0x{key:010}x"),
        None => text::name(&e.name),
    };
    let first = e.value.ints().next();
    match (style, first) {
        (_, None) => format!("\t\t{name} = \n"),
        (Style::Plain, _) => format!("\t\t{name} = {}\n", value(e)),
        (Style::Directory, Some(v)) => {
            let d = Dirent::from_value(v);
            let kind = DTYPES.get(usize::from(d.dtype)).unwrap_or(&"");
            format!("\t\t{name} = {} (type: {kind})\n", d.object)
        }
        (Style::Attributes, Some(v)) => {
            let (len, swap, number) = (v >> 24 & 0xffff, v >> 16 & 0xff, v & 0xffff);
            format!("\t\t{name} =  {v:x} : [{len}:{swap}:{number}]\n")
        }
        (Style::Layouts, _) => {
            let list: String = e.value.ints().map(|n| format!(" {n} ")).collect();
            format!("\t\t{name} = [{list}]\n")
        }
    }
}

impl Zdb {
    pub(super) async fn zap(
        &mut self,
        cx: &Context,
        id: ObjectId,
        dn: &DnodePhys,
        style: Style,
    ) -> Result<()> {
        self.zap_stats(cx, id, dn).await?;
        put!(self, "\n");
        let zap = Zap::new(&cx.os.hold_wait(id).await?);
        let mut at = 0;
        while at != zilla_core::zap::END {
            let batch = resident(|| zap.read_on(&mut at, 4096)).await?;
            let lines: String = batch.entries.iter().map(|e| line(e, style)).collect();
            self.out.put(lines);
            at = batch.next;
        }
        Ok(())
    }

    async fn zap_stats(&mut self, cx: &Context, id: ObjectId, phys: &DnodePhys) -> Result<()> {
        let dn = cx.os.hold_wait(id).await?;
        let bad = |e: zilla_ondisk::FormatError| Error::corrupt(None, format!("ZAP {id}"), e.to_string());
        let first = resident(|| dn.block(0)).await?;
        if let Ok(micro) = MicroZap::new(&first, ByteOrder::NATIVE) {
            let n = micro.iter().flatten().count();
            put!(self, "\tmicrozap: {} bytes, {n} entries\n", first.len());
            return Ok(());
        }
        let p = ZapPhys::parse(&first, ByteOrder::NATIVE).map_err(bad)?;
        let mut stats = Stats::default();
        for blkid in 1..p.freeblk.min(phys.maxblkid.saturating_add(1)).min(MAX_LEAVES) {
            let block = resident(|| dn.block(blkid)).await?;
            // Blocks of a large pointer table lie among the leaves.
            if let Ok(leaf) = Leaf::new(&block, ByteOrder::NATIVE) {
                stats.leaf(&leaf, block.len(), &p);
            }
        }
        let t = &p.ptrtbl;
        let elements = 1u64.checked_shl(u32::try_from(t.shift).unwrap_or(64)).unwrap_or(0);
        put!(self, "\tFat ZAP stats:\n\t\tPointer table:\n\t\t\t{elements} elements\n");
        put!(self, "\t\t\tzt_blk: {}\n\t\t\tzt_numblks: {}\n\t\t\tzt_shift: {}\n", t.blk, t.numblks, t.shift);
        put!(self, "\t\t\tzt_blks_copied: {}\n\t\t\tzt_nextblk: {}\n", t.blks_copied, t.nextblk);
        let (entries, leafs, blocks) = (p.num_entries, p.num_leafs, p.freeblk);
        put!(self, "\t\tZAP entries: {entries}\n\t\tLeaf blocks: {leafs}\n\t\tTotal blocks: {blocks}\n");
        let (kind, magic, salt) = (p.block_type, p.magic, p.salt);
        put!(self, "\t\tzap_block_type: {kind:#x}\n\t\tzap_magic: {magic:#x}\n\t\tzap_salt: {salt:#x}\n");
        for (title, classes) in [
            ("Leafs with 2^n pointers", stats.leafs_with_2n_pointers),
            ("Blocks with n*5 entries", stats.blocks_with_n5_entries),
            ("Blocks n/10 full", stats.blocks_n_tenths_full),
            ("Entries with n chunks", stats.entries_using_n_chunks),
            ("Buckets with n entries", stats.buckets_with_n_entries),
        ] {
            put!(self, "\t\t{title}:\n{}", text::histogram(&classes, 0));
        }
        Ok(())
    }
}
