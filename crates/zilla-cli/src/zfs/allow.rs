//! `zfs allow` and `zfs unallow`.
//!
//! Names of users and groups become numbers here, as the words' author knows them, and the daemon
//! is given whom in the form in which it lies on disk: who it is (`u`, `g`, `e`, `c` who creates,
//! `s` a set; a capital letter where sets are given), where it holds (`l` on the dataset, `d` below
//! it, `-`), `$` and the number or name.

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use crate::fmt::one_line;
use std::collections::BTreeMap;
use zilla_control::owners::{self, Kind};
use zilla_control::props::naming::{check_dataset_name, pool_of};
use zilla_control::props::{HEADS, permissions};
use zilla_control::types::{Grant, GrantChange, GrantList, GrantQuery};

const OPTIONS: &[(&str, &str)] = &[
    ("-h", "show this help message and exit"),
    ("-l", "set permission locally"),
    ("-d", "set permission for descents"),
    ("-u", "set permission for user"),
    ("-g", "set permission for group"),
    ("-e", "set permission for everyone"),
    ("-c", "set create time permission"),
    ("-s", "define permission set"),
    ("-r", "remove permissions recursively"),
];

/// To whom.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Whom {
    /// A user if there is one of this name, else a group.
    Either,
    User,
    Group,
    Everyone,
    Creator,
    Set,
}

/// One command line.
struct Line {
    take: bool,
    letters: String,
    words: Vec<String>,
}

pub fn allow(cx: &mut Cx, args: Vec<String>) -> Run {
    run(cx, args, false)
}

pub fn unallow(cx: &mut Cx, args: Vec<String>) -> Run {
    run(cx, args, true)
}

fn run(cx: &mut Cx, args: Vec<String>, take: bool) -> Run {
    let (options, words) = args::parse(&args, if take { "ldugecsrh" } else { "ldugecsh" }, &[]);
    let mut letters = String::new();
    for option in options {
        match option {
            Opt::Flag(letter, _) if letters.contains(letter) => {}
            Opt::Flag(letter, _) => letters.push(letter),
            other => return cx.bad_option(other),
        }
    }
    let mut line = Line { take, letters, words };
    let whom = line.whom(cx)?;
    let Some(whom) = whom else {
        let [name] = line.words.as_slice() else { return line.wrong(cx, "wrong number of parameters\n") };
        return show(cx, &name.clone());
    };
    let who = match whom {
        Whom::Everyone | Whom::Creator => None,
        _ => Some(line.words.remove(0)),
    };
    let (permissions, name) = match line.words.as_slice() {
        [permissions, name] => (Some(permissions.clone()), name.clone()),
        [name] => (None, name.clone()),
        _ => return line.wrong(cx, "wrong number of parameters\n"),
    };
    if query(cx, &name)?.is_none() {
        return Ok(255);
    }
    let keys = line.keys(cx, whom, who.as_deref())?;
    let grants = grants(&keys, permissions.as_deref());
    let request = GrantChange { name: name.clone(), take, recursive: line.has('r'), grants };
    match cx.ask(&format!("cannot set permissions on '{name}'"), &request)? {
        None => Ok(1),
        Some(()) => {
            cx.log_history(pool_of(&name))?;
            Ok(0)
        }
    }
}

impl Line {
    fn has(&self, letter: char) -> bool {
        self.letters.contains(letter)
    }

    fn count(&self, letters: &str) -> usize {
        letters.chars().filter(|c| self.has(*c)).count()
    }

    /// To whom; None if the dataset's permissions are to be shown. The word `everyone` is taken
    /// out.
    fn whom(&mut self, cx: &mut Cx) -> Result<Option<Whom>, Exit> {
        if self.count("uge") > 1 {
            return self.wrong(cx, "-u, -g, and -e are mutually exclusive\n");
        }
        if self.has('h') {
            if self.words.is_empty() && self.letters == "h" {
                self.help(cx, None);
                return Err(Exit(0));
            }
            return cx.print_usage();
        }
        let whom = if self.has('s') {
            if self.count("csuge") > 1 {
                return self.wrong(cx, "invalid options combined with -s\n");
            }
            Whom::Set
        } else if self.has('c') {
            if self.count("csugeld") > 1 {
                return self.wrong(cx, "invalid options combined with -c\n");
            }
            Whom::Creator
        } else if self.has('e') {
            Whom::Everyone
        } else if self.count("ug") == 0 && self.words.first().is_some_and(|w| w == "everyone") {
            self.words.remove(0);
            Whom::Everyone
        } else if self.words.len() == 1 && !self.take {
            return Ok(None);
        } else if self.has('u') {
            Whom::User
        } else if self.has('g') {
            Whom::Group
        } else {
            Whom::Either
        };
        let whole = if matches!(whom, Whom::Everyone | Whom::Creator) { 2 } else { 3 };
        if self.words.len() != whole && !(self.take && self.words.len() == whole - 1) {
            return self.wrong(cx, "wrong number of parameters\n");
        }
        if whom == Whom::Set && !self.words.first().is_some_and(|w| w.starts_with('@')) {
            return self.wrong(cx, "invalid set name: missing '@' prefix\n");
        }
        Ok(Some(whom))
    }

