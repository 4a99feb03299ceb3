//! Looking into directories.
//!
//! Positions in a directory are the ZAP's (hash and collision number), which survive changes around
//! them; 0 is before `.`, 1 before `..`, and the ZAP's positions follow, moved up by two.

use super::attrs::Attrs;
use super::fs::Zfs;
use super::types::{Attr, DirEntry, S_IFDIR};
use super::znode::{Held, Znode, stale};
use super::{LONG_NAME_MAX, NAME_MAX, PFLAG_XATTR, dirent_obj, err};
use crate::dmu::{Need, Now, Stop, resident};
use crate::error::{Errno, Error, Result};
use crate::txg::Tx;
use crate::types::ObjectId;
use crate::zap::{END, Match, Zap};
use futures_util::future::join_all;
use std::sync::Arc;

/// Entries read at a time: a few dnode blocks' worth.
const BATCH: usize = 128;

/// The position behind the last entry, as callers see it: they take positions for file offsets.
const DIR_END: u64 = i64::MAX as u64;

/// Refuses names that cannot be.
pub(super) fn check_name(zfs: &Zfs, name: &[u8]) -> Result<()> {
    if name.is_empty() {
        return err(Errno::NoEnt, "the name is empty");
    }
    if name.len() > zfs.name_max() {
        return Err(Error::os(
            Errno::NameTooLong,
            format!("the name is longer than {} bytes", zfs.name_max()),
        ));
    }
    if name.contains(&b'/') || name.contains(&0) {
        return err(Errno::Inval, "the name has a slash or a NUL in it");
    }
    if zfs.utf8_only && std::str::from_utf8(name).is_err() {
        return err(Errno::IlSeq, "the name is not UTF-8");
    }
    Ok(())
}

impl Zfs {
    pub(super) fn dir_zap(&self, dir: &Znode) -> Zap {
        Zap::new(dir.dnode())
    }

    /// The longest name that is taken: what the log has was taken once.
    pub fn name_max(&self) -> usize {
        if self.props().long_names || self.is_replaying() { LONG_NAME_MAX } else { NAME_MAX }
    }

    /// Adds an entry to a directory.
    pub(super) fn add_entry(&self, tx: &Tx, dir: &Znode, name: &[u8], value: u64) -> Now<()> {
        if name.len() > NAME_MAX {
            // A log may hold what its pool cannot.
            if !self.space.has_feature("longname") {
                let why = "the pool has no names of more than 255 bytes";
                return Err(Error::os(Errno::NameTooLong, why).into());
            }
            self.space.need_feature("longname");
        }
        self.dir_zap(dir).add_u64(tx, name, value)
    }

    /// What an entry of a directory holds.
    pub(super) fn find_entry(&self, dir: &Znode, name: &[u8]) -> Now<Option<u64>> {
        self.find_as(dir, name, self.name_match)
    }

    /// The same by a way of comparing names.
    pub(super) fn find_as(&self, dir: &Znode, name: &[u8], how: Match) -> Now<Option<u64>> {
        let zap = self.dir_zap(dir);
        match how {
            Match::Exact => zap.lookup_u64(name),
            how => Ok(zap.lookup_norm(name, how)?.and_then(|f| f.value.as_u64())),
        }
    }

    /// How the name of an entry that is to go is compared, in a directory with these flags. Names
    /// of extended attributes are what they are. But OpenZFS compares them as it does files', so
    /// its log may spell one otherwise than the directory.
    pub(super) fn match_in(&self, dir: &Znode, pflags: u64, name: &[u8]) -> Now<Match> {
        let exact = pflags & PFLAG_XATTR != 0 && self.dir_zap(dir).contains(name)?;
        Ok(if exact { Match::Exact } else { self.name_match })
    }

    /// Refuses what is not a directory, or one that was removed.
    pub(super) fn check_dir(&self, dir: &Znode) -> Result<()> {
        let state = dir.state.lock();
        if state.gone {
            return Err(stale(dir.id()));
        }
        if !state.attrs.is_dir() {
            return err(Errno::NotDir, "not a directory");
        }
        Ok(())
    }

    fn lookup_now(self: &Arc<Self>, dir: u64, name: &[u8]) -> Now<Arc<Znode>> {
        let dzn = self.znode(dir)?;
        self.check_dir(&dzn)?;
        match name {
            b"." => return Ok(dzn),
            b".." => {
                let parent = dzn.state.lock().attrs.parent;
                return self.znode(parent);
            }
            _ if name.len() > self.name_max() => {
                return Err(Error::os(Errno::NameTooLong, "the name is too long").into());
            }
            _ => {}
        }
        match self.find_entry(&dzn, name)? {
            Some(v) => self.znode(dirent_obj(v)),
            None => Err(Error::os(Errno::NoEnt, "no such file or directory").into()),
        }
    }

