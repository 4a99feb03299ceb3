//! What a raw stream says of its dataset's key, and where that goes: `crypt_keydata` in BEGIN.
//!
//! The key travels wrapped, as it is on the sender's disk, with what a user needs to give its
//! wrapping key, the dnode of the dnodes, the code of the objset's head, and the numbers of the
//! sets of initialisation vectors (`ivset_guid`) that the stream starts from and ends at.
//!
//! What is kept true:
//! - Two raw streams fit together only where the set of IVs is the same: what was received plain,
//!   or changed here, has other IVs though it reads the same, and a raw increment on it would mix
//!   two histories under one code. So the numbers must match, or it is refused.
//! - A dataset's data key never changes; the guid tells whether it is the same.
//! - Who could open a dataset before a receive can after it. An increment brings the sender's
//!   wrapping along, which replaces ours only where the dataset is its own encryption root, opens
//!   no other, no key is loaded that would no longer be the right one, and whoever receives it may
//!   change keys: what it is without a key nobody can tell. Else ours stays: both open the same
//!   data key. A package brings those of whole trees ([`super::rawroots`]).
//!
//! **Crash.** A new dataset's key is written in the txg that makes it, an increment's in the txg
//! that puts its contents in place.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use super::DslPool;
use super::dataset::DslDataset;
use super::dir::DslDir;
use super::props::{are_codecs, checksum_feature, compress_feature};
use crate::crypt::{DataKey, KeyFormat, PhysKey};
use crate::dmu::{MetaShape, Objset};
use crate::error::{Errno, Error, Result};
use crate::tunables;
use crate::txg::Tx;
use crate::zap::{CreateOpts, Value, Zap};
use crate::zio::RawStore;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_codec::crypt::Suite;
use zilla_ondisk::crypt::KEY_VERSION;
use zilla_ondisk::dnode::DNODES_PER_BLOCK;
use zilla_ondisk::dnode::{
    DN_MAX_INDBLKSHIFT, DN_MAX_LEVELS, DN_MAX_NBLKPTR, DN_MAX_OBJECT, DNODE_BLOCK_SIZE,
};
use zilla_ondisk::dsl::{
    DD_FIELD_CRYPTO_KEY_OBJ, DS_FIELD_IVSET_GUID, DSL_CRYPTO_KEY_CRYPTO_SUITE, DSL_CRYPTO_KEY_GUID,
    DSL_CRYPTO_KEY_HMAC_KEY, DSL_CRYPTO_KEY_IV, DSL_CRYPTO_KEY_KEYFORMAT, DSL_CRYPTO_KEY_MAC,
    DSL_CRYPTO_KEY_MASTER_KEY, DSL_CRYPTO_KEY_PBKDF2ITERS, DSL_CRYPTO_KEY_PBKDF2SALT,
    DSL_CRYPTO_KEY_REFCOUNT, DSL_CRYPTO_KEY_ROOT_DDOBJ, DSL_CRYPTO_KEY_VERSION,
};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::object_type::DMU_OTN_ZAP_METADATA;
use zilla_ondisk::objset::{
    OBJSET_FLAG_PROJECTQUOTA_COMPLETE, OBJSET_FLAG_USERACCOUNTING_COMPLETE,
    OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE, ZIO_OBJSET_MAC_LEN,
};
use zilla_ondisk::{NvList, NvValue};

/// The least that an indirect block of OpenZFS has. Source: DN_MIN_INDBLKSHIFT in sys/dnode.h.
const DN_MIN_INDBLKSHIFT: u8 = 12;

/// What a raw stream's BEGIN has of its dataset's key and head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawKey {
    pub phys: PhysKey,
    pub format: KeyFormat,
    /// Of a passphrase; else 0.
    pub salt: u64,
    pub iterations: u64,
    pub portable_mac: [u8; ZIO_OBJSET_MAC_LEN],
    pub meta: MetaShape,
    pub to_ivset: u64,
    pub from_ivset: u64,
}

fn bad(what: &str) -> Error {
    Error::inval(format!("invalid stream (crypt_keydata: {what})"))
}

