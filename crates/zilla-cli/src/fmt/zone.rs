//! The short name of the local time zone (`UTC`, `CEST`), which the calendar library knows only as
//! an offset.

use std::ffi::CStr;

/// The zone's name at a time; empty where the C library knows none.
pub fn name_at(seconds: i64) -> String {
    let time: libc::time_t = seconds;
    let mut parts = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are valid for the call. It fills the structure or fails; the name it
    // then points to is the C library's own and is copied at once.
    unsafe {
        if libc::localtime_r(&raw const time, parts.as_mut_ptr()).is_null() {
            return String::new();
        }
        let zone = parts.assume_init().tm_zone;
        if zone.is_null() { String::new() } else { CStr::from_ptr(zone).to_string_lossy().into_owned() }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn is_a_name_and_no_offset() {
        let name = super::name_at(1_000_000_000);
        assert!(name.starts_with(|c: char| c.is_ascii_alphabetic()), "{name}");
    }
}
