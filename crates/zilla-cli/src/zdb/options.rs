//! Options: which reports, and how much of each.
//!
//! A letter given twice says twice as much, `-v` more of everything. With no report asked for all
//! are given.

use crate::args::{self, Long, Opt};
use std::collections::BTreeMap;
use std::path::PathBuf;

const SHORTS: &str = ":AbBcCdDeEfFGhHiI:kK:lLmMNo:Op:PqrRsSt:TuU:vVx:XYyZ";
const LONGS: &[Long] = &[
    ("ignore-assertions", false, 'A'),
    ("block-stats", false, 'b'),
    ("backup", false, 'B'),
    ("checksum", false, 'c'),
    ("config", false, 'C'),
    ("datasets", false, 'd'),
    ("dedup-stats", false, 'D'),
    ("exported", false, 'e'),
    ("embedded-block-pointer", false, 'E'),
    ("file-layout", false, 'f'),
    ("automatic-rewind", false, 'F'),
    ("dump-debug-msg", false, 'G'),
    ("history", false, 'h'),
    ("scripting-mode", false, 'H'),
    ("intent-logs", false, 'i'),
    ("inflight", true, 'I'),
    ("checkpointed-state", false, 'k'),
    ("key", true, 'K'),
    ("label", false, 'l'),
    ("disable-leak-tracking", false, 'L'),
    ("metaslabs", false, 'm'),
    ("metaslab-groups", false, 'M'),
    ("numeric", false, 'N'),
    ("option", true, 'o'),
    ("object-lookups", false, 'O'),
    ("path", true, 'p'),
    ("parseable", false, 'P'),
    ("skip-label", false, 'q'),
    ("copy-object", false, 'r'),
    ("read-block", false, 'R'),
    ("io-stats", false, 's'),
    ("simulate-dedup", false, 'S'),
    ("txg", true, 't'),
    ("brt-stats", false, 'T'),
    ("uberblock", false, 'u'),
    ("cachefile", true, 'U'),
    ("verbose", false, 'v'),
    ("verbatim", false, 'V'),
    ("dump-blocks", true, 'x'),
    ("extreme-rewind", false, 'X'),
    ("all-reconstruction", false, 'Y'),
    ("livelist", false, 'y'),
    ("zstd-headers", false, 'Z'),
    ("help", false, '?'),
];

/// What OpenZFS's zdb has and this one has not.
const LACKING: &str = "BEfFHIkKMotTVxXYyZ";
/// The reports, which are all given where none is asked for.
const REPORTS: &str = "bcCdDhimsu";
/// Letters that ask for something themselves.
const ASKING: &str = "bcCdDhilmNOrRsSu";

pub(crate) const USAGE: &str = "Usage:\tzdb [-AbcCdDGhiLmPsuv] [-e [-p <path> ...]] [-U <cache>]
\t\t[<poolname>[/<dataset | objset id>] [<object | range> ...]]
\tzdb -C [-U <cache>] [<poolname>]
\tzdb -l [-qu] <device>
\tzdb -r [-O] [-e [-p <path> ...]] [-U <cache>] <dataset> <path | object-id> <destination>
\tzdb -R [-e [-p <path> ...]] [-U <cache>] <poolname> <vdev>:<offset>:<size>[:<flags>]
\tzdb -S [-P] [-e [-p <path> ...]] [-U <cache>] <poolname>

    Object ranges take the form <start>:<end>[:<flags>]
        flags: A all, d ZFS directories, f ZFS files, m SPA space maps, z ZAPs, - negates the next

        -b block statistics             -c checksum all metadata (twice for all data) blocks
        -C config                       -d dataset(s)
        -D deduplication statistics
        -h pool history                 -i intent logs
        -l read label contents          -m metaslabs
        -r copy a file out              -R read and display a block
        -s report stats on zdb's I/O    -S simulate dedup
        -u uberblock                    -v verbose (applies to all others)
        -e pool is not in the cache file -p look for its devices here
        -L do not look at space maps    -P print numbers in parseable form
        -U use another cache file       -A, -G accepted, without effect
Specify an option more than once (e.g. -bb) to make only that option verbose
Default is to dump everything non-verbosely";

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opts {
    levels: BTreeMap<char, u8>,
    pub paths: Vec<PathBuf>,
    pub cache_file: Option<PathBuf>,
    pub operands: Vec<String>,
}

impl Opts {
    pub fn level(&self, option: char) -> u8 {
        self.levels.get(&option).copied().unwrap_or(0)
    }

    pub fn on(&self, option: char) -> bool {
        self.level(option) > 0
    }
}

