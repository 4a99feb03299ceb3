//! A dataset's files by node number.

mod judged;
mod snapdir;

use crate::ctldir::{self, CTL_ROOT, CTL_SNAPSHOT, Snapdir, Snapshots, Times};
use crate::opened::Opened;
use bytes::Bytes;
use judged::is_free;
use parking_lot::{Mutex, RwLock};
pub use snapdir::Asker;
use std::sync::Arc;
use zilla_core::dmu::{Now, Stop, resident};
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::*;

/// A file's number as servers use it: the object's, with the snapshot's in the upper 16 bits.
pub type NodeId = u64;

/// What [`Filesystem::lasting_name`] says of `.zfs` and `.zfs/snapshot` in the place of a
/// snapshot's guid.
pub const CONTROL_NAME: u64 = u64::MAX;

/// The longest single copy of [`Filesystem::copy_range`]: in between a client can be interrupted.
const COPY_MAX: u64 = 8 << 20;
/// The same of a clone: its answer has 32 bits.
const CLONE_MAX: u64 = 1 << 30;
/// How often a file that is cloned whole is waited for to be on disk.
const CLONE_TRIES: usize = 8;
/// How much of a copy is read and written at a time.
const COPY_STEP: u64 = 1 << 20;

/// A name that was found or made. The file stays as long as it lives, whatever its names do.
pub struct Entry {
    /// Its number.
    pub node: NodeId,
    /// Its attributes at that moment.
    pub attr: Attr,
    /// May be remembered as long as the client likes: all changes come through this file system.
    pub lasting: bool,
    held: Option<Held>,
}

impl Entry {
    fn new(snapshot: u64, held: Held, attr: Attr) -> Entry {
        Entry { node: ctldir::join(snapshot, held.id()), attr, lasting: true, held: Some(held) }
    }

    fn control(node: NodeId, attr: Attr) -> Entry {
        Entry { node, attr, lasting: false, held: None }
    }

    /// Leaves the file in use on behalf of a client, who gives it back with [`Filesystem::forget`].
    pub fn leak(self) -> NodeId {
        if let Some(held) = self.held {
            held.leak();
        }
        self.node
    }
}

/// Where a node number leads.
enum Place {
    Main(Arc<Zfs>, u64),
    Snapshot(Arc<Zfs>, u64, u64),
    Control,
}

/// The files of a dataset and, below `.zfs/snapshot`, of its snapshots.
pub struct Filesystem {
    zfs: RwLock<Arc<Zfs>>,
    snapshots: Arc<dyn Snapshots>,
    opened: Arc<Opened>,
    control: Mutex<Control>,
}

/// What is to be seen of `.zfs`, and who may change it.
#[derive(Clone, Copy, Default)]
struct Control {
    snapdir: Snapdir,
    manager: Option<u32>,
}

fn read_only<T>() -> Result<T> {
    Err(Error::os(Errno::ROFs, "snapshots do not change"))
}

fn name_of(name: &[u8]) -> Result<&str> {
    std::str::from_utf8(name).map_err(|_| Error::no_ent("no such snapshot"))
}

impl Filesystem {
    /// Makes one of a dataset's files and what opens its snapshots.
    pub fn new(zfs: Arc<Zfs>, snapshots: Arc<dyn Snapshots>) -> Arc<Filesystem> {
        Arc::new(Filesystem {
            zfs: RwLock::new(zfs),
            snapshots,
            opened: Arc::default(),
            control: Mutex::default(),
        })
    }

    /// The live file system.
    pub fn zfs(&self) -> Arc<Zfs> {
        self.zfs.read().clone()
    }

    /// After a rollback: the dataset's objset is another one. Servers must make their clients
    /// forget what they remember.
    pub fn replace(&self, zfs: Arc<Zfs>) {
        *self.zfs.write() = zfs;
        self.opened.clear();
    }

