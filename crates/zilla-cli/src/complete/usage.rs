//! A usage text, read for what may come next.
//!
//! Usage texts are OpenZFS's and made for people, so this reads them loosely: an option takes an
//! argument where a word follows it within its brackets; every other word is an operand. Where a
//! text says that two options share an argument (`-i|-I snapshot`) only the last is seen to take
//! it, which costs a candidate and no more.

use std::collections::BTreeSet;

#[derive(Debug, Default)]
pub struct Usage {
    /// Letter or long name with its dashes, and what its argument is called.
    flags: Vec<(String, Option<String>)>,
    pub operands: BTreeSet<String>,
}

/// What is asked for after some words.
#[derive(Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The argument of the last option, if that wants one still.
    pub option: Option<String>,
    /// The operands before.
    pub operands: Vec<&'a str>,
}

impl Usage {
    pub fn parse(text: &str) -> Usage {
        let mut usage = Usage::default();
        let mut spaced = String::new();
        for c in text.chars() {
            match c {
                '[' | ']' | '|' | ',' => spaced.extend([' ', c, ' ']),
                '<' | '>' | '(' | ')' | '@' | '#' | '%' | '"' => spaced.push(' '),
                c => spaced.push(c),
            }
        }
        let tokens: Vec<&str> = spaced.split_whitespace().collect();
        let is_word = |t: &str| t.starts_with(|c: char| c.is_ascii_alphabetic());
        let mut taken = false;
        for (i, token) in tokens.iter().enumerate() {
            let argument = tokens.get(i + 1).filter(|t| is_word(t)).map(|t| (*t).to_owned());
            if token.starts_with("--") && token.len() > 2 {
                usage.add((*token).to_owned(), None);
            } else if let Some(letters) = token.strip_prefix('-').filter(|l| !l.is_empty()) {
                let alone = letters.chars().count() == 1;
                let argument = argument.filter(|_| alone);
                taken = argument.is_some();
                letters.chars().for_each(|c| usage.add(format!("-{c}"), argument.clone()));
            } else if is_word(token) && !std::mem::take(&mut taken) {
                usage.operands.insert((*token).to_owned());
            }
        }
        usage
    }

    fn add(&mut self, flag: String, argument: Option<String>) {
        match self.flags.iter_mut().find(|(f, _)| *f == flag) {
            Some((_, known)) => *known = known.take().or(argument),
            None => self.flags.push((flag, argument)),
        }
    }

    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.flags.iter().map(|(flag, _)| flag.as_str())
    }

    fn argument(&self, word: &str) -> Option<String> {
        // Of a bundle the last letter is the one that can want the next word.
        let flag = match word.strip_prefix('-') {
            Some(letters) if !letters.starts_with('-') => format!("-{}", letters.chars().last()?),
            _ => return None,
        };
        self.flags.iter().find(|(f, _)| *f == flag).and_then(|(_, argument)| argument.clone())
    }

    /// What comes after these words.
    pub fn asks_for<'a>(&self, before: &[&'a str]) -> Asked<'a> {
        let mut asked = Asked { option: None, operands: Vec::new() };
        for word in before {
            if asked.option.take().is_some() {
                continue;
            }
            match word.starts_with('-') {
                true => asked.option = self.argument(word),
                false => asked.operands.push(word),
            }
        }
        asked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_arguments_and_operands_are_told_apart() {
        let u =
            Usage::parse(" [-fnd] [-o property=value] ... [-d dir | -c cachefile] <pool | id> [newpool]\n");
        let flags: Vec<&str> = u.options().collect();
        assert_eq!(flags, ["-f", "-n", "-d", "-o", "-c"]);
        assert_eq!(u.argument("-d").as_deref(), Some("dir"));
        assert_eq!(u.argument("-fo").as_deref(), Some("property=value"));
        assert_eq!(u.argument("-f"), None);
        let operands: Vec<&str> = u.operands.iter().map(String::as_str).collect();
        assert_eq!(operands, ["id", "newpool", "pool"]);
        let asked = u.asks_for(&["-o", "x=y", "tank", "-d"]);
        assert_eq!((asked.option.as_deref(), asked.operands.as_slice()), (Some("dir"), &["tank"][..]));
    }

    #[test]
    fn words_after_brackets_are_operands() {
        let u =
            Usage::parse(" [-rHp] [-o \"all\" | field[,...]] <filesystem|volume>@<snap>[%<snap>][,...]\n");
        assert!(["filesystem", "volume", "snap"].iter().all(|o| u.operands.contains(*o)), "{u:?}");
        assert_eq!(u.argument("-p"), None);
    }
}
