//! What follows from how a machine is.

use super::machine::{Machine, Usable};
use super::{Finding, Grade};

/// A pool needs some memory to be open at all; below this much it is slow. As with OpenZFS.
const LITTLE_MEMORY: u64 = 512 << 20;
/// Connections (256), mounts and devices of a daemon that serves many.
const FEW_FILES: u64 = 1024;

pub fn judge(m: &Machine) -> Vec<Finding> {
    let mut all = vec![daemon(m), state(m), fuse(m)];
    all.extend(helper(m));
    all.extend(others(m));
    all.extend([io_uring(m), files(m)]);
    all.extend(memory(m));
    all.extend(volumes(m));
    all.extend([commands(m), module(m), manual(m)]);
    all
}

fn fine(subject: &'static str, text: impl Into<String>) -> Finding {
    Finding { subject, grade: Grade::Fine, text: text.into(), mend: None }
}

fn finding(subject: &'static str, grade: Grade, text: impl Into<String>, mend: impl Into<String>) -> Finding {
    Finding { subject, grade, text: text.into(), mend: Some(mend.into()) }
}

fn daemon(m: &Machine) -> Finding {
    if m.daemon {
        return fine("zillad", "lies beside this program");
    }
    let text = "is not beside this program: commands start whichever PATH has";
    finding("zillad", Grade::Note, text, "install zilla as a whole (make install, or its package)")
}

fn state(m: &Machine) -> Finding {
    match &m.state {
        Ok(dir) => fine("state folder", format!("{}", dir.display())),
        Err(why) => {
            finding("state folder", Grade::Lacks, why.as_str(), "export ZILLA_DIR=<a folder of your own>")
        }
    }
}

fn fuse(m: &Machine) -> Finding {
    let mend = |own: &str| match m.container {
        true => "start the container with --device /dev/fuse (and --cap-add SYS_ADMIN, or fusermount3 in it)"
            .to_owned(),
        false => own.to_owned(),
    };
    match m.fuse {
        Usable::Yes => fine("fuse", "/dev/fuse can be opened"),
        Usable::Missing => finding(
            "fuse",
            Grade::Lacks,
            "no /dev/fuse: file systems cannot be mounted",
            mend("sudo modprobe fuse"),
        ),
        Usable::Denied => {
            let text = "/dev/fuse may not be opened: file systems cannot be mounted";
            finding("fuse", Grade::Lacks, text, mend("sudo chmod 666 /dev/fuse"))
        }
    }
}

/// Root mounts by himself.
fn helper(m: &Machine) -> Option<Finding> {
    let found = match m.helper {
        _ if m.root => return None,
        Some(true) => fine("fusermount3", "is there, to mount without root"),
        Some(false) => {
            let text = "lacks its set-user-id bit: only root can mount";
            finding("fusermount3", Grade::Lacks, text, "sudo chmod u+s $(command -v fusermount3)")
        }
        None => {
            let text = "is missing: only root can mount";
            finding("fusermount3", Grade::Lacks, text, "sudo apt-get install fuse3 (dnf install fuse3)")
        }
    };
    Some(found)
}

fn others(m: &Machine) -> Option<Finding> {
    let found = match m.allows_others {
        _ if m.root => return None,
        true => fine("fuse.conf", "lets others see your mounts"),
        false => {
            let text = "others do not see your mounts, and file systems cannot be mounted inside each other";
            finding("fuse.conf", Grade::Note, text, "echo user_allow_other | sudo tee -a /etc/fuse.conf")
        }
    };
    Some(found)
}

fn io_uring(m: &Machine) -> Finding {
    let Err(why) = &m.io_uring else { return fine("io_uring", "works") };
    let text = format!("does not work ({why}): devices are read and written by threads, which is slower");
    let mend = match m.io_uring_disabled {
        0 if m.container => "start the container with a seccomp profile that allows io_uring",
        0 => "a kernel of at least 5.6, and no sandbox that forbids it",
        _ => "sudo sysctl kernel.io_uring_disabled=0",
    };
    finding("io_uring", Grade::Note, text, mend)
}

fn files(m: &Machine) -> Finding {
    match m.files {
        n if n < FEW_FILES => {
            let text = format!("only {n} open files: a daemon with many devices and mounts runs out of them");
            finding("open files", Grade::Lacks, text, format!("ulimit -n {}", FEW_FILES * 4))
        }
        u64::MAX => fine("open files", "unlimited"),
        n => fine("open files", format!("{n}")),
    }
}

fn memory(m: &Machine) -> Option<Finding> {
    let bytes = m.memory?;
    let mib = bytes >> 20;
    Some(match bytes < LITTLE_MEMORY {
        true => {
            let text = format!("{mib} MiB: it works, slowly");
            let mend = format!("give the machine or its control group {} MiB", LITTLE_MEMORY >> 20);
            finding("memory", Grade::Note, text, mend)
        }
        false => fine("memory", format!("{mib} MiB")),
    })
}

