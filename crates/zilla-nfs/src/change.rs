//! Procedures that change something.
//!
//! All but UNSTABLE writes are answered when they are stable, by the intent log; COMMIT makes those
//! so. A share with `async` waits for neither names nor attributes, but its COMMITs and stable
//! writes are as stable as any. A crash between the change and the answer leaves a change that
//! nobody was told of, which a client asks for again.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::access::{self, EXECUTE, WRITE, check, check_sticky, not_permitted};
use crate::attr::{self, Status, Wanted, device};
use crate::export::Changed;
use crate::nfs::{At, Caller, Done, FILE_SYNC, Fail, MAX_IO, UNSTABLE, file, handle_of, place, word};
use crate::rpc::Reply;
use crate::xdr::{Garbage, In};
use bytes::Bytes;
use std::os::unix::ffi::OsStrExt;
use zilla::zpl::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, S_ISUID};
use zilla::{Attr, Entry, Errno, NewFile, NodeId, SetAttr, SetTime, Time};

/// The group may execute the file.
const S_IXGRP: u32 = 0o010;
/// The mode of a file that is made with EXCLUSIVE, until its maker says which it is to have.
const UNTOLD: u32 = 0o600;
/// So often a change is judged anew because a name has come to mean another file meanwhile, or a
/// file to have another owner, before the client is to try again.
const TRIES: usize = 16;

// createmode3
const UNCHECKED: u32 = 0;
const GUARDED: u32 = 1;
const EXCLUSIVE: u32 = 2;

/// Refuses what a caller may not change of a file; what POSIX ties to a change is added to it.
async fn allowed(at: &At, want: &Wanted) -> Result<SetAttr, Fail> {
    let (who, attr) = (&at.who, &at.attr);
    let mut set = SetAttr {
        mode: want.mode,
        uid: want.uid,
        gid: want.gid,
        size: want.size,
        atime: want.atime,
        mtime: want.mtime,
        // Whoever changes the owner after this has been judged must not find it done to his file.
        judged: (!who.is_root()).then_some((attr.uid, attr.gid)),
        ..SetAttr::default()
    };
    let given = want.uid.is_some_and(|uid| uid != attr.uid);
    let owner = want.uid.is_some() || want.gid.is_some();
    let timed = |t: Option<SetTime>| matches!(t, Some(SetTime::To(_)));
    let owns = who.owns(attr);
    let grouped = want.gid.is_none_or(|gid| who.is_root() || gid == attr.gid || who.is_in(gid));
    if owner && !owns || given && !who.is_root() || !grouped {
        not_permitted()?;
    }
    let of_owner = want.mode.is_some() || timed(want.atime) || timed(want.mtime);
    if of_owner && !owns {
        not_permitted()?;
    }
    if want.size.is_some() {
        access::check_write(&at.export, at.node, who, attr).await?;
    } else if !owns && (want.atime.is_some() || want.mtime.is_some()) {
        check(&at.export, at.node, who, attr, WRITE).await?;
    }
    match &mut set.mode {
        Some(mode) => {
            let gid = want.gid.unwrap_or(attr.gid);
            if !who.is_root() && !who.is_in(gid) {
                *mode &= !S_ISGID;
            }
            if owner && !attr.is_dir() {
                *mode &= !(S_ISUID | if *mode & S_IXGRP != 0 { S_ISGID } else { 0 });
            }
        }
        None if owner && !attr.is_dir() => set.kill_suidgid = true,
        None => {}
    }
    if want.size.is_some() && !who.is_root() {
        set.kill_suidgid = true;
    }
    Ok(set)
}

async fn apply(at: &At, want: &Wanted, set: SetAttr) -> zilla::Result<()> {
    if at.attr.is_file() && (want.size.is_some() || want.uid.is_some() || want.gid.is_some()) {
        at.export.fs.kill_capabilities(at.node).await?;
    }
    at.export.fs.setattr(at.node, set).await.map(drop)
}