impl RawKey {
    pub fn list(&self) -> NvList {
        let bytes = |b: &[u8]| NvValue::Uint8Array(b.to_vec());
        let (p, m) = (&self.phys, &self.meta);
        NvList::new()
            .with(DSL_CRYPTO_KEY_CRYPTO_SUITE, p.suite)
            .with(DSL_CRYPTO_KEY_GUID, p.guid)
            .with(DSL_CRYPTO_KEY_VERSION, p.version)
            .with(DSL_CRYPTO_KEY_MASTER_KEY, bytes(&p.master))
            .with(DSL_CRYPTO_KEY_HMAC_KEY, bytes(&p.hmac))
            .with(DSL_CRYPTO_KEY_IV, bytes(&p.iv))
            .with(DSL_CRYPTO_KEY_MAC, bytes(&p.mac))
            .with("portable_mac", bytes(&self.portable_mac))
            .with("keyformat", self.format.number())
            .with("pbkdf2iters", self.iterations)
            .with("pbkdf2salt", self.salt)
            .with("mdn_checksum", u64::from(m.checksum))
            .with("mdn_compress", u64::from(m.compress))
            .with("mdn_nlevels", u64::from(m.nlevels))
            .with("mdn_blksz", DNODE_BLOCK_SIZE as u64)
            .with("mdn_indblkshift", u64::from(m.indblkshift))
            .with("mdn_nblkptr", u64::from(m.nblkptr))
            .with("mdn_maxblkid", m.maxblkid)
            .with("to_ivset_guid", self.to_ivset)
            .with("from_ivset_guid", self.from_ivset)
    }

    /// Reads what a stream says: each number is checked before it is used.
    pub fn parse(list: &NvList) -> Result<RawKey> {
        let number = |name: &str| list.u64(name).ok_or_else(|| bad(name));
        let byte = |name: &str| number(name).and_then(|n| u8::try_from(n).map_err(|_| bad(name)));
        fn bytes<const N: usize>(list: &NvList, name: &str) -> Result<[u8; N]> {
            match list.get(name) {
                Some(NvValue::Uint8Array(b)) => <[u8; N]>::try_from(b.as_slice()).map_err(|_| bad(name)),
                _ => Err(bad(name)),
            }
        }
        let phys = PhysKey {
            suite: number(DSL_CRYPTO_KEY_CRYPTO_SUITE)?,
            guid: number(DSL_CRYPTO_KEY_GUID)?,
            version: list.u64(DSL_CRYPTO_KEY_VERSION).unwrap_or(0),
            iv: bytes(list, DSL_CRYPTO_KEY_IV)?,
            mac: bytes(list, DSL_CRYPTO_KEY_MAC)?,
            master: bytes(list, DSL_CRYPTO_KEY_MASTER_KEY)?,
            hmac: bytes(list, DSL_CRYPTO_KEY_HMAC_KEY)?,
        };
        if Suite::from_number(phys.suite).is_none() {
            return Err(bad(DSL_CRYPTO_KEY_CRYPTO_SUITE));
        }
        if phys.version != KEY_VERSION {
            let what =
                format!("the stream's key is of version {}, which cannot be received raw", phys.version);
            return Err(Error::os(Errno::NotSup, what));
        }
        let format = KeyFormat::from_number(number("keyformat")?).ok_or_else(|| bad("keyformat"))?;
        let meta = MetaShape {
            nlevels: byte("mdn_nlevels")?,
            indblkshift: byte("mdn_indblkshift")?,
            nblkptr: byte("mdn_nblkptr")?,
            checksum: byte("mdn_checksum")?,
            compress: byte("mdn_compress")?,
            maxblkid: number("mdn_maxblkid")?,
        };
        let fits = (1..=DN_MAX_LEVELS).contains(&meta.nlevels)
            && (DN_MIN_INDBLKSHIFT..=DN_MAX_INDBLKSHIFT).contains(&meta.indblkshift)
            && (1..=DN_MAX_NBLKPTR).contains(&meta.nblkptr)
            && meta.maxblkid < DN_MAX_OBJECT / DNODES_PER_BLOCK
            && meta.reaches(meta.maxblkid);
        if !fits || number("mdn_blksz")? != DNODE_BLOCK_SIZE as u64 {
            return Err(bad("no such dnode of dnodes"));
        }
        if !are_codecs(meta.checksum, meta.compress) {
            return Err(bad("no such checksum or compression"));
        }
        Ok(RawKey {
            phys,
            format,
            salt: list.u64("pbkdf2salt").unwrap_or(0),
            iterations: list.u64("pbkdf2iters").unwrap_or(0),
            portable_mac: bytes(list, "portable_mac")?,
            meta,
            to_ivset: list.u64("to_ivset_guid").unwrap_or(0),
            from_ivset: list.u64("from_ivset_guid").unwrap_or(0),
        })
    }
}

