//! Key material: asked for at the terminal, read from standard input, a file or a server.
//!
//! What is read is checked for its form here, and goes to the daemon as bytes. The terminal does not show what is typed, also when
//! the command is interrupted meanwhile: its settings are put back by a guard, and the interrupt waits until then.

use crate::cx::Cx;
use rustix::termios::{LocalModes, OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io::{BufRead, Read, Write};
use std::process::{Command, Stdio};
use zilla_control::types::KeyMaterial;

/// Source: WRAPPING_KEY_LEN in sys/zio_crypt.h; MIN_PASSPHRASE_LEN and MAX_PASSPHRASE_LEN of libzfs_crypto.c.
const KEY_LEN: usize = 32;
const MIN_PASSPHRASE_LEN: usize = 8;
const MAX_PASSPHRASE_LEN: usize = 512;
/// More than any key.
const MOST: u64 = 4096;

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
                let fetched = fetch(url)?;
                self.take(&mut &fetched[..])?
            }
            other if other.contains("://") => return Err("URI scheme is not supported".into()),
            _ => return Err("Invalid keylocation.".into()),
        };
        let key = self.checked(&bytes).map(|k| KeyMaterial::new(&k));
        wipe(bytes);
        key
    }

    /// Raw keys are as many bytes as they are; others are a line.
    fn take(&self, from: &mut dyn BufRead) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::with_capacity(MOST as usize);
        let mut limited = from.take(if self.format == "raw" { KEY_LEN as u64 + 1 } else { MOST });
        let read = match self.format {
            "raw" => limited.read_to_end(&mut bytes),
            _ => limited.read_until(b'\n', &mut bytes),
        };
        read.map_err(|e| format!("Failed to read key material: {e}"))?;
        if self.format != "raw" && bytes.last() == Some(&b'\n') {
            bytes.pop();
        }
        Ok(bytes)
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
        let _ = write!(out, "{verb} {new}{what}{whose}:").and_then(|()| out.flush());
        let line = {
            let _silent = Silent::new()?;
            self.take(&mut std::io::stdin().lock())
        };
        let _ = writeln!(out);
        line
    }

    /// The bytes that the daemon wants, if what was given has the right form.
    fn checked(&self, given: &[u8]) -> Result<Vec<u8>, String> {
        match self.format {
            "raw" if given.len() < KEY_LEN => Err(format!("Raw key too short (expected {KEY_LEN}).")),
            "raw" if given.len() > KEY_LEN => Err(format!("Raw key too long (expected {KEY_LEN}).")),
            "raw" => Ok(given.to_vec()),
            "hex" => {
                let expected = 2 * KEY_LEN;
                if given.len() < expected {
                    return Err(format!("Hex key too short (expected {expected})."));
                }
                if given.len() > expected {
                    return Err(format!("Hex key too long (expected {expected})."));
                }
                let digit = |b: u8| char::from(b).to_digit(16).and_then(|n| u8::try_from(n).ok());
                let pairs = given.as_chunks::<2>().0.iter().map(|[a, b]| Some(digit(*a)? << 4 | digit(*b)?));
                pairs.collect::<Option<_>>().ok_or_else(|| "Invalid hex character detected.".into())
            }
            "passphrase" if given.len() > MAX_PASSPHRASE_LEN => {
                Err(format!("Passphrase too long (max {MAX_PASSPHRASE_LEN})."))
            }
            // An old one may be as short as it was once allowed to be.
            "passphrase" if self.new && given.len() < MIN_PASSPHRASE_LEN => {
                Err(format!("Passphrase too short (min {MIN_PASSPHRASE_LEN})."))
            }
            "passphrase" => Ok(given.to_vec()),
            _ => Err("Keyformat required for new encryption root.".into()),
        }
    }
}

fn wipe(mut bytes: Vec<u8>) {
    bytes.fill(0);
    std::hint::black_box(&bytes);
}

/// While this is there the terminal does not show what is typed.
struct Silent(Termios);

impl Silent {
    fn new() -> Result<Silent, String> {
        let failed = |e: rustix::io::Errno| e.to_string();
        let before = tcgetattr(std::io::stdin()).map_err(failed)?;
        let mut quiet = before.clone();
        // Interrupting would leave the terminal so: the key for it is one like others until the line is there.
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

/// What a server has: curl(1) asks it, which knows certificates and proxies.
fn fetch(url: &str) -> Result<Vec<u8>, String> {
    let ask = |program: &str| {
        let mut curl = Command::new(program);
        curl.args([
            "--silent",
            "--show-error",
            "--fail",
            "--location",
            "--proto",
            "=https,http",
            "--max-filesize",
        ]);
        curl.arg(MOST.to_string()).arg("--").arg(url).stdin(Stdio::null()).output()
    };
    // Who starts commands with a short search path has it all the same.
    let done = ask("curl").or_else(|e| match e.kind() {
        std::io::ErrorKind::NotFound => ask("/usr/bin/curl"),
        _ => Err(e),
    });
    let done = done.map_err(|e| format!("Couldn't load curl: {e}"))?;
    if !done.status.success() {
        let why = String::from_utf8_lossy(&done.stderr);
        return Err(format!("Couldn't GET {url}: {}", why.trim()));
    }
    Ok(done.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(format: &str, new: bool, given: &[u8]) -> Result<usize, String> {
        let wanted = Wanted { format, location: "prompt", name: None, new };
        let bytes = wanted.take(&mut &given[..])?;
        wanted.checked(&bytes).map(|k| k.len())
    }

    #[test]
    fn the_form_of_a_key_is_checked_in_openzfs_words() {
        assert_eq!(checked("raw", true, &[10; 32]), Ok(32));
        assert_eq!(checked("raw", true, &[10; 31]).unwrap_err(), "Raw key too short (expected 32).");
        assert_eq!(checked("raw", true, &[10; 40]).unwrap_err(), "Raw key too long (expected 32).");
        let hex = [b"0aF1".repeat(16), b"\n".to_vec()].concat();
        assert_eq!(checked("hex", false, &hex), Ok(32));
        assert_eq!(checked("hex", false, &hex[1..]).unwrap_err(), "Hex key too short (expected 64).");
        assert_eq!(checked("hex", false, &[b'x'; 64]).unwrap_err(), "Invalid hex character detected.");
        assert_eq!(checked("hex", false, &[b'1'; 65]).unwrap_err(), "Hex key too long (expected 64).");
        assert_eq!(checked("passphrase", true, b"12345678\nmore"), Ok(8));
        assert_eq!(checked("passphrase", true, b"1234567\n").unwrap_err(), "Passphrase too short (min 8).");
        assert_eq!(checked("passphrase", false, b"1234567\n"), Ok(7));
        assert_eq!(checked("passphrase", true, &[b'a'; 513]).unwrap_err(), "Passphrase too long (max 512).");
    }
}
