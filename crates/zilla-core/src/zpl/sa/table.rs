//! The registry of attributes and the table of layouts, as a file system has them on disk and in
//! memory.

use crate::dmu::{Need, Now, Objset, Stop};
use crate::error::{Errno, Error};
use crate::txg::Tx;
use crate::types::{ObjectId, Txg};
use crate::zap::{CreateOpts, END, Value, Zap};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use zilla_ondisk::object_type::{DMU_OT_SA_ATTR_LAYOUTS, DMU_OT_SA_ATTR_REGISTRATION};

/// The attributes of files, in the order in which OpenZFS numbers them in a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Atime,
    Mtime,
    Ctime,
    Crtime,
    Gen,
    Mode,
    Size,
    Parent,
    Links,
    Xattr,
    Rdev,
    Flags,
    Uid,
    Gid,
    Pad,
    ZnodeAcl,
    DaclCount,
    Symlink,
    Scanstamp,
    DaclAces,
    Dxattr,
    Projid,
}

/// How an attribute's bytes turn into another machine's: the registry's byteswap functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    U64,
    U32,
    U16,
    U8,
    Acl,
}

impl Swap {
    fn from_number(n: u64) -> Swap {
        match n {
            0 => Swap::U64,
            1 => Swap::U32,
            2 => Swap::U16,
            4 => Swap::Acl,
            _ => Swap::U8,
        }
    }
    fn number(self) -> u64 {
        match self {
            Swap::U64 => 0,
            Swap::U32 => 1,
            Swap::U16 => 2,
            Swap::U8 => 3,
            Swap::Acl => 4,
        }
    }
}

/// Name, fixed length (0: variable) and byte order of every [`Kind`], by its number.
const ZPL_ATTRS: [(Kind, &str, u16, Swap); 22] = [
    (Kind::Atime, "ZPL_ATIME", 16, Swap::U64),
    (Kind::Mtime, "ZPL_MTIME", 16, Swap::U64),
    (Kind::Ctime, "ZPL_CTIME", 16, Swap::U64),
    (Kind::Crtime, "ZPL_CRTIME", 16, Swap::U64),
    (Kind::Gen, "ZPL_GEN", 8, Swap::U64),
    (Kind::Mode, "ZPL_MODE", 8, Swap::U64),
    (Kind::Size, "ZPL_SIZE", 8, Swap::U64),
    (Kind::Parent, "ZPL_PARENT", 8, Swap::U64),
    (Kind::Links, "ZPL_LINKS", 8, Swap::U64),
    (Kind::Xattr, "ZPL_XATTR", 8, Swap::U64),
    (Kind::Rdev, "ZPL_RDEV", 8, Swap::U64),
    (Kind::Flags, "ZPL_FLAGS", 8, Swap::U64),
    (Kind::Uid, "ZPL_UID", 8, Swap::U64),
    (Kind::Gid, "ZPL_GID", 8, Swap::U64),
    (Kind::Pad, "ZPL_PAD", 32, Swap::U64),
    (Kind::ZnodeAcl, "ZPL_ZNODE_ACL", 88, Swap::U8),
    (Kind::DaclCount, "ZPL_DACL_COUNT", 8, Swap::U64),
    (Kind::Symlink, "ZPL_SYMLINK", 0, Swap::U8),
    (Kind::Scanstamp, "ZPL_SCANSTAMP", 32, Swap::U8),
    (Kind::DaclAces, "ZPL_DACL_ACES", 0, Swap::Acl),
    (Kind::Dxattr, "ZPL_DXATTR", 0, Swap::U8),
    (Kind::Projid, "ZPL_PROJID", 8, Swap::U64),
];

/// The first ones are numbered by position in every file system, with or without a registry.
pub(crate) const LEGACY_ATTRS: u16 = 16;
/// Layout numbers have 10 bits; 0 is the old znode's, 1 the empty one.
const MAX_LAYOUTS: usize = 1024;
/// More attributes than this in a registry is damage: OpenZFS has 23.
const MAX_ATTRS: usize = 4096;

#[derive(Clone, Debug)]
struct SaAttr {
    name: String,
    len: u16,
    swap: Swap,
    kind: Option<Kind>,
    registered: bool,
}

struct Inner {
    attrs: Vec<SaAttr>,
    /// The number of each [`Kind`].
    numbers: [u16; ZPL_ATTRS.len()],
    layouts: HashMap<u16, Arc<[u16]>>,
    /// The number of a layout, and the txg that added it (0 if it was there).
    by_attrs: HashMap<Arc<[u16]>, (u16, Txg)>,
}

pub(crate) struct SaTable {
    inner: RwLock<Inner>,
    /// Held while the tables on disk are changed.
    disk: Mutex<Disk>,
}

