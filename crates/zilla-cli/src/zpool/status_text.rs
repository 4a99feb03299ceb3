//! What `zpool status` says about each reason: what is wrong, and what to do.

use zilla_control::status::StatusReason;
use zilla_control::types::PoolInfo;

/// The paragraphs after `status:` and `action:`, with their line ends; empty where there is nothing
/// to say.
pub fn explain(reason: StatusReason, pool: &PoolInfo) -> (String, String) {
    use StatusReason::*;
    let recover = "Destroy and re-create the pool from\n\ta backup source.\n";
    let (status, action): (&str, &str) = match reason {
        Ok | HostidActive | HostidRequired | BadGuidSum => ("", ""),
        MissingDevR => (
            "One or more devices could not be opened.  Sufficient replicas exist for\n\tthe pool to continue \
             functioning in a degraded state.\n",
            "Attach the missing device and online it using 'zpool online'.\n",
        ),
        MissingDevNr => (
            "One or more devices could not be opened.  There are insufficient\n\treplicas for the pool to \
             continue functioning.\n",
            "Attach the missing device and online it using 'zpool online'.\n",
        ),
        CorruptLabelR => (
            "One or more devices could not be used because the label is missing or\n\tinvalid.  Sufficient \
             replicas exist for the pool to continue\n\tfunctioning in a degraded state.\n",
            "Replace the device using 'zpool replace'.\n",
        ),
        CorruptLabelNr => (
            "One or more devices could not be used because the label is missing \n\tor invalid.  There are \
             insufficient replicas for the pool to continue\n\tfunctioning.\n",
            recover,
        ),
        FailingDev => (
            "One or more devices has experienced an unrecoverable error.  An\n\tattempt was made to correct \
             the error.  Applications are unaffected.\n",
            "Determine if the device needs to be replaced, and clear the errors\n\tusing 'zpool clear' or \
             replace the device with 'zpool replace'.\n",
        ),
        OfflineDev => (
            "One or more devices has been taken offline by the administrator.\n\tSufficient replicas exist \
             for the pool to continue functioning in a\n\tdegraded state.\n",
            "Online the device using 'zpool online' or replace the device with\n\t'zpool replace'.\n",
        ),
        RemovedDev => (
            "One or more devices have been removed.\n\tSufficient replicas exist for the pool to continue \
             functioning in a\n\tdegraded state.\n",
            "Online the device using zpool online' or replace the device with\n\t'zpool replace'.\n",
        ),
        Resilvering | Rebuilding => (
            "One or more devices is currently being resilvered.  The pool will\n\tcontinue to function, \
             possibly in a degraded state.\n",
            "Wait for the resilver to complete.\n",
        ),
        RebuildScrub => (
            "One or more devices have been sequentially resilvered, scrubbing\n\tthe pool is recommended.\n",
            "Use 'zpool scrub' to verify all data checksums.\n",
        ),
        CorruptData => (
            "One or more devices has experienced an error resulting in data\n\tcorruption.  Applications may \
             be affected.\n",
            "Restore the file in question if possible.  Otherwise restore the\n\tentire pool from backup.\n",
        ),
        CorruptPool => ("The pool metadata is corrupted and the pool cannot be opened.\n", recover),
        VersionOlder => (
            "The pool is formatted using a legacy on-disk format.  The pool can\n\tstill be used, but some \
             features are unavailable.\n",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the\n\tpool will no longer be \
             accessible on software that does not support\n\tfeature flags.\n",
        ),
        VersionNewer => (
            "The pool has been upgraded to a newer, incompatible on-disk version.\n\tThe pool cannot be \
             accessed on this system.\n",
            "Access the pool from a system running more recent software, or\n\trestore the pool from \
             backup.\n",
        ),
        FeatDisabled => (
            "Some supported and requested features are not enabled on the pool.\n\tThe pool can still be \
             used, but some features are unavailable.\n",
            "Enable all features using 'zpool upgrade'. Once this is done,\n\tthe pool may no longer be \
             accessible by software that does not support\n\tthe features. See zpool-features(7) for \
             details.\n",
        ),
        CompatibilityErr => (
            "This pool has a compatibility list specified, but it could not be\n\tread/parsed at this time. \
             The pool can still be used, but this\n\tshould be investigated.\n",
            "Check the value of the 'compatibility' property against the\n\tappropriate file in \
             /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.\n",
        ),
        IncompatibleFeat => (
            "One or more features are enabled on the pool despite not being\n\trequested by the \
             'compatibility' property.\n",
            "Consider setting 'compatibility' to an appropriate value, or\n\tadding needed features to the \
             relevant file in\n\t/etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.\n",
        ),
        UnsupFeatRead => (
            "The pool cannot be accessed on this system because it uses the\n\tfollowing feature(s) not \
             supported on this system:\n",
            "Access the pool from a system that supports the required feature(s),\n\tor restore the pool \
             from backup.\n",
        ),
        UnsupFeatWrite => (
            "The pool can only be accessed in read-only mode on this system. It\n\tcannot be accessed in \
             read-write mode because it uses the following\n\tfeature(s) not supported on this system:\n",
            "The pool cannot be accessed in read-write mode. Import the pool with\n\t\"-o readonly=on\", \
             access the pool from a system that supports the\n\trequired feature(s), or restore the pool from \
             backup.\n",
        ),
        FaultedDevR => (
            "One or more devices are faulted in response to persistent errors.\n\tSufficient replicas exist \
             for the pool to continue functioning in a\n\tdegraded state.\n",
            "Replace the faulted device, or use 'zpool clear' to mark the device\n\trepaired.\n",
        ),
        FaultedDevNr => (
            "One or more devices are faulted in response to persistent errors.  There are insufficient \
             replicas for the pool to\n\tcontinue functioning.\n",
            "Destroy and re-create the pool from a backup source.  Manually marking the device\n\trepaired \
             using 'zpool clear' may allow some data to be recovered.\n",
        ),
        IoFailureMmp => (
            "The pool is suspended because multihost writes failed or were delayed;\n\tanother system could \
             import the pool undetected.\n",
            "Make sure the pool's devices are connected, then reboot your system and\n\timport the pool or \
             run 'zpool clear' to resume the pool.\n",
        ),
        IoFailureWait | IoFailureContinue => (
            "One or more devices are faulted in response to IO failures.\n",
            "Make sure the affected devices are connected, then run 'zpool clear'.\n",
        ),
        BadLog if !pool.kept_logs.is_empty() => (
            "An intent log holds changes that cannot be replayed.  It is kept, and its\n\tfile system is mounted \
             read-only:\n",
            "Once what the log needs is there, unmount the file system and mount it\n\tagain; or give up what is \
             left of the log with 'zfs mount -f'.\n",
        ),
        BadLog => (
            "An intent log record could not be read.\n\tWaiting for administrator intervention to fix the \
             faulted pool.\n",
            "Either restore the affected device(s) and run 'zpool online',\n\tor ignore the intent log \
             records by running 'zpool clear'.\n",
        ),
        NonNativeAshift => (
            "One or more devices are configured to use a non-native block size.\n\tExpect reduced \
             performance.\n",
            "Replace affected devices with devices that support the\n\tconfigured block size, or migrate \
             data to a properly configured\n\tpool.\n",
        ),
        HostidMismatch => (
            "Mismatch between pool hostid and system hostid on imported pool.\n\tThis pool was previously \
             imported into a system with a different hostid,\n\tand then was verbatim imported into this \
             system.\n",
            "Export this pool on all systems on which it is imported.\n\tThen import it to correct the \
             mismatch.\n",
        ),
        Errata => match pool.errata {
            1 => ("", "To correct the issue run 'zpool scrub'.\n"),
            3 => (
                "\tExisting encrypted datasets contain an on-disk incompatibility\n\t which needs to be \
                 corrected.\n",
                "To correct the issue backup existing encrypted datasets to new\n\tencrypted datasets and \
                 destroy the old ones. 'zfs mount -o ro' can\n\tbe used to temporarily mount existing \
                 encrypted datasets readonly.\n",
            ),
            4 => (
                "\tExisting encrypted snapshots and bookmarks contain an on-disk\n\tincompatibility. This may \
                 cause on-disk corruption if they are used\n\twith 'zfs recv'.\n",
                "To correct theissue, enable the bookmark_v2 feature. No additional\n\taction is needed if \
                 there are no encrypted snapshots or bookmarks.\n\tIf preservingthe encrypted snapshots and \
                 bookmarks is required, use\n\ta non-raw send to backup and restore them. Alternately, they \
                 may be\n\tremoved to resolve the incompatibility.\n",
            ),
            _ => ("", ""),
        },
    };
    let mut status = status.to_owned();
    match reason {
        Errata => status.insert_str(0, &format!("Errata #{} detected.\n", pool.errata)),
        BadLog => {
            for log in &pool.kept_logs {
                status.push_str(&format!("\t{}: {}\n", log.dataset, log.why));
            }
        }
        UnsupFeatRead | UnsupFeatWrite => {
            for feature in pool.features.iter().filter(|f| !f.supported) {
                status.push_str(&format!("\t{}\n", feature.guid));
            }
        }
        _ => {}
    }
    (status, action.to_owned())
}
