//! Times in the local zone, as ctime(3) and strftime(3) print them in the C locale.

use chrono::{DateTime, Local, TimeZone, Utc};

fn local(seconds: u64) -> DateTime<Local> {
    // Times on disk are signed: those before 1970 are very large numbers here.
    let utc = Utc.timestamp_opt(seconds as i64, 0).single();
    // What cannot be a date is printed as the epoch rather than not at all.
    utc.unwrap_or(DateTime::UNIX_EPOCH).with_timezone(&Local)
}

/// `Fri Nov 20 20:24:16 2026`, without ctime's line end.
pub fn ctime(seconds: u64) -> String {
    local(seconds).format("%a %b %e %H:%M:%S %Y").to_string()
}

/// `Nov 20 2026 20:24:16`: when an event was.
pub fn event(seconds: u64) -> String {
    local(seconds).format("%b %e %Y %H:%M:%S").to_string()
}

/// `2026-11-20 20:24:16+0100`
pub fn stamp(seconds: u64) -> String {
    local(seconds).format("%Y-%m-%d %H:%M:%S%z").to_string()
}

/// `2026-11-20.20:24:16`
pub fn history(seconds: u64) -> String {
    local(seconds).format("%Y-%m-%d.%H:%M:%S").to_string()
}

/// `Fri Nov 20 20:24 2026`: the creation of a dataset.
pub fn creation(seconds: u64) -> String {
    local(seconds).format("%a %b %e %k:%M %Y").to_string()
}

/// `Fri Nov 20 08:24 2026`: when a snapshot was held.
pub fn hold(seconds: u64) -> String {
    local(seconds).format("%a %b %e %H:%M %Y").to_string()
}

/// `2026-11-20.20:24:16 UTC`... as `snapshots_changed` is printed.
pub fn snapshots_changed(seconds: u64) -> String {
    local(seconds).format("%a %b %e %k:%M:%S %Y").to_string()
}

/// `-T d`: the locale's date, which in the C locale is ctime's.
pub fn stamp_date(seconds: u64) -> String {
    let (at, zone) = (local(seconds), super::zone::name_at(seconds as i64));
    format!("{} {zone} {}", at.format("%a %b %e %H:%M:%S"), at.format("%Y"))
}

/// `20:24:16`
pub fn of_day(seconds: u64) -> String {
    local(seconds).format("%H:%M:%S").to_string()
}

pub fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// `00:01:02`, or `3 days 00:01:02`.
pub fn duration(total: u64) -> String {
    let (days, hours, minutes, seconds) = (total / 86400, total / 3600 % 24, total / 60 % 60, total % 60);
    if days > 0 {
        format!("{days} days {hours:02}:{minutes:02}:{seconds:02}")
    } else {
        format!("{hours:02}:{minutes:02}:{seconds:02}")
    }
}
