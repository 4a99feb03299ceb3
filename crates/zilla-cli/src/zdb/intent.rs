//! `-i`: what lies in intent logs.

use super::{Zdb, put, text};
use crate::fmt::time;
use std::collections::BTreeSet;
use std::sync::Arc;
use zilla_core::dmu::Objset;
use zilla_core::error::Result;
use zilla_core::types::Bookmark;
use zilla_core::zio::Priority;
use zilla_ondisk::zil::{CreateBody, LogBlock, LogRecord, RecordBody, ZIL_ZC_SEQ, ZilHeader};

const NAMES: [&str; 25] = [
    "Total              ",
    "TX_CREATE          ",
    "TX_MKDIR           ",
    "TX_MKXATTR         ",
    "TX_SYMLINK         ",
    "TX_REMOVE          ",
    "TX_RMDIR           ",
    "TX_LINK            ",
    "TX_RENAME          ",
    "TX_WRITE           ",
    "TX_TRUNCATE        ",
    "TX_SETATTR         ",
    "TX_ACL_V0          ",
    "TX_ACL_ACL         ",
    "TX_CREATE_ACL      ",
    "TX_CREATE_ATTR     ",
    "TX_CREATE_ACL_ATTR ",
    "TX_MKDIR_ACL       ",
    "TX_MKDIR_ATTR      ",
    "TX_MKDIR_ACL_ATTR  ",
    "TX_WRITE2          ",
    "TX_SETSAXATTR      ",
    "TX_RENAME_EXCHANGE ",
    "TX_RENAME_WHITEOUT ",
    "TX_CLONE_RANGE     ",
];
const TAB: &str = "\t\t\t";
/// The checksum of log blocks whose chain comes first.
const ZILOG2: u8 = 9;
/// What a change of attributes may set, as its mask says: the numbers of Linux, which is where logs
/// are written. (OpenZFS's zdb takes those of another system.)
const AT_MODE: u64 = 0x1;
const AT_UID: u64 = 0x2;
const AT_GID: u64 = 0x4;
const AT_SIZE: u64 = 0x8;
const AT_ATIME: u64 = 0x10;
const AT_MTIME: u64 = 0x20;

fn create(b: &CreateBody<'_>, named: bool) -> String {
    let mut out = String::new();
    if named {
        let link = b.link.map(|l| format!(" -> {}", text::name(l))).unwrap_or_default();
        out += &format!("{TAB}{}{link}\n", text::name(b.name));
    }
    let (dir, file, slots, mode) = (b.dir, b.file.object, b.file.slots, b.mode);
    out += &format!("{TAB}{}\n", time::ctime(b.crtime[0]));
    out += &format!("{TAB}doid {dir}, foid {file}, slots {slots}, mode {mode:o}\n");
    out + &format!("{TAB}uid {}, gid {}, gen {}, rdev {:#x}\n", b.uid, b.gid, b.generation, b.rdev)
}

fn rename(from: u64, to: u64, source: &[u8], target: &[u8]) -> String {
    let (source, target) = (text::name(source), text::name(target));
    format!("{TAB}sdoid {from}, tdoid {to}\n{TAB}src {source} tgt {target}\n")
}

/// What a record says, in lines.
fn body(r: &LogRecord<'_>) -> String {
    match &r.body {
        RecordBody::Commit => String::new(),
        RecordBody::Create(b) | RecordBody::Mkdir(b) | RecordBody::Symlink(b) => create(b, true),
        RecordBody::Mkxattr(b) => create(b, false),
        RecordBody::Remove { dir, name } | RecordBody::Rmdir { dir, name } => {
            format!("{TAB}doid {dir}, name {}\n", text::name(name))
        }
        RecordBody::Link { dir, object, name } => {
            format!("{TAB}doid {dir}, link_obj {object}, name {}\n", text::name(name))
        }
        RecordBody::Rename { source_dir, target_dir, source, target }
        | RecordBody::RenameExchange { source_dir, target_dir, source, target }
        | RecordBody::RenameWhiteout { source_dir, target_dir, source, target, .. } => {
            rename(*source_dir, *target_dir, source, target)
        }
        RecordBody::Write { object, offset, length, .. }
        | RecordBody::Write2 { object, offset, length, .. } => {
            format!("{TAB}foid {object}, offset {offset:x}, length {length:x}\n")
        }
        RecordBody::Truncate { object, offset, length } => {
            format!("{TAB}foid {object}, offset {offset:#x}, length {length:#x}\n")
        }
        RecordBody::Setattr { object, mask, mode, uid, gid, size, atime, mtime, .. } => {
            let mut out = format!("{TAB}foid {object}, mask {mask:#x}\n");
            let lines = [
                (AT_MODE, format!("{TAB}AT_MODE  {mode:o}\n")),
                (AT_UID, format!("{TAB}AT_UID   {uid}\n")),
                (AT_GID, format!("{TAB}AT_GID   {gid}\n")),
                (AT_SIZE, format!("{TAB}AT_SIZE  {size}\n")),
                (AT_ATIME, format!("{TAB}AT_ATIME {}.{:09} {}\n", atime[0], atime[1], time::ctime(atime[0]))),
                (AT_MTIME, format!("{TAB}AT_MTIME {}.{:09} {}\n", mtime[0], mtime[1], time::ctime(mtime[0]))),
            ];
            lines.iter().filter(|(bit, _)| mask & bit != 0).for_each(|(_, l)| out += l);
            out
        }
        RecordBody::Acl { object, acl } => format!("{TAB}foid {object}, aclcnt {}\n", acl.aces.len()),
        RecordBody::Setsaxattr { object, name, value } => {
            let value = if value.is_empty() {
                format!("{TAB}XAT_VALUE  NULL\n")
            } else {
                let value: String = value
                    .iter()
                    .map(|b| char::from(*b))
                    .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '.' })
                    .collect();
                // Without a line end, as OpenZFS prints it.
                format!("{TAB}XAT_VALUE  {value}")
            };
            format!("{TAB}foid {object}\n{TAB}XAT_NAME  {}\n{value}", text::name(name))
        }
        RecordBody::CloneRange { object, offset, length, blksz, .. } => {
            format!("{TAB}foid {object}, offset {offset:x}, length {length:x}, blksize {blksz:x}\n")
        }
    }
}