impl DslPool {
    /// The number of a snapshot's set of IVs; 0: it has none.
    async fn ivset(&self, snap: &DslDataset) -> Result<u64> {
        match snap.zap() {
            Some(zap) => Ok(zap.try_get_u64(DS_FIELD_IVSET_GUID).await?.unwrap_or(0)),
            None => Ok(0),
        }
    }

    /// The number of the set of IVs of what a stream starts from: a snapshot before `snap`, or a
    /// bookmark.
    async fn ivset_from(&self, snap: &Arc<DslDataset>, guid: u64) -> Result<u64> {
        let mut at = self.prev(snap).await?;
        while let Some(s) = at {
            if s.guid() == guid {
                return self.ivset(&s).await;
            }
            at = self.prev(&s).await?;
        }
        let head = self.head(&snap.dir()).await?;
        let marks = self.bookmarks_of(&head).await?;
        Ok(marks.iter().find(|(_, b)| b.guid == guid).map_or(0, |(_, b)| b.ivset_guid))
    }

    /// What a raw stream of a snapshot has to say.
    #[crate::boxed]
    pub async fn raw_key(&self, snap: &Arc<DslDataset>, os: &Objset, from: Option<u64>) -> Result<RawKey> {
        let dir = snap.dir();
        let object = self.key_object(&dir).await?;
        let object = object.ok_or_else(|| Error::inval(format!("{} is not encrypted", snap.name())))?;
        if self.has_old_key(&dir).await? {
            let what = "its key is of an old version, of which no raw stream can be made";
            return Err(Error::os(Errno::NotSup, what));
        }
        let shape = self.key_shape(&dir).await?;
        let phys = os.phys();
        let m = &phys.meta_dnode;
        let from_ivset = match from {
            Some(guid) => self.ivset_from(snap, guid).await?,
            None => 0,
        };
        Ok(RawKey {
            phys: self.key_phys(object).await?,
            format: shape.format,
            salt: shape.salt,
            iterations: shape.iterations,
            portable_mac: phys.portable_mac,
            meta: MetaShape {
                nlevels: m.nlevels,
                indblkshift: m.indblkshift,
                nblkptr: m.nblkptr,
                checksum: m.checksum,
                compress: m.compress,
                maxblkid: m.maxblkid,
            },
            to_ivset: self.ivset(snap).await?,
            from_ivset,
        })
    }

    /// What the dnode of dnodes of a raw stream asks of the pool.
    pub(super) fn recv_raw_needs(&self, raw: &RawKey) -> Result<()> {
        let MetaShape { checksum, compress, .. } = raw.meta;
        self.recv_needs(checksum_feature(checksum).into_iter().chain(compress_feature(compress)))
    }

    /// Why a raw stream cannot go on top of a snapshot, if it cannot.
    pub(super) async fn recv_raw_check(&self, from: &Arc<DslDataset>, raw: &RawKey) -> Result<()> {
        let Some(object) = self.key_object(&from.dir()).await? else {
            let what = "cannot perform raw receive on top of existing unencrypted dataset";
            return Err(Error::os(Errno::Inval, what));
        };
        let ours = self.key_phys(object).await?;
        if ours.guid != raw.phys.guid || ours.suite != raw.phys.suite {
            return Err(Error::os(Errno::Access, "encryption key does not match existing key"));
        }
        let have = self.ivset(from).await?;
        if tunables::DISABLE_IVSET_GUID_CHECK.get() != 0 {
            return self.recv_raw_shape_check(from, raw).await;
        }
        if have == 0 || raw.from_ivset == 0 {
            let what = "IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER.";
            return Err(Error::os(Errno::Inval, what));
        }
        if have != raw.from_ivset {
            let what = "IV set guid mismatch. See the 'zfs receive' man page section\n discussing the limitations of \
                        raw encrypted send streams.";
            return Err(Error::os(Errno::Inval, what));
        }
        self.recv_raw_shape_check(from, raw).await
    }

