//! READDIR and READDIRPLUS.
//!
//! A cookie is the engine's own, and holds as long as the directory does; so the verifier of
//! cookies is always nothing. A reply is filled with what fits into the length that the client
//! names.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::access::{self, READ};
use crate::attr::{self, Status};
use crate::handle;
use crate::nfs::{At, Caller, Done, Fail, MAX_IO, file, handle_of};
use crate::rpc::Reply;
use crate::xdr::{In, Out, padding};
use bytes::Bytes;
use zilla::DirEntry;

/// What a reply takes besides its entries: status, the directory's attributes, verifier, the end.
const FRAME: usize = 4 + 4 + attr::LEN + 8 + 4 + 4;
/// What READDIRPLUS tells of a file, behind its name: attributes and handle, each with the word
/// that it is there.
const PLUS: usize = 4 + attr::LEN + 4 + 4 + handle::LEN;

/// What the name, number and cookie of an entry take.
fn plain(e: &DirEntry) -> usize {
    4 + 8 + 4 + e.name.len() + padding(e.name.len()) + 8
}

struct Asked {
    dir: Bytes,
    cookie: u64,
}

fn asked(args: &mut In) -> Result<Asked, Fail> {
    let (dir, cookie) = (file(args)?, args.u64()?);
    args.fixed(8)?;
    Ok(Asked { dir, cookie })
}

pub(crate) async fn readdir(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (asked, most) = (asked(&mut args)?, args.u32()? as usize);
    list(caller, asked, usize::MAX, most, false, reply).await
}

pub(crate) async fn readdirplus(caller: &Caller<'_>, mut args: In, reply: &mut Reply) -> Done {
    let (asked, names, most) = (asked(&mut args)?, args.u32()? as usize, args.u32()? as usize);
    list(caller, asked, names, most, true, reply).await
}

/// `names`: so many bytes of names, numbers and cookies; `most`: of all.
async fn list(
    caller: &Caller<'_>,
    asked: Asked,
    names: usize,
    most: usize,
    plus: bool,
    reply: &mut Reply,
) -> Done {
    let dir = caller.at(asked.dir).await?;
    if !dir.attr.is_dir() {
        return Err(Status::NotDir.into());
    }
    access::check(&dir.export, dir.node, &dir.who, &dir.attr, READ).await?;
    let room = most.min(MAX_IO).checked_sub(FRAME).ok_or(Status::TooSmall)?;
    let out = &mut reply.head;
    out.u32(0);
    dir.put_now(out).await;
    // The verifier of cookies.
    out.u64(0);
    let (mut cookie, mut used, mut named, mut any) = (asked.cookie, 0, 0, false);
    let whole = loop {
        let batch = dir.export.fs.readdir(dir.node, cookie).await?;
        let Some(last) = batch.last() else { break true };
        cookie = last.cookie;
        // `.zfs` is found by its name only: in the list it would have the cookie of `..`, which
        // clients take for a circle.
        let hidden = |e: &DirEntry| e.name == b".zfs" && dir.node == dir.export.fs.root();
        let batch: Vec<DirEntry> = batch.into_iter().filter(|e| !hidden(e)).collect();
        let fits = |e: &&DirEntry| {
            let size = plain(e);
            let all = size + if plus { PLUS } else { 0 };
            let fits = used + all <= room && (named + size <= names || named == 0);
            if fits {
                (used, named) = (used + all, named + size);
            }
            fits
        };
        let count = batch.iter().take_while(fits).count();
        let (entries, left) = batch.split_at(count);
        any |= !entries.is_empty();
        put(&dir, entries, plus, out).await?;
        if !left.is_empty() {
            break false;
        }
    };
    if !any && !whole {
        return Err(Status::TooSmall.into());
    }
    out.bool(false).bool(whole);
    Ok(())
}

async fn put(dir: &At, entries: &[DirEntry], plus: bool, out: &mut Out) -> Done {
    let files = match plus {
        true => dir.export.fs.entries(dir.node, entries).await?,
        false => Vec::new(),
    };
    let mut files = files.into_iter();
    for e in entries {
        out.bool(true).u64(e.ino).opaque(&e.name).u64(e.cookie);
        if !plus {
            continue;
        }
        let file = files.next().flatten().filter(|_| !matches!(&e.name[..], b"." | b".."));
        let found = file.and_then(|f| Some((handle_of(&dir.export, f.node, &f.attr).ok()?, f.attr)));
        match found {
            None => {
                out.bool(false).bool(false);
            }
            Some((handle, attr)) => {
                out.bool(true);
                dir.put_attr_of(out, &handle, &attr);
                out.bool(true);
                handle.put(out);
            }
        }
    }
    Ok(())
}
