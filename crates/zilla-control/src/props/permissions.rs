//! What can be delegated: the names of permissions, and what `zfs allow` says of them.
//!
//! A permission is the right to use a command of `zfs`, to read or change a family of properties,
//! or to change one native property, whose name it bears.

use super::{DATASET_PROPS, PropAttr};

/// A permission that is no property's name.
pub struct Permission {
    pub name: &'static str,
    /// A command of `zfs`, and not "other".
    pub command: bool,
    /// What the list says of it.
    pub note: &'static str,
    /// OpenZFS's list leaves it out.
    pub unlisted: bool,
}

const fn command(name: &'static str, note: &'static str) -> Permission {
    Permission { name, command: true, note, unlisted: false }
}

const fn other(name: &'static str, note: &'static str) -> Permission {
    Permission { name, command: false, note, unlisted: false }
}

/// In the order of the list.
pub const PERMISSIONS: &[Permission] = &[
    command("allow", "Must also have the permission that is being\n\t\t\t\tallowed"),
    command(
        "clone",
        "Must also have the 'create' ability and 'mount'\n\t\t\t\tability in the origin file system",
    ),
    command("create", "Must also have the 'mount' ability"),
    command("destroy", "Must also have the 'mount' ability"),
    command(
        "diff",
        "Allows lookup of paths within a dataset;\n\t\t\t\tgiven an object number. Ordinary users need \
         this\n\t\t\t\tin order to use zfs diff",
    ),
    command("hold", "Allows adding a user hold to a snapshot"),
    command("mount", "Allows mount/umount of ZFS datasets"),
    command("promote", "Must also have the 'mount'\n\t\t\t\tand 'promote' ability in the origin file system"),
    command("receive", "Must also have the 'mount' and 'create' ability"),
    Permission { name: "receive:append", command: true, note: "", unlisted: true },
    command("release", "Allows releasing a user hold which\n\t\t\t\tmight destroy the snapshot"),
    command("rename", "Must also have the 'mount' and 'create'\n\t\t\t\tability in the new parent"),
    command("rollback", ""),
    command("send", ""),
    command("share", "Allows sharing file systems over NFS or SMB\n\t\t\t\tprotocols"),
    command("snapshot", ""),
    command("bookmark", ""),
    command("load-key", "Allows loading or unloading an encryption key"),
    command("change-key", "Allows changing or adding an encryption key"),
    other("groupquota", "Allows accessing any groupquota@... property"),
    other("groupused", "Allows reading any groupused@... property"),
    other("userprop", "Allows changing any user property"),
    other("userquota", "Allows accessing any userquota@... property"),
    other("userused", "Allows reading any userused@... property"),
    other("userobjquota", "Allows accessing any userobjquota@... property"),
    other("userobjused", "Allows reading any userobjused@... property"),
    other("groupobjquota", "Allows accessing any \n\t\t\t\tgroupobjquota@... property"),
    other("groupobjused", "Allows reading any groupobjused@... property"),
    other("projectused", "Allows reading any projectused@... property"),
    other("projectquota", "Allows accessing any projectquota@... property"),
    other("projectobjused", "Allows accessing any \n\t\t\t\tprojectobjused@... property"),
    other("projectobjquota", "Allows accessing any \n\t\t\t\tprojectobjquota@... property"),
];

/// Names of properties that can be delegated, in order.
pub fn properties() -> Vec<&'static str> {
    let shown = DATASET_PROPS.iter().filter(|p| p.visible && p.attr != PropAttr::ReadOnly);
    let mut names: Vec<_> = shown.map(|p| p.name).collect();
    names.sort_unstable();
    names
}

/// The name under which a permission is kept; None if it is none. A set's name is kept as it is.
pub fn canonical(name: &str) -> Option<&str> {
    if PERMISSIONS.iter().any(|p| p.name == name) || is_set_name(name) {
        return Some(name);
    }
    super::dataset_prop(name).filter(|p| p.attr != PropAttr::ReadOnly).map(|p| p.name)
}

/// `@` and what could be a component of a dataset's name; at most 63 bytes.
/// Source: ZFS_PERMSET_MAXLEN in zfs_namecheck.h.
pub fn is_set_name(name: &str) -> bool {
    let valid = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    name.len() < 64 && name.strip_prefix('@').is_some_and(|rest| !rest.is_empty() && rest.chars().all(valid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_openzfs_s() {
        for name in ["snapshot", "userprop", "receive:append", "compression", "@set", "volsize"] {
            assert_eq!(canonical(name), Some(name), "{name}");
        }
        assert_eq!(canonical("compress"), Some("compression"));
        for name in ["created", "mounted", "used", "", "@", "@a/b", "everyone", "resilver"] {
            assert_eq!(canonical(name), None, "{name}");
        }
        assert!(is_set_name(&format!("@{}", "a".repeat(62))));
        assert!(!is_set_name(&format!("@{}", "a".repeat(63))));
    }
}
