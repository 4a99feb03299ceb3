//! The token that a receiver gives a sender to go on from: `receive_resume_token`.
//!
//! `1-<checksum>-<length>-<digits>`: the version, the first word of the fletcher4 of the compressed
//! list, the list's length, and the list, packed natively and deflated, in hexadecimal digits.
//!
//! It comes from a user's hands and is bounded as such.

use super::objects::Resume;
use crate::dsl::ResumeState;
use crate::error::{Error, Result};
use zilla_codec::checksum::fletcher4;
use zilla_codec::compress::{self, Compress, CompressSpec};
use zilla_ondisk::{NvList, NvValue};

/// ZFS_SEND_RESUME_TOKEN_VERSION of OpenZFS.
const VERSION: u64 = 1;
/// No list of a few numbers and a name is longer.
const MAX_LIST: usize = 64 << 10;
const LEVEL: Compress = Compress::Gzip6;

/// What a token says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Token {
    pub toguid: u64,
    pub toname: String,
    pub fromguid: Option<u64>,
    pub object: u64,
    pub offset: u64,
    pub bytes: u64,
    pub large_blocks: bool,
    pub embed: bool,
    pub compressed: bool,
    pub raw: bool,
    /// The stream is redacted by these snapshots.
    pub redact_snaps: Option<Vec<u64>>,
    /// What it starts from is a redaction bookmark, or a redacted snapshot.
    pub book_redact_snaps: Option<Vec<u64>>,
}

impl Token {
    pub fn resume(&self) -> Resume {
        Resume { object: self.object, offset: self.offset }
    }
}

/// The token of an interrupted receive.
pub fn token(s: &ResumeState) -> Option<String> {
    let mut list = NvList::new();
    if let Some(guid) = s.fromguid {
        list.add("fromguid", guid);
    }
    list.add("object", s.object).add("offset", s.offset).add("bytes", s.bytes);
    list.add("toguid", s.toguid).add("toname", s.toname.as_str());
    for (on, name) in
        [(s.largeblock, "largeblockok"), (s.embed, "embedok"), (s.compress, "compressok"), (s.raw, "rawok")]
    {
        if on {
            list.add_flag(name);
        }
    }
    for (name, snaps) in [("redact_snaps", &s.redact_snaps), ("book_redact_snaps", &s.book_redact_snaps)] {
        if let Some(snaps) = snaps {
            list.add(name, snaps.clone());
        }
    }
    let packed = list.pack_native();
    // Deflate may need a little more than it was given where nothing repeats; such a list would be
    // all random.
    let mut out = vec![0; packed.len() + 64];
    let n = compress::compress(CompressSpec::new(LEVEL), &packed, &mut out)?;
    let stored = out.get(..n)?;
    let digits: String = stored.iter().map(|b| format!("{b:02x}")).collect();
    let [sum, ..] = fletcher4(stored, false);
    Some(format!("{VERSION}-{sum:x}-{:x}-{digits}", packed.len()))
}

/// Reads a token's list.
pub fn parse_token_list(text: &str) -> Result<NvList> {
    let bad = |what: &str| Error::inval(format!("resume token is corrupt ({what})"));
    let mut parts = text.trim().splitn(4, '-');
    let version = parts.next().and_then(|p| p.parse::<u64>().ok()).ok_or_else(|| bad("invalid format"))?;
    if version != VERSION {
        let what = format!("resume token is corrupt (invalid version {version})");
        return Err(Error::inval(what));
    }
    let mut number = || parts.next().and_then(|p| u64::from_str_radix(p, 16).ok());
    let (Some(sum), Some(len)) = (number(), number()) else { return Err(bad("invalid format")) };
    let digits = parts.next().filter(|d| d.len() % 2 == 0 && d.len() <= 2 * MAX_LIST && d.is_ascii());
    let digits = digits.ok_or_else(|| bad("invalid format"))?.as_bytes();
    let pairs = digits.as_chunks::<2>().0.iter();
    let byte = |p: &[u8; 2]| std::str::from_utf8(p).ok().and_then(|p| u8::from_str_radix(p, 16).ok());
    let stored: Option<Vec<u8>> = pairs.map(byte).collect();
    let stored = stored.ok_or_else(|| bad("payload is not hex-encoded"))?;
    let [found, ..] = fletcher4(&stored, false);
    if found != sum {
        return Err(bad("incorrect checksum"));
    }
    let len = usize::try_from(len).ok().filter(|n| *n <= MAX_LIST).ok_or_else(|| bad("too long"))?;
    let mut packed = vec![0; len];
    compress::decompress(LEVEL, &stored, &mut packed).map_err(|_| bad("decompression failed"))?;
    NvList::unpack(&packed).map_err(|_| bad("nvlist_unpack failed"))
}

/// Reads a token.
pub fn parse_token(text: &str) -> Result<Token> {
    let list = parse_token_list(text)?;
    let (Some(toguid), Some(toname)) = (list.u64("toguid"), list.str("toname")) else {
        return Err(Error::inval("resume token is corrupt (it names no snapshot)"));
    };
    let number = |name: &str| list.u64(name).unwrap_or(0);
    let guids = |name: &str| match list.get(name) {
        Some(NvValue::Uint64Array(v)) => Some(v.clone()),
        _ => None,
    };
    Ok(Token {
        toguid,
        toname: toname.to_owned(),
        fromguid: list.u64("fromguid"),
        object: number("object"),
        offset: number("offset"),
        bytes: number("bytes"),
        large_blocks: list.contains("largeblockok"),
        embed: list.contains("embedok"),
        compressed: list.contains("compressok"),
        raw: list.contains("rawok"),
        redact_snaps: guids("redact_snaps"),
        book_redact_snaps: guids("book_redact_snaps"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn state() -> ResumeState {
        ResumeState {
            fromguid: Some(3),
            toguid: 0xdead_beef,
            toname: "tank/a@b".into(),
            object: 7,
            offset: 1 << 20,
            bytes: 12345,
            embed: true,
            redact_snaps: Some(vec![5, u64::MAX]),
            ..ResumeState::default()
        }
    }

    #[test]
    fn a_token_says_what_was_noted() {
        let t = parse_token(&token(&state()).unwrap()).unwrap();
        assert_eq!((t.toguid, t.fromguid, t.object, t.offset), (0xdead_beef, Some(3), 7, 1 << 20));
        assert_eq!((t.redact_snaps, t.book_redact_snaps), (Some(vec![5, u64::MAX]), None));
        assert!(t.embed && !t.compressed && t.toname == "tank/a@b");
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "1-[0-9a-f]{0,4}-[0-9a-f]{0,6}-[0-9a-fx]{0,40}|.{0,60}") {
            let _ = parse_token(&text);
        }
    }
}
