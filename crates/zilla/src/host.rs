//! Who this machine is to others, who may see its pools.

use std::path::Path;
use zilla_core::spa::Host;
use zilla_core::tunables::SPL_HOSTID;
use zilla_env::Env;

/// Of a host's number only so much counts. Source: HW_HOSTID_MASK in OpenZFS's sys/systeminfo.h.
pub const HOSTID_MASK: u64 = 0xffff_ffff;

/// The number in a file `/etc/hostid`, where there is one. Source: gethostid(3), zgenhostid(8).
pub fn hostid(file: &[u8]) -> Option<u64> {
    Some(u64::from(u32::from_ne_bytes(*file.first_chunk::<4>()?))).filter(|id| *id != 0)
}

/// The number that stands in for one that nobody has set, from what a file `/etc/machine-id` says,
/// so that a pool in use here is not taken for one's own elsewhere; 0: there is none.
pub fn made_up_hostid(machine_id: &[u8]) -> u64 {
    let hex = machine_id.get(..8).and_then(|b| std::str::from_utf8(b).ok());
    hex.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// Number and name of this machine, and whether somebody has set the number: copies of a machine
/// have one machine's id, so only a number that was set tells hosts apart.
pub(crate) struct ThisHost {
    pub host: Host,
    pub is_set: bool,
}

pub(crate) async fn this_host(env: &Env) -> ThisHost {
    let read = async |path: &str| env.opener.read_file(Path::new(path)).await.unwrap_or_default();
    let tuned = Some(SPL_HOSTID.get() & HOSTID_MASK).filter(|id| *id != 0);
    let set = match tuned {
        Some(id) => Some(id),
        None => hostid(&read("/etc/hostid").await),
    };
    let id = match set {
        Some(id) => id,
        None => made_up_hostid(&read("/etc/machine-id").await),
    };
    let name = String::from_utf8_lossy(&read("/proc/sys/kernel/hostname").await).trim().to_owned();
    ThisHost { host: Host { id, name }, is_set: set.is_some() }
}
