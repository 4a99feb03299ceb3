//! The options of one measurement, named as `dmubench` names them, and its backing files.

use super::Result;
use lexopt::ValueExt;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zilla_core::vdev::VdevKind;

#[derive(Clone, Debug)]
pub struct Options {
    pub kind: VdevKind,
    pub files: Vec<PathBuf>,
    /// Bytes of each backing file; 0 takes them as they are.
    pub file_size: u64,
    pub volume: u64,
    pub block: u64,
    pub arc_max: u64,
    pub threads: usize,
    pub seconds: f64,
    pub workload: String,
    pub entropy: usize,
    pub seed: u64,
    pub compress: String,
    pub checksum: String,
    /// Files to make (`zilla-bench files`).
    pub count: u64,
}

impl Options {
    pub fn parse(mut args: lexopt::Parser) -> Result<Options> {
        let mut o = Options {
            kind: VdevKind::File,
            files: Vec::new(),
            file_size: 0,
            volume: 1 << 30,
            block: 128 << 10,
            arc_max: 512 << 20,
            threads: 1,
            seconds: 3.0,
            workload: "seqwrite128k".into(),
            entropy: 50,
            seed: 1,
            compress: "off".into(),
            checksum: "fletcher4".into(),
            count: 0,
        };
        while let Some(arg) = args.next()? {
            let lexopt::Arg::Long(name) = arg else { return Err(arg.unexpected().into()) };
            let name = name.to_owned();
            let value = args.value()?.string()?;
            match name.as_str() {
                "vdev" => (o.kind, o.files) = vdev(&value)?,
                "vdev-size" => o.file_size = size(&value)?,
                "volsize" => o.volume = size(&value)?,
                "volblocksize" => o.block = size(&value)?,
                "arc-max" => o.arc_max = size(&value)?,
                "threads" => o.threads = value.parse()?,
                "seconds" => o.seconds = value.parse()?,
                "workload" => o.workload = value,
                "entropy" => o.entropy = value.parse()?,
                "seed" => o.seed = value.parse()?,
                "compress" => o.compress = value,
                "checksum" => o.checksum = value,
                "count" => o.count = value.parse()?,
                other => return Err(format!("no option --{other}").into()),
            }
        }
        if o.files.is_empty() {
            return Err("--vdev is missing".into());
        }
        Ok(o)
    }

    /// The pool's shape without its paths, which are not a result.
    pub fn shape(&self) -> String {
        match self.kind {
            VdevKind::Raidz { nparity } => format!("raidz{nparity}:{}", self.files.len()),
            VdevKind::Mirror => format!("mirror:{}", self.files.len()),
            _ => format!("{}", self.files.len()),
        }
    }

    /// Makes the backing files, every byte written: sparse files flatter whoever writes little.
    pub fn prewrite(&self) -> Result<()> {
        let fresh = vec![0x5a; 1 << 20];
        for path in &self.files {
            let file = OpenOptions::new().create(true).truncate(false).read(true).write(true).open(path)?;
            if self.file_size == 0 || file.metadata()?.len() == self.file_size {
                continue;
            }
            file.set_len(0)?;
            file.set_len(self.file_size)?;
            for at in (0..self.file_size).step_by(fresh.len()) {
                let n = fresh.len().min((self.file_size - at) as usize);
                file.write_all_at(&fresh[..n], at)?;
            }
            // Nor is it to be written back while anything is measured, or in the way of what goes
            // past the host's cache.
            file.sync_all()?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }
}

fn vdev(spec: &str) -> Result<(VdevKind, Vec<PathBuf>)> {
    let mut words = spec.split([' ', ',']).filter(|w| !w.is_empty()).peekable();
    let kind = match words.peek() {
        Some(&"mirror") => VdevKind::Mirror,
        Some(&"raidz" | &"raidz1") => VdevKind::Raidz { nparity: 1 },
        Some(&"raidz2") => VdevKind::Raidz { nparity: 2 },
        Some(&"raidz3") => VdevKind::Raidz { nparity: 3 },
        _ => VdevKind::File,
    };
    if kind != VdevKind::File {
        words.next();
    }
    let files = words.map(std::path::absolute).collect::<std::io::Result<_>>()?;
    Ok((kind, files))
}

fn size(text: &str) -> Result<u64> {
    let (digits, factor) = match text.char_indices().last() {
        Some((i, 'k' | 'K')) => (&text[..i], 1 << 10),
        Some((i, 'm' | 'M')) => (&text[..i], 1 << 20),
        Some((i, 'g' | 'G')) => (&text[..i], 1 << 30),
        _ => (text, 1),
    };
    Ok((digits.parse::<f64>()? * factor as f64) as u64)
}