    /// The file of a name, if all it takes is in memory.
    pub fn try_lookup(self: &Arc<Self>, dir: u64, name: &[u8]) -> Now<(Held, Attr)> {
        let zn = self.held(self.lookup_now(dir, name)?);
        let attr = self.attr(&zn);
        Ok((zn, attr))
    }

    /// The file of a number that a client kept and comes back with (a file handle), if all it takes
    /// is in memory. Any number may come.
    pub fn try_handle(self: &Arc<Self>, id: u64) -> Now<(Held, Attr)> {
        let no_file = || Stop::Err(Error::os(Errno::Stale, "no file has this number any more"));
        let dnode = match self.objset.hold(ObjectId(id)) {
            Err(Stop::Err(e)) if e.is(Errno::NoEnt) => return Err(no_file()),
            held => held?,
        };
        if !Attrs::are_in(&dnode) {
            return Err(no_file());
        }
        let held = self.held(self.znode(id)?);
        let unreachable = {
            let state = held.state.lock();
            // One without a name is there only for those who have it already.
            state.gone || state.attrs.links == 0 || state.attrs.pflags & PFLAG_XATTR != 0
        };
        if unreachable {
            return Err(no_file());
        }
        let attr = self.attr(&held);
        Ok((held, attr))
    }

    pub async fn lookup(self: &Arc<Self>, dir: u64, name: &[u8]) -> Result<(Held, Attr)> {
        resident(|| self.try_lookup(dir, name)).await
    }

    /// Some entries of a directory from `cookie` on, if they are in memory; none at its end. `at`
    /// is where in its ZAP to begin, as [`Zap::read_on`] has it.
    fn try_readdir(&self, dir: u64, cookie: u64, at: &mut u64) -> Now<Vec<DirEntry>> {
        let dzn = self.znode(dir)?;
        self.check_dir(&dzn)?;
        let mut out = Vec::new();
        let dot = |name: &[u8], ino, cookie| DirEntry {
            name: name.to_vec(),
            ino,
            dtype: (S_IFDIR >> 12) as u8,
            cookie,
        };
        if cookie == 0 {
            out.push(dot(b".", dir, 1));
        }
        if cookie <= 1 {
            out.push(dot(b"..", dzn.state.lock().attrs.parent, 2));
        }
        let batch = self.dir_zap(&dzn).read_on(at, BATCH)?;
        for e in batch.entries {
            let Some(v) = e.value.as_u64() else { continue };
            let cookie = if e.next == END { DIR_END } else { e.next + 2 };
            out.push(DirEntry { name: e.name, ino: dirent_obj(v), dtype: (v >> 60) as u8, cookie });
        }
        if self.props().dir_atime {
            self.accessed(&dzn);
        }
        Ok(out)
    }

    pub async fn readdir(&self, dir: u64, cookie: u64) -> Result<Vec<DirEntry>> {
        let mut at = if cookie >= DIR_END { END } else { cookie.saturating_sub(2) };
        resident(|| self.try_readdir(dir, cookie, &mut at)).await
    }

    /// The files of some entries, if they are all in memory; otherwise everything that is missing,
    /// so that it can be read at once.
    pub fn try_entries(
        self: &Arc<Self>,
        entries: &[DirEntry],
    ) -> Result<Vec<Option<(Held, Attr)>>, Vec<Need>> {
        let (mut out, mut needs) = (Vec::with_capacity(entries.len()), Vec::new());
        for e in entries {
            match self.znode(e.ino) {
                Ok(zn) => {
                    let attr = self.attr(&zn);
                    out.push(Some((self.held(zn), attr)));
                }
                Err(Stop::Need(n)) => needs.push(n),
                // An entry whose file cannot be read is still an entry.
                Err(Stop::Err(_)) => out.push(None),
            }
        }
        if needs.is_empty() { Ok(out) } else { Err(needs) }
    }

    /// The files of some entries with their attributes; None where one cannot be read.
    pub async fn entries(self: &Arc<Self>, entries: &[DirEntry]) -> Vec<Option<(Held, Attr)>> {
        loop {
            match self.try_entries(entries) {
                Ok(out) => return out,
                Err(needs) => {
                    let failed =
                        join_all(needs.into_iter().map(Need::load)).await.into_iter().any(|r| r.is_err());
                    if failed {
                        let one = |e: &DirEntry| {
                            let zn = self.znode(e.ino).ok()?;
                            let attr = self.attr(&zn);
                            Some((self.held(zn), attr))
                        };
                        return entries.iter().map(one).collect();
                    }
                }
            }
        }
    }
}
