//! A dataset's files by path, for programs that embed zilla.

use crate::filesystem::{Entry, Filesystem, NodeId};
use bytes::Bytes;
use std::sync::Arc;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::zpl::{Attr, Cred, DirEntry, NewFile, RenameFlags, S_IFDIR, S_IFLNK, S_IFREG, SetAttr};

/// As many symbolic links as Linux follows.
const MAX_LINKS: usize = 40;

/// Paths of a file system, seen from its root. Everything is made in the name of one owner, and
/// nothing is refused to him.
///
/// ```
/// use zilla::{NewPool, NewVdev, Pool};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// # let folder = tempfile::tempdir()?;
/// # let disk = folder.path().join("a.img");
/// # std::fs::File::create(&disk)?.set_len(128 << 20)?;
/// # let env = zilla_env::real_env(2);
/// # let run = env.clone();
/// # env.block_on(async move {
/// # let pool = Pool::create(&run, NewPool::new("tank").vdev(NewVdev::single(&disk))).await?;
/// let home = pool.create_filesystem("tank/home", &[]).await?;
/// let files = home.files().await?;
/// files.create_dir("/letters").await?;
/// files.write("/letters/one", "Dear Ann").await?;
/// files.symlink("letters/one", "/latest").await?;
/// assert_eq!(files.read("/latest").await?, b"Dear Ann");
///
/// let file = files.open("/letters/one").await?;
/// file.write_at(5, "Joe").await?;
/// file.sync().await?;
/// assert_eq!(file.read_at(0, 100).await?, b"Dear Joe");
/// # drop((file, files));
/// # pool.export().await?;
/// # Ok(())
/// # })
/// # }
/// ```
#[derive(Clone)]
pub struct Files {
    fs: Arc<Filesystem>,
    cred: Cred,
}

/// An open file.
pub struct File {
    fs: Arc<Filesystem>,
    entry: Entry,
}

fn parts(path: &str) -> Vec<Vec<u8>> {
    path.split('/').filter(|p| !p.is_empty()).map(|p| p.as_bytes().to_vec()).collect()
}

impl Files {
    /// The files of `fs` as `cred` may see and change them.
    pub fn new(fs: Arc<Filesystem>, cred: Cred) -> Files {
        Files { fs, cred }
    }

    /// The file system below, which knows files by number.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Walks to a path; links in its last part are followed if `follow`.
    async fn walk(&self, path: &str, follow: bool) -> Result<Entry> {
        let mut todo = parts(path);
        todo.reverse();
        let mut at = self.fs.lookup(self.fs.root(), b".").await?;
        let mut links = 0;
        while let Some(name) = todo.pop() {
            let next = self.fs.lookup(at.node, &name).await?;
            if !next.attr.is_symlink() || (todo.is_empty() && !follow) {
                at = next;
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return Err(Error::os(Errno::Loop, format!("{path}: too many symbolic links")));
            }
            let target = self.fs.readlink(next.node).await?;
            if target.starts_with(b"/") {
                at = self.fs.lookup(self.fs.root(), b".").await?;
            }
            let target: Vec<_> =
                target.split(|b| *b == b'/').filter(|p| !p.is_empty()).map(<[u8]>::to_vec).collect();
            todo.extend(target.into_iter().rev());
        }
        Ok(at)
    }

    /// The directory a path's last part is in, and that part.
    async fn parent(&self, path: &str) -> Result<(Entry, Vec<u8>)> {
        let mut all = parts(path);
        let name = all.pop().ok_or_else(|| Error::os(Errno::Busy, "the root directory has no name"))?;
        let dir: Vec<_> = all.iter().map(|p| String::from_utf8_lossy(p)).collect();
        Ok((self.walk(&dir.join("/"), true).await?, name))
    }

    /// What `stat` says: of a symbolic link, what it leads to.
    pub async fn metadata(&self, path: &str) -> Result<Attr> {
        Ok(self.walk(path, true).await?.attr)
    }

    /// What `lstat` says: of a symbolic link, the link itself.
    pub async fn symlink_metadata(&self, path: &str) -> Result<Attr> {
        Ok(self.walk(path, false).await?.attr)
    }

    /// Opens a file (or directory) that exists.
    pub async fn open(&self, path: &str) -> Result<File> {
        Ok(File { fs: self.fs.clone(), entry: self.walk(path, true).await? })
    }

