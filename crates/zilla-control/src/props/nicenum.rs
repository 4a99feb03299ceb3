//! Numbers for the eye, at most five characters, exactly as OpenZFS rounds them.

/// Which units to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nice {
    /// `1.50K`: powers of 1024, no unit below K.
    Num,
    /// The same with `B` below K.
    Bytes,
    /// Nanoseconds: `15us`, and `-` for none.
    Time,
    /// The plain number.
    Raw,
    /// The plain number, and `-` for zero.
    RawTime,
}

/// `num` in the units of `format`.
pub fn format(num: u64, format: Nice) -> String {
    let (units, base): (&[&str], u64) = match format {
        Nice::Raw => return num.to_string(),
        Nice::RawTime => return if num == 0 { "-".to_owned() } else { num.to_string() },
        Nice::Time if num == 0 => return "-".to_owned(),
        Nice::Num => (&["", "K", "M", "G", "T", "P", "E"], 1024),
        Nice::Bytes => (&["B", "K", "M", "G", "T", "P", "E"], 1024),
        // The step after seconds has no name, but OpenZFS has it all the same.
        Nice::Time => (&["ns", "us", "ms", "s", "?"], 1000),
    };
    let mut whole = num;
    let mut divisor = 1u64;
    let mut unit = 0;
    while whole >= base && unit + 1 < units.len() {
        whole /= base;
        divisor *= base;
        unit += 1;
    }
    let name = units.get(unit).copied().unwrap_or("");
    if num.is_multiple_of(divisor) {
        return format!("{whole}{name}");
    }
    if format == Nice::Time {
        return format!("{}{name}", num / divisor);
    }
    let value = num as f64 / divisor as f64;
    for precision in [2usize, 1] {
        let text = format!("{value:.precision$}{name}");
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{value:.0}{name}")
}

/// Counts: `1023`, `1.50K`.
pub fn nicenum(num: u64) -> String {
    format(num, Nice::Num)
}

/// Sizes: `512B`, `1.50K`.
pub fn nicebytes(num: u64) -> String {
    format(num, Nice::Bytes)
}

/// Nanoseconds.
pub fn nicetime(num: u64) -> String {
    format(num, Nice::Time)
}