    /// Who is meant, as kept: the kind's letter, where it holds, and who.
    fn keys(&self, cx: &mut Cx, whom: Whom, who: Option<&str>) -> Result<Vec<(char, char, String)>, Exit> {
        let who = who.unwrap_or_default();
        let ids = match whom {
            Whom::Set => return Ok(vec![('s', '-', who.to_owned())]),
            Whom::Creator => return Ok(vec![('c', '-', String::new())]),
            Whom::Everyone => vec![('e', String::new())],
            _ => {
                let mut ids = Vec::new();
                for name in who.split(',').filter(|name| !name.is_empty()) {
                    ids.push(self.id(cx, whom, name)?);
                }
                ids
            }
        };
        let both = self.has('l') == self.has('d');
        let places = [('l', both || self.has('l')), ('d', both || self.has('d'))];
        let places = places.iter().filter(|(_, wanted)| *wanted);
        Ok(places.flat_map(|(place, _)| ids.iter().map(|(k, id)| (*k, *place, id.clone()))).collect())
    }

    fn id(&self, cx: &mut Cx, whom: Whom, name: &str) -> Result<(char, String), Exit> {
        let number: Option<u32> = name.parse().ok();
        let known = |kind| match number {
            Some(id) => owners::name_of(kind, id).map(|_| id),
            None => owners::id_of(kind, name),
        };
        let (kind, id, what) = match whom {
            Whom::User => ('u', known(Kind::User).or(number), "user"),
            Whom::Group => ('g', known(Kind::Group).or(number), "group"),
            _ => match known(Kind::User) {
                Some(id) => ('u', Some(id), "user"),
                None => ('g', known(Kind::Group), "user/group"),
            },
        };
        match id {
            Some(id) => Ok((kind, id.to_string())),
            None => self.wrong(cx, &format!("invalid {what} {name}\n")),
        }
    }

    /// The list of options and permissions, and what is wrong.
    fn wrong<T>(&self, cx: &mut Cx, message: &str) -> Result<T, Exit> {
        self.help(cx, Some(message));
        Err(Exit(2))
    }

    fn help(&self, cx: &mut Cx, message: Option<&str>) {
        let name = if self.take { "unallow" } else { "allow" };
        let usage = super::COMMANDS.iter().flatten().find(|c| c.name == name).map_or("", |c| c.usage);
        let mut text = format!("Usage: {usage}\nOptions:\n");
        let options = OPTIONS.len() - usize::from(!self.take);
        for (option, what) in OPTIONS.iter().take(options) {
            text.push_str(&format!("  {option:<10}  {what}\n"));
        }
        text.push_str("\nThe following permissions are supported:\n\n");
        let mut row = |name: &str, kind: &str, note: &str| {
            text.push_str(&format!("{name:<16} {kind:<14}\t{note}\n"));
        };
        row("NAME", "TYPE", "NOTES");
        for p in permissions::PERMISSIONS.iter().filter(|p| !p.unlisted) {
            row(p.name, if p.command { "subcommand" } else { "other" }, p.note);
        }
        permissions::properties().iter().for_each(|name| row(name, "property", ""));
        match message {
            Some(message) => {
                cx.out.flush();
                eprint!("{text}\nzfs: error: {message}");
            }
            None => cx.out.put(text),
        }
    }
}

/// What is given: permissions to the kind's own letter, sets to its capital.
fn grants(keys: &[(char, char, String)], permissions: Option<&str>) -> Vec<Grant> {
    let words = permissions.unwrap_or_default().split(',').filter(|w| !w.is_empty()).map(str::to_owned);
    let (sets, plain): (Vec<String>, Vec<String>) = words.partition(|w| w.starts_with('@'));
    let mut all = Vec::new();
    for (kind, place, rest) in keys {
        for (kind, names) in [(*kind, &plain), (kind.to_ascii_uppercase(), &sets)] {
            if permissions.is_none() || !names.is_empty() {
                all.push(Grant { whom: format!("{kind}{place}${rest}"), permissions: names.clone() });
            }
        }
    }
    all
}