struct Disk {
    objset: Arc<Objset>,
    /// The ZAP named SA_ATTRS in the master node; None before version 5.
    master: Option<Zap>,
    registry: Option<Zap>,
    layouts: Option<Zap>,
    all_registered: bool,
}

fn damaged(objset: &Objset, what: impl Into<String>) -> Error {
    Error::corrupt(None, format!("system attributes of objset {}", objset.id()), what)
}

impl Inner {
    fn add_layout(&mut self, number: u16, attrs: Arc<[u16]>, txg: Txg) {
        self.layouts.insert(number, attrs.clone());
        self.by_attrs.entry(attrs).or_insert((number, txg));
    }

    /// A layout's number. One that is on disk in a later txg only cannot be used in this one.
    fn find(&self, tx: &Tx, attrs: &[u16]) -> Now<Option<u16>> {
        match self.by_attrs.get(attrs) {
            Some((_, born)) if *born > tx.txg() => Err(Stop::Need(Need::LaterTxg)),
            Some((number, _)) => Ok(Some(*number)),
            None => Ok(None),
        }
    }
}

impl SaTable {
    /// Reads the tables of a file system; `sa_obj` is 0 where there are none yet.
    pub(crate) fn open(objset: &Arc<Objset>, sa_obj: u64) -> Now<SaTable> {
        let mut disk = Disk {
            objset: objset.clone(),
            master: None,
            registry: None,
            layouts: None,
            all_registered: false,
        };
        if sa_obj != 0 {
            let master = Zap::new(&objset.hold(ObjectId(sa_obj))?);
            if let Some(o) = master.lookup_u64(b"REGISTRY")? {
                disk.registry = Some(Zap::new(&objset.hold(ObjectId(o))?));
            }
            if let Some(o) = master.lookup_u64(b"LAYOUTS")? {
                disk.layouts = Some(Zap::new(&objset.hold(ObjectId(o))?));
            }
            disk.master = Some(master);
        }
        let mut attrs: Vec<Option<SaAttr>> = Vec::new();
        if let Some(registry) = &disk.registry {
            for (name, value) in entries(registry)? {
                let v = value
                    .as_u64()
                    .ok_or_else(|| damaged(objset, format!("attribute {name} is not a number")))?;
                let number = (v & 0xffff) as usize;
                if number >= MAX_ATTRS {
                    return Err(damaged(objset, format!("attribute {name} has the number {number}")).into());
                }
                if attrs.len() <= number {
                    attrs.resize(number + 1, None);
                }
                if let Some(slot) = attrs.get_mut(number) {
                    *slot = Some(SaAttr {
                        name,
                        len: (v >> 24) as u16,
                        swap: Swap::from_number(v >> 16 & 0xff),
                        kind: None,
                        registered: true,
                    });
                }
            }
        }
        let mut numbers = [0; ZPL_ATTRS.len()];
        for (i, &(kind, name, len, swap)) in ZPL_ATTRS.iter().enumerate() {
            let fresh = SaAttr { name: name.into(), len, swap, kind: Some(kind), registered: false };
            let found = attrs.iter().position(|a| a.as_ref().is_some_and(|a| a.name == name));
            let number = match found {
                Some(n) => n,
                None if i < usize::from(LEGACY_ATTRS) => i,
                None => attrs.len().max(usize::from(LEGACY_ATTRS)),
            };
            if attrs.len() <= number {
                attrs.resize(number + 1, None);
            }
            let Some(slot) = attrs.get_mut(number) else { continue };
            match slot {
                Some(a) if a.name == name && a.len == len => a.kind = Some(kind),
                Some(a) => {
                    let what = format!("attribute {number} is {} of {} bytes, not {name}", a.name, a.len);
                    return Err(damaged(objset, what).into());
                }
                None => *slot = Some(fresh),
            }
            if let Some(n) = numbers.get_mut(i) {
                *n = number as u16;
            }
        }
        disk.all_registered = attrs.iter().flatten().all(|a| a.registered);
        let nobody =
            |i: usize| SaAttr { name: format!("{i}"), len: 0, swap: Swap::U8, kind: None, registered: true };
        let attrs: Vec<SaAttr> =
            attrs.into_iter().enumerate().map(|(i, a)| a.unwrap_or_else(|| nobody(i))).collect();
        let mut inner = Inner { attrs, numbers, layouts: HashMap::new(), by_attrs: HashMap::new() };
        if let Some(layouts) = &disk.layouts {
            for (name, value) in entries(layouts)? {
                let list: Vec<u16> = value.ints().map(|a| a as u16).collect();
                let (Ok(number), 2) = (name.parse::<u16>(), value.intlen()) else {
                    return Err(damaged(objset, format!("layout {name} is not a list of attributes")).into());
                };
                if usize::from(number) >= MAX_LAYOUTS
                    || list.iter().any(|a| usize::from(*a) >= inner.attrs.len())
                {
                    return Err(
                        damaged(objset, format!("layout {name} names attributes that do not exist")).into()
                    );
                }
                inner.add_layout(number, list.as_slice().into(), Txg(0));
            }
        }
        Ok(SaTable { inner: RwLock::new(inner), disk: Mutex::new(disk) })
    }

