//! Mount options: those that properties say, and those of one mount that stand before them.
//!
//! An option of `zfs mount -o` counts until the file system is unmounted, or until the property
//! that it stands for is set, as in OpenZFS; `zfs get` shows it with the source `temporary`. What
//! the kernel enforces (`setuid`, `exec`, `devices`) it is told; times of reading, extended
//! attributes and writing are the server's to refuse.

use super::values::Settings;
use zilla::{FsProps, zpl::Atime};
use zilla_fuse::Options;

/// Options of one mount, where given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Temporary {
    pub readonly: Option<bool>,
    pub setuid: Option<bool>,
    pub devices: Option<bool>,
    pub exec: Option<bool>,
    pub atime: Option<bool>,
    pub relatime: Option<bool>,
    pub xattr: Option<bool>,
    /// Of no property.
    pub dir_atime: Option<bool>,
}

/// What a list of options says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Words {
    pub temporary: Temporary,
    /// Change what is mounted.
    pub remount: bool,
}

/// Options of other file systems and of OpenZFS's on other systems, refused by name.
const UNSUPPORTED: &[&str] = &["nbmand", "nonbmand", "mand", "nomand", "sync", "async", "dirsync"];

impl Words {
    /// Reads lists of options; the error is the whole complaint.
    pub fn parse(options: &[String]) -> Result<Words, String> {
        let mut words = Words::default();
        let t = &mut words.temporary;
        for option in options.iter().flat_map(|o| o.split(',')) {
            match option {
                "ro" => t.readonly = Some(true),
                "rw" => t.readonly = Some(false),
                "setuid" | "suid" => t.setuid = Some(true),
                "nosetuid" | "nosuid" => t.setuid = Some(false),
                "devices" | "dev" => t.devices = Some(true),
                "nodevices" | "nodev" => t.devices = Some(false),
                "exec" => t.exec = Some(true),
                "noexec" => t.exec = Some(false),
                "atime" => t.atime = Some(true),
                "noatime" => t.atime = Some(false),
                "relatime" => t.relatime = Some(true),
                "norelatime" => t.relatime = Some(false),
                "strictatime" => (t.atime, t.relatime) = (Some(true), Some(false)),
                "diratime" => t.dir_atime = Some(true),
                "nodiratime" => t.dir_atime = Some(false),
                "xattr" => t.xattr = Some(true),
                "noxattr" => t.xattr = Some(false),
                "remount" => words.remount = true,
                "defaults" | "" => {}
                other if UNSUPPORTED.contains(&other) => {
                    return Err(format!("mount option '{other}' is not supported by zilla"));
                }
                other => return Err(format!("invalid mount option '{other}'")),
            }
        }
        Ok(words)
    }
}

impl Temporary {
    fn slot(&mut self, property: &str) -> Option<&mut Option<bool>> {
        Some(match property {
            "readonly" => &mut self.readonly,
            "setuid" => &mut self.setuid,
            "devices" => &mut self.devices,
            "exec" => &mut self.exec,
            "atime" => &mut self.atime,
            "relatime" => &mut self.relatime,
            "xattr" => &mut self.xattr,
            _ => return None,
        })
    }

    /// What stands before a property.
    pub fn get(mut self, property: &str) -> Option<bool> {
        self.slot(property).copied().flatten()
    }

    /// The property was set: from now on it counts.
    pub fn forget(&mut self, property: &str) {
        if let Some(slot) = self.slot(property) {
            *slot = None;
        }
    }

    /// These, and before them those of a remount.
    pub fn with(self, newer: Temporary) -> Temporary {
        Temporary {
            readonly: newer.readonly.or(self.readonly),
            setuid: newer.setuid.or(self.setuid),
            devices: newer.devices.or(self.devices),
            exec: newer.exec.or(self.exec),
            atime: newer.atime.or(self.atime),
            relatime: newer.relatime.or(self.relatime),
            xattr: newer.xattr.or(self.xattr),
            dir_atime: newer.dir_atime.or(self.dir_atime),
        }
    }

    fn on(self, settings: &Settings, property: &str) -> bool {
        self.get(property).unwrap_or_else(|| settings.num(property) != 0)
    }

    /// What the kernel is told. `readonly`: whatever else is said.
    pub fn options(self, settings: &Settings, name: &str, readonly: bool) -> Options {
        Options {
            readonly: readonly || self.on(settings, "readonly"),
            setuid: self.on(settings, "setuid"),
            devices: self.on(settings, "devices"),
            exec: self.on(settings, "exec"),
            atime: self.on(settings, "atime"),
            relatime: self.on(settings, "relatime"),
            ..Options::new(name)
        }
    }

    /// What the engine heeds: `props` as the properties say, changed by these.
    pub fn heeded(self, settings: &Settings, props: FsProps, readonly: bool) -> FsProps {
        let atime = match (self.on(settings, "atime"), self.on(settings, "relatime")) {
            (false, _) => Atime::Off,
            (true, false) => Atime::On,
            (true, true) => Atime::Relative,
        };
        FsProps {
            readonly: readonly || self.readonly.unwrap_or(props.readonly),
            atime,
            dir_atime: self.dir_atime.unwrap_or(true),
            xattr: self.xattr.unwrap_or(props.xattr),
            ..props
        }
    }
}

/// Whether the kernel has to be told of a change.
pub fn differ(a: &Options, b: &Options) -> bool {
    let told = |o: &Options| (o.readonly, o.setuid, o.devices, o.exec, o.atime, o.relatime);
    told(a) != told(b)
}

/// Whether a change matters that an ordinary user's mount does not get by itself: setuid programs
/// and devices it never has, and the rest the server enforces.
pub fn matters_unprivileged(a: &Options, b: &Options) -> bool {
    a.exec != b.exec
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_option_works_or_is_refused_by_name() {
        let parse = |text: &str| Words::parse(&[text.to_owned()]);
        let t = parse("ro,nosuid,nodev,noexec,noatime,remount,noxattr").unwrap();
        assert!(t.remount);
        for (property, on) in [
            ("readonly", true),
            ("setuid", false),
            ("devices", false),
            ("exec", false),
            ("atime", false),
            ("xattr", false),
        ] {
            assert_eq!(t.temporary.get(property), Some(on), "{property}");
        }
        assert_eq!(t.temporary.get("relatime"), None);
        assert_eq!(parse("defaults").unwrap(), Words::default());
        assert_eq!(parse("atime,noatime").unwrap().temporary.atime, Some(false), "the last one counts");
        assert_eq!(parse("nbmand").unwrap_err(), "mount option 'nbmand' is not supported by zilla");
        assert_eq!(parse("ro,fast").unwrap_err(), "invalid mount option 'fast'");
    }

    #[test]
    fn a_property_that_is_set_counts_again() {
        let mut t = Words::parse(&["ro,noexec".to_owned()]).unwrap().temporary;
        t.forget("readonly");
        t.forget("compression");
        assert_eq!(t, Temporary { exec: Some(false), ..Temporary::default() });
        let newer = Words::parse(&["exec,noatime".to_owned()]).unwrap().temporary;
        assert_eq!(t.with(newer), Temporary { exec: Some(true), atime: Some(false), ..Temporary::default() });
    }
}
