//! What a kind of device costs, from a small text file: lines of `name = value`, `#` begins a
//! comment.

use std::fmt;
use std::time::Duration;

/// The figures of a kind of device. Times that a device does not have are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    pub name: String,
    pub rotational: bool,
    pub logical_block: u32,
    pub physical_block: u32,
    /// Revolutions a minute; 0 for devices without a spindle.
    pub rpm: u64,
    /// To the next track and across all of them.
    pub seek_min: Duration,
    pub seek_max: Duration,
    /// Access time of the medium (flash: sensing and programming a page).
    pub read: Duration,
    pub write: Duration,
    /// Accesses the medium does at once.
    pub channels: usize,
    /// Rates of the medium as a whole, and of the bus, in bytes a second.
    pub media_read: u64,
    pub media_write: u64,
    pub bus: u64,
    /// Protocol and controller, for every command.
    pub command: Duration,
    /// Commands the device takes at once: what it can reorder.
    pub queue: usize,
    /// Write cache; 0 if writes go to the medium before they are acknowledged.
    pub cache: u64,
    /// The cache outlives a power cut, so a flush need not empty it.
    pub cache_is_safe: bool,
    /// Fixed cost of a flush, besides writing what is cached.
    pub flush: Duration,
    /// While it flushes it takes no other command (ATA: FLUSH CACHE is not queued).
    pub flush_blocks: bool,
    /// Simple flash: writes outside the few open erase units close one, at the price of copying it.
    pub erase_unit: u64,
    pub open_units: usize,
    pub switch_unit: Duration,
}

/// Which line of a profile is wrong, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileError {
    pub line: usize,
    pub what: String,
}

impl fmt::Display for ProfileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device profile, line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for ProfileError {}

const BUILT_IN: [(&str, &str); 6] = [
    ("5400rpm-usb2", include_str!("../../profiles/5400rpm-usb2.profile")),
    ("7200rpm-sata", include_str!("../../profiles/7200rpm-sata.profile")),
    ("usb-flash-stick", include_str!("../../profiles/usb-flash-stick.profile")),
    ("sata-ssd", include_str!("../../profiles/sata-ssd.profile")),
    ("nvme", include_str!("../../profiles/nvme.profile")),
    ("nvram", include_str!("../../profiles/nvram.profile")),
];

impl Profile {
    /// Names of the profiles that come with the crate.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// One of the profiles that come with the crate.
    pub fn named(name: &str) -> Option<Profile> {
        let (name, text) = BUILT_IN.iter().find(|(n, _)| *n == name)?;
        Some(Profile::parse(name, text).expect("a built-in profile is wrong"))
    }

    pub fn parse(name: &str, text: &str) -> Result<Profile, ProfileError> {
        let mut p = Profile::free(name);
        for (index, line) in text.lines().enumerate() {
            let content = line.split('#').next().unwrap_or_default().trim();
            if !content.is_empty() {
                p.set(content).map_err(|what| ProfileError { line: index + 1, what })?;
            }
        }
        let blocks = [p.logical_block, p.physical_block];
        if blocks.iter().any(|b| !b.is_power_of_two()) || p.logical_block > p.physical_block {
            return Err(ProfileError {
                line: 0,
                what: "block sizes must be powers of two, logical up to physical".into(),
            });
        }
        Ok(p)
    }

    /// A device that takes no time: what a profile's lines start from.
    fn free(name: &str) -> Profile {
        Profile {
            name: name.into(),
            rotational: false,
            logical_block: 512,
            physical_block: 512,
            rpm: 0,
            seek_min: Duration::ZERO,
            seek_max: Duration::ZERO,
            read: Duration::ZERO,
            write: Duration::ZERO,
            channels: 1,
            media_read: u64::MAX,
            media_write: u64::MAX,
            bus: u64::MAX,
            command: Duration::ZERO,
            queue: 1,
            cache: 0,
            cache_is_safe: false,
            flush: Duration::ZERO,
            flush_blocks: false,
            erase_unit: 0,
            open_units: 1,
            switch_unit: Duration::ZERO,
        }
    }

    fn set(&mut self, line: &str) -> Result<(), String> {
        let (key, value) = line.split_once('=').ok_or_else(|| format!("no \"=\" in \"{line}\""))?;
        let (key, value) = (key.trim(), value.trim());
        // Generous bounds keep every later sum and product inside 64 bits.
        let number = |max: u64| match value.parse::<u64>() {
            Ok(n) if n <= max => Ok(n),
            _ => Err(format!("{key}: \"{value}\" is not a number up to {max}")),
        };
        let time = || number(60_000_000).map(Duration::from_micros);
        let rate = || match number(1_000_000) {
            Ok(0) => Err(format!("{key}: a rate of zero")),
            other => other.map(|mb| mb * 1_000_000),
        };
        let count = || number(65_536).map(|n| n.max(1) as usize);
        let kib = || number(1 << 30).map(|n| n << 10);
        let yes =
            || value.parse::<bool>().map_err(|_| format!("{key}: \"{value}\" is neither true nor false"));
        match key {
            "rotational" => self.rotational = yes()?,
            "logical_block" => self.logical_block = number(1 << 20)? as u32,
            "physical_block" => self.physical_block = number(1 << 20)? as u32,
            "rpm" => self.rpm = number(100_000)?,
            "seek_min_us" => self.seek_min = time()?,
            "seek_max_us" => self.seek_max = time()?,
            "read_us" => self.read = time()?,
            "write_us" => self.write = time()?,
            "channels" => self.channels = count()?,
            "media_read_mb_s" => self.media_read = rate()?,
            "media_write_mb_s" => self.media_write = rate()?,
            "bus_mb_s" => self.bus = rate()?,
            "command_us" => self.command = time()?,
            "queue" => self.queue = count()?,
            "cache_kib" => self.cache = kib()?,
            "cache_is_safe" => self.cache_is_safe = yes()?,
            "flush_us" => self.flush = time()?,
            "flush_blocks" => self.flush_blocks = yes()?,
            "erase_unit_kib" => self.erase_unit = kib()?,
            "open_units" => self.open_units = count()?,
            "switch_unit_us" => self.switch_unit = time()?,
            _ => return Err(format!("unknown name \"{key}\"")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_profiles_parse() {
        for name in Profile::names() {
            let p = Profile::named(name).unwrap();
            assert_eq!(p.rotational, p.rpm > 0, "{name}");
        }
        assert!(Profile::named("floppy").is_none());
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let line = |text| Profile::parse("x", text).unwrap_err();
        assert_eq!(line("# fine\nrpm = fast").line, 2);
        assert!(line("colour = red").what.contains("colour"));
        assert!(line("bus_mb_s = 0").what.contains("zero"));
        assert!(line("rpm").what.contains('='));
        assert!(line("cache_is_safe = maybe").what.contains("maybe"));
        assert!(line("logical_block = 4096\nphysical_block = 512").what.contains("powers"));
    }
}
