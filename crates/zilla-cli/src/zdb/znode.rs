//! Files: their attributes, and the paths that lead to them.

use super::object::Context;
use super::{Zdb, put, text};
use crate::fmt::time;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use zilla_core::dmu::{Objset, resident};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::types::ObjectId;
use zilla_core::zap::Zap;
use zilla_ondisk::object_type::DMU_OT_ZNODE;
use zilla_ondisk::sa::{SA_LAYOUTS, SA_REGISTRY, SaBuf, SaLayout, SaRegistry};
use zilla_ondisk::znode::{
    Dirent, MASTER_NODE_OBJ, ZFS_OLD_ZNODE_PHYS_SIZE, ZFS_PROJID, ZFS_ROOT_OBJ, ZFS_SA_ATTRS, ZnodePhys,
};
use zilla_ondisk::{ByteOrder, NvList, NvValue, Phys};

/// A path longer than this leads round in a circle.
const MAX_DEPTH: usize = 4096;
/// A longer link target is damage.
const MAX_TARGET: u64 = 65536;

/// Attributes by name.
pub struct Attrs(BTreeMap<String, (Vec<u8>, ByteOrder)>);

impl Attrs {
    fn word(&self, name: &str, i: usize) -> Option<u64> {
        let (raw, order) = self.0.get(name)?;
        Some(order.u64(*raw.as_chunks::<8>().0.get(i)?))
    }

    pub fn get(&self, name: &str) -> Option<u64> {
        self.word(name, 0)
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|(raw, _)| raw.as_slice())
    }
}

/// What it takes to understand an objset's files.
pub(crate) struct Files {
    os: Arc<Objset>,
    registry: SaRegistry,
    layouts: HashMap<u16, Vec<u16>>,
    pub root: u64,
    /// The names in the directory that was looked at last: objects that follow each other mostly
    /// lie in the same one.
    names: Mutex<Option<(u64, Names)>>,
}

/// Names in a directory, by object.
type Names = Arc<HashMap<u64, Vec<u8>>>;

/// Where a file is to be found.
pub enum Place {
    Path(String),
    DeleteQueue,
    Nowhere,
}

impl Files {
    pub async fn open(os: &Arc<Objset>) -> Result<Files> {
        let bad = |e: zilla_ondisk::FormatError| Error::corrupt(None, "system attributes", e.to_string());
        let master = Zap::open(os, MASTER_NODE_OBJ).await?;
        let (mut names, mut layouts) = (Vec::new(), HashMap::new());
        if let Some(id) = master.try_get_u64(ZFS_SA_ATTRS).await? {
            let sa = Zap::open(os, id).await?;
            if let Some(id) = sa.try_get_u64(SA_REGISTRY).await? {
                for e in Zap::open(os, id).await?.entries().await? {
                    names.push((e.name_str().into_owned(), e.value.as_u64().unwrap_or(0)));
                }
            }
            if let Some(id) = sa.try_get_u64(SA_LAYOUTS).await? {
                for e in Zap::open(os, id).await?.entries().await? {
                    let layout = SaLayout::from_zap(&e.name_str(), &e.value).map_err(bad)?;
                    layouts.insert(layout.number, layout.attrs);
                }
            }
        }
        let registry = SaRegistry::for_zpl(names.iter().map(|(n, v)| (n.as_str(), *v))).map_err(bad)?;
        let root = master.get_u64(ZFS_ROOT_OBJ).await?;
        Ok(Files { os: os.clone(), registry, layouts, root, names: Mutex::default() })
    }

    /// A file's attributes; an object that is no file has none.
    pub async fn attrs(&self, id: ObjectId) -> Result<Attrs> {
        let bad = |e: zilla_ondisk::FormatError| Error::corrupt(None, format!("object {id}"), e.to_string());
        let dn = self.os.hold_wait(id).await?;
        let phys = dn.phys();
        if phys.bonustype == DMU_OT_ZNODE {
            return Ok(old(&ZnodePhys::decode(&phys.bonus, phys.bonus_order).map_err(bad)?));
        }
        let mut out = BTreeMap::new();
        self.unpack(&phys.bonus, &mut out).map_err(bad)?;
        if phys.spill.is_some()
            && let Some(spill) = resident(|| dn.spill()).await?
        {
            self.unpack(&spill, &mut out).map_err(bad)?;
        }
        Ok(Attrs(out))
    }