    /// The number of an attribute.
    pub(crate) fn number(&self, kind: Kind) -> u16 {
        self.inner.read().numbers.get(kind as usize).copied().unwrap_or(0)
    }

    /// What the attribute of this number is, where it is one that this program reads.
    pub(crate) fn kind(&self, number: u16) -> Option<Kind> {
        self.inner.read().attrs.get(usize::from(number)).and_then(|a| a.kind)
    }

    /// Fixed length (0: variable) and byte order of an attribute.
    pub(crate) fn shape(&self, number: u16) -> (u16, Swap) {
        self.inner.read().attrs.get(usize::from(number)).map_or((0, Swap::U8), |a| (a.len, a.swap))
    }

    /// The attributes of a layout.
    pub(crate) fn layout(&self, number: u16) -> Option<Arc<[u16]>> {
        self.inner.read().layouts.get(&number).cloned()
    }

    /// The layout of these attributes in this order, added to the table if it is new.
    pub(crate) fn find_layout(&self, tx: &Tx, attrs: &[u16]) -> Now<u16> {
        if let Some(n) = self.inner.read().find(tx, attrs)? {
            return Ok(n);
        }
        let mut disk = self.disk.lock();
        if let Some(n) = self.inner.read().find(tx, attrs)? {
            return Ok(n);
        }
        self.register(tx, &mut disk)?;
        if disk.layouts.is_none() {
            disk.layouts = Some(disk.create_linked(tx, "LAYOUTS", DMU_OT_SA_ATTR_LAYOUTS)?);
        }
        let number = {
            let inner = self.inner.read();
            // 0 and 1 are not in the table on disk; numbers are given out by count, as OpenZFS
            // does.
            let from = inner.layouts.len() + 2;
            (from..MAX_LAYOUTS).find(|n| !inner.layouts.contains_key(&(*n as u16)))
        };
        let Some(number) = number else {
            return Err(Error::os(Errno::NoSpc, "the file system has no layout numbers left").into());
        };
        if let Some(zap) = &disk.layouts {
            zap.update(tx, number.to_string().as_bytes(), &Value::u16s(attrs))?;
        }
        self.inner.write().add_layout(number as u16, attrs.into(), tx.txg());
        Ok(number as u16)
    }

    /// Writes attributes that the registry does not have yet.
    fn register(&self, tx: &Tx, disk: &mut Disk) -> Now<()> {
        if disk.all_registered {
            return Ok(());
        }
        if disk.registry.is_none() {
            disk.registry = Some(disk.create_linked(tx, "REGISTRY", DMU_OT_SA_ATTR_REGISTRATION)?);
        }
        let Some(registry) = &disk.registry else { return Ok(()) };
        let todo: Vec<(usize, SaAttr)> =
            self.inner.read().attrs.iter().cloned().enumerate().filter(|(_, a)| !a.registered).collect();
        for (number, a) in todo {
            let v = number as u64 | a.swap.number() << 16 | u64::from(a.len) << 24;
            registry.update_u64(tx, a.name.as_bytes(), v)?;
            if let Some(a) = self.inner.write().attrs.get_mut(number) {
                a.registered = true;
            }
        }
        disk.all_registered = true;
        Ok(())
    }
}

impl Disk {
    /// A new ZAP, entered in the master's under `name`.
    fn create_linked(&self, tx: &Tx, name: &str, otype: u8) -> Now<Zap> {
        let Some(master) = &self.master else {
            return Err(Error::os(Errno::NotSup, "the file system is too old for system attributes").into());
        };
        // Looked at first, so that the entry below needs nothing that is not in memory.
        master.lookup_u64(name.as_bytes())?;
        let dn = Zap::create(&self.objset, tx, otype, &CreateOpts::default())?;
        match master.add_u64(tx, name.as_bytes(), dn.id().0) {
            Ok(()) => Ok(Zap::new(&dn)),
            Err(stop) => {
                self.objset.free(tx, &dn);
                Err(stop)
            }
        }
    }
}

/// All of a small ZAP.
fn entries(zap: &Zap) -> Now<Vec<(String, Value)>> {
    let (mut out, mut at) = (Vec::new(), 0);
    while at != END {
        let batch = zap.read_from(at, 64)?;
        at = batch.next;
        out.extend(batch.entries.into_iter().map(|e| (e.name_str().into_owned(), e.value)));
        if out.len() > MAX_ATTRS {
            return Err(
                Error::corrupt(None, format!("object {}", zap.dnode().id()), "too many entries").into()
            );
        }
    }
    Ok(out)
}