pub(crate) async fn setattr(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (handle, want) = (file(&mut args)?, Wanted::read(&mut args)?);
    let guard = attr::guard(&mut args)?;
    for _ in 0..TRIES {
        let at = caller.at_to_change(handle.clone()).await?;
        at.may_change()?;
        let same = |t: Time| (t.sec as u32, t.nsec) == (at.attr.ctime.sec as u32, at.attr.ctime.nsec);
        if guard.is_some_and(|t| !same(t)) {
            return Err(Status::NotSync.into());
        }
        let set = allowed(&at, &want).await?;
        if want.size.is_some() {
            // What programs here have changed in memory comes now: later it would come over this.
            at.tell(vec![Changed::File(at.node)]).await;
        }
        let applied = apply(&at, &want, set).await;
        // What failed may have been done in part.
        at.tell(vec![Changed::File(at.node)]).await;
        match applied {
            Err(e) if e.is(Errno::Stale) => continue,
            applied => applied?,
        }
        at.stable().await?;
        at.put_changed(reply.head.u32(0)).await;
        return Ok(());
    }
    Err(Status::Jukebox.into())
}

/// Writes, and takes away what a change by this caller takes from a program.
async fn put(at: &At, off: u64, data: &Bytes) -> zilla::Result<()> {
    let fs = &at.export.fs;
    fs.kill_capabilities(at.node).await?;
    // Even if the file had no set-id bits when it was looked at: it may have got them since.
    let kill_suidgid = !at.who.is_root();
    // The group's bit of a file that the group does not execute goes only if a stranger to the
    // group writes.
    if kill_suidgid && at.attr.mode & (S_ISGID | S_IXGRP) == S_ISGID && !at.who.is_in(at.attr.gid) {
        fs.setattr(at.node, SetAttr { kill_sgid: true, ..SetAttr::default() }).await?;
    }
    fs.write(at.node, off, data, kill_suidgid).await.map(drop)
}

pub(crate) async fn write(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (handle, off) = (file(&mut args)?, args.u64()?);
    let (count, how) = (args.u32()?, args.u32()?);
    let data = args.opaque(MAX_IO)?;
    if how > FILE_SYNC || data.len() < count as usize {
        return Err(Fail::Garbage);
    }
    let data = data.slice(..count as usize);
    let at = caller.at_to_change(handle).await?;
    at.may_change()?;
    if at.attr.is_dir() {
        return Err(Status::IsDir.into());
    }
    if !at.attr.is_file() {
        return Err(Status::Inval.into());
    }
    if off.checked_add(u64::from(count)).is_none_or(|end| end > i64::MAX as u64) {
        return Err(Status::FBig.into());
    }
    access::check_write(&at.export, at.node, &at.who, &at.attr).await?;
    if count > 0 {
        // What programs here have changed in memory comes now: later it would come over this.
        at.tell(vec![Changed::File(at.node)]).await;
        let written = put(&at, off, &data).await;
        at.tell(vec![Changed::File(at.node)]).await;
        written?;
    }
    let fs = &at.export.fs;
    if how != UNSTABLE {
        fs.fsync(at.node).await?;
    }
    let out = reply.head.u32(0);
    at.put_changed(out).await;
    out.u32(count).u32(if how == UNSTABLE { UNSTABLE } else { FILE_SYNC }).u64(at.export.verifier);
    Ok(())
}

pub(crate) async fn commit(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let handle = file(&mut args)?;
    // Which part of the file: all of it is as good.
    args.u64()?;
    args.u32()?;
    let at = caller.at_to_change(handle).await?;
    at.export.fs.fsync(at.node).await?;
    let out = reply.head.u32(0);
    at.put_changed(out).await;
    out.u64(at.export.verifier);
    Ok(())
}

/// Names that a directory has of itself cannot be made or taken away.
fn check_word(name: &[u8], own: Status) -> Result<(), Status> {
    match name {
        b"." | b".." => Err(own),
        b"" => Err(Status::Inval),
        _ => Ok(()),
    }
}

/// A directory in which a name is to be made or taken away.
async fn changeable(caller: &Caller<'_>, dir: Bytes) -> Result<At, Fail> {
    let dir = caller.at_to_change(dir).await?;
    dir.may_change()?;
    if !dir.attr.is_dir() {
        return Err(Status::NotDir.into());
    }
    check(&dir.export, dir.node, &dir.who, &dir.attr, WRITE | EXECUTE).await?;
    Ok(dir)
}

/// A file to be made that is no directory: only who is in its group makes it run as the group.
fn new_file(dir: &At, format: u32, mode: u32) -> NewFile<'static> {
    let gid = if dir.attr.mode & S_ISGID != 0 { dir.attr.gid } else { dir.who.gid };
    let stranger = !dir.who.is_root() && !dir.who.is_in(gid);
    let mode = format | mode & if stranger { !S_ISGID } else { !0 };
    NewFile { judged: (!dir.who.is_root()).then_some(gid), ..NewFile::new(mode, dir.who.cred()) }
}

