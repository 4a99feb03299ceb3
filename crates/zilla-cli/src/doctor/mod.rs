//! `zilla doctor`: what this machine lacks for zilla, and the command that mends it.
//!
//! Two steps, so that the second can be tested with machines that nobody has: [`machine`] looks at
//! this one and changes nothing, [`judge`](judge::judge) says what follows. A finding is one of
//! three: *fine*, a *note* (zilla works, with this less or slower), or *lacks* (something that most
//! people need does not work). The exit code is 0 without the last kind, else 1.

mod judge;
mod machine;

use crate::cx::{Cx, Run};
use crate::fmt::json;
use crate::service::only_json;

const USAGE: &str = "usage:\n\tzilla doctor [-j]\n";

/// How grave a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Fine,
    Note,
    Lacks,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Fine => "fine",
            Grade::Note => "note",
            Grade::Lacks => "lacks",
        }
    }
}

/// What was found of one subject.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Finding {
    subject: &'static str,
    grade: Grade,
    text: String,
    /// The command, or the line of a file, that mends it.
    mend: Option<String>,
}

/// Runs `zilla doctor` with these arguments.
pub fn main(args: Vec<String>) -> u8 {
    Cx::main("zilla doctor", args, |cx, requested| cx.put_usage(USAGE, requested), run)
}

fn run(cx: &mut Cx, args: Vec<String>) -> Run {
    let as_json = only_json(cx, &args)?;
    let findings = judge::judge(&machine::look());
    if as_json {
        let list = findings.iter().map(|f| {
            let mut one = json::Obj::new();
            one.str("subject", f.subject);
            one.str("grade", f.grade.word());
            one.str("text", &f.text);
            if let Some(mend) = &f.mend {
                one.str("mend", mend);
            }
            json::Json::Obj(one)
        });
        let mut root = json::schema("zilla", "doctor");
        root.set("findings", json::Json::Arr(list.collect()));
        cx.out.line(root.render());
    } else {
        for f in &findings {
            cx.out.line(format!("{:<6} {:<14} {}", f.grade.word(), f.subject, f.text));
            if let Some(mend) = &f.mend {
                cx.out.line(format!("{:<21} mend: {mend}", ""));
            }
        }
    }
    Ok(u8::from(findings.iter().any(|f| f.grade == Grade::Lacks)))
}
