//! The words of `zinject`'s options, and its usage.

use super::Asked;
use zilla_control::types::{InjectBlocks, InjectFailure, InjectIo, InjectLabel, InjectMos};

pub const USAGE: &str = "usage:

	zinject
		Lists the handlers there are.

	zinject -c <id|all>
		Takes the handler with this number away, or all.

	zinject -d device [-e errno] [-L <nvlist|uber|pad1|pad2>] [-F] [-a] [-q]
		[-T <read|write|flush|trim|all|probe>] [-f frequency] pool
		I/O of a device fails, or of a part of its labels. 'errno' is
		'nxio' (the default), 'io', 'dtl', 'decompress', 'decrypt',
		'corrupt' (a bit of what is read is another; with -T read and
		-f) or 'noop' (it is called done without being done). With -F
		it may be tried again. 'frequency' is a percentage between
		0.0001 and 100.

	zinject -d device -A <degrade|fault> pool
		The device counts as one that has failed too often.

	zinject -d device -D latency:lanes [-T <read|write>] [-f frequency] pool
		I/O of a device takes at least 'latency' milliseconds, in so
		many lanes as are given: each takes one I/O at a time. Of
		several delays the lane that is free first is taken.

	zinject -P import|export -s <seconds> pool
		The next import or export of the pool takes at least so long.

	zinject -b objset:object:level:blkid[:end] [-e errno] [-aq] pool
		A block, by its numbers in hexadecimal, cannot be read.

	zinject [-q] <-t type> [-C dvas] [-e errno] [-l level] [-r range]
		[-a] [-m] [-f frequency] <object>
		Blocks of an object cannot be read.
		-q	Only the handler's number is printed.
		-e	'io' (the default), 'checksum', 'decompress' or
			'decrypt'.
		-C	Only these copies, counted from 0 ('0,2').
		-l	Blocks of this level; 0 holds the data.
		-m	The file system is unmounted and mounted again.
		-r	Only this range of bytes ('start[,end]').
		-a	What is in memory is forgotten first. Can stand alone.
		-f	Only so often, in percent.

	-t data		The contents of a file, named by its full path.
	-t dnode	The block of a file's or directory's dnode.
	-t <mos>	The pool's own objects: mos, mosdir, config, bpobj,
			spacemap, metaslab or errlog; the object is the pool.
";

/// What `-t` names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Data,
    Dnode,
    Mos(InjectMos),
}

pub const FAILURES: &[(&str, InjectFailure)] = &[
    ("io", InjectFailure::Io),
    ("checksum", InjectFailure::Checksum),
    ("decompress", InjectFailure::Decompress),
    ("decrypt", InjectFailure::Decrypt),
    ("nxio", InjectFailure::Nxio),
    ("dtl", InjectFailure::Dtl),
    ("corrupt", InjectFailure::Corrupt),
    ("noop", InjectFailure::Noop),
];

pub const IO_TYPES: &[(&str, InjectIo)] = &[
    ("read", InjectIo::Read),
    ("write", InjectIo::Write),
    ("free", InjectIo::Free),
    ("claim", InjectIo::Claim),
    ("flush", InjectIo::Flush),
    ("trim", InjectIo::Trim),
    ("all", InjectIo::All),
    ("probe", InjectIo::Probe),
];

pub const MOS: &[(&str, InjectMos)] = &[
    ("mos", InjectMos::Mos),
    ("mosdir", InjectMos::Mosdir),
    ("metaslab", InjectMos::Metaslab),
    ("config", InjectMos::Config),
    ("bpobj", InjectMos::Bpobj),
    ("spacemap", InjectMos::Spacemap),
    ("errlog", InjectMos::Errlog),
];

const LABELS: &[(&str, InjectLabel)] = &[
    ("nvlist", InjectLabel::Nvlist),
    ("uber", InjectLabel::Uber),
    ("pad1", InjectLabel::Pad1),
    ("pad2", InjectLabel::Pad2),
];

fn find<T: Copy>(table: &[(&str, T)], word: &str) -> Option<T> {
    table.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map(|(_, value)| *value)
}

/// The word that stands for a value.
pub fn word<T: Copy + PartialEq>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, v)| *v == value).map_or("[unknown]", |(name, _)| name)
}