/// Volumes are served over NBD in any case; devices of them are root's.
fn volumes(m: &Machine) -> Option<Finding> {
    let found = match m.loop_devices {
        _ if !m.root => return None,
        Usable::Yes => fine("loop devices", "are there, for 'zilla zvol attach'"),
        _ => finding(
            "loop devices",
            Grade::Note,
            "are missing: volumes are served over NBD only",
            "modprobe loop",
        ),
    };
    Some(found)
}

fn commands(m: &Machine) -> Finding {
    let Some(other) = &m.other_zpool else {
        return fine("commands", "no other program is called zpool here");
    };
    let text = format!("'zpool' is {}, which is not zilla's", other.display());
    finding(
        "commands",
        Grade::Note,
        text,
        "call 'zilla zpool' and 'zilla zfs', or put zilla's folder first in PATH",
    )
}

fn module(m: &Machine) -> Finding {
    if !m.module {
        return fine("kernel module", "OpenZFS's is not loaded");
    }
    let text = "OpenZFS's is loaded: a pool that it has imported is refused here until it is exported there";
    finding("kernel module", Grade::Note, text, "/usr/sbin/zpool export <pool>, before zilla imports it")
}

fn manual(m: &Machine) -> Finding {
    if m.manual {
        return fine("manual", "is installed ('zpool help TOPIC')");
    }
    finding(
        "manual",
        Grade::Note,
        "man or the pages are missing: help shows usages only",
        "make install, and man-db",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// A user's machine that lacks nothing.
    fn good() -> Machine {
        Machine {
            root: false,
            container: false,
            fuse: Usable::Yes,
            helper: Some(true),
            allows_others: true,
            io_uring: Ok(()),
            io_uring_disabled: 0,
            files: 1 << 20,
            memory: Some(8 << 30),
            loop_devices: Usable::Denied,
            other_zpool: None,
            module: false,
            daemon: true,
            state: Ok(PathBuf::from("/s")),
            manual: true,
        }
    }

    /// What is not fine: subject, grade, mend.
    fn told(m: &Machine) -> Vec<(&'static str, Grade, String)> {
        let all = judge(m).into_iter().filter(|f| f.grade != Grade::Fine);
        all.map(|f| (f.subject, f.grade, f.mend.expect("a way to mend it"))).collect()
    }

    #[test]
    fn a_good_machine_lacks_nothing() {
        assert_eq!(told(&good()), []);
        assert_eq!(told(&Machine { root: true, loop_devices: Usable::Yes, helper: None, ..good() }), []);
    }

    #[test]
    fn what_is_missing_is_named_with_what_mends_it() {
        let one = |m: Machine| {
            let mut all = told(&m);
            assert_eq!(all.len(), 1, "{all:?}");
            all.remove(0)
        };
        let no_fuse = one(Machine { fuse: Usable::Missing, ..good() });
        assert_eq!(no_fuse, ("fuse", Grade::Lacks, "sudo modprobe fuse".to_owned()));
        let in_container = one(Machine { fuse: Usable::Missing, container: true, ..good() });
        assert!(in_container.2.contains("--device /dev/fuse"), "{in_container:?}");
        assert_eq!(one(Machine { helper: None, ..good() }).1, Grade::Lacks);
        assert!(one(Machine { helper: Some(false), ..good() }).2.contains("chmod u+s"));
        let nested = one(Machine { allows_others: false, ..good() });
        assert!(nested.1 == Grade::Note && nested.2.contains("user_allow_other"), "{nested:?}");
        let ring = Machine { io_uring: Err("no".into()), io_uring_disabled: 2, ..good() };
        assert_eq!(one(ring), ("io_uring", Grade::Note, "sudo sysctl kernel.io_uring_disabled=0".to_owned()));
        assert_eq!(
            one(Machine { files: 256, ..good() }),
            ("open files", Grade::Lacks, "ulimit -n 4096".to_owned())
        );
        assert_eq!(one(Machine { memory: Some(64 << 20), ..good() }).1, Grade::Note);
        let other = one(Machine { other_zpool: Some("/usr/sbin/zpool".into()), ..good() });
        assert!(other.0 == "commands" && other.2.contains("zilla zpool"), "{other:?}");
        assert_eq!(one(Machine { module: true, ..good() }).0, "kernel module");
        assert_eq!(one(Machine { state: Err("no".into()), ..good() }).1, Grade::Lacks);
        assert_eq!(one(Machine { manual: false, ..good() }).0, "manual");
        assert_eq!(one(Machine { daemon: false, ..good() }).0, "zillad");
    }
}
