//! Small things that reports print alike.

use zilla_control::props::nicenum;
use zilla_ondisk::BlkPtr;

/// A size or count for the eye.
pub fn nice(n: u64, plain: bool) -> String {
    if plain { n.to_string() } else { nicenum::nicenum(n) }
}

/// Numbers as bars of stars, from the first to the last that is not 0; `offset` is added to the
/// index.
pub fn histogram(counts: &[u64], offset: usize) -> String {
    const WIDTH: u64 = 40;
    let (Some(first), Some(last)) = (counts.iter().position(|n| *n > 0), counts.iter().rposition(|n| *n > 0))
    else {
        return String::new();
    };
    let max = counts.iter().copied().max().unwrap_or(0).max(WIDTH);
    let mut out = String::new();
    for (i, n) in counts.iter().enumerate().take(last + 1).skip(first) {
        let gap = (u128::from(max - n) * u128::from(WIDTH) / u128::from(max)) as u64;
        let stars = "*".repeat((WIDTH - gap) as usize);
        out.push_str(&format!("\t\t\t{:3}: {n:6} {stars}\n", i + offset));
    }
    out
}

/// A share in percent; of nothing it is what C prints for it.
pub fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { " -nan".to_owned() } else { format!("{:5.2}", 100.0 * part as f64 / whole as f64) }
}

/// A block pointer in short, with one place or all.
pub fn compact(bp: &BlkPtr, all: bool) -> String {
    listed(bp, all, false)
}

/// The same of a pointer in a list, that may stand for a free.
pub fn listed(bp: &BlkPtr, all: bool, freed: bool) -> String {
    if bp.is_embedded() {
        let (l, p) = (bp.embedded_lsize(), bp.embedded_psize());
        return format!("EMBEDDED et={} {l:x}L/{p:x}P B={}", bp.embedded_type(), bp.birth());
    }
    let mut out = String::new();
    for d in (0..if all { bp.ndvas() } else { 1 }).map(|i| bp.dva(i)) {
        let gang = if d.gang { "G" } else { "" };
        out.push_str(&format!("{}:{:x}:{:x}{gang} ", d.vdev, d.offset, d.asize));
    }
    if bp.is_hole() {
        return out + &format!("{:x}L B={}", bp.lsize(), bp.birth());
    }
    let [a, b, c, d] = bp.cksum();
    let (l, p, fill) = (bp.lsize(), bp.psize(), bp.fill());
    let (birth, phys) = (bp.birth(), bp.phys_birth());
    let freed = if freed { " FREE" } else { "" };
    out += &format!("{l:x}L/{p:x}P F={fill} B={birth}/{phys}{freed}");
    out + &format!(" cksum={a:016x}:{b:016x}:{c:016x}:{d:016x}")
}

/// A name from disk, made fit for a terminal.
pub fn name(raw: &[u8]) -> String {
    let text = String::from_utf8_lossy(raw);
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_openzfs_s() {
        assert_eq!(
            histogram(&[0, 12, 0, 1, 0], 2),
            "\t\t\t  3:     12 ************\n\t\t\t  4:      0 \n\t\t\t  5:      1 *\n"
        );
        assert_eq!(
            histogram(&[497, 15], 0),
            format!("\t\t\t  0:    497 {}\n\t\t\t  1:     15 **\n", "*".repeat(40))
        );
        assert_eq!(histogram(&[0; 4], 0), "");
    }

    #[test]
    fn shares() {
        assert_eq!(percent(0, 0), " -nan");
        assert_eq!(percent(209, 10000), " 2.09");
    }
}