/// What is wanted of a new file beyond its mode.
async fn furnish(dir: &At, made: &Entry, want: &Wanted) -> zilla::Result<()> {
    let root = dir.who.is_root();
    let owner = |id: Option<u32>, is: u32| id.filter(|id| root && *id != is);
    let set = SetAttr {
        uid: owner(want.uid, made.attr.uid),
        gid: owner(want.gid, made.attr.gid),
        size: want.size.filter(|size| made.attr.is_file() && *size != made.attr.size),
        atime: want.atime,
        mtime: want.mtime,
        ..SetAttr::default()
    };
    let any = set.uid.is_some() || set.gid.is_some() || set.size.is_some();
    if any || set.atime.is_some() || set.mtime.is_some() {
        dir.export.fs.setattr(made.node, set).await?;
    }
    Ok(())
}

/// What another meaning of a name changes: itself, and the directory's times and size.
fn named(dir: &At, name: &[u8]) -> Vec<Changed> {
    vec![Changed::Name(dir.node, name.to_vec()), Changed::File(dir.node)]
}

async fn make(dir: &At, name: &[u8], new: NewFile<'_>, want: &Wanted) -> Result<Entry, Fail> {
    check_word(name, Status::Exist)?;
    let fs = &dir.export.fs;
    let is_dir = new.mode & S_IFMT == S_IFDIR;
    let snapshot = is_dir && dir.node == fs.snapdir_node();
    let made = match snapshot {
        true => fs.take_snapshot(name, dir.who.asker()).await?,
        false => fs.create(dir.node, name, new).await?,
    };
    let furnished = furnish(dir, &made, want).await;
    if furnished.is_err() && !snapshot {
        // Nobody is told of it, so it is not to be there. (What cannot be taken away is told
        // below.)
        if let Err(e) = fs.remove_judged(dir.node, name, is_dir, made.node).await {
            tracing::warn!("nfs: what could not be made whole is left: {e}");
        }
    }
    dir.tell(named(dir, name)).await;
    furnished?;
    // A commit of the new file writes its name and its attributes; one of the directory writes the
    // name alone.
    if dir.export.options.sync {
        dir.export.fs.fsync(made.node).await?;
    }
    Ok(made)
}

/// The handle and attributes of what was made, and its directory's.
async fn put_made(dir: &At, made: &Entry, reply: &mut Reply) -> Done {
    let handle = handle_of(&dir.export, made.node, &made.attr)?;
    let attr = dir.export.fs.getattr(made.node).await?;
    let out = reply.head.u32(0).bool(true);
    handle.put(out);
    out.bool(true);
    dir.put_attr(out, &attr);
    dir.put_changed(out).await;
    Ok(())
}

/// The two halves of an exclusive create's verifier, kept in the times of the file that it made.
fn verifier_times(verifier: u64) -> (Time, Time) {
    // Times that end in 2038 are the same to everybody.
    let half = |n: u64| Time { sec: (n & 0x7fff_ffff) as i64, nsec: 0 };
    (half(verifier >> 32), half(verifier))
}

pub(crate) async fn create(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let ((dir, name), how) = (place(&mut args)?, args.u32()?);
    let (want, verifier) = match how {
        UNCHECKED | GUARDED => (Wanted::read(&mut args)?, None),
        EXCLUSIVE => {
            let times = verifier_times(args.u64()?);
            let (atime, mtime) = (Some(SetTime::To(times.0)), Some(SetTime::To(times.1)));
            (Wanted { atime, mtime, ..Wanted::default() }, Some(times))
        }
        _ => return Err(Fail::Garbage),
    };
    let dir = caller.at_to_change(dir).await?;
    dir.may_change()?;
    if !dir.attr.is_dir() {
        return Err(Status::NotDir.into());
    }
    // One that is there needs no right to make one.
    check(&dir.export, dir.node, &dir.who, &dir.attr, EXECUTE).await?;
    let there = |e: &Attr| match how {
        UNCHECKED => e.is_file(),
        _ => verifier.is_some_and(|times| (e.atime, e.mtime) == times && e.is_file() && e.size == 0),
    };
    let found = match dir.export.fs.lookup(dir.node, &name).await {
        Ok(found) if there(&found.attr) => Some(found),
        Ok(_) => return Err(Status::Exist.into()),
        Err(e) if e.is(Errno::NoEnt) => None,
        Err(e) => return Err(e.into()),
    };
    if let Some(found) = found {
        if let Some(size) = want.size.filter(|_| how == UNCHECKED) {
            resize(&dir, &found, size).await?;
        }
        return put_made(&dir, &found, reply).await;
    }
    check(&dir.export, dir.node, &dir.who, &dir.attr, WRITE).await?;
    let new = new_file(&dir, S_IFREG, want.mode.unwrap_or(UNTOLD));
    let made = make(&dir, &name, new, &want).await?;
    put_made(&dir, &made, reply).await
}

