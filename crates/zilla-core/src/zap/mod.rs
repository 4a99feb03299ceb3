//! The ZAP (ZFS attribute processor): a persistent map from names, or arrays of numbers, to small
//! arrays of numbers.
//!
//! **Floor 7.** It stands on objects.
//!
//! Directories, properties, the pool's table of contents, accounting and much else are ZAPs. A
//! small one is a *micro-ZAP*, one block of name-number slots ([`micro`]). It becomes a *fat ZAP*,
//! an extendible hash table ([`fat`], [`leaf`]), for good, when a value is not one number, a name
//! is longer than 49 bytes, or it would outgrow `zap_micro_max_size` (128K; as much as 1M where the
//! pool has `large_microzap`).
//!
//! **In memory** a dnode that is a ZAP carries a [`State`]: the index of a micro-ZAP or the header
//! of a fat one. A lookup takes its lock shared; a change takes it alone, so that every operation
//! here is atomic by itself.
//!
//! **Invariants.** The state equals what the newest contents of block 0 say. Every operation that
//! changes something first makes sure that all the blocks it touches are in memory; on
//! [`crate::dmu::Stop::Need`] nothing has changed.
//!
//! **Crash.** A change lies in one transaction, so it is on disk whole or not at all.
//!
//! **Order.** Entries are iterated by (hash, cd), in which a position survives any other change: an
//! entry that is there from beginning to end is seen exactly once, as `readdir` wants it.
//!
//! **Lock order.** The ZAP's state, the dnode. Nothing waits under any of them.
//!
//! **Deliberately absent.** Leaves that have become empty are not joined again.
#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

mod cursor;
mod fat;
mod key;
mod micro;
mod wait;

#[cfg(test)]
mod tests;

pub use cursor::{Batch, END, Entry};
pub use key::{Match, normalize};
pub use zilla_ondisk::zap::{
    U8_TEXTPREP_NFC, U8_TEXTPREP_NFD, U8_TEXTPREP_NFKC, U8_TEXTPREP_NFKD, U8_TEXTPREP_TOLOWER,
    U8_TEXTPREP_TOUPPER, ZAP_FLAG_HASH64, ZAP_FLAG_PRE_HASHED_KEY, ZAP_FLAG_UINT64_KEY, ZAP_MAXNAMELEN,
    ZAP_MAXNAMELEN_NEW, ZAP_MAXVALUELEN, ZapValue as Value,
};

use crate::dmu::{Dnode, NewObject, Now, Objset};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::{Bookmark, ObjectId};
use fat::{Edit, Fat};
use key::{HashSpec, Key};
use micro::Micro;
use parking_lot::RwLockReadGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zilla_ondisk::zap::micro as slots;
use zilla_ondisk::zap::{
    BlockKind, FZAP_DEFAULT_BLOCK_SHIFT, Leaf, LeafEntry, LeafMut, MZAP_MAX_BLKSZ, MZAP_MAX_SIZE, block_kind,
    leaf,
};
use zilla_ondisk::{ByteOrder, FormatError, object_type};

/// What is kept in memory beside the dnode of a ZAP.
#[derive(Default)]
pub(crate) enum State {
    /// Not looked at yet.
    #[default]
    Unknown,
    Micro(Micro),
    Fat(Fat),
}

/// How a new ZAP is to be; the default is an ordinary, small one.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOpts {
    /// `ZAP_FLAG_*`; any makes it fat from the start.
    pub flags: u64,
    /// `TEXTPREP_*`.
    pub normflags: u64,
    /// log2 of the block size, for one with flags; 0: 16K.
    pub leaf_shift: u32,
    /// log2 of the indirect blocks' size; 0: the default.
    pub indirect_shift: u8,
    pub bonustype: u8,
    pub bonuslen: usize,
    /// 0: 512.
    pub dnodesize: usize,
}

impl CreateOpts {
    pub fn bonus(bonustype: u8, bonuslen: usize) -> CreateOpts {
        CreateOpts { bonustype, bonuslen, ..CreateOpts::default() }
    }

