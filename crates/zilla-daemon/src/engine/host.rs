//! Who this machine is to other machines that see its pools.

use std::sync::atomic::{AtomicBool, Ordering};
use zilla::HOSTID_MASK;
use zilla::manage::Host;
use zilla::tunables::SPL_HOSTID;

/// `/etc/hostid` is not this daemon's.
static NAMELESS: AtomicBool = AtomicBool::new(false);

/// Takes over the number that the environment gives this daemon instead of the machine's (0: none).
pub fn from_environment() {
    let Ok(text) = std::env::var("ZILLA_HOSTID") else { return };
    match u64::from_str_radix(text.trim().trim_start_matches("0x"), 16) {
        Ok(0) => NAMELESS.store(true, Ordering::Relaxed),
        Ok(id) if id <= HOSTID_MASK => SPL_HOSTID.set(id),
        _ => tracing::error!("ZILLA_HOSTID: '{text}' is not a hexadecimal number up to ffffffff"),
    }
}

/// The host's id and name, as they are now. Where no id is set it is drawn from the machine's own
/// id, so that a pool in use here is not taken for one's own elsewhere.
pub fn host() -> Host {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let id = set_id()
        .unwrap_or_else(|| zilla::made_up_hostid(&std::fs::read("/etc/machine-id").unwrap_or_default()));
    Host { id, name }
}

/// The id that somebody has given this machine (`spl_hostid`, or `/etc/hostid`, which zgenhostid
/// makes). Copies of a machine have one machine's id: only one that was given tells hosts apart.
pub fn set_id() -> Option<u64> {
    let tuned = SPL_HOSTID.get() & HOSTID_MASK;
    if tuned != 0 {
        return Some(tuned);
    }
    if NAMELESS.load(Ordering::Relaxed) {
        return None;
    }
    zilla::hostid(&std::fs::read("/etc/hostid").ok()?)
}

/// The name of a user, from the local table alone: a directory service that hangs must not hang a
/// listing.
pub fn user_name(uid: u64) -> Option<String> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}