/// UNCHECKED on a file that is there: of all that is wanted only its size counts.
async fn resize(dir: &At, found: &Entry, size: u64) -> Done {
    let fs = &dir.export.fs;
    access::check_write(&dir.export, found.node, &dir.who, &found.attr).await?;
    fs.kill_capabilities(found.node).await?;
    let kill_suidgid = !dir.who.is_root();
    let set = SetAttr { size: Some(size), kill_suidgid, ..SetAttr::default() };
    // As before a write.
    dir.tell(vec![Changed::File(found.node)]).await;
    let resized = fs.setattr(found.node, set).await;
    dir.tell(vec![Changed::File(found.node)]).await;
    resized?;
    fs.fsync(found.node).await?;
    Ok(())
}

pub(crate) async fn mkdir(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let ((dir, name), want) = (place(&mut args)?, Wanted::read(&mut args)?);
    let dir = changeable(caller, dir).await?;
    let mode = want.mode.unwrap_or(0o755);
    let made = make(&dir, &name, NewFile::new(S_IFDIR | mode, dir.who.cred()), &want).await?;
    put_made(&dir, &made, reply).await
}

pub(crate) async fn symlink(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let ((dir, name), want) = (place(&mut args)?, Wanted::read(&mut args)?);
    let target = word(&mut args)?;
    let dir = changeable(caller, dir).await?;
    let new = NewFile { target: &target, ..NewFile::new(S_IFLNK | 0o777, dir.who.cred()) };
    let made = make(&dir, &name, new, &want).await?;
    put_made(&dir, &made, reply).await
}

pub(crate) async fn mknod(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let ((dir, name), kind) = (place(&mut args)?, args.u32()?);
    let (format, want, rdev) = match kind {
        attr::NF3CHR | attr::NF3BLK => {
            let (want, major, minor) = (Wanted::read(&mut args)?, args.u32()?, args.u32()?);
            let format = if kind == attr::NF3CHR { S_IFCHR } else { S_IFBLK };
            (format, want, Some(device(major, minor).ok_or(Status::Inval)?))
        }
        attr::NF3SOCK => (S_IFSOCK, Wanted::read(&mut args)?, None),
        attr::NF3FIFO => (S_IFIFO, Wanted::read(&mut args)?, None),
        attr::NF3REG | attr::NF3DIR | attr::NF3LNK => return Err(Status::BadType.into()),
        _ => return Err(Garbage.into()),
    };
    let dir = changeable(caller, dir).await?;
    if rdev.is_some() && !dir.who.is_root() {
        not_permitted()?;
    }
    let new = new_file(&dir, format, want.mode.unwrap_or(UNTOLD));
    let new = NewFile { rdev: rdev.unwrap_or(0), ..new };
    let made = make(&dir, &name, new, &want).await?;
    put_made(&dir, &made, reply).await
}

/// Refuses to take its name from a directory that something is mounted on or below: the kernel,
/// when it is told, would take those mounts away. (Linux' own server refuses it with this code.)
async fn check_unmounted(dir: &At, name: &[u8], there: &Entry) -> Result<(), Fail> {
    let (fs, Some(kernel)) = (&dir.export.fs, &dir.export.kernel) else { return Ok(()) };
    if !there.attr.is_dir() {
        return Ok(());
    }
    for way in kernel.mounted_within() {
        if !fs.names_vary() && !way.iter().any(|part| part.as_bytes() == name) {
            continue;
        }
        let mut at = fs.root();
        for part in &way {
            let Ok(found) = fs.lookup(at, part.as_bytes()).await else { break };
            at = found.node;
            if at == there.node {
                return Err(Status::Access.into());
            }
        }
    }
    Ok(())
}

