//! One object: its line, and at higher levels flags, bonus, contents and blocks.

use super::znode::Files;
use super::{Zdb, put, text};
use std::sync::Arc;
use zilla_core::dmu::Objset;
use zilla_core::error::Result;
use zilla_core::types::ObjectId;
use zilla_ondisk::DnodePhys;
use zilla_ondisk::dnode::{
    DNODE_FLAG_SPILL_BLKPTR, DNODE_FLAG_USED_BYTES, DNODE_FLAG_USEROBJUSED_ACCOUNTED,
    DNODE_FLAG_USERUSED_ACCOUNTED, DNODE_SHIFT, DNODES_PER_BLOCK,
};
use zilla_ondisk::enums::{checksum_name, compress_name};
use zilla_ondisk::object_type::{self, ByteswapClass, DMU_OT_NEWTYPE};

/// The objset that objects belong to, and what is known of it.
pub(crate) struct Context {
    pub os: Arc<Objset>,
    /// The name of what its data is compressed by where objects do not say.
    pub compress: String,
    /// Of a file system that can be understood.
    pub files: Option<Files>,
}

impl Context {
    pub fn new(os: Arc<Objset>, compress: String) -> Context {
        Context { os, compress, files: None }
    }
}

/// An object type's name; those that only have properties go by what they hold.
pub fn type_name(otype: u8) -> &'static str {
    if otype & DMU_OT_NEWTYPE == 0 {
        return object_type::name(otype);
    }
    match object_type::byteswap_class(otype) {
        _ if !object_type::is_valid(otype) => "UNKNOWN",
        ByteswapClass::Uint8 => "uint8",
        ByteswapClass::Uint16 => "uint16",
        ByteswapClass::Uint32 => "uint32",
        ByteswapClass::Uint64 => "uint64",
        ByteswapClass::Zap => "zap",
        ByteswapClass::Dnode => "dnode",
        ByteswapClass::Objset => "objset",
        ByteswapClass::Znode => "znode",
        ByteswapClass::OldAcl => "oldacl",
        ByteswapClass::Acl => "acl",
    }
}

/// The dnode of any object, the meta-dnode included.
pub async fn dnode(os: &Arc<Objset>, id: ObjectId) -> Result<DnodePhys> {
    if id == ObjectId::META_DNODE {
        return Ok(os.phys().meta_dnode);
    }
    Ok(os.hold_wait(id).await?.phys())
}

impl Zdb {
    /// Shows an object; gives the slots its dnode takes. What cannot be read is complained about.
    pub(super) async fn object(&mut self, cx: &Context, id: ObjectId, level: u8, header: &mut bool) -> u64 {
        let dn = match dnode(&cx.os, id).await {
            Ok(dn) => dn,
            Err(e) => {
                self.complain(&format!("object {id}"), &e);
                return 1;
            }
        };
        if std::mem::replace(header, level >= 4) {
            put!(
                self,
                "\n{:>10}  {:>3}  {:>5}  {:>5}  {:>5}  {:>6}  {:>5}  {:>6}  {}\n",
                "Object",
                "lvl",
                "iblk",
                "dblk",
                "dsize",
                "dnsize",
                "lsize",
                "%full",
                "type"
            );
        }
        self.object_line(cx, id, level, &dn);
        if level >= 4
            && let Err(e) = self.details(cx, id, level, &dn).await
        {
            self.complain(&format!("object {id}"), &e);
        }
        u64::from(dn.extra_slots) + 1
    }

    fn object_line(&mut self, cx: &Context, id: ObjectId, level: u8, dn: &DnodePhys) {
        let blksz = u64::from(dn.datablkszsec) << 9;
        let size = dn.maxblkid.saturating_add(1).saturating_mul(blksz);
        let fill: u64 = dn.blkptr.iter().map(|b| b.fill()).fold(0, u64::saturating_add);
        let per_block = if id == ObjectId::META_DNODE { DNODES_PER_BLOCK as f64 } else { 1.0 };
        let full = format!("{:6.2}", 100.0 * fill as f64 * blksz as f64 / per_block / size.max(1) as f64);
        let mut aux = String::new();
        if dn.checksum != 0 || level >= 6 {
            aux += &format!(" (K={})", checksum_name(dn.checksum));
        }
        if dn.compress == 0 && level >= 6 {
            aux += &format!(" (Z=inherit={})", cx.compress);
        } else if dn.compress != 0 {
            aux += &format!(" (Z={})", compress_name(dn.compress));
        }
        let used = (dn.used_bytes().saturating_add(256) >> 9) << 9;
        let n = |v| self.nice(v);
        let (iblk, dblk, used) = (n(1 << dn.indblkshift), n(blksz), n(used));
        let (dnsize, lsize) = (n((u64::from(dn.extra_slots) + 1) << DNODE_SHIFT), n(size));
        let (levels, kind) = (dn.nlevels, type_name(dn.otype));
        let id = id.to_string();
        put!(
            self,
            "{id:>10}  {levels:3}  {iblk:>5}  {dblk:>5}  {used:>5}  {dnsize:>6}  {lsize:>5}  {full:>6}  {kind}{aux}\n"
        );
        if dn.bonustype != 0 && level > 3 {
            let (len, kind) = (self.nice(dn.bonus.len() as u64), type_name(dn.bonustype));
            put!(self, "{:45}{len:>5}  {:>6}  {kind}\n", "", "bonus");
        }
    }

    async fn details(&mut self, cx: &Context, id: ObjectId, level: u8, dn: &DnodePhys) -> Result<()> {
        let flags = [
            (DNODE_FLAG_USED_BYTES, "USED_BYTES "),
            (DNODE_FLAG_USERUSED_ACCOUNTED, "USERUSED_ACCOUNTED "),
            (DNODE_FLAG_USEROBJUSED_ACCOUNTED, "USEROBJUSED_ACCOUNTED "),
            (DNODE_FLAG_SPILL_BLKPTR, "SPILL_BLKPTR"),
        ];
        let set: String = flags.iter().filter(|(f, _)| dn.flags & f != 0).map(|(_, n)| *n).collect();
        put!(self, "\tdnode flags: {set}\n\tdnode maxblkid: {}\n", dn.maxblkid);
        let sealed = |otype| cx.os.is_encrypted() && object_type::is_encrypted(otype);
        if sealed(dn.bonustype) {
            put!(self, "\t\t(bonus encrypted)\n");
        } else if let Err(e) = self.bonus(cx, id, dn).await {
            self.complain("bonus", &e);
        }
        if sealed(dn.otype) {
            put!(self, "\t\t(object encrypted)\n");
        } else if let Err(e) = self.contents(cx, id, dn).await {
            self.complain("contents", &e);
        }
        if level >= 5 {
            if let Some(bp) = &dn.spill {
                put!(self, "\nSpill block: {}\n", text::compact(bp, level > 5));
            }
            self.blocks_of(cx, id, dn, level > 5).await?;
        }
        Ok(())
    }
}