    /// Takes all of it from whoever still has it, what was looked into of its snapshots too
    /// ([`Zfs::revoke`]).
    pub async fn revoke(&self) -> Result<()> {
        let zfs = self.zfs();
        zfs.revoke_now();
        self.opened.close();
        zfs.revoke().await
    }

    /// The same where nobody can be in a transaction but what frees files in the background.
    pub fn revoke_now(&self) {
        self.zfs().revoke_now();
        self.opened.close();
    }

    /// What of `.zfs` there is to be seen.
    pub fn set_snapdir(&self, to: Snapdir) {
        self.control.lock().snapdir = to;
    }

    fn control_attr(&self, node: NodeId) -> Attr {
        let now = self.zfs.read().time();
        let (made, changed) = self.snapshots.times().unwrap_or((now, now));
        let changed = if node == CTL_SNAPSHOT { changed } else { made };
        ctldir::attr(node, 2, Times { now, made, changed }, self.manager())
    }

    /// The root directory.
    pub fn root(&self) -> NodeId {
        self.zfs.read().root()
    }

    /// Snapshots are a part of what was taken away ([`Filesystem::revoke`]).
    fn place(&self, node: NodeId) -> Result<Place> {
        let zfs = self.zfs();
        zfs.check_lives()?;
        if ctldir::is_control(node) {
            return Ok(Place::Control);
        }
        match ctldir::split(node) {
            (0, id) => Ok(Place::Main(zfs, id)),
            (n, id) => match self.opened.get(n) {
                Some(zfs) => Ok(Place::Snapshot(zfs, n, id)),
                None => Err(Error::os(Errno::Stale, "the snapshot is gone")),
            },
        }
    }

    /// A file that may be changed.
    fn live(&self, node: NodeId) -> Result<(Arc<Zfs>, u64)> {
        match self.place(node)? {
            Place::Main(zfs, id) => Ok((zfs, id)),
            Place::Snapshot(..) | Place::Control => read_only(),
        }
    }

    /// A file that has contents.
    fn any(&self, node: NodeId) -> Result<(Arc<Zfs>, u64, u64)> {
        match self.place(node)? {
            Place::Main(zfs, id) => Ok((zfs, 0, id)),
            Place::Snapshot(zfs, n, id) => Ok((zfs, n, id)),
            Place::Control => Err(Error::os(Errno::IsDir, "is a directory")),
        }
    }

    /// What a node is called beyond this opening of the file system, as servers' file handles name
    /// it: the guid of its snapshot, 0 for the live files, and its number there.
    pub fn lasting_name(&self, node: NodeId) -> Result<(u64, u64)> {
        match ctldir::split(node) {
            (_, id) if ctldir::is_control(node) => Ok((CONTROL_NAME, id)),
            (0, id) => Ok((0, id)),
            (n, id) => match self.opened.guid(n) {
                Some(guid) => Ok((guid, id)),
                None => Err(Error::os(Errno::Stale, "the snapshot is gone")),
            },
        }
    }

    /// The node of a lasting name; whether there is such a file is another question
    /// ([`Filesystem::handle`]). Opens the snapshot if need be.
    pub async fn node_of(&self, snapshot: u64, id: u64) -> Result<NodeId> {
        let stale = || Error::os(Errno::Stale, "the snapshot is gone");
        if ctldir::split(id) != (0, id) {
            return Err(Error::os(Errno::Stale, "no file has such a number"));
        }
        if snapshot != 0 && self.control.lock().snapdir == Snapdir::Disabled {
            return Err(stale());
        }
        match snapshot {
            0 => Ok(id),
            CONTROL_NAME if matches!(id, 1 | 2) => Ok(ctldir::join(CTL_ROOT >> 48, id)),
            CONTROL_NAME => Err(Error::os(Errno::Stale, "no file has such a number")),
            guid => {
                if let Some(n) = self.opened.with_guid(guid) {
                    return Ok(ctldir::join(n, id));
                }
                let name = self.snapshots.named(guid).await.map_err(|e| match e.is(Errno::NoEnt) {
                    true => stale(),
                    false => e,
                })?;
                self.lookup_control(CTL_SNAPSHOT, name.as_bytes()).await?;
                self.opened.with_guid(guid).map(|n| ctldir::join(n, id)).ok_or_else(stale)
            }
        }
    }