/// Takes over an option that has a value; the error says what is wrong with it.
pub fn value(asked: &mut Asked, letter: char, text: &str) -> Result<(), String> {
    let which = |what: String| move || what;
    match letter {
        'A' => {
            asked.action = Some(match text {
                "degrade" => false,
                "fault" => true,
                _ => return Err(format!("invalid action '{text}': must be 'degrade' or 'fault'")),
            });
        }
        'b' => asked.blocks = Some(bookmark(text)?),
        'C' => asked.copies = copies(text)?,
        'D' => asked.delay = Some(delay(text).ok_or(format!("invalid i/o delay value: '{text}'"))?),
        'e' => {
            let names = "io decompress decrypt nxio dtl corrupt noop";
            let what = format!("invalid error type '{text}': must be one of: {names}");
            asked.failure = Some(find(FAILURES, text).ok_or_else(which(what))?);
        }
        'f' => asked.frequency = Some(frequency(text)?),
        'l' => {
            let what = format!("invalid level '{text}': must be an integer");
            asked.level = Some(text.parse().map_err(|_| what)?);
        }
        'L' => {
            let what = format!("invalid label type '{text}'");
            asked.label = Some(find(LABELS, text).ok_or_else(which(what))?);
        }
        'P' => {
            asked.pause = Some(match text.to_ascii_lowercase().as_str() {
                "import" => true,
                "export" => false,
                _ => return Err(format!("invalid command '{text}': must be 'import' or 'export'")),
            });
        }
        'r' => {
            let what = format!("invalid range '{text}': must be a numeric range of the form 'start[,end]'");
            asked.range = Some(range(text).ok_or_else(which(what))?);
        }
        's' => {
            let what = format!("invalid duration '{text}': must be a positive integer");
            asked.seconds = Some(text.parse().ok().filter(|s| *s > 0).ok_or_else(which(what))?);
        }
        't' => {
            let kind = match text {
                "data" => Some(Kind::Data),
                "dnode" => Some(Kind::Dnode),
                other => find(MOS, other).map(Kind::Mos),
            };
            asked.kind = Some(kind.ok_or_else(which(format!("invalid type '{text}'")))?);
        }
        'T' => {
            let what = format!(
                "invalid I/O type '{text}': must be 'read', 'write', 'free', 'claim', 'flush' or 'all'"
            );
            asked.io = Some(find(IO_TYPES, text).ok_or_else(which(what))?);
        }
        other => return Err(format!("invalid option '{other}'")),
    }
    Ok(())
}

fn bookmark(text: &str) -> Result<InjectBlocks, String> {
    let numbers: Option<Vec<u64>> = text.split(':').map(|n| u64::from_str_radix(n, 16).ok()).collect();
    let bad = || format!("bad raw spec '{text}': must be of the form 'objset:object:level:blkid'");
    let (objset, object, level, first, last) = match numbers.as_deref() {
        Some(&[objset, object, level, blkid]) => (objset, object, level, blkid, blkid),
        Some(&[objset, object, level, first, last]) => (objset, object, level, first, last),
        _ => return Err(bad()),
    };
    let level = u32::try_from(level).map_err(|_| bad())?;
    Ok(InjectBlocks { objset, object, level, first, last })
}

fn copies(text: &str) -> Result<u32, String> {
    let one = |word: &str| word.parse::<u32>().ok().filter(|n| *n < 3).map(|n| 1 << n);
    let all: Option<u32> = text.split(',').map(one).try_fold(0, |all, one| Some(all | one?));
    all.ok_or_else(|| format!("invalid DVA list '{text}': DVAs should be 0 indexed and separated by commas."))
}

fn delay(text: &str) -> Option<(u64, u64)> {
    let (latency, lanes) = text.split_once(':')?;
    let number = |text: &str| text.trim().parse::<u64>().ok().filter(|n| *n > 0);
    Some((number(latency)?, number(lanes)?))
}

/// A share of 2^32; the greatest: always.
fn frequency(text: &str) -> Result<u32, String> {
    let must = "frequency value must be in the range [0.0001, 100.0]";
    let percent: f64 = text.parse().map_err(|_| format!("invalid value: {must}"))?;
    if !(0.0001..=100.0).contains(&percent) {
        return Err(format!("out of range: {must}"));
    }
    Ok((f64::from(u32::MAX) * percent / 100.0) as u32)
}

fn range(text: &str) -> Option<(u64, u64)> {
    let number = |text: &str| crate::args::number(text);
    match text.split_once(',') {
        None => number(text).map(|start| (start, start)),
        Some((start, end)) => {
            let (start, end) = (number(start)?, number(end)?);
            (start <= end).then_some((start, end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_or_refused() {
        let read = |letter, text: &str| {
            let mut asked = Asked::default();
            value(&mut asked, letter, text).map(|()| asked)
        };
        assert_eq!(read('D', "10:1").unwrap().delay, Some((10, 1)));
        assert_eq!(read('D', " 5:1").unwrap().delay, Some((5, 1)));
        assert_eq!(read('C', "0,2").unwrap().copies, 0b101);
        assert_eq!(read('f', "50").unwrap().frequency, Some(u32::MAX / 2));
        assert_eq!(read('f', "100").unwrap().frequency, Some(u32::MAX));
        assert_eq!(read('r', "0x200,1024").unwrap().range, Some((512, 1024)));
        let at = read('b', "36:2:0:3fff").unwrap().blocks.unwrap();
        assert_eq!((at.objset, at.object, at.level, at.first, at.last), (54, 2, 0, 0x3fff, 0x3fff));
        assert_eq!(read('t', "spacemap").unwrap().kind, Some(Kind::Mos(InjectMos::Spacemap)));
        for (letter, text) in [
            ('D', "10"),
            ('D', "0:1"),
            ('C', "3"),
            ('C', ""),
            ('f', "0"),
            ('f', "101"),
            ('f', "nan"),
            ('r', "9,8"),
            ('b', "1:2:3"),
            ('b', "1:2:3:4:5:6"),
            ('e', "enoent"),
            ('T', "ioctl"),
            ('L', "label"),
            ('A', "remove"),
            ('P', "destroy"),
            ('s', "0"),
            ('l', "-1"),
            ('t', "file"),
        ] {
            assert!(read(letter, text).is_err(), "-{letter} '{text}'");
        }
    }
}