    fn unpack(
        &self,
        buf: &[u8],
        out: &mut BTreeMap<String, (Vec<u8>, ByteOrder)>,
    ) -> Result<(), zilla_ondisk::FormatError> {
        let sa = SaBuf::parse(buf)?;
        let none = Vec::new();
        let layout = self.layouts.get(&sa.layout).unwrap_or(&none);
        for a in sa.attrs(layout, &self.registry)? {
            if let Some(attr) = self.registry.get(a.num) {
                out.insert(attr.name.clone(), (a.data.to_vec(), a.order));
            }
        }
        Ok(())
    }

    async fn names_in(&self, dir: u64) -> Result<Names> {
        let kept = self.names.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, names)) = kept.filter(|(d, _)| *d == dir) {
            return Ok(names);
        }
        let entries = Zap::open(&self.os, dir).await?.entries().await?;
        let mut names = HashMap::new();
        for e in entries {
            if let Some(v) = e.value.as_u64() {
                // Of several links the first is the file's name, as OpenZFS has it.
                names.entry(Dirent::from_value(v).object).or_insert(e.name);
            }
        }
        let names: Names = Arc::new(names);
        *self.names.lock().unwrap_or_else(PoisonError::into_inner) = Some((dir, names.clone()));
        Ok(names)
    }

    pub async fn path(&self, id: ObjectId) -> Result<Place> {
        let mut parts: Vec<String> = Vec::new();
        let mut at = id.0;
        while at != self.root {
            let a = self.attrs(ObjectId(at)).await?;
            if at == id.0 && a.get("ZPL_LINKS") == Some(0) {
                return Ok(Place::DeleteQueue);
            }
            let Some(parent) = a.get("ZPL_PARENT").filter(|p| *p != 0 && *p != at) else {
                return Ok(Place::Nowhere);
            };
            if parts.len() >= MAX_DEPTH {
                return Ok(Place::Nowhere);
            }
            let up = match self.attrs(ObjectId(parent)).await {
                Ok(up) => up,
                Err(e) if e.is(Errno::NoEnt) => return Ok(Place::Nowhere),
                Err(e) => return Err(e),
            };
            let is_dir = up.get("ZPL_MODE").is_some_and(|m| m & 0o170_000 == 0o040_000);
            if !is_dir || up.get("ZPL_XATTR") == Some(at) {
                parts.push("<xattrdir>".into());
            } else {
                match self.names_in(parent).await?.get(&at) {
                    Some(name) => parts.push(text::name(name)),
                    None => return Ok(Place::Nowhere),
                }
            }
            at = parent;
        }
        parts.reverse();
        Ok(Place::Path(format!("/{}", parts.join("/"))))
    }

    /// The object at a path from the root.
    pub async fn lookup(&self, path: &str) -> Result<ObjectId> {
        let mut at = self.root;
        for part in path.split('/').filter(|p| !p.is_empty() && *p != ".") {
            let dir = Zap::open(&self.os, at).await?;
            let found = resident(|| dir.lookup_u64(part.as_bytes())).await?;
            let found = found.ok_or_else(|| Error::no_ent(format!("no '{part}' in '{path}'")))?;
            at = Dirent::from_value(found).object;
        }
        Ok(ObjectId(at))
    }
}

/// An old znode's fields by the names they have as attributes.
fn old(z: &ZnodePhys) -> Attrs {
    let mut out = BTreeMap::new();
    let mut put = |name: &str, words: &[u64]| {
        let raw = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
        out.insert(name.to_owned(), (raw, ByteOrder::NATIVE));
    };
    for (name, time) in
        [("ZPL_ATIME", z.atime), ("ZPL_MTIME", z.mtime), ("ZPL_CTIME", z.ctime), ("ZPL_CRTIME", z.crtime)]
    {
        put(name, &time);
    }
    for (name, word) in [
        ("ZPL_GEN", z.generation),
        ("ZPL_MODE", z.mode),
        ("ZPL_SIZE", z.size),
        ("ZPL_PARENT", z.parent),
        ("ZPL_LINKS", z.links),
        ("ZPL_XATTR", z.xattr),
        ("ZPL_RDEV", z.rdev),
        ("ZPL_FLAGS", z.flags),
        ("ZPL_UID", z.uid),
        ("ZPL_GID", z.gid),
    ] {
        put(name, &[word]);
    }
    Attrs(out)
}

/// A user's or group's number; one of a foreign domain with the domain's index.
fn id_line(name: &str, id: u64) -> String {
    match id >> 32 {
        0 => format!("\t{name}     {id}\n"),
        domain => format!("\t{name}     {id:x} [domain {domain}-{}]\n", id & 0xffff_ffff),
    }
}

