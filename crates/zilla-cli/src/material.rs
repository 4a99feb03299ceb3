//! Key material: asked for at the terminal, read from standard input, a file or a server.
//!
//! What is read is checked for its form before it goes to the daemon as bytes. The terminal does
//! not show what is typed, also when the command is interrupted meanwhile: its settings are put
//! back by a guard, and the interrupt waits until then.

use crate::cx::Cx;
use crate::terminal::for_output;
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{BufRead, Write};
use std::time::Duration;
use zilla_control::key_source::{checked, fetch, take, wipe};
use zilla_control::types::KeyMaterial;

/// How long a server may take for a key that a person waits for.
const SERVER_PATIENCE: Duration = Duration::from_secs(300);

/// What to ask for.
pub struct Wanted<'a> {
    /// `keyformat`
    pub format: &'a str,
    /// `keylocation`
    pub location: &'a str,
    /// Whose key, where that is to be said.
    pub name: Option<&'a str>,
    /// A new key, which is asked for twice.
    pub new: bool,
}

impl Wanted<'_> {
    /// Whether a person can be asked again.
    pub fn can_retry(&self) -> bool {
        self.location == "prompt" && self.format != "raw" && isatty(std::io::stdin())
    }

    /// The key, or why there is none.
    pub fn get(&self, cx: &mut Cx) -> Result<KeyMaterial, String> {
        let bytes = match self.location {
            "prompt" if isatty(std::io::stdin()) => self.ask(cx)?,
            "prompt" => self.take(&mut std::io::stdin().lock())?,
            file if file.starts_with("file:///") => {
                let path = file.trim_start_matches("file://");
                let failed = |e: std::io::Error| {
                    format!("Failed to open key material file: {}", zilla_env::strerror(&e))
                };
                let mut file = std::io::BufReader::new(std::fs::File::open(path).map_err(failed)?);
                self.take(&mut file)?
            }
            url if url.starts_with("https://") || url.starts_with("http://") => {
                let fetched = fetch(url, SERVER_PATIENCE)?;
                self.take(&mut &fetched[..])?
            }
            other if other.contains("://") => return Err("URI scheme is not supported".into()),
            _ => return Err("Invalid keylocation.".into()),
        };
        let key = self.checked(&bytes).map(|k| KeyMaterial::new(&k));
        wipe(bytes);
        key
    }

    fn take(&self, from: &mut dyn BufRead) -> Result<Vec<u8>, String> {
        take(self.format, from)
    }

    fn ask(&self, cx: &mut Cx) -> Result<Vec<u8>, String> {
        if self.format == "raw" {
            return Err("Cannot enter raw keys on the terminal".into());
        }
        let first = self.prompt(cx, "Enter")?;
        if self.new {
            self.checked(&first).map(wipe)?;
            let second = self.prompt(cx, "Re-enter")?;
            let equal = first == second;
            wipe(second);
            if !equal {
                wipe(first);
                return Err("Provided keys do not match.".into());
            }
        }
        Ok(first)
    }

    fn prompt(&self, cx: &mut Cx, verb: &str) -> Result<Vec<u8>, String> {
        cx.out.flush();
        let what = match self.format {
            "hex" => "hex key",
            other => other,
        };
        let new = if self.new { "new " } else { "" };
        let whose = self.name.map(|n| format!(" for '{n}'")).unwrap_or_default();
        let mut out = std::io::stdout();
        let asked = format!("{verb} {new}{what}{whose}:");
        let _ = out.write_all(for_output(&asked).as_bytes()).and_then(|()| out.flush());
        let line = {
            let _silent = Silent::new()?;
            self.take(&mut std::io::stdin().lock())
        };
        let _ = writeln!(out);
        line
    }

    fn checked(&self, given: &[u8]) -> Result<Vec<u8>, String> {
        checked(self.format, self.new, given)
    }
}

/// While this is there the terminal does not show what is typed.
struct Silent(Termios);

impl Silent {
    fn new() -> Result<Silent, String> {
        let failed = |e: rustix::io::Errno| e.to_string();
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut quiet = before.clone();
        // Interrupting would leave the terminal so: the key for it is one like others until the
        // line is there.
        quiet.local_modes -= LocalModes::ECHO | LocalModes::ECHOE | LocalModes::ECHOK | LocalModes::ECHONL;
        tcsetattr(std::io::stdin(), OptionalActions::Flush, &quiet).map_err(failed)?;
        Ok(Silent(before))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Flush, &self.0);
    }
}