    /// Whether a file may be found under several spellings of its name: then a client that
    /// remembers what it found under one, or that there was nothing, learns nothing of changes made
    /// under another.
    pub fn names_vary(&self) -> bool {
        self.zfs.read().names_vary()
    }

    /// Whether a file is found under its name in any case.
    pub fn ignores_case(&self) -> bool {
        self.zfs.read().ignores_case()
    }

    /// Finds a name, if all it takes is in memory. In the control directory it never is.
    pub fn try_lookup(&self, dir: NodeId, name: &[u8]) -> Now<Option<Entry>> {
        let (zfs, n, id) = match self.place(dir)? {
            Place::Main(zfs, id) if id == zfs.root() && name == b".zfs" => return Ok(None),
            Place::Main(zfs, id) => (zfs, 0, id),
            Place::Snapshot(zfs, n, id) => (zfs, n, id),
            Place::Control => return Ok(None),
        };
        let (held, attr) = zfs.try_lookup(id, name)?;
        Ok(Some(Entry::new(n, held, ctldir::shown(&zfs, n, attr))))
    }

    /// The file of a number that a client kept while nobody used it, as file handles do.
    pub async fn handle(&self, node: NodeId) -> Result<Entry> {
        let (zfs, n, id) = match self.place(node)? {
            Place::Main(zfs, id) => (zfs, 0, id),
            Place::Snapshot(zfs, n, id) => (zfs, n, id),
            Place::Control => return self.lookup_control(node, b".").await,
        };
        let (held, _) = resident(|| zfs.try_handle(id)).await?;
        let attr = self.getattr(node).await?;
        let lasting = n == 0 || id != zfs.root();
        Ok(Entry { lasting, ..Entry::new(n, held, attr) })
    }

    /// Looks a name up in a directory.
    pub async fn lookup(&self, dir: NodeId, name: &[u8]) -> Result<Entry> {
        loop {
            match self.try_lookup(dir, name) {
                Ok(Some(e)) => return Ok(e),
                Ok(None) => return self.lookup_control(dir, name).await,
                Err(Stop::Err(e)) => return Err(e),
                Err(Stop::Need(need)) => need.load().await?,
            }
        }
    }

    async fn lookup_control(&self, dir: NodeId, name: &[u8]) -> Result<Entry> {
        self.zfs().check_lives()?;
        let control = |node| Entry::control(node, self.control_attr(node));
        match (dir, name) {
            (CTL_ROOT | CTL_SNAPSHOT, b".") => return Ok(control(dir)),
            (CTL_SNAPSHOT, b"..") => return Ok(control(CTL_ROOT)),
            (CTL_ROOT, b"..") => {
                let zfs = self.zfs();
                let held = zfs.hold(zfs.root()).await?;
                let attr = zfs.getattr(zfs.root()).await?;
                return Ok(Entry::new(0, held, attr));
            }
            (CTL_ROOT, b"snapshot") => return Ok(control(CTL_SNAPSHOT)),
            (CTL_SNAPSHOT, _) => {}
            (_, b".zfs") if !ctldir::is_control(dir) && self.control.lock().snapdir != Snapdir::Disabled => {
                return Ok(control(CTL_ROOT));
            }
            _ => return Err(Error::no_ent("no such file or directory")),
        }
        let name = name_of(name)?;
        let n = match self.opened.number(name) {
            Some(n) => n,
            None => loop {
                let removals = self.opened.removals();
                // (In a dataset that ignores case it may be asked for by other spellings.)
                let (guid, own, zfs) = self.snapshots.open(name).await?;
                if let Some(n) = self.opened.add(&own, (guid, zfs), removals)? {
                    self.opened.also(name, n);
                    break n;
                }
            },
        };
        let zfs = self.opened.get(n).ok_or_else(|| Error::no_ent("the snapshot was just destroyed"))?;
        let held = zfs.hold(zfs.root()).await?;
        let attr = self.getattr(ctldir::join(n, zfs.root())).await?;
        Ok(Entry { lasting: false, ..Entry::new(n, held, attr) })
    }