#[derive(Debug)]
pub enum Parsed {
    Run(Box<Opts>),
    /// Wrong usage, or something that is lacking.
    Refuse(String),
}

fn usage(what: &str) -> Parsed {
    Parsed::Refuse(if what.is_empty() { USAGE.to_owned() } else { format!("{what}\n{USAGE}") })
}

/// The long name of a letter.
fn name(letter: char) -> &'static str {
    LONGS.iter().find(|l| l.2 == letter).map_or("?", |l| l.0)
}

pub fn parse(args: &[String]) -> Parsed {
    let (options, operands) = args::parse(args, SHORTS, LONGS);
    let mut o = Opts { operands, ..Opts::default() };
    for option in options {
        let (letter, value) = match option {
            Opt::Flag(letter, value) => (letter, value),
            Opt::Missing(letter) => {
                return usage(&format!("zdb: option requires an argument -- '{letter}'"));
            }
            Opt::Unknown('\0', word) => return usage(&format!("zdb: unrecognized option '{word}'")),
            Opt::Unknown(letter, _) => return usage(&format!("zdb: invalid option -- '{letter}'")),
        };
        if letter == '?' {
            return usage("");
        }
        if LACKING.contains(letter) {
            return Parsed::Refuse(format!(
                "zdb: option '-{letter}' (--{}) is not supported by zilla yet",
                name(letter)
            ));
        }
        match letter {
            'p' => o.paths.push(value.into()),
            'U' if !value.starts_with('/') => {
                return usage("cachefile must be an absolute path (i.e. start with a slash)");
            }
            'U' => o.cache_file = Some(value.into()),
            _ => {}
        }
        let level = o.levels.entry(letter).or_default();
        *level = level.saturating_add(1);
    }
    check(o)
}

fn check(mut o: Opts) -> Parsed {
    if !o.paths.is_empty() && !o.on('e') {
        return usage("-p option requires use of -e");
    }
    let asked = ASKING.chars().any(|c| o.on(c));
    let verbose = o.level('v').max(u8::from(!asked));
    if !asked {
        o.levels.extend(REPORTS.chars().map(|c| (c, 1)));
    }
    for (letter, level) in &mut o.levels {
        if REPORTS.contains(*letter) {
            *level = level.saturating_add(verbose);
        }
    }
    if o.on('N') && !o.on('d') {
        o.levels.insert('d', o.level('N'));
    }
    if o.on('O') && !o.on('r') {
        return Parsed::Refuse(
            "zdb: option '-O' (--object-lookups) without -r is not supported by zilla yet".into(),
        );
    }
    if o.level('b') > 4 {
        let what =
            "zdb: -bbbbb (every block pointer) is not supported by zilla yet; -dddddd lists an object's";
        return Parsed::Refuse(what.into());
    }
    if o.on('S') && o.operands.len() > 1 {
        return usage("");
    }
    let operands = o.operands.len();
    let fits = match () {
        () if o.on('l') => operands == 1,
        () if o.on('r') => operands == 3,
        () if o.on('R') => operands >= 2,
        () if o.on('C') && !o.on('e') => true,
        () => operands >= 1,
    };
    if fits { Parsed::Run(Box::new(o)) } else { usage("") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(words: &str) -> Opts {
        match parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()) {
            Parsed::Run(o) => *o,
            Parsed::Refuse(what) => panic!("{words}: {what}"),
        }
    }

    fn refused(words: &str) -> String {
        match parse(&words.split_whitespace().map(str::to_owned).collect::<Vec<_>>()) {
            Parsed::Run(o) => panic!("{words}: {o:?}"),
            Parsed::Refuse(what) => what,
        }
    }

    #[test]
    fn letters_add_up() {
        let o = run("-dddd -v -e -p /x -p /y tank/a 3 4:6:f");
        assert_eq!((o.level('d'), o.level('b'), o.on('e')), (5, 0, true));
        assert_eq!(o.paths, [PathBuf::from("/x"), PathBuf::from("/y")]);
        assert_eq!(o.operands, ["tank/a", "3", "4:6:f"]);
        let all = run("-e tank");
        assert_eq!((all.level('b'), all.level('d'), all.level('r')), (2, 2, 0));
    }

    #[test]
    fn what_is_lacking_is_named() {
        assert!(refused("-K x tank").contains("--key"));
        assert!(refused("--backup tank/5").contains("-B"));
        assert!(refused("-bbbbb tank").contains("-bbbbb"));
        assert!(refused("-p /x tank").contains("requires use of -e"));
        assert!(refused("-U x tank").contains("absolute"));
        assert!(refused("-l").contains("Usage"));
        assert!(refused("-w tank").contains("'w'"));
    }
}