impl Zdb {
    pub(super) async fn intent_log(&mut self, os: &Arc<Objset>) -> Result<()> {
        let h = os.phys().zil_header;
        if h.log.is_hole() {
            return Ok(());
        }
        put!(self, "\n    ZIL header: claim_txg {}, claim_blk_seq {}, ", h.claim_txg, h.claim_blk_seq);
        put!(self, "claim_lr_seq {} replay_seq {}, flags {:#x}\n", h.claim_lr_seq, h.replay_seq, h.flags);
        let level = self.level('i').max(self.level('d'));
        if level < 2 {
            return Ok(());
        }
        put!(self, "\n");
        let mut counts = [0u64; NAMES.len()];
        self.chain(os, &h, level, &mut counts).await;
        if level > 3 {
            put!(self, "\n");
        }
        let total = counts[0];
        if total > 0 {
            let width = total.to_string().len();
            for (name, n) in NAMES.iter().zip(counts).filter(|(_, n)| *n > 0 || level >= 3) {
                put!(self, "\t\t{name} {n:width$}\n");
            }
            put!(self, "\n");
        }
        Ok(())
    }

    /// Follows the chain to the first block that does not continue it, which is where the log ends.
    async fn chain(&mut self, os: &Arc<Objset>, h: &ZilHeader, level: u8, counts: &mut [u64; NAMES.len()]) {
        let (mut bp, mut seen) = (h.log, BTreeSet::new());
        let first_txg = self.spa.uberblock().txg + 1;
        while !bp.is_hole() {
            let seq = bp.cksum()[ZIL_ZC_SEQ];
            if !seen.insert(bp.dva(0).to_words()) || (h.claim_blk_seq != 0 && seq > h.claim_blk_seq) {
                return;
            }
            if level > 3 {
                let claim = match h.claim_txg {
                    0 if bp.birth() >= first_txg => "will claim",
                    0 => "won't claim",
                    _ => "already claimed",
                };
                let pointer = if level >= 5 { format!(", {bp}") } else { String::new() };
                put!(self, "\tBlock seqno {seq}, {claim}{pointer}\n");
            }
            let at = Bookmark { objset: os.id(), object: 0, level: -2, blkid: seq };
            let Ok(data) = os.store().read(bp, at, Priority::SyncRead).await else { return };
            let Ok(block) = LogBlock::parse(&data, bp.byteorder(), bp.checksum_kind() == ZILOG2) else {
                return;
            };
            if os.is_encrypted() {
                put!(self, "\t\t(encrypted)\n");
            } else if !self.records(&block, h, level, counts) {
                return;
            }
            let next = block.chain.next_blk;
            let (mut continues, cksum) = (bp.cksum(), next.cksum());
            continues[ZIL_ZC_SEQ] = continues[ZIL_ZC_SEQ].wrapping_add(1);
            if continues != cksum {
                return;
            }
            bp = next;
        }
    }

    /// False where the log ends within the block.
    fn records(
        &mut self,
        block: &LogBlock<'_>,
        h: &ZilHeader,
        level: u8,
        counts: &mut [u64; NAMES.len()],
    ) -> bool {
        for record in block.records() {
            let Ok(r) = record else { return false };
            if h.claim_lr_seq != 0 && r.header.seq > h.claim_lr_seq {
                return false;
            }
            let Some(name) = NAMES.get(r.header.txtype as usize) else { return false };
            let fold = if r.ignore_case { "CI-" } else { "" };
            let (len, txg, seq) = (r.header.reclen, r.header.txg, r.header.seq);
            put!(self, "\t\t{fold}{name} len {len:6}, txg {txg}, seq {seq}\n");
            if level >= 3 {
                self.out.put(body(&r));
            }
            for i in [0, r.header.txtype as usize] {
                if let Some(n) = counts.get_mut(i) {
                    *n += 1;
                }
            }
        }
        true
    }
}