    /// Gives back `n` uses that [`Entry::leak`] left.
    pub fn forget(&self, node: NodeId, n: u64) {
        match self.place(node) {
            Ok(Place::Main(zfs, id) | Place::Snapshot(zfs, _, id)) => zfs.forget(id, n),
            Ok(Place::Control) | Err(_) => {}
        }
    }

    /// As [`Filesystem::getattr`], if all it takes is in memory.
    pub fn try_getattr(&self, node: NodeId) -> Now<Attr> {
        let (zfs, n, id) = match self.place(node)? {
            Place::Main(zfs, id) => (zfs, 0, id),
            Place::Snapshot(zfs, n, id) => (zfs, n, id),
            Place::Control => return Ok(self.control_attr(node)),
        };
        Ok(ctldir::shown(&zfs, n, zfs.try_getattr(id)?))
    }

    /// A file's attributes.
    pub async fn getattr(&self, node: NodeId) -> Result<Attr> {
        resident(|| self.try_getattr(node)).await
    }

    /// Entries of a directory from `cookie` on; none at its end. Their numbers are those that files
    /// are shown by, not nodes.
    pub async fn readdir(&self, dir: NodeId, cookie: u64) -> Result<Vec<DirEntry>> {
        let (zfs, n, id) = match self.place(dir)? {
            Place::Main(zfs, id) => (zfs, 0, id),
            Place::Snapshot(zfs, n, id) => (zfs, n, id),
            Place::Control => return self.readdir_control(dir, cookie).await,
        };
        let mut entries = zfs.readdir(id, cookie).await?;
        if n != 0 {
            entries.iter_mut().for_each(|e| e.ino = ctldir::shown_ino(&zfs, n, e.ino));
        }
        if cookie == 0 && n == 0 && id == zfs.root() && self.control.lock().snapdir == Snapdir::Visible {
            // Between `..` and the rest, with the cookie of `..`: who stops here sees `.zfs` again,
            // and nothing else twice.
            let at = entries.iter().take_while(|e| matches!(&e.name[..], b"." | b"..")).count();
            entries
                .insert(at, DirEntry { name: b".zfs".to_vec(), ino: ctldir::INO_ROOT, dtype: 4, cookie: 2 });
        }
        Ok(entries)
    }

    /// The files behind entries of a directory; None where there is none to be had without looking
    /// it up by name.
    pub async fn entries(&self, dir: NodeId, entries: &[DirEntry]) -> Result<Vec<Option<Entry>>> {
        let (zfs, n) = match self.place(dir)? {
            Place::Main(zfs, _) => (zfs, 0),
            Place::Snapshot(zfs, n, _) => (zfs, n),
            Place::Control => return Ok(entries.iter().map(|_| None).collect()),
        };
        let found = match n {
            0 => zfs.entries(entries).await,
            _ => {
                let object = |e: &DirEntry| DirEntry { ino: ctldir::split(e.ino).1, ..e.clone() };
                zfs.entries(&entries.iter().map(object).collect::<Vec<_>>()).await
            }
        };
        let entry = |(held, attr)| Entry::new(n, held, ctldir::shown(&zfs, n, attr));
        Ok(found.into_iter().map(|f| f.map(entry)).collect())
    }

    /// Makes a file, directory, link or device.
    pub async fn create(&self, dir: NodeId, name: &[u8], new: NewFile<'_>) -> Result<Entry> {
        let (zfs, id) = self.live(dir)?;
        is_free(&zfs, id, name)?;
        let (held, attr) = zfs.create(id, name, new).await?;
        Ok(Entry::new(0, held, attr))
    }

