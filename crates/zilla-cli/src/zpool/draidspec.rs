//! The grammar of a dRAID on the command line: `draid[1-3][:Nd][:Nc][:Ns]`.
//!
//! What is not said is settled as OpenZFS does: parity 1, no spares, and 8 data disks in a group or
//! as many as there are.

use super::vdevspec::SpecError;
use zilla_control::types::TopKind;

const MOST_DATA: u64 = 8;
const MOST_SPARES: u64 = 100;
const MOST_CHILDREN: u64 = 255;

/// The parity that a word asks for, if it is one for a dRAID.
pub fn parity(word: &str) -> Option<u8> {
    let digits = word.strip_prefix("draid")?.split(':').next()?;
    match digits {
        "" => Some(1),
        "1" | "2" | "3" => digits.parse().ok(),
        _ => None,
    }
}

fn refused(what: String) -> SpecError {
    SpecError::Invalid(what.lines().map(str::to_owned).collect())
}

/// What is to be made of so many devices.
pub fn kind(word: &str, children: u64) -> Result<TopKind, SpecError> {
    let syntax = || refused(format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{word}'"));
    let parity = parity(word).ok_or_else(syntax)?;
    let nparity = u64::from(parity);
    let (mut data, mut spares) = (None, 0);
    for part in word.split(':').skip(1) {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = part.split_at_checked(digits).ok_or_else(syntax)?;
        let number: u64 = number.parse().map_err(|_| syntax())?;
        match suffix.bytes().next().map(|c| c.to_ascii_lowercase()) {
            Some(b'c') if number != children => {
                return Err(refused(format!(
                    "invalid number of dRAID children; {number} required but {children} provided"
                )));
            }
            Some(b'c') => {}
            Some(b'd') => data = Some(number),
            Some(b's') => spares = number,
            _ => return Err(syntax()),
        }
    }
    let left = children.checked_sub(spares).and_then(|n| n.checked_sub(nparity)).filter(|n| *n > 0);
    let data = match (data, left) {
        (Some(data), _) => data,
        (None, Some(left)) => left.min(MOST_DATA),
        (None, None) => {
            return Err(refused(format!(
                "request number of distributed spares {spares} and parity level {parity}\nleaves no disks available for data"
            )));
        }
    };
    if data == 0 || data > left.unwrap_or(0) {
        return Err(refused(format!(
            "requested number of dRAID data disks per group {data} is too high,\nat most {} disks are available for data",
            left.unwrap_or(0)
        )));
    }
    if spares > MOST_SPARES {
        let what = format!("invalid number of dRAID spares {spares}; additional disks would be required");
        return Err(refused(what));
    }
    if children > MOST_CHILDREN {
        return Err(refused(format!(
            "{children} disks were provided, but dRAID only supports up to {MOST_CHILDREN} disks"
        )));
    }
    // Both are less than the number of children.
    let (data, spares) = (u8::try_from(data).unwrap_or(u8::MAX), u8::try_from(spares).unwrap_or(u8::MAX));
    Ok(TopKind::Draid { parity, data, spares })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_settled() {
        let of = |word: &str, n| match kind(word, n) {
            Ok(TopKind::Draid { parity, data, spares }) => format!("{parity} {data} {spares}"),
            Ok(other) => format!("{other:?}"),
            Err(SpecError::Invalid(lines) | SpecError::Overridable(lines)) => lines.join("|"),
        };
        let syntax = |w: &str| format!("invalid dRAID syntax; expected [:<number><c|d|s>] not '{w}'");
        for (word, children, expected) in [
            ("draid", 3, "1 2 0"),
            ("draid2", 20, "2 8 0"),
            ("draid3:4d:2S:11C", 11, "3 4 2"),
            ("draid:1s:1d", 3, "1 1 1"),
            ("draid:7c", 8, "invalid number of dRAID children; 7 required but 8 provided"),
            (
                "draid2:1s",
                3,
                "request number of distributed spares 1 and parity level 2|leaves no disks available for data",
            ),
            (
                "draid:9d",
                9,
                "requested number of dRAID data disks per group 9 is too high,|at most 8 disks are available for data",
            ),
            (
                "draid:0d",
                9,
                "requested number of dRAID data disks per group 0 is too high,|at most 8 disks are available for data",
            ),
            ("draid:1d:101s", 200, "invalid number of dRAID spares 101; additional disks would be required"),
            ("draid", 256, "256 disks were provided, but dRAID only supports up to 255 disks"),
        ] {
            assert_eq!(of(word, children), expected, "{word}");
        }
        for word in ["draid:x", "draid:", "draid:3", "draid:3x", "draid:99999999999999999999d"] {
            assert_eq!(of(word, 9), syntax(word));
        }
        assert_eq!((parity("draid0"), parity("draid4:2d"), parity("draid2:2d")), (None, None, Some(2)));
    }
}
