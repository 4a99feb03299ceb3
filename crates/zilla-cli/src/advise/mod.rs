//! `zilla advise`: what other caches and log devices would bring to a pool.
//!
//! From a file that `zilla trace record` has made, or of a pool as it runs: then it is the same
//! trace, through a pipe instead of a file, for as long as `-t` says. The arithmetic is
//! zilla-advise's; here are the options, the file and the words. No daemon is asked about a file.

mod text;

use crate::args::{self, Opt};
use crate::cx::{Cx, Exit, Run};
use std::fs::File;
use std::io::{ErrorKind, Read};
use zilla_advise::{Advice, Analysis, Options};
use zilla_control::props::naming;
use zilla_env::model::Profile;
use zilla_env::strerror;
use zilla_ondisk::FormatError;
use zilla_ondisk::trace::Parser;

const USAGE: &str = "usage:
\tzilla advise [-j] [-c size] ... [-d disks] [-g file] [-t seconds] pool
\tzilla advise [-j] [-c size] ... [-d disks] [-g file] -T trace
";
/// So long a pool is watched unless something else is asked for.
const WATCHED: u64 = 60;
const LARGEST: u64 = 1 << 60;
/// Sizes given at most.
const MOST_SIZES: usize = 32;

const LONG: &[(&str, bool, char)] = &[
    ("json", false, 'j'),
    ("svg", true, 'g'),
    ("trace", true, 'T'),
    ("disks", true, 'd'),
    ("cache", true, 'c'),
    ("help", false, 'h'),
];

/// Runs `zilla advise` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla advise", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let (given, operands) = args::parse(&args, ":c:d:g:hjt:T:", LONG);
    let mut options = Options::default();
    let (mut json, mut svg, mut trace, mut seconds) = (false, None, None, None);
    for option in given {
        match option {
            Opt::Flag('j', _) => json = true,
            Opt::Flag('g', file) => svg = Some(file),
            Opt::Flag('T', file) => trace = Some(file),
            Opt::Flag('t', text) => seconds = Some(crate::trace::seconds(cx, &text)?),
            Opt::Flag('d', name) => match Profile::named(&name) {
                Some(profile) => options.disks = Some(profile),
                None => {
                    let known: Vec<&str> = Profile::names().collect();
                    return cx.bad_usage(format!("unknown kind of disk '{name}': {}", known.join(", ")));
                }
            },
            Opt::Flag('c', text) => match zilla_control::props::parse_size(&text) {
                Ok(n) if (1 << 20..=LARGEST).contains(&n) && options.sizes.len() < MOST_SIZES => {
                    options.sizes.push(n);
                }
                _ => return cx.bad_usage(format!("invalid size '{text}': 1M to 1E, {MOST_SIZES} at most")),
            },
            Opt::Flag('h', _) => {
                (cx.usage)(cx, true);
                return Ok(0);
            }
            other => return cx.bad_option(other),
        }
    }
    options.sizes.sort_unstable();
    options.sizes.dedup();
    let advice = match (&trace, operands.as_slice()) {
        (Some(_), _) if seconds.is_some() => return cx.bad_usage("-t is of a pool, a trace has its time"),
        (Some(file), []) => of_file(cx, file, &options)?,
        (Some(_), _) => return cx.bad_usage("either a pool or a trace"),
        (None, [pool]) if naming::check_pool_name(pool, true).is_err() => {
            return cx.bad_usage(format!("invalid pool name '{pool}'"));
        }
        (None, [pool]) => of_pool(cx, pool, seconds.unwrap_or(WATCHED), &options)?,
        (None, []) => return cx.bad_usage("missing pool argument"),
        (None, _) => return cx.bad_usage("too many arguments"),
    };
    if let Some(path) = svg
        && let Err(e) = std::fs::write(&path, zilla_advise::plot(&advice))
    {
        cx.err(format!("cannot write '{path}': {}", strerror(&e)));
        return Ok(1);
    }
    match json {
        true => cx.out.line(text::json(&advice).render()),
        false => text::lines(&advice).iter().for_each(|line| cx.out.line(line)),
    }
    Ok(0)
}

/// What reading a trace came to.
struct Heard {
    analysis: Analysis,
    /// What is wrong with it, and the byte from which on it is of no use.
    damage: Option<(FormatError, u64)>,
    whole: bool,
}

fn listen(mut from: impl Read) -> std::io::Result<Heard> {
    let (mut parser, mut analysis) = (Parser::default(), Analysis::default());
    let mut buf = vec![0; 256 << 10];
    let mut damage = None;
    loop {
        let n = match from.read(&mut buf) {
            Ok(0) => break,
            Ok(n) => n,
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        };
        let bytes = buf.get(..n).unwrap_or_default();
        if let Err(e) = parser.push(bytes, |item| analysis.item(item)) {
            damage = Some((e, parser.good()));
            break;
        }
    }
    Ok(Heard { analysis, damage, whole: parser.is_whole() })
}

fn of_file(cx: &mut Cx, path: &str, options: &Options) -> Result<Advice, Exit> {
    let opened = match path {
        "-" => listen(std::io::stdin().lock()),
        path => File::open(path).and_then(listen),
    };
    let heard = match opened {
        Ok(heard) => heard,
        Err(e) => {
            cx.err(format!("cannot read '{path}': {}", strerror(&e)));
            return Err(Exit(1));
        }
    };
    let records = heard.analysis.records();
    let Some(advice) = heard.analysis.advice(options) else {
        let why = heard.damage.map_or("it ends before it begins".to_owned(), |(e, _)| e.to_string());
        cx.err(format!("cannot read '{path}': not a trace: {why}"));
        return Err(Exit(1));
    };
    match heard.damage {
        Some((e, good)) => {
            let used = format!("what is before byte {good} is used ({records} records)");
            cx.err(format!("warning: '{path}' is damaged: {e}; {used}"));
        }
        None if !heard.whole => {
            cx.err(format!("warning: '{path}' is cut off: what is there is used ({records} records)"));
        }
        None => {}
    }
    Ok(advice)
}

fn of_pool(cx: &mut Cx, pool: &str, seconds: u64, options: &Options) -> Result<Advice, Exit> {
    let failed = |cx: &mut Cx, e: std::io::Error| {
        cx.err(format!("zilla advise: {}", strerror(&e)));
        Exit(1)
    };
    let (from, to) = std::io::pipe().map_err(|e| failed(cx, e))?;
    let listener = std::thread::Builder::new().name("listen".into()).spawn(move || listen(from));
    let listener = listener.map_err(|e| failed(cx, e))?;
    let reply = crate::trace::into(cx, pool, Some(seconds), &to);
    // The daemon has closed its end by now, or never had one.
    drop(to);
    let heard = listener.join().map_err(|_| Exit(1))?.map_err(|e| failed(cx, e))?;
    reply?.ok_or(Exit(1))?;
    heard.analysis.advice(options).ok_or_else(|| {
        cx.err("zilla advise: the daemon sent no trace");
        Exit(1)
    })
}