    /// Makes a file without a name, which [`Filesystem::link`] may give it. It goes with its last
    /// use if it has none by then.
    pub async fn create_unnamed(&self, dir: NodeId, new: NewFile<'_>) -> Result<Entry> {
        let (zfs, id) = self.live(dir)?;
        let (held, attr) = zfs.create_unnamed(id, new).await?;
        Ok(Entry::new(0, held, attr))
    }

    /// Gives a file another name.
    pub async fn link(&self, node: NodeId, dir: NodeId, name: &[u8]) -> Result<Entry> {
        let ((zfs, id), (_, dir)) = (self.live(node)?, self.live(dir)?);
        is_free(&zfs, dir, name)?;
        let (held, attr) = zfs.link(id, dir, name).await?;
        Ok(Entry::new(0, held, attr))
    }

    /// Takes away a name that is not a directory's. The file goes with its last name and use.
    pub async fn unlink(&self, dir: NodeId, name: &[u8]) -> Result<()> {
        let (zfs, id) = self.live(dir)?;
        zfs.unlink(id, name).await
    }

    /// Takes away an empty directory.
    pub async fn rmdir(&self, dir: NodeId, name: &[u8]) -> Result<()> {
        let (zfs, id) = self.live(dir)?;
        zfs.rmdir(id, name).await
    }

    /// Gives a file or directory another name, as `renameat2` does.
    pub async fn rename(
        &self,
        from: NodeId,
        old: &[u8],
        to: NodeId,
        new: &[u8],
        flags: RenameFlags,
        cred: Cred,
    ) -> Result<()> {
        let ((zfs, from), (_, to)) = (self.live(from)?, self.live(to)?);
        is_free(&zfs, to, new)?;
        zfs.rename(from, old, to, new, flags, cred).await
    }

    /// Changes attributes, the size among them.
    pub async fn setattr(&self, node: NodeId, set: SetAttr) -> Result<Attr> {
        let (zfs, id) = self.live(node)?;
        zfs.setattr(id, set).await
    }

    /// As [`Filesystem::readlink`], if all it takes is in memory.
    pub fn try_readlink(&self, node: NodeId) -> Now<Bytes> {
        let (zfs, _, id) = self.any(node)?;
        zfs.try_readlink(id)
    }

    /// Where a symbolic link leads.
    pub async fn readlink(&self, node: NodeId) -> Result<Bytes> {
        resident(|| self.try_readlink(node)).await
    }

    /// As [`Filesystem::read`], or [`Filesystem::read_direct`], if all it takes is in memory.
    pub fn try_read(&self, node: NodeId, off: u64, len: usize, direct: bool) -> Now<ReadData> {
        let (zfs, _, id) = self.any(node)?;
        if direct { zfs.try_read_direct(id, off, len) } else { zfs.try_read(id, off, len) }
    }

    /// Bytes of a file, up to its end.
    pub async fn read(&self, node: NodeId, off: u64, len: usize) -> Result<ReadData> {
        let (zfs, _, id) = self.any(node)?;
        zfs.read(id, off, len).await
    }

    /// The same by who wants nothing kept in memory for it (`O_DIRECT`); the file system's property
    /// `direct` may say that it is all the same.
    pub async fn read_direct(&self, node: NodeId, off: u64, len: usize) -> Result<ReadData> {
        let (zfs, _, id) = self.any(node)?;
        zfs.read_direct(id, off, len).await
    }

    /// Writes; returns the file's size then.
    pub async fn write(&self, node: NodeId, off: u64, data: &Bytes, kill_suidgid: bool) -> Result<u64> {
        let (zfs, id) = self.live(node)?;
        zfs.write(id, off, data, kill_suidgid).await
    }

    /// The same from several buffers, one behind the other.
    pub async fn write_vectored(
        &self,
        node: NodeId,
        off: u64,
        data: &[Bytes],
        kill_suidgid: bool,
    ) -> Result<u64> {
        let (zfs, id) = self.live(node)?;
        zfs.write_vectored(id, off, data, kill_suidgid).await
    }

