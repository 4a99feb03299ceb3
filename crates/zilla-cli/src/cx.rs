//! What every command needs: its output, the daemon, and ways to end.
//!
//! Output is buffered and flushed before anything goes to standard error, so the two keep their
//! order at a terminal. A reader that closes the pipe early ends the command quietly. The daemon is
//! started by the first request, so wrong usage costs nothing.

use crate::terminal::tame;
use std::borrow::Cow;
use std::io::{BufWriter, IsTerminal, Stdout, Write};
use zilla_control::types::{PoolInfo, PoolLog, PoolQuery};
use zilla_control::{ApiError, Client, ClientError, ErrorCode, Operation, StateDir};

/// Requests that are asked at the same time, at most.
const AT_ONCE: usize = 16;

/// A command ends early with this exit code; whatever there was to say has been said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit(pub u8);

/// How commands end: with a code, early or not.
pub type Run = Result<u8, Exit>;

/// What a command does with its arguments.
pub type Action = fn(&mut Cx, Vec<String>) -> Run;

/// One command as the table of its program has it.
pub struct Command {
    pub name: &'static str,
    /// Usage lines, each with its tab and line end.
    pub usage: &'static str,
    /// None: known to OpenZFS, not supported by zilla yet.
    pub run: Option<Action>,
}

pub struct Cx {
    /// `zpool` or `zfs`.
    pub program: &'static str,
    /// The command being run, and what prints its usage.
    pub command: &'static str,
    pub usage: fn(&mut Cx, bool),
    pub out: Out,
    client: Option<Client>,
    /// The command line for the pool's history.
    line: String,
}

impl Cx {
    pub fn new(program: &'static str, args: &[String], usage: fn(&mut Cx, bool)) -> Cx {
        let mut line = program.to_owned();
        for arg in args {
            line.push(' ');
            line.push_str(arg);
        }
        Cx { program, command: "", usage, out: Out::new(), client: None, line }
    }

    /// A program of its own from its arguments to its exit code.
    pub fn main(program: &'static str, args: Vec<String>, usage: fn(&mut Cx, bool), run: Action) -> u8 {
        let mut cx = Cx::new(program, &args, usage);
        let code = run(&mut cx, args).unwrap_or_else(|Exit(code)| code);
        cx.out.flush();
        if std::env::var_os("ZFS_ABORT").is_some() {
            cx.out.say("dumping core by request\n");
            std::process::abort();
        }
        code
    }

    /// Prints a usage where it belongs: what was asked for is output, what was not is an error.
    pub fn put_usage(&mut self, text: &str, requested: bool) {
        if requested {
            self.out.put(text);
        } else {
            self.out.flush();
            eprint!("{text}");
        }
    }

    /// Says something on standard error.
    pub fn err(&mut self, message: impl AsRef<str>) {
        self.out.flush();
        eprintln!("{}", message.as_ref());
    }

    /// Wrong usage: says what is wrong, then how it is done, and ends with 2.
    pub fn bad_usage<T>(&mut self, message: impl AsRef<str>) -> Result<T, Exit> {
        self.err(message);
        self.print_usage()
    }