    async fn recv_raw_shape_check(&self, from: &Arc<DslDataset>, raw: &RawKey) -> Result<()> {
        let ours = self.objset(from).await?.phys().meta_dnode;
        match raw.meta.has_shape_of(&ours) {
            true => Ok(()),
            false => Err(bad("the dnode of dnodes is another than that of the dataset")),
        }
    }

    /// Gives a dataset that a whole raw stream makes its key, as its own encryption root.
    pub(super) async fn recv_raw_new(&self, tx: &Tx, ds: &DslDataset, raw: &RawKey) -> Result<()> {
        let dir = ds.dir();
        let zap = Zap::make(self.mos(), tx, DMU_OTN_ZAP_METADATA, &CreateOpts::default()).await?;
        zap.set_u64(tx, DSL_CRYPTO_KEY_REFCOUNT, 1).await?;
        zap.set_u64(tx, DSL_CRYPTO_KEY_VERSION, KEY_VERSION).await?;
        self.put_raw_key(tx, &zap, raw, dir.id).await?;
        self.zapify(tx, &dir.dn).await?.insert_u64(tx, DD_FIELD_CRYPTO_KEY_OBJ, zap.id()).await?;
        self.activate_feature(tx, ds, "encryption").await?;
        let props = Zap::open(self.mos(), dir.phys().props_zapobj).await?;
        props.set_str(tx, "keylocation", "prompt").await
    }

    pub(super) async fn put_raw_key(&self, tx: &Tx, zap: &Zap, raw: &RawKey, root: u64) -> Result<()> {
        let p = &raw.phys;
        for (name, value) in [
            (DSL_CRYPTO_KEY_CRYPTO_SUITE, Value::u64(p.suite)),
            (DSL_CRYPTO_KEY_ROOT_DDOBJ, Value::u64(root)),
            (DSL_CRYPTO_KEY_GUID, Value::u64(p.guid)),
            (DSL_CRYPTO_KEY_IV, Value::bytes(&p.iv)),
            (DSL_CRYPTO_KEY_MAC, Value::bytes(&p.mac)),
            (DSL_CRYPTO_KEY_MASTER_KEY, Value::bytes(&p.master)),
            (DSL_CRYPTO_KEY_HMAC_KEY, Value::bytes(&p.hmac)),
            (DSL_CRYPTO_KEY_KEYFORMAT, Value::u64(raw.format.number())),
            (DSL_CRYPTO_KEY_PBKDF2SALT, Value::u64(raw.salt)),
            (DSL_CRYPTO_KEY_PBKDF2ITERS, Value::u64(raw.iterations)),
        ] {
            zap.set(tx, name, &value).await?;
        }
        Ok(())
    }

    /// The key of a dataset whose increment is whole, if it is to get the sender's wrapping: where
    /// nobody loses by it.
    pub(super) async fn recv_raw_rewraps(
        &self,
        dir: &Arc<DslDir>,
        raw: &RawKey,
        keep: bool,
    ) -> Result<Option<Zap>> {
        let Some(object) = self.key_object(dir).await? else { return Ok(None) };
        let zap = Zap::open(self.mos(), object).await?;
        if self.key_phys(object).await? == raw.phys || zap.get_u64(DSL_CRYPTO_KEY_ROOT_DDOBJ).await? != dir.id
        {
            return Ok(None);
        }
        let opens_others = self.sharing(dir, dir.id).await?.iter().any(|d| d.id != dir.id);
        let rng = &*self.ctx.env.rng;
        let stays_open =
            self.keys.wrapping(dir.id).is_none_or(|loaded| DataKey::unwrap(rng, &raw.phys, &loaded).is_ok());
        if keep || opens_others || !stays_open {
            tracing::warn!(dataset = %dir.name(), "the sender's key was changed; the dataset keeps the one it has here");
            return Ok(None);
        }
        Ok(Some(zap))
    }