fn xattr_value(v: &NvValue, plain: bool) -> String {
    let (NvValue::ByteArray(raw) | NvValue::Uint8Array(raw)) = v else { return "(not bytes)".into() };
    if !plain && raw.iter().all(|b| (0x20..0x7f).contains(b)) {
        return String::from_utf8_lossy(raw).into_owned();
    }
    raw.iter().map(|b| format!("\\{b:03o}")).collect()
}

impl Zdb {
    pub(super) async fn znode(&mut self, cx: &Context, id: ObjectId) -> Result<()> {
        let Some(files) = &cx.files else { return Ok(()) };
        let a = files.attrs(id).await?;
        let Some(mode) = a.get("ZPL_MODE") else { return Ok(()) };
        if self.level('d') > 4 {
            let path = match files.path(id).await {
                Ok(Place::Path(path)) => path,
                Ok(Place::DeleteQueue) => "on delete queue".into(),
                Ok(Place::Nowhere) => {
                    self.leaked += 1;
                    "path not found, possibly leaked".into()
                }
                Err(e) => {
                    self.damaged = true;
                    format!("path not found: {e}")
                }
            };
            put!(self, "\tpath\t{path}\n");
        }
        if mode & 0o170_000 == 0o120_000 {
            let target = self.target(cx, id, &a).await?;
            put!(self, "\ttarget\t{target}\n");
        }
        let word = |name| a.get(name).unwrap_or(0);
        put!(self, "{}{}", id_line("uid", word("ZPL_UID")), id_line("gid", word("ZPL_GID")));
        for (short, name) in
            [("atime", "ZPL_ATIME"), ("mtime", "ZPL_MTIME"), ("ctime", "ZPL_CTIME"), ("crtime", "ZPL_CRTIME")]
        {
            put!(self, "\t{short}\t{}\n", time::ctime(word(name)));
        }
        put!(self, "\tgen\t{}\n\tmode\t{mode:o}\n\tsize\t{}\n", word("ZPL_GEN"), word("ZPL_SIZE"));
        put!(self, "\tparent\t{}\n\tlinks\t{}\n", word("ZPL_PARENT"), word("ZPL_LINKS"));
        put!(self, "\tpflags\t{:x}\n", word("ZPL_FLAGS"));
        if word("ZPL_FLAGS") & ZFS_PROJID != 0
            && let Some(projid) = a.get("ZPL_PROJID")
        {
            put!(self, "\tprojid\t{projid}\n");
        }
        // An old znode has these fields whether they mean anything or not.
        if let Some(xattr) = a.get("ZPL_XATTR") {
            put!(self, "\txattr\t{xattr}\n");
        }
        if let Some(rdev) = a.get("ZPL_RDEV") {
            put!(self, "\trdev\t{rdev:#018x}\n");
        }
        self.sa_xattrs(&a);
        Ok(())
    }

    fn sa_xattrs(&mut self, a: &Attrs) {
        let Some(packed) = a.bytes("ZPL_DXATTR").filter(|b| !b.is_empty()) else { return };
        match NvList::unpack(packed) {
            Ok(nv) => {
                put!(self, "\tSA xattrs: {} bytes, {} entries\n\n", packed.len(), nv.len());
                for (name, v) in nv.iter() {
                    let value = xattr_value(v, self.on('P'));
                    put!(self, "\t\t{} = {value}\n", text::name(name.as_bytes()));
                }
            }
            Err(e) => self.complain("SA xattrs", &Error::corrupt(None, "", e.to_string())),
        }
    }

    /// Where a symbolic link leads.
    async fn target(&mut self, cx: &Context, id: ObjectId, a: &Attrs) -> Result<String> {
        if let Some(target) = a.bytes("ZPL_SYMLINK") {
            return Ok(text::name(target.strip_suffix(&[0]).unwrap_or(target)));
        }
        let dn = cx.os.hold_wait(id).await?;
        let size = a.get("ZPL_SIZE").unwrap_or(0).min(MAX_TARGET) as usize;
        if let Some(target) = dn.bonus().get(ZFS_OLD_ZNODE_PHYS_SIZE..).and_then(|b| b.get(..size))
            && dn.bonus_type() == DMU_OT_ZNODE
        {
            return Ok(text::name(target));
        }
        let mut buf = vec![0; size];
        dn.read_wait(0, &mut buf).await?;
        Ok(text::name(&buf))
    }
}