/// What is given on a dataset; None, and it is said, if there is none of the name.
fn query(cx: &mut Cx, name: &str) -> Result<Option<Vec<GrantList>>, Exit> {
    let action = format!("cannot open '{name}'");
    let found = match check_dataset_name(name, HEADS, false) {
        Ok(()) => cx.ask(&action, &GrantQuery { name: name.to_owned() })?,
        Err(e) => {
            cx.refused(&action, &e);
            None
        }
    };
    if found.is_none() {
        cx.err(format!("Failed to open dataset: {name}"));
    }
    Ok(found)
}

fn show(cx: &mut Cx, name: &str) -> Run {
    let Some(lists) = query(cx, name)? else { return Ok(255) };
    for list in &lists {
        let head = format!("---- Permissions on {} ", list.name);
        cx.out.line(format!("{head:-<70}"));
        cx.out.put(listing(&list.grants));
    }
    Ok(0)
}

/// Of one permission: on the dataset, below it.
type Places = BTreeMap<String, (bool, bool)>;

/// What is given on one dataset, as it is printed: sets, what creators get, then users, groups and
/// everyone by where it holds.
fn listing(grants: &[Grant]) -> String {
    let mut all: BTreeMap<(usize, String), Places> = BTreeMap::new();
    for grant in grants {
        let mut chars = grant.whom.chars();
        let (kind, place) = (chars.next().unwrap_or(' '), chars.next().unwrap_or(' '));
        let Some(order) = "scuge".find(kind.to_ascii_lowercase()) else { continue };
        let rest = one_line(grant.whom.get(3..).unwrap_or_default()).into_owned();
        for name in &grant.permissions {
            let name = one_line(name).into_owned();
            let found = all.entry((order, rest.clone())).or_default().entry(name).or_default();
            found.0 |= place == 'l';
            found.1 |= place == 'd';
        }
    }
    let mut text = String::new();
    for (order, title) in [(0, "Permission sets:\n"), (1, "Create time permissions:\n")] {
        let mut title = Some(title);
        for ((_, who), places) in all.iter().filter(|((o, _), _)| *o == order) {
            text.push_str(title.take().unwrap_or_default());
            let names: Vec<&str> = places.keys().map(String::as_str).collect();
            let space = if who.is_empty() { "" } else { " " };
            text.push_str(&format!("\t{who}{space}{}\n", names.join(",")));
        }
    }
    let titles = [
        ((true, false), "Local permissions:\n"),
        ((false, true), "Descendent permissions:\n"),
        ((true, true), "Local+Descendent permissions:\n"),
    ];
    for (place, title) in titles {
        let mut title = Some(title);
        for ((order, who), places) in all.iter().filter(|((o, _), _)| *o > 1) {
            let names: Vec<&str> =
                places.iter().filter(|(_, p)| **p == place).map(|(n, _)| n.as_str()).collect();
            if names.is_empty() {
                continue;
            }
            text.push_str(title.take().unwrap_or_default());
            text.push_str(&format!("\t{} {}\n", shown(*order, who), names.join(",")));
        }
    }
    text
}

/// `user joe`
fn shown(order: usize, id: &str) -> String {
    let (word, kind) = match order {
        2 => ("user", Kind::User),
        3 => ("group", Kind::Group),
        _ => return "everyone".to_owned(),
    };
    let name = id.parse().ok().and_then(|id| owners::name_of(kind, id));
    format!("{word} {}", name.unwrap_or_else(|| format!("(unknown: {id})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_is_in_openzfs_s_order() {
        let grant = |whom: &str, names: &str| Grant {
            whom: whom.to_owned(),
            permissions: names.split(',').map(str::to_owned).collect(),
        };
        let text = listing(&[
            grant("ul$0", "snapshot,create"),
            grant("ud$0", "create"),
            grant("Gd$4294900001", "@set"),
            grant("el$", "diff"),
            grant("ed$", "diff"),
            grant("c-$", "destroy"),
            grant("s-$@set", "mount"),
            grant("S-$@set", "@more"),
        ]);
        let wanted = "Permission sets:\n\t@set @more,mount\nCreate time permissions:\n\tdestroy\n\
                      Local permissions:\n\tuser root snapshot\nDescendent permissions:\n\tgroup (unknown: \
                      4294900001) @set\nLocal+Descendent permissions:\n\tuser root create\n\teveryone diff\n";
        assert_eq!(text, wanted);
    }

    #[test]
    fn sets_go_to_the_capital_letter() {
        let keys = [('u', 'l', "7".to_owned())];
        let all = grants(&keys, Some("create,@a,mount"));
        let shown: Vec<String> =
            all.iter().map(|g| format!("{} {}", g.whom, g.permissions.join(","))).collect();
        assert_eq!(shown, ["ul$7 create,mount", "Ul$7 @a"]);
        let taken = grants(&keys, None);
        assert_eq!(taken.iter().map(|g| g.whom.as_str()).collect::<Vec<_>>(), ["ul$7", "Ul$7"]);
    }
}