    /// The snapshot of a raw stream has the sender's set of IVs.
    pub(super) async fn recv_raw_ivset(&self, tx: &Tx, snap: &DslDataset, raw: &RawKey) -> Result<()> {
        if raw.to_ivset == 0 {
            return Ok(());
        }
        self.zapify(tx, &snap.dn).await?.set_u64(tx, DS_FIELD_IVSET_GUID, raw.to_ivset).await
    }

    /// The objset that a raw stream's records go into.
    pub(super) async fn raw_objset(
        &self,
        ds: &Arc<DslDataset>,
        os_type: ObjsetType,
        raw: &RawKey,
    ) -> Result<Arc<Objset>> {
        // One of an interrupted receive may have what is not on disk yet.
        if let Some(os) = ds.open_objset().filter(|os| os.store().raw().is_some()) {
            return Ok(os);
        }
        let (store, cache) = (RawStore::new(self.ctx.store.clone()), self.ctx.cache.clone());
        let (props, bp) = (self.write_props(ds).await?, ds.phys().bp);
        let os = match bp.is_hole() {
            true => Objset::create_as(ds.id, os_type.number(), store, cache, props, raw.meta),
            false => Objset::open(ds.id, &bp, store, cache, props).await?,
        };
        if !raw.meta.has_shape_of(&os.phys().meta_dnode) {
            return Err(bad("the dnode of dnodes is another than that of the dataset"));
        }
        os.set_meta(raw.meta);
        os.with_phys(|p| {
            p.portable_mac = raw.portable_mac;
            p.local_mac = Default::default();
            p.zil_header = Default::default();
            p.flags &= !(OBJSET_FLAG_USERACCOUNTING_COMPLETE
                | OBJSET_FLAG_USEROBJACCOUNTING_COMPLETE
                | OBJSET_FLAG_PROJECTQUOTA_COMPLETE);
        });
        ds.set_objset(os.clone());
        ds.rewrite_root.store(true, Ordering::Relaxed);
        Ok(os)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> RawKey {
        RawKey {
            phys: PhysKey {
                suite: 8,
                guid: 77,
                version: 1,
                iv: [1; 12],
                mac: [2; 16],
                master: [3; 32],
                hmac: [4; 64],
            },
            format: KeyFormat::Passphrase,
            salt: 5,
            iterations: 350_000,
            portable_mac: [6; ZIO_OBJSET_MAC_LEN],
            meta: MetaShape {
                nlevels: 6,
                indblkshift: 17,
                nblkptr: 3,
                checksum: 0,
                compress: 0,
                maxblkid: 9,
            },
            to_ivset: 10,
            from_ivset: 11,
        }
    }

    #[test]
    fn what_a_stream_says_of_its_key_is_read_back() {
        let packed = sample().list().pack_native();
        assert_eq!(RawKey::parse(&NvList::unpack(&packed).unwrap()).unwrap(), sample());
    }

    #[test]
    fn impossible_keys_are_refused() {
        for (name, value) in [
            ("DSL_CRYPTO_SUITE", 99),
            ("DSL_CRYPTO_VERSION", 0),
            ("keyformat", 0),
            ("mdn_nlevels", 0),
            ("mdn_nlevels", 13),
            ("mdn_nlevels", 1 << 32),
            ("mdn_indblkshift", 11),
            ("mdn_nblkptr", 4),
            ("mdn_blksz", 512),
            ("mdn_maxblkid", u64::MAX),
            ("mdn_checksum", 200),
            ("mdn_checksum", 3),
            ("mdn_checksum", 9),
            ("mdn_compress", 4),
            ("mdn_compress", 17),
        ] {
            let mut list = sample().list();
            list.set(name, value);
            assert!(RawKey::parse(&list).is_err(), "{name} = {value}");
        }
        for name in ["DSL_CRYPTO_MASTER_KEY_1", "portable_mac", "DSL_CRYPTO_IV"] {
            let mut list = sample().list();
            list.set(name, NvValue::Uint8Array(vec![0; 5]));
            assert!(RawKey::parse(&list).is_err(), "{name}");
        }
    }
}