    fn object(&self, otype: u8) -> NewObject {
        let shift = if self.leaf_shift == 0 { FZAP_DEFAULT_BLOCK_SHIFT } else { self.leaf_shift };
        let mut spec = NewObject::new(otype, if self.flags == 0 { 512 } else { 1 << shift });
        spec.bonustype = self.bonustype;
        spec.bonuslen = self.bonuslen;
        if self.indirect_shift != 0 {
            spec.indblkshift = self.indirect_shift;
        }
        spec.dnodesize = self.dnodesize.max(512);
        spec
    }
}

/// A found entry, for lookups by normalized name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub value: Value,
    /// As it is stored.
    pub name: Vec<u8>,
    /// Another entry has the same normalized name.
    pub conflict: bool,
}

/// A ZAP: a dnode seen as a map. Cheap to make; any number may be made of one dnode.
#[derive(Clone)]
pub struct Zap {
    dn: Arc<Dnode>,
}

/// What was wrong in which block of a ZAP.
fn corrupt(dn: &Dnode, blkid: u64, e: FormatError) -> Error {
    Error::corrupt(Some(Bookmark::new(dn.objset_id(), dn.id(), 0, blkid)), "", e.to_string())
}

/// A key as the caller has it.
#[derive(Clone, Copy)]
enum Raw<'a> {
    Name(&'a [u8], Match),
    Ints(&'a [u64]),
}

impl Raw<'_> {
    fn key(self, spec: &HashSpec) -> Result<Key> {
        match self {
            Raw::Name(n, mt) => Key::name(spec, n, mt),
            Raw::Ints(k) => Key::ints(spec, k),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The key must not be there.
    Add,
    /// The key may be there.
    Update,
}

impl Zap {
    pub fn new(dn: &Arc<Dnode>) -> Zap {
        Zap { dn: dn.clone() }
    }

    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dn
    }

    /// Makes a new ZAP object.
    pub fn create(os: &Arc<Objset>, tx: &Tx, otype: u8, opts: &CreateOpts) -> Now<Arc<Dnode>> {
        let dn = os.alloc(tx, opts.object(otype))?;
        Zap::init(&dn, tx, opts)?;
        Ok(dn)
    }

    /// Makes a new ZAP object of a given number.
    pub fn create_claim(
        os: &Arc<Objset>,
        tx: &Tx,
        id: ObjectId,
        otype: u8,
        opts: &CreateOpts,
    ) -> Now<Arc<Dnode>> {
        let dn = os.claim(tx, id, opts.object(otype))?;
        Zap::init(&dn, tx, opts)?;
        Ok(dn)
    }

    /// Makes an empty ZAP of an object that was just allocated.
    pub fn init(dn: &Arc<Dnode>, tx: &Tx, opts: &CreateOpts) -> Now<()> {
        let mut state = dn.zap.write();
        // Different in every ZAP, so that a set of names that collides in one does not in others.
        let mixed =
            (dn.objset_id() << 40) ^ (dn.id().0 << 1) ^ tx.txg().0.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let spec = HashSpec { salt: mixed | 1, normflags: opts.normflags, flags: opts.flags };
        if opts.flags != 0 {
            let edit = Edit::create(dn, dn.blksz().trailing_zeros(), spec)?;
            *state = State::Fat(edit.commit(tx));
        } else {
            let mut block = zilla_env::IoBuf::zeroed(dn.blksz() as usize);
            slots::init(&mut block, spec.salt, spec.normflags).map_err(|e| corrupt(dn, 0, e))?;
            let m = Micro::open(&block).map_err(|e| corrupt(dn, 0, e))?;
            dn.write_block(tx, 0, block.into_bytes());
            *state = State::Micro(m);
        }
        Ok(())
    }

    fn load(&self) -> Now<State> {
        let dn = &self.dn;
        if !object_type::is_zap(dn.otype()) {
            return Err(Error::inval(format!("object {} is not a ZAP", dn.id())).into());
        }
        let state = dn.with_block(0, |b| match block_kind(b, ByteOrder::NATIVE)? {
            BlockKind::Micro => Micro::open(b).map(State::Micro),
            _ => Fat::open(b).map(State::Fat),
        })?;
        Ok(state.map_err(|e| corrupt(dn, 0, e))?)
    }

    /// The state, known, for looking at.
    fn state(&self) -> Now<RwLockReadGuard<'_, State>> {
        loop {
            let state = self.dn.zap.read();
            if !matches!(*state, State::Unknown) {
                return Ok(state);
            }
            drop(state);
            let mut state = self.dn.zap.write();
            if matches!(*state, State::Unknown) {
                *state = self.load()?;
            }
        }
    }

    fn spec(state: &State) -> HashSpec {
        match state {
            State::Unknown => HashSpec::default(),
            State::Micro(m) => m.spec,
            State::Fat(f) => f.spec,
        }
    }

    fn in_leaf<R>(&self, blk: u64, f: impl FnOnce(&Leaf<'_>) -> Result<R, FormatError>) -> Now<R> {
        let r = self.dn.with_block(blk, |b| Leaf::new(b, ByteOrder::NATIVE).and_then(|l| f(&l)))?;
        Ok(r.map_err(|e| corrupt(&self.dn, blk, e))?)
    }

    /// The value of a key.
    fn find(&self, raw: Raw<'_>) -> Now<Option<Value>> {
        let state = self.state()?;
        let key = raw.key(&Zap::spec(&state))?;
        match &*state {
            State::Fat(fat) => {
                let blk = fat.leaf_of(&self.dn, key.hash)?;
                self.in_leaf(blk, |l| find_in(l, &key)?.map(|e| l.value(&e)).transpose())
            }
            State::Micro(m) => self.dn.with_block(0, |b| {
                let (_, i) = m.find(b, &key)?;
                micro::slot(b, i).map(|s| Value::u64(s.value))
            }),
            State::Unknown => Ok(None),
        }
    }

    pub fn lookup(&self, name: &[u8]) -> Now<Option<Value>> {
        self.find(Raw::Name(name, Match::Exact))
    }

    pub fn lookup_key(&self, key: &[u64]) -> Now<Option<Value>> {
        self.find(Raw::Ints(key))
    }

    /// The one number of an entry. An entry that holds something else is an error.
    pub fn lookup_u64(&self, name: &[u8]) -> Now<Option<u64>> {
        let state = self.state()?;
        let key = Key::name(&Zap::spec(&state), name, Match::Exact)?;
        match &*state {
            State::Fat(fat) => {
                let blk = fat.leaf_of(&self.dn, key.hash)?;
                let v = self.in_leaf(blk, |l| {
                    Ok(match find_in(l, &key)? {
                        Some(e) if (e.value_intlen, e.value_numints) == (8, 1) => {
                            Some(Some(l.value_u64(&e)?))
                        }
                        Some(_) => Some(None),
                        None => None,
                    })
                })?;
                match v {
                    Some(None) => Err(self.wrong_type(name).into()),
                    Some(v) => Ok(v),
                    None => Ok(None),
                }
            }
            State::Micro(m) => self.dn.with_block(0, |b| {
                let (_, i) = m.find(b, &key)?;
                micro::slot(b, i).map(|s| s.value)
            }),
            State::Unknown => Ok(None),
        }
    }

    /// The bytes of an entry of integers of size 1.
    pub fn lookup_bytes(&self, name: &[u8]) -> Now<Option<Vec<u8>>> {
        let Some(v) = self.lookup(name)? else { return Ok(None) };
        match v.as_bytes() {
            Some(b) => Ok(Some(b.to_vec())),
            None => Err(self.wrong_type(name).into()),
        }
    }

    fn wrong_type(&self, name: &[u8]) -> Error {
        let name = String::from_utf8_lossy(name);
        Error::inval(format!(
            "entry {name:?} of object {} has integers of another size or number",
            self.dn.id()
        ))
    }

    pub fn contains(&self, name: &[u8]) -> Now<bool> {
        Ok(self.lookup(name)?.is_some())
    }

    /// Looks a name up by its normalized form.
    pub fn lookup_norm(&self, name: &[u8], mt: Match) -> Now<Option<Found>> {
        let state = self.state()?;
        let spec = Zap::spec(&state);
        let key = Key::name(&spec, name, mt)?;
        // Conflicts are by the whole normalized form, whatever was asked for.
        let any = if spec.normflags == 0 { None } else { Some(Key::name(&spec, name, Match::Normalized)?) };
        match &*state {
            State::Fat(fat) => {
                let blk = fat.leaf_of(&self.dn, key.hash)?;
                self.in_leaf(blk, |l| {
                    let Some(e) = find_in(l, &key)? else { return Ok(None) };
                    let conflict = any.as_ref().map_or(Ok(false), |k| conflicts_in(l, &e, k))?;
                    Ok(Some(Found { value: l.value(&e)?, name: l.name(&e)?.to_vec(), conflict }))
                })
            }
            State::Micro(m) => self.dn.with_block(0, |b| {
                let (cd, i) = m.find(b, &key)?;
                let s = micro::slot(b, i)?;
                let conflict = any.as_ref().is_some_and(|k| m.conflicts(b, k, cd));
                Some(Found { value: Value::u64(s.value), name: s.name.to_vec(), conflict })
            }),
            State::Unknown => Ok(None),
        }
    }

    /// How many entries there are.
    pub fn count(&self) -> Now<u64> {
        Ok(match &*self.state()? {
            State::Unknown => 0,
            State::Micro(m) => m.index.len() as u64,
            State::Fat(f) => f.phys.num_entries,
        })
    }

    pub fn normflags(&self) -> Now<u64> {
        Ok(Zap::spec(&*self.state()?).normflags)
    }

    pub fn is_micro(&self) -> Now<bool> {
        Ok(matches!(&*self.state()?, State::Micro(_)))
    }

    /// Adds an entry; one of that name must not be there.
    pub fn add(&self, tx: &Tx, name: &[u8], value: &Value) -> Now<()> {
        self.put(tx, Raw::Name(name, Match::Exact), value, Mode::Add)
    }
    pub fn add_u64(&self, tx: &Tx, name: &[u8], value: u64) -> Now<()> {
        self.add(tx, name, &Value::u64(value))
    }
    pub fn add_key(&self, tx: &Tx, key: &[u64], value: &Value) -> Now<()> {
        self.put(tx, Raw::Ints(key), value, Mode::Add)
    }
    /// Adds an entry or replaces its value.
    pub fn update(&self, tx: &Tx, name: &[u8], value: &Value) -> Now<()> {
        self.put(tx, Raw::Name(name, Match::Exact), value, Mode::Update)
    }
    pub fn update_u64(&self, tx: &Tx, name: &[u8], value: u64) -> Now<()> {
        self.update(tx, name, &Value::u64(value))
    }
    pub fn update_key(&self, tx: &Tx, key: &[u64], value: &Value) -> Now<()> {
        self.put(tx, Raw::Ints(key), value, Mode::Update)
    }

    fn put(&self, tx: &Tx, raw: Raw<'_>, value: &Value, mode: Mode) -> Now<()> {
        drop(self.state()?);
        let mut state = self.dn.zap.write();
        self.dn.in_order(tx)?;
        let key = raw.key(&Zap::spec(&state))?;
        if value.stored().len() > ZAP_MAXVALUELEN {
            return Err(Error::os(Errno::TooBig, "value too long for a ZAP").into());
        }
        if let State::Micro(m) = &mut *state {
            let found = self.dn.with_block(0, |b| m.find(b, &key))?;
            if found.is_some() && mode == Mode::Add {
                return Err(exists(&key).into());
            }
            let fits = slots::fits(key.as_name(), value)
                && m.fits_a_leaf(&key, leaf::num_chunks(FZAP_DEFAULT_BLOCK_SHIFT));
            match (value.as_u64(), found) {
                (Some(v), Some((_, i))) => {
                    let set = self.dn.modify(tx, 0, |b| slots::set_value(b, i as usize, v))?;
                    return Ok(set.map_err(|e| corrupt(&self.dn, 0, e))?);
                }
                (Some(v), None) if fits => {
                    let grown = self.dn.blksz() + 512;
                    if !m.is_full() || u64::from(grown) <= self.micro_max() {
                        return self.add_micro(tx, m, &key, v, grown);
                    }
                }
                _ => {}
            }
            // It has to become a fat one. All that takes is block 0, which is in memory.
            let old = std::mem::take(&mut *state);
            *state = match self.upgrade(tx, &old) {
                Ok(f) => State::Fat(f),
                Err(e) => {
                    *state = old;
                    return Err(e);
                }
            };
        }
        let State::Fat(fat) = &mut *state else { return Ok(()) };
        self.put_fat(tx, fat, &key, value, mode)
    }

    /// The largest block of a micro-ZAP.
    fn micro_max(&self) -> u64 {
        let largest = match self.dn.shared.large_microzap.load(Ordering::Relaxed) {
            true => MZAP_MAX_SIZE,
            false => MZAP_MAX_BLKSZ,
        };
        // Before it is rounded up: a tunable may be as large as numbers are.
        let wanted = crate::tunables::ZAP_MICRO_MAX_SIZE.get().min(MZAP_MAX_SIZE);
        wanted.next_multiple_of(512).min(largest)
    }

    fn add_micro(&self, tx: &Tx, m: &mut Micro, key: &Key, value: u64, grown: u32) -> Now<()> {
        self.dn.require(0)?;
        if m.is_full() {
            self.dn.set_blksz(tx, grown, 0)?;
            m.grown(grown as usize);
        }
        let added = self.dn.modify(tx, 0, |b| m.add(b, key, value))?;
        Ok(added.map_err(|e| corrupt(&self.dn, 0, e))?)
    }

    /// Rewrites a micro-ZAP as a fat one.
    fn upgrade(&self, tx: &Tx, old: &State) -> Now<Fat> {
        let State::Micro(m) = old else { return Err(Error::inval("not a micro-ZAP").into()) };
        // Not in place: the edit looks at the object itself.
        let block = self.dn.block(0)?;
        let mut edit = Edit::create(&self.dn, FZAP_DEFAULT_BLOCK_SHIFT, m.spec)?;
        for (&(_, cd), &i) in &m.index {
            let Some(s) = micro::slot(&block, i) else { continue };
            let key = Key::name(&m.spec, s.name, Match::Exact)?;
            edit.add(&key, Some(cd), &Value::u64(s.value))?;
        }
        self.dn.set_blksz(tx, 1 << FZAP_DEFAULT_BLOCK_SHIFT, 0)?;
        Ok(edit.commit(tx))
    }

    fn put_fat(&self, tx: &Tx, fat: &mut Fat, key: &Key, value: &Value, mode: Mode) -> Now<()> {
        let long_ok = self.dn.otype() == object_type::DMU_OT_DIRECTORY_CONTENTS;
        if key.stored.stored().len() > ZAP_MAXNAMELEN && !long_ok {
            return Err(Error::os(Errno::NameTooLong, "name too long").into());
        }
        if leaf::chunks_needed(&key.stored, value) > leaf::num_chunks(fat.shift) {
            return Err(Error::os(Errno::TooBig, "entry too long for the ZAP's blocks").into());
        }
        let dn = &self.dn;
        let blk = fat.leaf_of(dn, key.hash)?;
        let found = self.in_leaf(blk, |l| find_in(l, key))?;
        if found.is_some() && mode == Mode::Add {
            return Err(exists(key).into());
        }
        // In place, if the leaf has room. The header first, because after the leaf nothing may be
        // missing.
        dn.modify(tx, 0, |_| ())?;
        let done = dn.modify(tx, blk, |b| {
            let mut l = LeafMut::new(b)?;
            match &found {
                Some(e) => l.update(e, value),
                None => l.insert(key.hash, &key.stored, value, None).map(drop),
            }
        })?;
        match done {
            Ok(()) if found.is_some() => Ok(()),
            Ok(()) => self.recount(tx, fat, 1),
            Err(e) if e.is_no_space() => {
                let mut edit = Edit::new(dn, fat.clone())?;
                match found {
                    Some(_) => edit.update(key, value)?,
                    None => edit.add(key, None, value)?,
                }
                edit.hold_room(tx)?;
                *fat = edit.commit(tx);
                Ok(())
            }
            Err(e) => Err(corrupt(dn, blk, e).into()),
        }
    }

    /// Changes the number of entries, in the header and in memory. The header is dirty in `tx`
    /// already.
    fn recount(&self, tx: &Tx, fat: &mut Fat, delta: i64) -> Now<()> {
        let n = fat.phys.num_entries.saturating_add_signed(delta);
        self.dn.modify(tx, 0, |b| {
            if let Some(to) = b.get_mut(fat::NUM_ENTRIES_AT..fat::NUM_ENTRIES_AT + 8) {
                to.copy_from_slice(&n.to_ne_bytes());
            }
        })?;
        fat.phys.num_entries = n;
        Ok(())
    }

    pub fn remove(&self, tx: &Tx, name: &[u8]) -> Now<()> {
        self.take(tx, Raw::Name(name, Match::Exact))
    }
    pub fn remove_norm(&self, tx: &Tx, name: &[u8], mt: Match) -> Now<()> {
        self.take(tx, Raw::Name(name, mt))
    }
    pub fn remove_key(&self, tx: &Tx, key: &[u64]) -> Now<()> {
        self.take(tx, Raw::Ints(key))
    }

    fn take(&self, tx: &Tx, raw: Raw<'_>) -> Now<()> {
        drop(self.state()?);
        let mut state = self.dn.zap.write();
        self.dn.in_order(tx)?;
        let key = raw.key(&Zap::spec(&state))?;
        let dn = &self.dn;
        match &mut *state {
            State::Unknown => Ok(()),
            State::Micro(m) => match dn.with_block(0, |b| m.find(b, &key))? {
                Some((cd, i)) => {
                    let gone = dn.modify(tx, 0, |b| m.remove(b, &key, cd, i))?;
                    Ok(gone.map_err(|e| corrupt(dn, 0, e))?)
                }
                None => Err(missing(&key).into()),
            },
            State::Fat(fat) => {
                let blk = fat.leaf_of(dn, key.hash)?;
                let Some(e) = self.in_leaf(blk, |l| find_in(l, &key))? else {
                    return Err(missing(&key).into());
                };
                dn.modify(tx, 0, |_| ())?;
                dn.modify(tx, blk, |b| LeafMut::new(b)?.remove(&e))?.map_err(|e| corrupt(dn, blk, e))?;
                self.recount(tx, fat, -1)
            }
        }
    }

    /// Adds `delta` to a number, which is 0 where there is no entry; an entry that becomes 0 goes.
    pub fn increment(&self, tx: &Tx, name: &[u8], delta: i64) -> Now<()> {
        if delta == 0 {
            return Ok(());
        }
        let old = self.lookup_u64(name)?;
        match (old, old.unwrap_or(0).saturating_add_signed(delta)) {
            (Some(_), 0) => self.remove(tx, name),
            (None, 0) => Ok(()),
            (_, v) => self.update_u64(tx, name, v),
        }
    }
}

fn find_in(l: &Leaf<'_>, key: &Key) -> Result<Option<LeafEntry>, FormatError> {
    if key.is_exact() {
        l.lookup(key.hash, &key.stored)
    } else {
        l.lookup_by(key.hash, |n| key.matches_name(n))
    }
}

/// Whether an entry other than `e` has the same normalized name.
fn conflicts_in(l: &Leaf<'_>, e: &LeafEntry, key: &Key) -> Result<bool, FormatError> {
    for other in l.chain(e.hash) {
        let other = other?;
        if other.hash == e.hash && other.cd != e.cd && key.matches_name(&l.name(&other)?) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn exists(key: &Key) -> Error {
    Error::os(Errno::Exist, format!("entry {:?} exists", String::from_utf8_lossy(key.as_name())))
}

fn missing(key: &Key) -> Error {
    Error::no_ent(format!("no entry {:?}", String::from_utf8_lossy(key.as_name())))
}