    /// The same by who wants nothing kept in memory for it, as [`Filesystem::read_direct`].
    pub async fn write_direct(
        &self,
        node: NodeId,
        off: u64,
        data: &[Bytes],
        kill_suidgid: bool,
    ) -> Result<u64> {
        let (zfs, id) = self.live(node)?;
        zfs.write_direct(id, off, data, kill_suidgid).await
    }

    /// Writes at the end of a file, wherever that is by then; returns its size then.
    pub async fn append(&self, node: NodeId, data: &Bytes) -> Result<u64> {
        let (zfs, id) = self.live(node)?;
        zfs.append(id, data).await
    }

    /// Makes a range zeroes and frees it; with `extend` the file ends no earlier than the range.
    pub async fn punch(
        &self,
        node: NodeId,
        off: u64,
        len: u64,
        extend: bool,
        kill_suidgid: bool,
    ) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.punch(id, off, len, extend, kill_suidgid).await
    }

    /// What an `fallocate` without flags does: the file is at least so long as to have the range,
    /// if that much could be written now.
    pub async fn allocate(&self, node: NodeId, off: u64, len: u64, kill_suidgid: bool) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.check_allocation(len)?;
        zfs.extend(id, off.saturating_add(len), kill_suidgid).await
    }

    /// Whether so many bytes could be written to a file now, which stays as it is.
    pub async fn reserve(&self, node: NodeId, off: u64, len: u64, kill_suidgid: bool) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.reserve(id, off, len, kill_suidgid).await
    }

    /// Makes a file at least so long; `kill_suidgid` clears its set-id bits, as a write does.
    pub async fn extend(&self, node: NodeId, end: u64, kill_suidgid: bool) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.extend(id, end, kill_suidgid).await
    }

    /// Writes the blocks of a range anew, so that they are stored as properties now say; the file
    /// stays the same. `len` 0 is to its end.
    pub async fn rewrite(&self, node: NodeId, off: u64, len: u64) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.rewrite(id, off, len).await
    }

    /// Copies a part of a file into another (or the same); returns how much, which may be less.
    /// Records that both files can have are shared and not copied ([`zilla_core::zpl::Cloned`]).
    /// What was copied before an error is told like that; the error comes again when the rest is
    /// asked for.
    pub async fn copy_range(
        &self,
        (from, off): (NodeId, u64),
        (to, to_off): (NodeId, u64),
        len: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let cloned = self.clone_range((from, off), (to, to_off), len.min(CLONE_MAX), kill_suidgid).await?;
        if cloned > 0 {
            return Ok(cloned);
        }
        let len = len.min(COPY_MAX);
        let mut done = 0;
        while done < len {
            let (at, want) = (off.saturating_add(done), (len - done).min(COPY_STEP));
            match self.copy_some((from, at), (to, to_off.saturating_add(done)), want, kill_suidgid).await {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Shares what can be shared of the beginning of a range; returns how much.
    async fn clone_range(
        &self,
        (from, off): (NodeId, u64),
        (to, to_off): (NodeId, u64),
        len: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let (zfs, to) = self.live(to)?;
        // What a snapshot has may be freed with it.
        let Place::Main(src, from) = self.place(from)? else { return Ok(0) };
        let mut done = 0;
        while done < len {
            let at = |object, offset: u64| FilePlace { object, offset: offset.saturating_add(done) };
            match zfs.clone_range(&src, at(from, off), at(to, to_off), len - done, kill_suidgid).await {
                Ok(Cloned::Bytes(n @ 1..)) => done += n,
                Err(e) if done == 0 => return Err(e),
                _ => break,
            }
        }
        Ok(done)
    }

    /// Makes an empty file share all blocks of another, which may be of another file system.
    /// Returns its size. An error may leave a part.
    pub async fn clone_file(&self, src: &Filesystem, from: NodeId, to: NodeId) -> Result<u64> {
        let (zfs, to) = self.live(to)?;
        let (src_zfs, from) = src.live(from)?;
        let (mut done, mut tries) = (0, CLONE_TRIES);
        loop {
            let at = |object| FilePlace { object, offset: done };
            match zfs.clone_range(&src_zfs, at(from), at(to), u64::MAX, false).await? {
                Cloned::Bytes(0) => return Ok(done),
                Cloned::Bytes(n) => done += n,
                Cloned::Dirty if tries > 0 => {
                    tries -= 1;
                    src_zfs.sync().await?;
                }
                Cloned::Dirty => return Err(Error::os(Errno::Busy, "the file is being written to")),
                Cloned::Refused(why) => return Err(Error::os(Errno::NotSup, why)),
            }
        }
    }

    /// One step of a copy, which takes place whole or not at all.
    async fn copy_some(
        &self,
        (from, off): (NodeId, u64),
        (to, to_off): (NodeId, u64),
        len: u64,
        kill_suidgid: bool,
    ) -> Result<u64> {
        let data = self.read(from, off, len as usize).await?;
        if data.is_empty() {
            return Ok(0);
        }
        self.write_vectored(to, to_off, &data, kill_suidgid).await?;
        Ok(data.iter().map(|d| d.len() as u64).sum())
    }

    /// The next data or hole from `off` on.
    pub async fn seek(&self, node: NodeId, off: u64, whence: Whence) -> Result<u64> {
        let (zfs, _, id) = self.any(node)?;
        zfs.seek(id, off, whence).await
    }

    /// As [`Filesystem::getxattr`], if all it takes is in memory.
    pub fn try_getxattr(&self, node: NodeId, name: &[u8]) -> Now<Vec<u8>> {
        if ctldir::is_control(node) {
            return Err(Error::os(Errno::NoData, "no such extended attribute").into());
        }
        let (zfs, _, id) = self.any(node)?;
        zfs.try_getxattr(id, name)
    }

    /// The value of an extended attribute.
    pub async fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        resident(|| self.try_getxattr(node, name)).await
    }

    /// The names of a file's extended attributes.
    pub async fn listxattr(&self, node: NodeId) -> Result<Vec<Vec<u8>>> {
        if ctldir::is_control(node) {
            return Ok(Vec::new());
        }
        let (zfs, _, id) = self.any(node)?;
        zfs.listxattr(id).await
    }

    /// Sets an extended attribute.
    pub async fn setxattr(&self, node: NodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.setxattr(id, name, value, mode).await
    }

    /// Takes a program's capabilities away, before someone changes it.
    pub async fn kill_capabilities(&self, node: NodeId) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.kill_capabilities(id).await
    }

    /// Takes an extended attribute away.
    pub async fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        let (zfs, id) = self.live(node)?;
        zfs.removexattr(id, name).await
    }

    /// Returns when all that was changed of the file before is stable.
    pub async fn fsync(&self, node: NodeId) -> Result<()> {
        match self.place(node)? {
            Place::Main(zfs, id) => zfs.fsync(id).await,
            Place::Snapshot(..) | Place::Control => Ok(()),
        }
    }

    /// Waits until everything done so far is on stable storage (NFS's commit, of all files).
    pub async fn commit(&self) -> Result<()> {
        self.zfs().commit().await
    }

    /// Returns when all that was changed before in this file system is stable.
    pub async fn sync(&self) -> Result<()> {
        self.zfs().sync().await
    }

    /// Refuses, where the pool is suspended, what would wait until it is cleared: with EAGAIN, or
    /// with EIO if the pool refuses changes (`failmode=continue`).
    pub fn unless_suspended(&self) -> Result<()> {
        self.zfs().unless_suspended()
    }

    /// Space and files, used and free.
    pub fn statfs(&self) -> StatFs {
        self.zfs.read().statfs()
    }
}
