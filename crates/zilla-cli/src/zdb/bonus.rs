//! What bonuses and contents of each object type say.

use super::object::Context;
use super::zap::Style;
use super::{Zdb, config, put, text};
use crate::fmt::time;
use zilla_core::error::{Error, Result};
use zilla_core::types::ObjectId;
use zilla_ondisk::bpobj::BpobjPhys;
use zilla_ondisk::dsl::{DslDatasetPhys, DslDirPhys};
use zilla_ondisk::history::HistoryPhys;
use zilla_ondisk::object_type::{self as ot, ByteswapClass, DMU_OT_NEWTYPE};
use zilla_ondisk::{BlkPtr, ByteOrder, DnodePhys, Phys};

/// Of an array of numbers this much is shown.
const MAX_NUMBERS: u64 = 1 << 20;

fn bad(id: ObjectId) -> impl Fn(zilla_ondisk::FormatError) -> Error {
    move |e| Error::corrupt(None, format!("object {id}"), e.to_string())
}

impl Zdb {
    pub(super) async fn bonus(&mut self, cx: &Context, id: ObjectId, dn: &DnodePhys) -> Result<()> {
        let (bonus, order) = (&dn.bonus, dn.bonus_order);
        match dn.bonustype {
            ot::DMU_OT_PACKED_NVLIST_SIZE | ot::DMU_OT_FUID_SIZE => {
                let nv = zilla_core::spa::config::read_packed(&cx.os, id.0).await?;
                self.out.put(config::nvlist(&nv, 8));
            }
            ot::DMU_OT_BPOBJ_HDR => {
                let p = BpobjPhys::from_bonus(bonus, order).map_err(bad(id))?;
                self.bpobj(cx, id, &p).await?;
            }
            ot::DMU_OT_DSL_DIR => {
                let p = DslDirPhys::decode(bonus, order).map_err(bad(id))?;
                self.dsl_dir(&p);
            }
            ot::DMU_OT_DSL_DATASET => {
                let p = DslDatasetPhys::decode(bonus, order).map_err(bad(id))?;
                self.dsl_dataset(&p);
            }
            ot::DMU_OT_SPA_HISTORY_OFFSETS => {
                let p = HistoryPhys::decode(bonus, order).map_err(bad(id))?;
                put!(
                    self,
                    "\t\tpool_create_len = {}\n\t\tphys_max_off = {}\n",
                    p.pool_create_len,
                    p.phys_max_off
                );
                put!(self, "\t\tbof = {}\n\t\teof = {}\n", p.bof, p.eof);
                put!(self, "\t\trecords_lost = {}\n", p.records_lost);
            }
            ot::DMU_OT_ZNODE | ot::DMU_OT_SA => self.znode(cx, id).await?,
            t if is_numbers(t) && self.level('d') >= 6 => {
                let words: Vec<u64> = ot::u64s(bonus, order).collect();
                self.numbers(&words, false);
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) async fn contents(&mut self, cx: &Context, id: ObjectId, dn: &DnodePhys) -> Result<()> {
        let style = match dn.otype {
            ot::DMU_OT_DIRECTORY_CONTENTS => Style::Directory,
            ot::DMU_OT_SA_ATTR_REGISTRATION => Style::Attributes,
            ot::DMU_OT_SA_ATTR_LAYOUTS => Style::Layouts,
            _ => Style::Plain,
        };
        match dn.otype {
            t if ot::is_zap(t) => self.zap(cx, id, dn, style).await,
            ot::DMU_OT_BPOBJ_SUBOBJ => self.array(cx, id, dn, true).await,
            t if is_numbers(t) && self.level('d') >= 6 => self.array(cx, id, dn, false).await,
            _ => Ok(()),
        }
    }

    /// An object that is an array of numbers.
    async fn array(&mut self, cx: &Context, id: ObjectId, dn: &DnodePhys, plain: bool) -> Result<()> {
        let size = dn.maxblkid.saturating_add(1).saturating_mul(u64::from(dn.datablkszsec) << 9);
        let mut buf = vec![0; size.min(MAX_NUMBERS) as usize];
        cx.os.hold_wait(id).await?.read_wait(0, &mut buf).await?;
        let words: Vec<u64> = ot::u64s(&buf, ByteOrder::NATIVE).collect();
        if !plain {
            self.numbers(&words, size > MAX_NUMBERS);
            return Ok(());
        }
        for (i, n) in words.iter().enumerate().filter(|(_, n)| **n != 0) {
            put!(self, "\t\t{i}: {n}\n");
        }
        Ok(())
    }

    fn numbers(&mut self, words: &[u64], more: bool) {
        let rows: Vec<String> = words
            .chunks(4)
            .map(|row| row.iter().map(|w| format!("{w:x}")).collect::<Vec<_>>().join(", "))
            .collect();
        let more = if more { ", ... " } else { "" };
        put!(self, "\t\t[{}{more}]\n", rows.join(",\n\t\t"));
    }

    async fn bpobj(&mut self, cx: &Context, id: ObjectId, p: &BpobjPhys) -> Result<()> {
        let (bytes, comp, uncomp) = (self.nice(p.bytes), self.nice(p.comp), self.nice(p.uncomp));
        put!(self, "\t\tnum_blkptrs = {}\n\t\tbytes = {bytes}\n", p.num_blkptrs);
        // Fields that the bonus is too short for are shown too, as OpenZFS does: they are 0.
        put!(self, "\t\tcomp = {comp}\n\t\tuncomp = {uncomp}\n");
        put!(self, "\t\tsubobjs = {}\n\t\tnum_subobjs = {}\n", p.subobjs, p.num_subobjs);
        put!(self, "\t\tnum_freed = {}\n", p.num_freed);
        if self.level('d') < 5 {
            return Ok(());
        }
        let list = zilla_core::dsl::Bpobj::open(&cx.os, id.0).await?;
        let mut at = 0;
        while at < p.num_blkptrs {
            let some: Vec<BlkPtr> = list.read(at, 1024).await?;
            if some.is_empty() {
                break;
            }
            for bp in &some {
                put!(self, "\t{}\n", text::listed(bp, self.level('d') > 5, bp.free_bit()));
            }
            at += some.len() as u64;
        }
        Ok(())
    }

    fn dsl_dir(&mut self, p: &DslDirPhys) {
        put!(self, "\t\tcreation_time = {}\n", time::ctime(p.creation_time));
        put!(self, "\t\thead_dataset_obj = {}\n\t\tparent_dir_obj = {}\n", p.head_dataset_obj, p.parent_obj);
        put!(self, "\t\torigin_obj = {}\n\t\tchild_dir_zapobj = {}\n", p.origin_obj, p.child_dir_zapobj);
        for (name, n) in [
            ("used_bytes", p.used_bytes),
            ("compressed_bytes", p.compressed_bytes),
            ("uncompressed_bytes", p.uncompressed_bytes),
            ("quota", p.quota),
            ("reserved", p.reserved),
        ] {
            let n = self.nice(n);
            put!(self, "\t\t{name} = {n}\n");
        }
        put!(self, "\t\tprops_zapobj = {}\n\t\tdeleg_zapobj = {}\n", p.props_zapobj, p.deleg_zapobj);
        put!(self, "\t\tflags = {:x}\n", p.flags);
        let kinds = ["HEAD", "SNAP", "CHILD", "CHILD_RSRV", "REFRSRV"];
        for (kind, n) in kinds.iter().zip(p.used_breakdown) {
            let n = self.nice(n);
            put!(self, "\t\tused_breakdown[{kind}] = {n}\n");
        }
        put!(self, "\t\tclones = {}\n", p.clones);
    }

    fn dsl_dataset(&mut self, p: &DslDatasetPhys) {
        for (name, n) in [
            ("dir_obj", p.dir_obj),
            ("prev_snap_obj", p.prev_snap_obj),
            ("prev_snap_txg", p.prev_snap_txg),
            ("next_snap_obj", p.next_snap_obj),
            ("snapnames_zapobj", p.snapnames_zapobj),
            ("num_children", p.num_children),
            ("userrefs_obj", p.userrefs_obj),
        ] {
            put!(self, "\t\t{name} = {n}\n");
        }
        put!(self, "\t\tcreation_time = {}\n", time::ctime(p.creation_time));
        put!(self, "\t\tcreation_txg = {}\n\t\tdeadlist_obj = {}\n", p.creation_txg, p.deadlist_obj);
        for (name, n) in [
            ("used_bytes", p.referenced_bytes),
            ("compressed_bytes", p.compressed_bytes),
            ("uncompressed_bytes", p.uncompressed_bytes),
            ("unique", p.unique_bytes),
        ] {
            let n = self.nice(n);
            put!(self, "\t\t{name} = {n}\n");
        }
        put!(self, "\t\tfsid_guid = {}\n\t\tguid = {}\n\t\tflags = {:x}\n", p.fsid_guid, p.guid, p.flags);
        put!(self, "\t\tnext_clones_obj = {}\n\t\tprops_obj = {}\n", p.next_clones_obj, p.props_obj);
        put!(self, "\t\tbp = {}\n", p.bp);
    }
}

/// Arrays of numbers that mean nothing more.
fn is_numbers(otype: u8) -> bool {
    match otype {
        ot::DMU_OT_OBJECT_ARRAY | ot::DMU_OT_UINT64_OTHER => true,
        t => t & DMU_OT_NEWTYPE != 0 && ot::byteswap_class(t) == ByteswapClass::Uint64,
    }
}