    /// Makes a regular file. EEXIST: there is something of that name.
    pub async fn create_new(&self, path: &str) -> Result<File> {
        let (dir, name) = self.parent(path).await?;
        let entry = self.fs.create(dir.node, &name, NewFile::new(S_IFREG | 0o644, self.cred)).await?;
        Ok(File { fs: self.fs.clone(), entry })
    }

    /// Opens a regular file, made if there is none, and emptied if there is.
    pub async fn create(&self, path: &str) -> Result<File> {
        match self.create_new(path).await {
            Err(e) if e.is(Errno::Exist) => {
                let file = self.open(path).await?;
                file.set_len(0).await?;
                Ok(file)
            }
            made => made,
        }
    }

    /// The whole contents of a file.
    pub async fn read(&self, path: &str) -> Result<Vec<u8>> {
        let file = self.open(path).await?;
        let len = file.attr().await?.size;
        file.read_at(0, len as usize).await
    }

    /// Makes a file of these contents, in place of one of the name.
    pub async fn write(&self, path: &str, data: impl Into<Bytes>) -> Result<()> {
        self.create(path).await?.write_at(0, data).await
    }

    /// Makes a directory. Its parent must be there.
    pub async fn create_dir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path).await?;
        self.fs.create(dir.node, &name, NewFile::new(S_IFDIR | 0o755, self.cred)).await?;
        Ok(())
    }

    /// Makes a symbolic link at `path` that leads to `target`, whatever is there.
    pub async fn symlink(&self, target: &str, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path).await?;
        let new = NewFile { target: target.as_bytes(), ..NewFile::new(S_IFLNK | 0o777, self.cred) };
        self.fs.create(dir.node, &name, new).await?;
        Ok(())
    }

    /// Where a symbolic link leads.
    pub async fn read_link(&self, path: &str) -> Result<Bytes> {
        self.fs.readlink(self.walk(path, false).await?.node).await
    }

    /// All entries of a directory but `.` and `..`.
    pub async fn read_dir(&self, path: &str) -> Result<Vec<DirEntry>> {
        let dir = self.walk(path, true).await?;
        let (mut out, mut at) = (Vec::new(), 0);
        loop {
            let batch = self.fs.readdir(dir.node, at).await?;
            let Some(last) = batch.last() else { return Ok(out) };
            at = last.cookie;
            out.extend(batch.into_iter().filter(|e| !matches!(&e.name[..], b"." | b"..")));
        }
    }

    /// Takes away a name that is not a directory's.
    pub async fn remove_file(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path).await?;
        self.fs.unlink(dir.node, &name).await
    }

    /// Takes away an empty directory.
    pub async fn remove_dir(&self, path: &str) -> Result<()> {
        let (dir, name) = self.parent(path).await?;
        self.fs.rmdir(dir.node, &name).await
    }

    /// Gives a file or directory another name, in the place of what has that name.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let ((from, old), (to, new)) = (self.parent(from).await?, self.parent(to).await?);
        self.fs.rename(from.node, &old, to.node, &new, RenameFlags::default(), self.cred).await
    }
}

impl File {
    /// The file's number in its [`Filesystem`].
    pub fn node(&self) -> NodeId {
        self.entry.node
    }

    /// What `fstat` says.
    pub async fn attr(&self) -> Result<Attr> {
        self.fs.getattr(self.entry.node).await
    }

    /// Up to `len` bytes at `off`; fewer at the end of the file.
    pub async fn read_at(&self, off: u64, len: usize) -> Result<Vec<u8>> {
        let parts = self.fs.read(self.entry.node, off, len).await?;
        let mut out = Vec::with_capacity(parts.iter().map(Bytes::len).sum());
        parts.iter().for_each(|p| out.extend_from_slice(p));
        Ok(out)
    }

    /// Writes at `off`. A buffer that is handed over is not copied where it covers whole records.
    pub async fn write_at(&self, off: u64, data: impl Into<Bytes>) -> Result<()> {
        let data = data.into();
        if data.is_empty() {
            return Ok(());
        }
        self.fs.write(self.entry.node, off, &data, false).await?;
        Ok(())
    }

    /// Cuts the file off, or makes it longer by a hole.
    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.fs.setattr(self.entry.node, SetAttr { size: Some(len), ..SetAttr::default() }).await?;
        Ok(())
    }

    /// Waits until everything written to the file is on stable storage.
    pub async fn sync(&self) -> Result<()> {
        self.fs.fsync(self.entry.node).await
    }
}
