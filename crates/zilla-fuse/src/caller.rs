//! Who makes a request, as far as the set-user-id and set-group-id bits of what he changes are
//! concerned, and who may change what snapshots there are.
//!
//! Linux takes these bits from a file that someone changes without CAP_FSETID. With a write and a
//! truncation it tells the server whether he has it; with a copy and an fallocate it does not, and
//! it never tells of supplementary groups. Both are in /proc, under the thread that waits for the
//! answer: until it has one it does not go away, so its number means nobody else.
//!
//! What is kept true: who cannot be looked up has neither capability nor group, so that a bit may
//! be taken once too often, and is never left. That is so for threads of other pid or user
//! namespaces, and for those that act with other credentials than their own.
//!
//! **Root in a container** has root's number in what he asks for, and often next to none of root's
//! powers. Whoever has not CAP_SYS_ADMIN in the user namespace of this process, though the process
//! has it, is not taken for root where snapshots are made and destroyed ([`Caller::asker`]).

use crate::abi::Header;
use rustix::fs::{AtFlags, StatxFlags, statx};
use std::cell::OnceCell;
use std::sync::OnceLock;
use zilla::Asker;

/// The bit of CAP_FSETID (linux/capability.h).
const CAP_FSETID: u64 = 1 << 4;
/// The bit of CAP_LINUX_IMMUTABLE.
const CAP_LINUX_IMMUTABLE: u64 = 1 << 9;
/// The bit of CAP_SYS_ADMIN.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// The initial user namespace's inode (`PROC_USER_INIT_INO`, linux/proc_ns.h).
const INIT_USER_NS: u64 = 0xEFFF_FFFD;

pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
    status: OnceCell<Option<Status>>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    fsuid: u32,
    fsgid: u32,
    groups: Vec<u32>,
    effective: u64,
}

impl Caller {
    pub(crate) fn of(header: &Header) -> Caller {
        Caller { uid: header.uid, gid: header.gid, pid: header.pid, status: OnceCell::new() }
    }

    /// What the thread's status says, wherever its capabilities count.
    fn anywhere(&self) -> Option<&Status> {
        let read = || {
            let status = Status::of(&self.pid.to_string())?;
            // With other credentials than the thread's own (a server's, an io_uring personality's)
            // this would say nothing about them.
            (status.fsuid == self.uid && status.fsgid == self.gid).then_some(status)
        };
        self.status.get_or_init(|| if self.pid == 0 { None } else { read() }).as_ref()
    }

    fn status(&self) -> Option<&Status> {
        let init = |ns| ns == INIT_USER_NS;
        self.anywhere().filter(|_| user_ns(&self.pid.to_string()).is_some_and(init))
    }

    /// Whether he has CAP_SYS_ADMIN, if this process has it.
    fn is_able(&self) -> bool {
        static OURS: OnceLock<bool> = OnceLock::new();
        let has = |status: &Status| status.effective & CAP_SYS_ADMIN != 0;
        let ours = OURS.get_or_init(|| Status::of("self").is_some_and(|own| has(&own)));
        let here = || user_ns(&self.pid.to_string()).is_some_and(|ns| user_ns("self") == Some(ns));
        !ours || self.anywhere().is_some_and(has) && here()
    }

    /// Whether the bits stay whatever he changes.
    pub(crate) fn keeps_ids(&self) -> bool {
        self.status().is_some_and(|s| s.effective & CAP_FSETID != 0)
    }

    /// Whether he may make a file immutable or append-only, or end that.
    pub(crate) fn sets_immutable(&self) -> bool {
        self.status().is_some_and(|s| s.effective & CAP_LINUX_IMMUTABLE != 0)
    }

    /// Himself to those who judge changes of snapshots.
    pub(crate) fn asker(&self) -> Asker {
        let others = self.status().map(|s| s.groups.as_slice()).unwrap_or_default();
        let gids = std::iter::once(self.gid).chain(others.iter().copied().filter(|g| *g != self.gid));
        Asker { uid: self.uid, gids: gids.collect(), is_able: self.is_able() }
    }

    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.status().is_some_and(|s| s.groups.contains(&gid))
    }
}

/// The user namespace of a thread, in which its capabilities count.
fn user_ns(thread: &str) -> Option<u64> {
    let ns = format!("/proc/{thread}/ns/user");
    statx(rustix::fs::CWD, ns, AtFlags::empty(), StatxFlags::INO).ok().map(|st| st.stx_ino)
}

impl Status {
    fn of(thread: &str) -> Option<Status> {
        Status::parse(&std::fs::read_to_string(format!("/proc/{thread}/status")).ok()?)
    }

    fn parse(text: &str) -> Option<Status> {
        let field = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        // Real, effective, saved, and the one that counts for files.
        let fourth = |name| field(name)?.split_ascii_whitespace().nth(3)?.parse().ok();
        Some(Status {
            fsuid: fourth("Uid")?,
            fsgid: fourth("Gid")?,
            groups: field("Groups")?.split_ascii_whitespace().filter_map(|g| g.parse().ok()).collect(),
            effective: u64::from_str_radix(field("CapEff")?.trim(), 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str =
        "Name:\tUid:\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t9 10 \nCapEff:\t0000000000000010\n";

    #[test]
    fn what_proc_says_of_a_thread() {
        let status = Status { fsuid: 4, fsgid: 8, groups: vec![9, 10], effective: CAP_FSETID };
        assert_eq!(Status::parse(STATUS), Some(status));
        assert_eq!(Status::parse(""), None);
        let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        assert_eq!(Status::parse(&own).unwrap().fsuid, rustix::process::geteuid().as_raw());
    }

    #[test]
    fn who_lacks_the_power_that_we_have_is_not_taken_for_root() {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let now = || capabilities(None).unwrap();
        if !now().effective.contains(CapabilitySet::SYS_ADMIN) {
            return;
        }
        // Of one thread: what the process has is its first thread's.
        let asks = |weak: bool| {
            let ask = move || {
                if weak {
                    let mut sets = now();
                    sets.effective -= CapabilitySet::SYS_ADMIN;
                    set_capabilities(None, sets).unwrap();
                }
                let pid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
                Caller { uid: 0, gid: 0, pid, status: OnceCell::new() }.asker()
            };
            std::thread::spawn(ask).join().unwrap()
        };
        assert!(asks(false).is_able && !asks(true).is_able);
        let unknown = |pid| Caller { uid: 0, gid: 0, pid, status: OnceCell::new() }.asker();
        assert!(!unknown(0).is_able && !unknown(u32::MAX).is_able);
    }

    #[test]
    fn who_cannot_be_looked_up_keeps_nothing() {
        let caller = |pid, uid| Caller { uid, gid: 7, pid, status: OnceCell::new() };
        let (own, me) = (std::process::id(), rustix::process::geteuid().as_raw());
        for who in [caller(0, me), caller(u32::MAX, me), caller(own, me ^ 1)] {
            assert!(!who.keeps_ids() && who.is_in_group(7) && !who.is_in_group(8));
        }
    }
}
