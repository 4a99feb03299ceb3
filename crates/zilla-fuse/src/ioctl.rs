//! File flags and projects, for chattr, lsattr and project quota tools; `zfs rewrite`.
//!
//! The kernel judges who may set flags and projects, whose numbers it knows (an older one does
//! not). What it does not judge it passes on for whoever has the file open, also for reading only:
//! those are judged here.

use crate::abi::{Args, Header, ioc};
use crate::caller::Caller;
use crate::older;
use crate::ops::{Done, EINVAL};
use crate::reply::{Out, Reply};
use crate::session::Session;
use zilla::{Attr, Errno, SetAttr, ZFS_APPENDONLY, ZFS_IMMUTABLE, ZFS_NODUMP, ZFS_PROJINHERIT};

const ENOTTY: i32 = 25;

/// File flag, its bit for chattr, its bit for project tools.
type Flag = (u64, u32, u32);
const FLAGS: [Flag; 4] = [
    (ZFS_IMMUTABLE, ioc::IMMUTABLE_FL, ioc::XFLAG_IMMUTABLE),
    (ZFS_APPENDONLY, ioc::APPEND_FL, ioc::XFLAG_APPEND),
    (ZFS_NODUMP, ioc::NODUMP_FL, ioc::XFLAG_NODUMP),
    (ZFS_PROJINHERIT, ioc::PROJINHERIT_FL, ioc::XFLAG_PROJINHERIT),
];

impl Session {
    /// File flags and projects, for chattr, lsattr and project quota tools; `zfs rewrite`.
    pub(crate) async fn ioctl(&self, caller: &Header, a: &mut Args<'_>) -> Done {
        let node = caller.node;
        a.skip(12)?;
        let cmd = a.u32()?;
        a.skip(8)?;
        let (in_size, out_size) = (a.u32()?, a.u32()?);
        let input = a.bytes(in_size as usize)?;
        let word = |at: usize| Args(input.get(at..).unwrap_or_default()).u32();
        let mut out = Out::with(64);
        out.u32(0).u32(0).u32(0).u32(0);
        let attr = match self.fs.getattr(node).await {
            Ok(a) => a,
            Err(e) => return Ok(e.into()),
        };
        let set = match cmd {
            ioc::GETFLAGS => {
                out.u32(fl_bits(&attr));
                None
            }
            ioc::FSGETXATTR => {
                out.u32(x_bits(&attr)).u32(0).u32(0).u32(attr.projid);
                out.0.resize(16 + 28, 0);
                None
            }
            ioc::SETFLAGS => {
                let bits = word(0)?;
                let known = FLAGS.iter().fold(0, |k, f| k | f.1);
                if bits & !known & !fl_bits(&attr) != 0 {
                    return Ok(Errno::NotSup.into());
                }
                Some(SetAttr { flags: Some(flags_from(bits, |f| f.1)), ..SetAttr::default() })
            }
            ioc::FSSETXATTR => {
                let (bits, extent, projid, cow_extent) = (word(0)?, word(4)?, word(12)?, word(16)?);
                let known = FLAGS.iter().fold(ioc::XFLAG_HASATTR, |k, f| k | f.2);
                if bits & !known != 0 || extent != 0 || cow_extent != 0 {
                    return Ok(Errno::NotSup.into());
                }
                Some(SetAttr {
                    flags: Some(flags_from(bits, |f| f.2)),
                    projid: (projid != attr.projid).then_some(projid),
                    ..SetAttr::default()
                })
            }
            // To be written anew takes room and time: that is for who owns the file.
            ioc::ZFS_REWRITE if caller.uid != 0 && caller.uid != attr.uid => {
                return Ok(Errno::Perm.into());
            }
            ioc::ZFS_REWRITE => {
                let mut args = Args(input);
                let (flags, off, len, arg) = (args.u64()?, args.u64()?, args.u64()?, args.u64()?);
                if flags != 0 || arg != 0 || len != 0 && off.checked_add(len).is_none() {
                    return Ok(Reply::errno(EINVAL));
                }
                if let Err(e) = self.fs.rewrite(node, off, len).await {
                    return Ok(e.into());
                }
                None
            }
            _ => return Ok(Reply::errno(ENOTTY)),
        };
        if let Some(set) = set {
            if !self.kernel_judges && !older::may_set(&Caller::of(caller), caller.uid, &attr, &set) {
                return Ok(Errno::Perm.into());
            }
            match self.fs.setattr(node, set).await {
                Ok(attr) => self.guard(&attr),
                Err(e) => return Ok(e.into()),
            }
        }
        out.0.truncate(16 + out_size as usize);
        Ok(Reply::head(out.0))
    }
}

fn bits_of(attr: &Attr, bit: impl Fn(&Flag) -> u32) -> u32 {
    FLAGS.iter().filter(|f| attr.flags & f.0 != 0).fold(0, |b, f| b | bit(f))
}
fn fl_bits(attr: &Attr) -> u32 {
    bits_of(attr, |f| f.1)
}
fn x_bits(attr: &Attr) -> u32 {
    bits_of(attr, |f| f.2)
}
/// What to set and what to clear.
fn flags_from(bits: u32, bit: impl Fn(&Flag) -> u32) -> (u64, u64) {
    FLAGS
        .iter()
        .fold((0, 0), |(on, off), f| if bits & bit(f) != 0 { (on | f.0, off) } else { (on, off | f.0) })
}