    /// The one operand; `missing` is what is said where there is none.
    pub fn only<'a>(&mut self, operands: &'a [String], missing: &str) -> Result<&'a String, Exit> {
        match operands {
            [one] => Ok(one),
            [] => self.bad_usage(missing),
            _ => self.bad_usage("too many arguments"),
        }
    }

    /// The usage alone.
    pub fn print_usage<T>(&mut self) -> Result<T, Exit> {
        self.out.flush();
        (self.usage)(self, false);
        Err(Exit(2))
    }

    /// OpenZFS's words for an option that is unknown or lacks its value.
    pub fn bad_option<T>(&mut self, option: crate::args::Opt) -> Result<T, Exit> {
        use crate::args::Opt;
        match option {
            Opt::Missing(letter) => self.bad_usage(format!("missing argument for '{letter}' option")),
            Opt::Unknown('\0', word) => self.bad_usage(format!("invalid option '{word}'")),
            Opt::Unknown(letter, _) | Opt::Flag(letter, _) => {
                self.bad_usage(format!("invalid option '{letter}'"))
            }
        }
    }

    pub fn client(&mut self) -> Result<&mut Client, Exit> {
        if self.client.is_none() {
            let connected =
                StateDir::to_ask().map_err(ClientError::Start).and_then(|dir| Client::connect_or_start(&dir));
            match connected {
                Ok(mut client) => {
                    client.set_command(Some(self.line.clone()));
                    self.client = Some(client);
                }
                Err(e) => {
                    self.err(format!("{}: {e}", self.program));
                    return Err(Exit(1));
                }
            }
        }
        self.client.as_mut().ok_or(Exit(1))
    }

    /// Asks the daemon. The outer error is about the connection and has been printed; the inner one
    /// is the daemon's answer.
    pub fn call<O: Operation>(&mut self, request: &O) -> Result<Result<O::Reply, ApiError>, Exit> {
        let answer = self.client()?.call(request);
        self.answered(answer)
    }

    /// The same of several at once, some over connections of their own. The answers are in the
    /// order of the requests.
    pub fn call_all<O>(&mut self, requests: &[O]) -> Result<Vec<Result<O::Reply, ApiError>>, Exit>
    where
        O: Operation + Sync,
        O::Reply: Send,
    {
        let mut out = Vec::new();
        for some in requests.chunks(AT_ONCE) {
            let client = self.client()?;
            let answers: Vec<_> = std::thread::scope(|scope| {
                let ask = |request| client.another().and_then(|mut c| c.call(request));
                let asked: Vec<_> = some.iter().map(|r| scope.spawn(move || ask(r))).collect();
                asked.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
            });
            for answer in answers {
                let answer = answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                out.push(self.answered(answer)?);
            }
        }
        Ok(out)
    }

    fn answered<T>(&mut self, answer: Result<T, ClientError>) -> Result<Result<T, ApiError>, Exit> {
        match answer {
            Ok(reply) => Ok(Ok(reply)),
            Err(ClientError::Api(e)) => Ok(Err(e)),
            Err(e) => {
                self.err(format!("{}: {e}", self.program));
                Err(Exit(1))
            }
        }
    }

    /// Asks the daemon; its refusal is printed as `<action>: <why>` and gives None. What nobody has
    /// built yet ends the command, with the same code wherever that is found out.
    pub fn ask<O: Operation>(&mut self, action: &str, request: &O) -> Result<Option<O::Reply>, Exit> {
        match self.call(request)? {
            Ok(reply) => Ok(Some(reply)),
            Err(e) => {
                self.refused(action, &e);
                if e.code == ErrorCode::Unsupported {
                    return Err(Exit(2));
                }
                Ok(None)
            }
        }
    }

    /// `<action>: <why>` with any further lines.
    pub fn refused(&mut self, action: &str, error: &ApiError) {
        self.err(format!("{action}: {}", error.description()));
        for line in &error.details {
            self.err(line);
        }
    }

    /// Pools by name, sorted and each once, or all. A name that is not imported is complained about
    /// and makes the second value true.
    pub fn pools(&mut self, names: &[String], query: PoolQuery) -> Result<(Vec<PoolInfo>, bool), Exit> {
        let mut failed = false;
        let mut wanted = Vec::new();
        for name in names {
            if let Err(e) = zilla_control::props::naming::check_pool_name(name, true) {
                self.err(format!("cannot open '{name}': {}", e.description()));
                failed = true;
            } else if wanted.contains(name) {
                failed = true;
            } else {
                wanted.push(name.clone());
            }
        }
        if wanted.is_empty() && !names.is_empty() {
            return Ok((Vec::new(), true));
        }
        let mut pools =
            self.ask("cannot list pools", &PoolQuery { names: wanted.clone(), ..query })?.ok_or(Exit(1))?;
        pools.sort_by(|a, b| a.name.cmp(&b.name));
        for name in &wanted {
            if !pools.iter().any(|p| p.name == *name) {
                self.err(format!("cannot open '{name}': no such pool"));
                failed = true;
            }
        }
        Ok((pools, failed))
    }

    /// Writes this command line to the history of a pool, as every command that changed one does at
    /// its end. A pool that is gone or read-only has no history to write to, which is no failure of
    /// the command.
    pub fn log_history(&mut self, pool: &str) -> Result<(), Exit> {
        let request = PoolLog { name: pool.to_owned(), line: self.line.clone() };
        let _ = self.call(&request)?;
        Ok(())
    }
}

/// Standard output.
pub struct Out {
    inner: BufWriter<Stdout>,
    terminal: bool,
}

impl Out {
    #[allow(clippy::new_without_default)] // a second one would mix its output with the first one's
    pub fn new() -> Out {
        let stdout = std::io::stdout();
        let terminal = stdout.is_terminal();
        Out { inner: BufWriter::with_capacity(64 << 10, stdout), terminal }
    }

    /// A text as it is printed.
    fn shown<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.terminal { tame(text) } else { Cow::Borrowed(text) }
    }

    pub fn put(&mut self, text: impl AsRef<str>) {
        let outcome = self.inner.write_all(self.shown(text.as_ref()).as_bytes());
        check(outcome);
    }

    pub fn line(&mut self, text: impl AsRef<str>) {
        self.put(text);
        self.put("\n");
    }

    /// At once.
    pub fn say(&mut self, text: impl AsRef<str>) {
        self.put(text);
        self.flush();
    }

    pub fn flush(&mut self) {
        let outcome = self.inner.flush();
        check(outcome);
    }
}

/// Nobody reads any more, or the disk behind a redirection is full: either way there is nobody to
/// tell.
fn check(outcome: std::io::Result<()>) {
    if let Err(e) = outcome {
        if e.kind() != std::io::ErrorKind::BrokenPipe {
            eprintln!("cannot write output: {e}");
        }
        std::process::exit(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_commands_and_a_file_gets_what_there_is() {
        let text = "tank/\x1b]0;x\x07";
        let shown =
            |terminal| Out { inner: BufWriter::new(std::io::stdout()), terminal }.shown(text).into_owned();
        assert_eq!((shown(true).as_str(), shown(false).as_str()), ("tank/?]0;x?", text));
    }
}
