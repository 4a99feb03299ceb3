//! Procedures that change nothing.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::access::{self, EXECUTE, READ, WRITE};
use crate::attr::Status;
use crate::nfs::{Caller, Done, MAX_IO, file, handle_of, place};
use crate::rpc::Reply;
use crate::xdr::{In, padding};
use bytes::Bytes;

// What ACCESS asks for.
const ACCESS_READ: u32 = 0x01;
const ACCESS_LOOKUP: u32 = 0x02;
const ACCESS_MODIFY: u32 = 0x04;
const ACCESS_EXTEND: u32 = 0x08;
const ACCESS_DELETE: u32 = 0x10;
const ACCESS_EXECUTE: u32 = 0x20;

/// Hard and symbolic links, the same for all files, times that can be set (FSF3_*).
const FSF3: u32 = 0x01 | 0x02 | 0x08 | 0x10;
/// What a request's size had best be a multiple of.
const UNIT: u32 = 4096;
/// The largest file. Source: what a signed offset of 64 bits reaches.
const MAX_FILE: u64 = i64::MAX as u64;
/// Names of a file. Source: `LINK_MAX` of the engine, which is what OpenZFS has on Linux.
const MAX_LINKS: u32 = (1 << 31) - 1;

pub(crate) async fn getattr(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let at = caller.at(file(&mut args)?).await?;
    reply.head.u32(0);
    at.put_attr(&mut reply.head, &at.attr);
    Ok(())
}

pub(crate) async fn lookup(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (dir, name) = place(&mut args)?;
    let dir = caller.at(dir).await?;
    if !dir.attr.is_dir() {
        return Err(Status::NotDir.into());
    }
    access::check(&dir.export, dir.node, &dir.who, &dir.attr, EXECUTE).await?;
    let found = match &name[..] {
        b"." => dir.export.fs.handle(dir.node).await?,
        _ => dir.export.fs.lookup(dir.node, &name).await?,
    };
    let handle = handle_of(&dir.export, found.node, &found.attr)?;
    let out = reply.head.u32(0);
    handle.put(out);
    out.bool(true);
    dir.put_attr_of(out, &handle, &found.attr);
    dir.put_now(out).await;
    Ok(())
}

pub(crate) async fn access(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (handle, asked) = (file(&mut args)?, args.u32()?);
    let at = caller.at(handle).await?;
    let rights = access::rights(&at.export, at.node, &at.who, &at.attr).await?;
    let mut granted = 0;
    if rights & READ != 0 {
        granted |= ACCESS_READ;
    }
    if rights & EXECUTE != 0 {
        granted |= if at.attr.is_dir() { ACCESS_LOOKUP } else { ACCESS_EXECUTE };
    }
    if rights & WRITE != 0 && at.may_change().is_ok() {
        granted |= ACCESS_MODIFY | ACCESS_EXTEND;
        granted |= if at.attr.is_dir() { ACCESS_DELETE } else { 0 };
    }
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &at.attr);
    out.u32(granted & asked);
    Ok(())
}

pub(crate) async fn readlink(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let at = caller.at(file(&mut args)?).await?;
    if !at.attr.is_symlink() {
        return Err(Status::Inval.into());
    }
    let target = at.export.fs.readlink(at.node).await?;
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &at.attr);
    out.opaque(&target);
    Ok(())
}

pub(crate) async fn read(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (handle, off, count) = (file(&mut args)?, args.u64()?, args.u32()?);
    let at = caller.at(handle).await?;
    if at.attr.is_dir() {
        return Err(Status::IsDir.into());
    }
    if !at.attr.is_file() {
        return Err(Status::Inval.into());
    }
    access::check_read(&at.export, at.node, &at.who, &at.attr).await?;
    let want = (count as usize).min(MAX_IO);
    let parts = match off > MAX_FILE {
        true => Default::default(),
        false => at.export.fs.read(at.node, off, want).await?,
    };
    let len: usize = parts.iter().map(Bytes::len).sum();
    let attr = at.export.fs.getattr(at.node).await?;
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &attr);
    out.u32(len as u32).bool(off.saturating_add(len as u64) >= attr.size).u32(len as u32);
    reply.data.extend(parts);
    reply.data.extend((!len.is_multiple_of(4)).then(|| Bytes::from(vec![0; padding(len)])));
    Ok(())
}

pub(crate) async fn fsstat(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let at = caller.at(file(&mut args)?).await?;
    let stat = at.export.fs.statfs();
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &at.attr);
    out.u64(stat.bytes_total).u64(stat.bytes_free).u64(stat.bytes_free);
    out.u64(stat.files_total).u64(stat.files_free).u64(stat.files_free);
    // It may change at any moment.
    out.u32(0);
    Ok(())
}

pub(crate) async fn fsinfo(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let at = caller.at(file(&mut args)?).await?;
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &at.attr);
    let most = MAX_IO as u32;
    // Reading, writing: the most, the best, in multiples of; the best for directories.
    out.u32(most).u32(most).u32(UNIT).u32(most).u32(most).u32(UNIT).u32(1 << 16);
    // The largest file, times to the nanosecond, properties.
    out.u64(MAX_FILE).u32(0).u32(1).u32(FSF3);
    Ok(())
}

pub(crate) async fn pathconf(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let at = caller.at(file(&mut args)?).await?;
    let out = reply.head.u32(0).bool(true);
    at.put_attr(out, &at.attr);
    // Too long a name is refused, only root gives files away, names keep their case.
    out.u32(MAX_LINKS).u32(at.export.fs.statfs().name_max).bool(true).bool(true);
    out.bool(at.export.fs.ignores_case()).bool(true);
    Ok(())
}
