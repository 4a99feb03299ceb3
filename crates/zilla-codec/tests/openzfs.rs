//! Blocks that the OpenZFS kernel module wrote: their checksums come out, and files decompress to
//! what was read through the mounted file system.
//!
//! `openzfs/extract.py` made the lists, from pools with a dataset for each checksum and each
//! compression. ZILLA_BLOCKS names a folder with more of them: whole pools, which are too much for
//! the repository.

use std::collections::HashSet;
use std::fmt::Write;
use std::path::Path;

use sha2::{Digest, Sha256};
use zilla_codec::checksum::{self, Checksum, Cksum, Salted, embedded};
use zilla_codec::compress::{self, Compress, CompressSpec};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn words(text: &str) -> Cksum {
    let words: Vec<u64> = text.split(':').map(|word| u64::from_str_radix(word, 16).unwrap()).collect();
    words.try_into().unwrap()
}

/// The file whose blocks the lines that follow are.
struct File<'a> {
    name: &'a str,
    sha256: &'a str,
    data: Vec<u8>,
}

impl File<'_> {
    fn check(&self) {
        let got = hex(&Sha256::digest(&self.data));
        assert_eq!(got, self.sha256, "{}", self.name);
    }
}

#[derive(Default)]
struct Seen {
    checksums: HashSet<Checksum>,
    compressions: HashSet<Compress>,
    files: usize,
    labels: usize,
    logs: usize,
}

fn check(folder: &Path, name: &str, seen: &mut Seen) {
    let list = std::fs::read_to_string(folder.join(name).with_extension("txt")).unwrap();
    let blob = std::fs::read(folder.join(name).with_extension("bin")).unwrap();
    let mut salt = None;
    let mut file: Option<File<'_>> = None;
    for line in list.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| fields[i].parse::<usize>().unwrap();
        match fields[0] {
            "salt" => {
                let bytes: Vec<u8> =
                    (0..32).map(|i| u8::from_str_radix(&fields[1][2 * i..][..2], 16).unwrap()).collect();
                salt = Some(Salted::new(&bytes.try_into().unwrap()));
            }
            "file" | "meta" => {
                file.iter().for_each(File::check);
                file = (fields[0] == "file").then(|| File {
                    name: fields[1],
                    sha256: fields[3],
                    data: vec![0; number(2)],
                });
                seen.files += usize::from(file.is_some());
            }
            "block" => {
                let (lsize, psize, at) = (number(4), number(5), number(7));
                let data = &blob[at..at + psize];
                let kind = Checksum::ALL.into_iter().find(|kind| kind.name() == fields[2]).unwrap();
                if kind.is_embedded() {
                    // A log block that is allocated but was never written holds anything.
                    match embedded::verify(kind, data, &words(fields[6])) {
                        Ok(_) => seen.logs += 1,
                        Err(embedded::EmbeddedError::BadMagic { .. }) => {}
                        Err(e) => panic!("{line}: {e}"),
                    }
                    continue;
                }
                let got = checksum::compute(kind, data, false, salt.as_ref());
                assert_eq!(got, words(fields[6]), "{line}");
                assert!(checksum::verify(kind, data, false, salt.as_ref(), &got));
                seen.checksums.insert(kind);
                let kind = Compress::ALL.into_iter().find(|kind| kind.name() == fields[3]).unwrap();
                seen.compressions.insert(kind);
                let mut block = vec![0xa5; lsize];
                if kind == Compress::Off {
                    block.copy_from_slice(data);
                } else {
                    compress::decompress(kind, data, &mut block).unwrap_or_else(|e| panic!("{line}: {e}"));
                    recompress(kind, data, &block);
                }
                if let Some(file) = &mut file {
                    let offset = number(1);
                    let room = &mut file.data[offset..];
                    let length = lsize.min(room.len());
                    room[..length].copy_from_slice(&block[..length]);
                }
            }
            "label" => {
                let (offset, size, at) = (number(1), number(2), number(3));
                let verifier = embedded::label_verifier(offset as u64);
                let mut block = blob[at..at + size].to_vec();
                let order = embedded::verify(Checksum::Label, &block, &verifier).expect(line);
                // Sealing it again must give the same bytes.
                block[size - 40..].fill(0);
                embedded::seal(Checksum::Label, &mut block, &verifier, order).expect(line);
                assert!(block == blob[at..at + size], "{line}");
                seen.labels += 1;
            }
            other => panic!("{name}: a line begins with {other}"),
        }
    }
    file.iter().for_each(File::check);
}

/// Our own compressor on OpenZFS's block: it must fit about where OpenZFS's fitted, and come back.
/// What has no freedom in how to compress, or follows the same rules, must give OpenZFS's very
/// bytes.
fn recompress(kind: Compress, stored: &[u8], block: &[u8]) {
    let spec = match compress::zstd_header(stored) {
        Ok((_, level)) if kind == Compress::Zstd => CompressSpec::zstd(level),
        _ => CompressSpec::new(kind),
    };
    let mut out = vec![0; block.len() + 1024];
    let size = compress::compress(spec, block, &mut out).expect("room");
    assert!(size <= stored.len() + stored.len() / 16 + 512, "{spec}: {size} for {}", stored.len());
    if matches!(kind, Compress::Lzjb | Compress::Zle) {
        assert!(out[..size] == stored[..size], "{spec}");
    }
    let mut back = vec![0; block.len()];
    compress::decompress(kind, &out, &mut back).unwrap();
    assert!(back == block, "{spec}");
}

#[test]
fn blocks_of_openzfs() {
    let mut seen = Seen::default();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/openzfs");
    for name in ["checksum", "compress", "crash"] {
        check(&folder, name, &mut seen);
    }
    if let Some(folder) = std::env::var_os("ZILLA_BLOCKS") {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "txt") {
                check(Path::new(&folder), path.file_stem().unwrap().to_str().unwrap(), &mut seen);
            }
        }
    }
    for kind in Checksum::ALL.into_iter().filter(|kind| kind.is_property() && kind.is_function()) {
        assert!(seen.checksums.contains(&kind) || kind == Checksum::NoParity, "{kind:?}");
    }
    for kind in ["lz4", "lzjb", "zle", "zstd", "gzip-1", "gzip-6", "gzip-9", "uncompressed"] {
        assert!(seen.compressions.iter().any(|seen| seen.name() == kind), "{kind}");
    }
    println!("{} files, {} labels, {} log blocks", seen.files, seen.labels, seen.logs);
    assert!(seen.files > 20 && seen.labels >= 2 && seen.logs >= 3);
}
