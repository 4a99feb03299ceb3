//! What a `keylocation` holds as a key: how many bytes of it are read, their form, and how a server
//! is asked.
//!
//! The commands read keys where a person loads them, and the daemon when it starts. Both go by
//! these rules, and say what is wrong in OpenZFS's words. Nothing here is longer than a key may be,
//! and what was read is overwritten by whoever read it ([`wipe`]).

use std::io::{BufRead, Read};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes of a raw key. Source: WRAPPING_KEY_LEN in sys/zio_crypt.h.
const KEY_LEN: usize = 32;
/// Bytes of a passphrase. Source: MIN_PASSPHRASE_LEN and MAX_PASSPHRASE_LEN of libzfs_crypto.c.
const MIN_PASSPHRASE_LEN: usize = 8;
const MAX_PASSPHRASE_LEN: usize = 512;
/// Bytes, more than any key.
const MOST: u64 = 4096;

/// A key of a `keyformat` as it was written. Raw keys are as many bytes as they are; others are a
/// line.
pub fn take(format: &str, from: &mut dyn BufRead) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(MOST as usize);
    let mut limited = from.take(if format == "raw" { KEY_LEN as u64 + 1 } else { MOST });
    let read = match format {
        "raw" => limited.read_to_end(&mut bytes),
        _ => limited.read_until(b'\n', &mut bytes),
    };
    read.map_err(|e| format!("Failed to read key material: {e}"))?;
    if format != "raw" && bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    Ok(bytes)
}

/// The bytes that the daemon wants, if what was given has the right form. `new`: it becomes a key.
pub fn checked(format: &str, new: bool, given: &[u8]) -> Result<Vec<u8>, String> {
    match format {
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
        "passphrase" if new && given.len() < MIN_PASSPHRASE_LEN => {
            Err(format!("Passphrase too short (min {MIN_PASSPHRASE_LEN})."))
        }
        "passphrase" => Ok(given.to_vec()),
        _ => Err("Keyformat required for new encryption root.".into()),
    }
}

/// Variables of OpenZFS's that say whom to believe and who one is, and curl's options for it.
const CERTIFICATES: [(&str, &str); 4] = [
    ("SSL_CA_CERT_FILE", "--cacert"),
    ("SSL_CA_CERT_PATH", "--capath"),
    ("SSL_CLIENT_CERT_FILE", "--cert"),
    ("SSL_CLIENT_KEY_FILE", "--key"),
];

/// What a server has, which it gives within `patience`: curl(1) asks it, which knows certificates
/// and proxies.
pub fn fetch(url: &str, patience: Duration) -> Result<Vec<u8>, String> {
    let ask = |program: &str| -> std::io::Result<std::process::Output> {
        let mut curl = Command::new(program);
        // Whoever makes a pool chooses the URL: it is one, and nobody's settings are added to it.
        curl.args(["-q", "--globoff"]);
        curl.args(["--silent", "--show-error", "--fail", "--location", "--proto", "=https,http"]);
        for (variable, option) in CERTIFICATES {
            if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
                curl.arg(option).arg(path);
            }
        }
        curl.arg("--max-time").arg(patience.as_secs().to_string());
        curl.arg("--max-filesize").arg(MOST.to_string());
        curl.arg("--").arg(url).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = curl.spawn()?;
        let mut said = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            // Older ones do not bound an answer that does not tell its length.
            stdout.take(MOST + 1).read_to_end(&mut said)?;
        }
        if said.len() as u64 > MOST {
            child.kill()?;
        }
        let mut done = child.wait_with_output()?;
        done.stdout = said;
        Ok(done)
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

/// Overwrites what was read.
pub fn wipe(mut bytes: Vec<u8>) {
    bytes.fill(0);
    // What is written and never read the compiler may leave out, but for this.
    std::hint::black_box(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(format: &str, new: bool, given: &[u8]) -> Result<usize, String> {
        let bytes = take(format, &mut &given[..])?;
        super::checked(format, new, &bytes).map(|k| k.len())
    }

    #[test]
    fn the_form_of_a_key_is_checked_in_openzfs_words() {
        assert_eq!(length("raw", true, &[10; 32]), Ok(32));
        assert_eq!(length("raw", true, &[10; 31]).unwrap_err(), "Raw key too short (expected 32).");
        assert_eq!(length("raw", true, &[10; 40]).unwrap_err(), "Raw key too long (expected 32).");
        let hex = [b"0aF1".repeat(16), b"\n".to_vec()].concat();
        assert_eq!(length("hex", false, &hex), Ok(32));
        assert_eq!(length("hex", false, &hex[1..]).unwrap_err(), "Hex key too short (expected 64).");
        assert_eq!(length("hex", false, &[b'x'; 64]).unwrap_err(), "Invalid hex character detected.");
        assert_eq!(length("hex", false, &[b'1'; 65]).unwrap_err(), "Hex key too long (expected 64).");
        assert_eq!(length("passphrase", true, b"12345678\nmore"), Ok(8));
        assert_eq!(length("passphrase", true, b"1234567\n").unwrap_err(), "Passphrase too short (min 8).");
        assert_eq!(length("passphrase", false, b"1234567\n"), Ok(7));
        assert_eq!(length("passphrase", true, &[b'a'; 513]).unwrap_err(), "Passphrase too long (max 512).");
    }
}
