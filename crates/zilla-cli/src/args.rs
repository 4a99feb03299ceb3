//! Options as getopt_long(3) reads them.
//!
//! OpenZFS's commands are built on it, and scripts lean on its details: short options in a bundle,
//! a value in the same word or the next, options after operands, `--`, long names cut short where
//! that is unambiguous. The library crates that parse options differ in one or another of these,
//! hence a hundred lines of our own.

/// A long option: its name, whether it takes a value, and the letter it stands for.
pub type Long = (&'static str, bool, char);

/// One option as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Opt {
    /// A letter, with its value where it takes one.
    Flag(char, String),
    /// A letter that needs a value and has none.
    Missing(char),
    /// A letter (or NUL for a long name) that means nothing.
    Unknown(char, String),
}

/// Splits `args` into options and operands. `shorts` is getopt's string: a letter, and a colon
/// where it takes a value. A colon before the first tells a value that is missing from an option
/// that is not known.
pub fn parse(args: &[String], shorts: &str, longs: &[Long]) -> (Vec<Opt>, Vec<String>) {
    let mut options = Vec::new();
    let mut operands = Vec::new();
    let mut words = args.iter();
    // POSIX's own reading: the first operand ends the options.
    let posix = std::env::var_os("POSIXLY_CORRECT").is_some();
    while let Some(word) = words.next() {
        if word == "--" {
            operands.extend(words.cloned());
            break;
        }
        if let Some(name) = word.strip_prefix("--") {
            options.push(long(name, longs, &mut words));
        } else if word.len() > 1 && word.starts_with('-') {
            bundle(word.trim_start_matches('-'), word, shorts, &mut words, &mut options);
        } else {
            operands.push(word.clone());
            if posix {
                operands.extend(words.cloned());
                break;
            }
        }
    }
    (options, operands)
}

fn long<'a>(text: &str, longs: &[Long], words: &mut impl Iterator<Item = &'a String>) -> Opt {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let exact = longs.iter().find(|l| l.0 == name);
    let mut prefixed = longs.iter().filter(|l| l.0.starts_with(name));
    let found = match (exact, prefixed.next(), prefixed.next()) {
        (Some(l), ..) => l,
        (None, Some(l), None) => l,
        _ => return Opt::Unknown('\0', format!("--{text}")),
    };
    match (found.1, value) {
        (false, None) => Opt::Flag(found.2, String::new()),
        (false, Some(_)) => Opt::Unknown(found.2, format!("--{text}")),
        (true, Some(value)) => Opt::Flag(found.2, value),
        (true, None) => match words.next() {
            Some(value) => Opt::Flag(found.2, value.clone()),
            None => Opt::Missing(found.2),
        },
    }
}

fn bundle<'a>(
    letters: &str,
    word: &str,
    shorts: &str,
    words: &mut impl Iterator<Item = &'a String>,
    options: &mut Vec<Opt>,
) {
    let mut chars = letters.chars();
    while let Some(letter) = chars.next() {
        let mut known = shorts.chars().skip_while(|&c| c != letter || c == ':');
        if known.next().is_none() {
            options.push(Opt::Unknown(letter, word.to_owned()));
            continue;
        }
        if known.next() != Some(':') {
            options.push(Opt::Flag(letter, String::new()));
            continue;
        }
        let rest = chars.as_str();
        if !rest.is_empty() {
            options.push(Opt::Flag(letter, rest.to_owned()));
        } else if let Some(value) = words.next() {
            options.push(Opt::Flag(letter, value.clone()));
        } else if shorts.starts_with(':') {
            options.push(Opt::Missing(letter));
        } else {
            options.push(Opt::Unknown(letter, word.to_owned()));
        }
        return;
    }
}

/// A number as strtoull(3) reads one whose base its beginning tells: decimal, octal behind a 0,
/// hexadecimal behind 0x.
pub fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => (hex, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    u64::from_str_radix(digits, radix).ok()
}

#[cfg(test)]
mod tests {
    use super::Opt::*;
    use super::*;
    use proptest::prelude::*;

    fn run(words: &str) -> (Vec<Opt>, Vec<String>) {
        let args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        parse(&args, ":fndR:o:j", &[("json", false, 'j'), ("json-int", false, 'I'), ("name", true, 'N')])
    }

    fn flag(c: char, v: &str) -> Opt {
        Flag(c, v.to_owned())
    }

    #[test]
    fn bundles_values_and_permutes() {
        let (options, operands) = run("-fo a=b tank -R/x -n vdev -- -d");
        assert_eq!(options, [flag('f', ""), flag('o', "a=b"), flag('R', "/x"), flag('n', "")]);
        assert_eq!(operands, ["tank", "vdev", "-d"]);
    }

    #[test]
    fn long_names_may_be_cut_short() {
        assert_eq!(run("--json --json-i").0, [flag('j', ""), flag('I', "")]);
        assert_eq!(run("--js").0, [Unknown('\0', "--js".into())]);
        assert_eq!(run("--name=x --name y").0, [flag('N', "x"), flag('N', "y")]);
        assert_eq!(run("--json=1").0, [Unknown('j', "--json=1".into())]);
    }

    #[test]
    fn says_what_is_missing_or_unknown() {
        assert_eq!(run("-R").0, [Missing('R')]);
        let args = ["-R".to_owned()];
        assert_eq!(parse(&args, "R:", &[]).0, [Unknown('R', "-R".into())]);
        assert_eq!(run("-z:").0, [Unknown('z', "-z:".into()), Unknown(':', "-z:".into())]);
        assert_eq!(run("-").1, ["-"]);
    }

    proptest! {
        #[test]
        fn survives_anything(args in proptest::collection::vec("[-a-zA-Z=:]{0,8}", 0..8)) {
            let _ = parse(&args, ":fndR:o:j", &[("json", false, 'j'), ("json-int", false, 'I')]);
        }
    }
}
