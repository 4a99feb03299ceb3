//! Attributes by number and by name.

use crate::error::{FormatError, Problem, Result};

/// How an attribute is brought into the other byte order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum SaByteswap {
    Uint64 = 0,
    Uint32 = 1,
    Uint16 = 2,
    Uint8 = 3,
    Acl = 4,
}

impl SaByteswap {
    const fn from_number(n: u64) -> Option<SaByteswap> {
        Some(match n {
            0 => SaByteswap::Uint64,
            1 => SaByteswap::Uint32,
            2 => SaByteswap::Uint16,
            3 => SaByteswap::Uint8,
            4 => SaByteswap::Acl,
            _ => return None,
        })
    }
}

/// A registered attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SaAttr {
    pub name: String,
    pub num: u16,
    /// 0: it varies.
    pub length: u16,
    pub byteswap: SaByteswap,
}

impl SaAttr {
    /// The value of its entry in the `REGISTRY` ZAP.
    pub const fn registration(&self) -> u64 {
        (self.length as u64) << 24 | (self.byteswap as u64) << 16 | self.num as u64
    }

    pub fn from_registration(name: &str, value: u64) -> Result<SaAttr> {
        let kind = (value >> 16) & 0xff;
        let why = "no such byteswap function";
        Ok(SaAttr {
            name: name.to_owned(),
            num: value as u16,
            length: (value >> 24) as u16,
            byteswap: SaByteswap::from_number(kind).ok_or(FormatError::impossible(
                "sa registry",
                "byteswap",
                0,
                kind,
                why,
            ))?,
        })
    }
}

macro_rules! zpl {
    ($($v:ident $name:literal $len:literal $swap:ident;)*) => {
        /// The attributes that a file system uses. The first sixteen have their place here as their
        /// number, in every dataset; the others have the number that they were registered with.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum ZplAttr { $($v),* }

        impl ZplAttr {
            pub const ALL: &[ZplAttr] = &[$(ZplAttr::$v),*];

            pub const fn name(self) -> &'static str {
                match self { $(ZplAttr::$v => $name),* }
            }

            /// Bytes; 0 if they vary.
            pub const fn length(self) -> u16 {
                match self { $(ZplAttr::$v => $len),* }
            }

            pub const fn byteswap(self) -> SaByteswap {
                match self { $(ZplAttr::$v => SaByteswap::$swap),* }
            }
        }
    };
}

zpl! {
    Atime "ZPL_ATIME" 16 Uint64;
    Mtime "ZPL_MTIME" 16 Uint64;
    Ctime "ZPL_CTIME" 16 Uint64;
    Crtime "ZPL_CRTIME" 16 Uint64;
    Gen "ZPL_GEN" 8 Uint64;
    Mode "ZPL_MODE" 8 Uint64;
    Size "ZPL_SIZE" 8 Uint64;
    Parent "ZPL_PARENT" 8 Uint64;
    Links "ZPL_LINKS" 8 Uint64;
    Xattr "ZPL_XATTR" 8 Uint64;
    Rdev "ZPL_RDEV" 8 Uint64;
    Flags "ZPL_FLAGS" 8 Uint64;
    Uid "ZPL_UID" 8 Uint64;
    Gid "ZPL_GID" 8 Uint64;
    Pad "ZPL_PAD" 32 Uint64;
    ZnodeAcl "ZPL_ZNODE_ACL" 88 Uint8;
    DaclCount "ZPL_DACL_COUNT" 8 Uint64;
    Symlink "ZPL_SYMLINK" 0 Uint8;
    Scanstamp "ZPL_SCANSTAMP" 32 Uint8;
    DaclAces "ZPL_DACL_ACES" 0 Acl;
    Dxattr "ZPL_DXATTR" 0 Uint8;
    Projid "ZPL_PROJID" 8 Uint64;
}

/// Attributes with fixed numbers.
const LEGACY: usize = 16;

/// A dataset's attributes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SaRegistry {
    attrs: Vec<Option<SaAttr>>,
}

impl SaRegistry {
    /// Takes the entries of the `REGISTRY` ZAP (none, in a dataset that has not registered any
    /// yet), and gives the attributes of a file system that are not among them the numbers OpenZFS
    /// would give them: their fixed ones, then the next free.
    pub fn for_zpl<'a>(entries: impl IntoIterator<Item = (&'a str, u64)>) -> Result<SaRegistry> {
        let mut reg = SaRegistry::default();
        for (name, value) in entries {
            reg.insert(SaAttr::from_registration(name, value)?)?;
        }
        for (i, a) in ZplAttr::ALL.iter().enumerate() {
            if reg.number(a.name()).is_some() {
                continue;
            }
            let free = reg.attrs.get(i).is_none_or(Option::is_none);
            let num = if i < LEGACY && free { i } else { reg.attrs.len().max(LEGACY) };
            let attr = SaAttr {
                name: a.name().to_owned(),
                num: num as u16,
                length: a.length(),
                byteswap: a.byteswap(),
            };
            reg.insert(attr)?;
        }
        Ok(reg)
    }

    /// Adds an attribute; one of the same number, or name, is an error.
    pub fn insert(&mut self, attr: SaAttr) -> Result<()> {
        let i = usize::from(attr.num);
        if i >= self.attrs.len() {
            self.attrs.resize(i + 1, None);
        }
        let exists = FormatError::new("sa registry", "attribute", i, Problem::Exists);
        if self.number(&attr.name).is_some() {
            return Err(exists);
        }
        match self.attrs.get_mut(i) {
            Some(slot @ None) => {
                *slot = Some(attr);
                Ok(())
            }
            _ => Err(exists),
        }
    }

    pub fn get(&self, num: u16) -> Option<&SaAttr> {
        self.attrs.get(usize::from(num))?.as_ref()
    }

    pub fn number(&self, name: &str) -> Option<u16> {
        self.iter().find(|a| a.name == name).map(|a| a.num)
    }

    pub fn zpl(&self, attr: ZplAttr) -> Option<u16> {
        self.number(attr.name())
    }

    pub fn iter(&self) -> impl Iterator<Item = &SaAttr> {
        self.attrs.iter().flatten()
    }
}
