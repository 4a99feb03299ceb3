//! What `zpool import` without a name says about a pool.

use crate::fmt::vdev::{self, NameFlags};
use crate::fmt::{left, one_line};
use crate::zpool::status;
use zilla_control::status::{StatusReason, import_reason_of};
use zilla_control::types::{ImportCandidate, PoolLabelState, VdevAux, VdevKind, VdevNode, VdevState};

/// The report on one pool.
pub fn show(candidate: &ImportCandidate) -> String {
    let pool = &candidate.pool;
    let reason = import_reason_of(candidate);
    let root = &pool.root.stats;
    let indent = if candidate.comment.is_some() { " " } else { "" };
    let destroyed = pool.label_state == PoolLabelState::Destroyed;
    let name = one_line(&pool.name);
    let mut text = format!("{indent}  pool: {name}\n{indent}    id: {}\n", pool.guid);
    let state = vdev::state_name(root.state, root.aux);
    text.push_str(&format!("{indent} state: {state}{}\n", if destroyed { " (DESTROYED)" } else { "" }));
    if reason != StatusReason::Ok {
        text.push_str(&format!("{indent}status: {}", problem(candidate, reason, indent)));
    }
    text.push_str(&format!("{indent}action: {}", action(candidate, reason, indent)));
    if let Some(comment) = &candidate.comment {
        text.push_str(&format!("comment: {}\n", one_line(comment)));
    }
    let unusable = matches!(root.state, VdevState::Closed | VdevState::CantOpen);
    if unusable && root.aux == VdevAux::CorruptData {
        if destroyed {
            text.push_str(&format!(
                "\t{indent}The pool was destroyed, but can be imported using the '-Df' flags.\n"
            ));
        } else if pool.label_state != PoolLabelState::Exported {
            text.push_str(&format!(
                "\t{indent}The pool may be active on another system, but can be imported using\n\t{indent}the \
                 '-f' flag.\n"
            ));
        }
    }
    if let Some(id) = reason.message_id() {
        text.push_str(&format!("{indent}   see: https://openzfs.github.io/openzfs-docs/msg/{id}\n"));
    }
    text.push_str(&format!("{indent}config:\n\n"));
    let flags = NameFlags::default();
    let width = vdev::max_width(pool, flags, true).max(10);
    config(&mut text, &name, &pool.root, 0, width);
    for (list, title) in [(&pool.l2cache, "cache"), (&pool.spares, "spares")] {
        if !list.is_empty() {
            text.push_str(&format!("\t{title}\n"));
        }
        for member in list {
            text.push_str(&format!("\t  {}\n", vdev::name(member, flags, false)));
        }
    }
    for &(class, title) in vdev::CLASSES {
        let mut members = vdev::class_children(&pool.root, class).peekable();
        if members.peek().is_some() {
            text.push_str(&format!("\t{title}\t\n"));
        }
        for member in members {
            config(&mut text, &vdev::name(member, flags, true), member, 2, width);
        }
    }
    if reason == StatusReason::BadGuidSum && !candidate.missing_log {
        text.push_str(&format!(
            "\n\t{indent}Additional devices are known to be part of this pool, though their\n\t{indent}exact \
             configuration cannot be determined.\n"
        ));
    }
    text
}

fn config(text: &mut String, name: &str, vdev: &VdevNode, depth: usize, width: usize) {
    if matches!(vdev.kind, VdevKind::Missing | VdevKind::Hole) {
        return;
    }
    let stats = &vdev.stats;
    text.push_str(&format!("\t{:depth$}{}", "", left(name, width.saturating_sub(depth))));
    text.push_str(&format!("  {}", vdev::state_name(stats.state, stats.aux)));
    if stats.aux != VdevAux::None {
        // Importing knows fewer words than an imported pool's status.
        let what = match stats.aux {
            VdevAux::Spared
            | VdevAux::IoFailure
            | VdevAux::BadLog
            | VdevAux::External
            | VdevAux::SplitPool
            | VdevAux::AshiftTooBig => "corrupted data",
            VdevAux::ErrExceeded => "too many errors",
            _ => status::aux_text(vdev),
        };
        text.push_str(&format!("  {what}"));
    }
    text.push('\n');
    for child in vdev::normal_children(vdev) {
        config(text, &vdev::name(child, NameFlags::default(), true), child, depth + 2, width);
    }
}

