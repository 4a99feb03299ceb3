//! `-r`: copying a file out of a dataset, by path or (with `-O`) by object number.

use super::znode::Files;
use super::{Zdb, put};
use std::fs::File;
use std::io::Write;
use zilla_core::error::{Errno, Error, Result};
use zilla_core::types::ObjectId;
use zilla_ondisk::enums::ObjsetType;

const PIECE: u64 = 1 << 20;

impl Zdb {
    pub(super) async fn copy_out(&mut self, target: &str) -> Result<()> {
        let [_, what, to] = self.opts.operands.clone().try_into().map_err(|_| Error::inval("operands"))?;
        let ds = self.named(target).await?;
        let os = self.spa.dsl.objset(&ds).await?;
        if os.is_encrypted() || os.os_type() != ObjsetType::Zfs.number() {
            let why = format!("{} is not a file system in the clear", ds.name());
            return Err(Error::os(Errno::NotSup, why));
        }
        let files = Files::open(&os).await?;
        let id = if self.on('O') {
            ObjectId(what.parse().map_err(|_| Error::inval(format!("bad object number '{what}'")))?)
        } else {
            files.lookup(&what).await?
        };
        let attrs = files.attrs(id).await?;
        let mode = attrs.get("ZPL_MODE").unwrap_or(0);
        if mode & 0o170_000 != 0o100_000 {
            return Err(Error::inval(format!("object {id} is not a regular file (mode {mode:o})")));
        }
        let size = attrs.get("ZPL_SIZE").unwrap_or(0);
        put!(self, "Copying object {id} to file {to}\nObject {id} is {size} bytes\n");
        let dn = os.hold_wait(id).await?;
        let not_written = |e: std::io::Error| Error::os(Errno::Io, format!("cannot write '{to}': {e}"));
        let mut file = File::create(&to).map_err(not_written)?;
        let mut at = 0;
        while at < size {
            let mut buf = vec![0; PIECE.min(size - at) as usize];
            dn.read_wait(at, &mut buf).await?;
            file.write_all(&buf).map_err(not_written)?;
            at += buf.len() as u64;
        }
        Ok(())
    }
}
