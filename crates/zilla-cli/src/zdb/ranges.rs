//! Which objects of a dataset are asked for: `NUMBER`, or `FROM:TO[:TYPES]`.

use zilla_core::error::{Errno, Error, Result};
use zilla_ondisk::object_type;

/// Objects to be shown: a range of numbers, and types.
#[derive(Clone, Copy, Debug)]
pub struct Range {
    pub from: u64,
    pub to: u64,
    pub kinds: Kinds,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Kinds {
    any: bool,
    directories: bool,
    files: bool,
    space_maps: bool,
    zaps: bool,
}

impl Kinds {
    fn parse(flags: &str) -> Option<Kinds> {
        let (mut k, mut on) = (Kinds::default(), true);
        if flags.is_empty() {
            return Some(Kinds { any: true, ..k });
        }
        for c in flags.chars() {
            let all = Kinds { any: on, directories: on, files: on, space_maps: on, zaps: on };
            match c {
                '-' => {
                    on = false;
                    continue;
                }
                'A' => k = all,
                'd' => k.directories = on,
                'f' => k.files = on,
                'm' => k.space_maps = on,
                'z' => k.zaps = on,
                _ => return None,
            }
            on = true;
        }
        Some(k)
    }

    pub fn wants(&self, otype: u8) -> bool {
        match otype {
            object_type::DMU_OT_DIRECTORY_CONTENTS => self.any || self.directories,
            object_type::DMU_OT_PLAIN_FILE_CONTENTS => self.any || self.files,
            object_type::DMU_OT_SPACE_MAP => self.any || self.space_maps,
            t if object_type::is_zap(t) => self.any || self.zaps,
            _ => self.any,
        }
    }
}

pub fn range(word: &str) -> Result<Range> {
    let bad = || Error::os(Errno::Inval, format!("bad object or range: '{word}'"));
    let number = |w: &str| match w {
        "-1" => Ok(u64::MAX),
        _ => w.parse().map_err(|_| bad()),
    };
    let mut parts = word.splitn(3, ':');
    let first = parts.next().unwrap_or_default();
    let from = first.parse::<i64>().map(|n| n as u64).or_else(|_| number(first))?;
    let to = parts.next().map(number).transpose()?.unwrap_or(from);
    let kinds = Kinds::parse(parts.next().unwrap_or_default()).ok_or_else(bad)?;
    if parts.next().is_some() || (to < from && from < 1 << 63) {
        return Err(bad());
    }
    Ok(Range { from, to, kinds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_openzfs_s() {
        let r = range("4:-1:fd").unwrap();
        assert_eq!((r.from, r.to), (4, u64::MAX));
        assert!(r.kinds.wants(object_type::DMU_OT_PLAIN_FILE_CONTENTS));
        assert!(!r.kinds.wants(object_type::DMU_OT_SPACE_MAP));
        let r = range("0:9:A-z").unwrap();
        assert!(r.kinds.wants(object_type::DMU_OT_DSL_DIR));
        assert_eq!(range("-2").unwrap().from, -2i64 as u64);
        for bad in ["", "x", "5:4", "1:2:q", "1:2:f:g"] {
            assert!(range(bad).is_err(), "{bad}");
        }
    }
}