fn problem(candidate: &ImportCandidate, reason: StatusReason, indent: &str) -> String {
    use StatusReason::*;
    let plain = match reason {
        MissingDevR | MissingDevNr | BadGuidSum => "One or more devices are missing from the system.\n",
        CorruptLabelR | CorruptLabelNr => "One or more devices contains corrupted data.\n",
        CorruptData => "The pool data is corrupted.\n",
        OfflineDev => "One or more devices are offlined.\n",
        CorruptPool => "The pool metadata is corrupted.\n",
        VersionOlder => "The pool is formatted using a legacy on-disk version.\n",
        VersionNewer => "The pool is formatted using an incompatible version.\n",
        HostidActive => "The pool is currently imported by another system.\n",
        HostidMismatch => "The pool was last accessed by another system.\n",
        FaultedDevR | FaultedDevNr => "One or more devices are faulted.\n",
        BadLog => "An intent log record cannot be read.\n",
        Resilvering | Rebuilding => "One or more devices were being resilvered.\n",
        UnsupFeatRead => "The pool uses the following feature(s) not supported on this system:\n",
        _ => "",
    };
    let mut text = match reason {
        FeatDisabled => format!(
            "Some supported features are not enabled on the pool.\n\t{indent}(Note that they may be \
             intentionally disabled if the\n\t{indent}'compatibility' property is set.)\n"
        ),
        CompatibilityErr => format!(
            "Error reading or parsing the file(s) indicated by the 'compatibility'\n\t{indent}property.\n"
        ),
        IncompatibleFeat => format!(
            "One or more features are enabled on the pool despite not being\n\t{indent}requested by the \
             'compatibility' property.\n"
        ),
        UnsupFeatWrite => format!(
            "The pool can only be accessed in read-only mode on this system. It\n\t{indent}cannot be accessed \
             in read-write mode because it uses the following\n\t{indent}feature(s) not supported on this \
             system:\n"
        ),
        HostidRequired => format!(
            "The pool has the multihost property on.  It cannot\n\t{indent}be safely imported when the system \
             hostid is not set.\n"
        ),
        NonNativeAshift => format!(
            "One or more devices are configured to use a non-native block size.\n\t{indent}Expect reduced \
             performance.\n"
        ),
        Errata => format!("Errata #{} detected.\n", candidate.pool.errata),
        _ => plain.to_owned(),
    };
    if matches!(reason, UnsupFeatRead | UnsupFeatWrite) {
        for (guid, description) in &candidate.unsupported_features {
            if description.is_empty() {
                text.push_str(&format!("\t{guid}\n"));
            } else {
                text.push_str(&format!("\t{guid} ({description})\n"));
            }
        }
    }
    text
}

fn action(candidate: &ImportCandidate, reason: StatusReason, indent: &str) -> String {
    use StatusReason::*;
    let can = "The pool can be imported using its name or numeric identifier";
    match candidate.pool.root.stats.state {
        VdevState::Healthy => match reason {
            VersionOlder | FeatDisabled => format!(
                "{can}, though\n\t{indent}some features will not be available without an explicit 'zpool \
                 upgrade'.\n"
            ),
            CompatibilityErr => format!(
                "The pool can be imported using its name or numeric\n\t{indent}identifier, though the file(s) \
                 indicated by its 'compatibility'\n\t{indent}property cannot be parsed at this time.\n"
            ),
            HostidMismatch => format!("{can} and\n\t{indent}the '-f' flag.\n"),
            Errata => errata(candidate.pool.errata, indent),
            _ => format!("{can}.\n"),
        },
        VdevState::Degraded => format!(
            "The pool can be imported despite missing or damaged devices.  The\n\t{indent}fault tolerance of \
             the pool may be compromised if imported.\n"
        ),
        _ => match reason {
            VersionNewer => format!(
                "The pool cannot be imported.  Access the pool on a system running newer\n\t{indent}software, \
                 or recreate the pool from backup.\n"
            ),
            UnsupFeatRead => format!(
                "The pool cannot be imported. Access the pool on a system that supports\n\t{indent}the required \
                 feature(s), or recreate the pool from backup.\n"
            ),
            UnsupFeatWrite => format!(
                "The pool cannot be imported in read-write mode. Import the pool with\n\t{indent}'-o \
                 readonly=on', access the pool on a system that supports the\n\t{indent}required feature(s), or \
                 recreate the pool from backup.\n"
            ),
            BadGuidSum if candidate.missing_log => format!(
                "The pool cannot be imported. Attach the missing\n\t{indent}devices and try again, or import it \
                 without its log devices with\n\t{indent}the '-m' flag: what only these hold is lost then.\n"
            ),
            MissingDevR | MissingDevNr | BadGuidSum => {
                format!("The pool cannot be imported. Attach the missing\n\t{indent}devices and try again.\n")
            }
            HostidActive => format!(
                "The pool must be exported from {} (hostid={:x})\n\t{indent}before it can be safely imported.\n",
                candidate.mmp_hostname.as_deref().unwrap_or("unknown"),
                candidate.mmp_hostid
            ),
            HostidRequired => "Set a unique system hostid with the zgenhostid(8) command.\n".to_owned(),
            _ => "The pool cannot be imported due to damaged devices or data.\n".to_owned(),
        },
    }
}

fn errata(number: u64, indent: &str) -> String {
    match number {
        2 => format!(
            "The pool cannot be imported with this version of ZFS due to\n\t{indent}an active asynchronous \
             destroy. Revert to an earlier version\n\t{indent}and allow the destroy to complete before \
             updating.\n"
        ),
        3 => format!(
            "Existing encrypted datasets contain an on-disk incompatibility, which\n\t{indent}needs to be \
             corrected. Backup these datasets to new encrypted datasets\n\t{indent}and destroy the old ones.\n"
        ),
        4 => format!(
            "Existing encrypted snapshots and bookmarks contain an on-disk\n\t{indent}incompatibility. This \
             may cause on-disk corruption if they are used\n\t{indent}with 'zfs recv'. To correct the issue, \
             enable the bookmark_v2 feature.\n\t{indent}No additional action is needed if there are no \
             encrypted snapshots or\n\t{indent}bookmarks. If preserving the encrypted snapshots and bookmarks \
             is\n\t{indent}required, use a non-raw send to backup and restore them. Alternately,\n\t{indent}they \
             may be removed to resolve the incompatibility.\n"
        ),
        _ => format!(
            "The pool can be imported using its name or numeric identifier,\n\t{indent}however there is a \
             compatibility issue which should be corrected\n\t{indent}by running 'zpool scrub'\n"
        ),
    }
}