/// Takes a name away of what this caller may; returns what it was.
async fn take_away(dir: &At, name: &[u8], directory: bool) -> Result<NodeId, Fail> {
    let fs = &dir.export.fs;
    for _ in 0..TRIES {
        let victim = fs.lookup(dir.node, name).await?;
        check_sticky(&dir.who, &dir.attr, &victim.attr)?;
        check_unmounted(dir, name, &victim).await?;
        let done = match directory && dir.node == fs.snapdir_node() {
            true => fs.destroy_snapshot(name, dir.who.asker()).await,
            false => fs.remove_judged(dir.node, name, directory, victim.node).await,
        };
        match done {
            Err(e) if e.is(Errno::Stale) => {}
            done => return Ok(done.map(|()| victim.node)?),
        }
    }
    Err(Status::Jukebox.into())
}

/// REMOVE, and RMDIR of a directory.
pub(crate) async fn remove(caller: &Caller<'_>, mut args: In, reply: &mut Reply, directory: bool) -> Done {
    let (dir, name) = place(&mut args)?;
    let dir = changeable(caller, dir).await?;
    check_word(&name, if name == *".." { Status::NotEmpty } else { Status::Inval })?;
    let victim = take_away(&dir, &name, directory).await?;
    let mut changed = named(&dir, &name);
    changed.push(Changed::File(victim));
    dir.tell(changed).await;
    dir.stable().await?;
    dir.put_changed(reply.head.u32(0)).await;
    Ok(())
}

/// Renames what this caller may; returns what that is, and what was replaced.
async fn give_name(
    (from, old): (&At, &[u8]),
    (to, new): (&At, &[u8]),
) -> Result<(NodeId, Option<NodeId>), Fail> {
    let fs = &from.export.fs;
    for _ in 0..TRIES {
        let moved = fs.lookup(from.node, old).await?;
        check_sticky(&from.who, &from.attr, &moved.attr)?;
        check_unmounted(from, old, &moved).await?;
        if moved.attr.is_dir() && from.node != to.node {
            // Its entry `..` changes.
            check(&from.export, moved.node, &from.who, &moved.attr, WRITE).await?;
        }
        let replaced = match fs.lookup(to.node, new).await {
            Ok(there) => {
                check_sticky(&to.who, &to.attr, &there.attr)?;
                check_unmounted(to, new, &there).await?;
                Some(there.node)
            }
            Err(e) if e.is(Errno::NoEnt) => None,
            Err(e) => return Err(e.into()),
        };
        let judged = (moved.node, replaced);
        let done = match from.node == fs.snapdir_node() && to.node == from.node {
            true => fs.rename_snapshot(old, new, from.who.asker()).await,
            false => fs.rename_judged((from.node, old), (to.node, new), from.who.cred(), judged).await,
        };
        match done {
            Err(e) if e.is(Errno::Stale) => {}
            done => return Ok(done.map(|()| judged)?),
        }
    }
    Err(Status::Jukebox.into())
}

pub(crate) async fn rename(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (from, old) = place(&mut args)?;
    let (to, new) = place(&mut args)?;
    let (from, to) = (changeable(caller, from).await?, changeable(caller, to).await?);
    if from.export.id != to.export.id {
        return Err(Status::XDev.into());
    }
    check_word(&old, Status::Inval)?;
    check_word(&new, Status::Inval)?;
    let (moved, replaced) = give_name((&from, &old), (&to, &new)).await?;
    let mut changed = named(&from, &old);
    changed.extend(named(&to, &new));
    changed.extend(replaced.into_iter().chain([moved]).map(Changed::File));
    from.tell(changed).await;
    from.stable().await?;
    to.stable().await?;
    let out = reply.head.u32(0);
    from.put_changed(out).await;
    to.put_changed(out).await;
    Ok(())
}

pub(crate) async fn link(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let file = file(&mut args)?;
    let (dir, name) = place(&mut args)?;
    let at = caller.at_to_change(file).await?;
    let dir = changeable(caller, dir).await?;
    if at.export.id != dir.export.id || at.may_change().is_err() {
        return Err(Status::XDev.into());
    }
    if at.attr.is_dir() {
        return Err(Status::IsDir.into());
    }
    check_word(&name, Status::Exist)?;
    dir.export.fs.link(at.node, dir.node, &name).await?;
    let mut changed = named(&dir, &name);
    changed.push(Changed::File(at.node));
    dir.tell(changed).await;
    dir.stable().await?;
    let out = reply.head.u32(0);
    at.put_now(out).await;
    dir.put_changed(out).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_is_kept_in_two_times() {
        let (a, b) = verifier_times(0x8765_4321_9abc_def0);
        assert_eq!((a.sec, b.sec), (0x0765_4321, 0x1abc_def0));
    }
}
