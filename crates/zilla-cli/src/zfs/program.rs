//! `zfs program`: runs a channel program, and prints what it returns.

use crate::args::{self, Opt};
use crate::cx::{Cx, Run};
use crate::fmt::json::{Json, Obj};
use std::io::Read;
use zilla_control::error::ErrorCode;
use zilla_control::types::{ProgramReply, ProgramRun, ProgramValue};

/// What a program gets unless it asks for more. Source: ZCP_DEFAULT_INSTRLIMIT,
/// ZCP_DEFAULT_MEMLIMIT.
const INSTRUCTIONS: u64 = 10_000_000;
const MEMORY: u64 = 10 << 20;
/// Longest program that is read; longer ones do not fit into a request.
const MOST_SCRIPT: u64 = 1 << 20;

pub fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    const LONG: &[args::Long] = &[("json", false, 'j')];
    // The program's own options are its own.
    let (ours, rest) = split(&args);
    let (options, _) = args::parse(&ours, "nt:m:j", LONG);
    let mut request = ProgramRun { instructions: INSTRUCTIONS, memory: MEMORY, ..ProgramRun::default() };
    let mut json = false;
    for option in options {
        match option {
            Opt::Flag('n', _) => request.readonly = true,
            Opt::Flag('j', _) => json = true,
            Opt::Flag(letter @ ('t' | 'm'), text) => {
                let number = match text.parse::<u64>() {
                    Ok(number) => number,
                    _ => return cx.bad_usage(format!("invalid argument '{text}': expected integer")),
                };
                if letter == 't' { request.instructions = number } else { request.memory = number }
            }
            other => return cx.bad_option(other),
        }
    }
    let [pool, file, argv @ ..] = rest.as_slice() else { return cx.bad_usage("invalid number of arguments") };
    request.pool = pool.clone();
    request.argv = argv.to_vec();
    request.script = match read(file) {
        Ok(script) => script,
        Err(e) => {
            cx.err(format!("cannot open '{file}': {e}"));
            return Ok(1);
        }
    };
    let failed = "Channel program execution failed";
    match cx.call(&request)? {
        Ok(ProgramReply::Done(value)) => {
            if json {
                let mut root = Obj::new();
                if let Some(value) = &value {
                    json_value(&mut root, "return", value);
                }
                cx.out.line(root.render());
            } else {
                match value {
                    None => cx.out.line("Channel program fully executed with no return value."),
                    Some(value) => {
                        cx.out.line("Channel program fully executed with return value:");
                        let mut text = String::new();
                        dump(&mut text, "return", &value, 4);
                        cx.out.put(text);
                    }
                }
            }
            if !request.readonly {
                cx.log_history(&request.pool)?;
            }
            Ok(0)
        }
        Ok(ProgramReply::Failed { error, instructions }) => {
            cx.err(format!("{failed}:\n{error}"));
            if let Some(number) = instructions {
                cx.err(format!("{number} Lua instructions"));
            }
            Ok(1)
        }
        Err(e) if e.code == ErrorCode::Perm => {
            cx.err(format!("{failed}:\nPermission denied. Channel programs must be run as root."));
            Ok(1)
        }
        Err(e) => {
            let action = format!("cannot open '{pool}'");
            cx.refused(&action, &e);
            cx.err(format!("cannot open pool '{pool}'"));
            Ok(1)
        }
    }
}

/// Options up to the first operand, and the operands.
fn split(args: &[String]) -> (Vec<String>, Vec<String>) {
    let mut at = 0;
    while let Some(word) = args.get(at) {
        if word == "--" {
            return (args[..at].to_vec(), args[at + 1..].to_vec());
        }
        if !word.starts_with('-') || word == "-" {
            break;
        }
        let value_follows = !word.starts_with("--") && word.ends_with(['t', 'm']);
        at += if value_follows { 2 } else { 1 };
    }
    let at = at.min(args.len());
    (args[..at].to_vec(), args[at..].to_vec())
}

fn read(file: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let plain = |e: std::io::Error| zilla_env::strerror(&e);
    let read = match file {
        "-" => std::io::stdin().take(MOST_SCRIPT + 1).read_to_end(&mut bytes),
        _ => std::fs::File::open(file).and_then(|f| f.take(MOST_SCRIPT + 1).read_to_end(&mut bytes)),
    };
    read.map_err(plain)?;
    if bytes.len() as u64 > MOST_SCRIPT {
        return Err(format!("a channel program has at most {MOST_SCRIPT} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text in UTF-8".to_owned())
}

/// As libnvpair prints lists.
fn dump(out: &mut String, name: &str, value: &ProgramValue, indent: usize) {
    let pad = " ".repeat(indent);
    match value {
        ProgramValue::Nil => out.push_str(&format!("{pad}{name}\n")),
        ProgramValue::Bool(b) => out.push_str(&format!("{pad}{name}: {b}\n")),
        ProgramValue::Int(n) => out.push_str(&format!("{pad}{name}: {n}\n")),
        ProgramValue::Str(s) => out.push_str(&format!("{pad}{name}: '{s}'\n")),
        ProgramValue::Table(rows) => {
            out.push_str(&format!("{pad}{name}:\n"));
            rows.iter().for_each(|(name, value)| dump(out, name, value, indent + 4));
        }
    }
}

fn json_value(out: &mut Obj, name: &str, value: &ProgramValue) {
    match value {
        ProgramValue::Nil => out.set(name, Json::Bool(true)),
        ProgramValue::Bool(b) => out.set(name, Json::Bool(*b)),
        ProgramValue::Int(n) => out.set(name, Json::Int(*n)),
        ProgramValue::Str(s) => out.str(name, s.as_str()),
        ProgramValue::Table(rows) => {
            let mut inner = Obj::new();
            rows.iter().for_each(|(name, value)| json_value(&mut inner, name, value));
            out.obj(name, inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_words_are_its_own() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, ours, rest) in [
            ("-n tank - -t 5", "-n", "tank - -t 5"),
            ("-nt 5 -m7 tank x.lua", "-nt 5 -m7", "tank x.lua"),
            ("-j -- tank -", "-j", "tank -"),
        ] {
            assert_eq!(split(&words(line)), (words(ours), words(rest)), "{line}");
        }
    }

    #[test]
    fn values_are_printed_as_lists_are() {
        let table = |rows: Vec<(&str, ProgramValue)>| {
            ProgramValue::Table(rows.into_iter().map(|(n, v)| (n.to_owned(), v)).collect())
        };
        let value = table(vec![
            ("baz", ProgramValue::Int(-2)),
            ("foo", ProgramValue::Str("bar".to_owned())),
            ("in", table(vec![("1", ProgramValue::Bool(true)), ("2", ProgramValue::Nil)])),
        ]);
        let mut text = String::new();
        dump(&mut text, "return", &value, 4);
        assert_eq!(
            text,
            "    return:\n        baz: -2\n        foo: 'bar'\n        in:\n            1: true\n            2\n"
        );
    }
}
