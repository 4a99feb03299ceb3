//! Who this machine is to other machines that see its pools.

use zilla_core::spa::Host;

/// The host's id and name. The id is OpenZFS's where one is set (`/etc/hostid`, made by zgenhostid); else it is drawn from
/// the machine's own id, so that a pool in use here is not taken for one's own elsewhere.
pub fn host() -> Host {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Host { id: id(), name }
}

fn id() -> u64 {
    if let Ok(bytes) = std::fs::read("/etc/hostid")
        && let Some(bytes) = bytes.first_chunk::<4>()
    {
        let id = u32::from_ne_bytes(*bytes);
        if id != 0 {
            return u64::from(id);
        }
    }
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    machine.get(..8).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0)
}

/// The name of a user, from the local table alone: a directory service that hangs must not hang a listing.
pub fn user_name(uid: u64) -> Option<String> {
    let table = std::fs::read_to_string("/etc/passwd").ok()?;
    table.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}
