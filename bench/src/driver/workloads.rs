//! What the engine part measures, and what the project has promised of it.

use std::path::Path;

/// Backing files any workload uses.
pub const FILES: usize = 4;

pub struct Workload {
    pub name: &'static str,
    /// The name both programs know it by.
    pub workload: &'static str,
    pub vdev: &'static str,
    pub files: usize,
    pub volume: &'static str,
    pub arc_max: &'static str,
    /// At most this share of OpenZFS's CPU time, at least this multiple of its MB/s.
    pub cpu: Option<f64>,
    pub rate: Option<f64>,
}

const RAIDZ2: Workload = Workload {
    name: "",
    workload: "",
    vdev: "raidz2",
    files: 4,
    volume: "1G",
    arc_max: "512M",
    cpu: None,
    rate: None,
};

pub const LIST: &[Workload] = &[
    Workload { name: "seqwrite128k", workload: "seqwrite128k", cpu: Some(0.25), rate: Some(2.0), ..RAIDZ2 },
    Workload { name: "seqread128k", workload: "seqread128k", cpu: Some(0.3), ..RAIDZ2 },
    Workload {
        name: "randread16k_cached",
        workload: "randread16k_cached",
        arc_max: "2G",
        cpu: Some(0.15),
        ..RAIDZ2
    },
    Workload { name: "scrub", workload: "scrub", cpu: Some(0.5), ..RAIDZ2 },
    Workload { name: "seqwrite16k", workload: "seqwrite16k", ..RAIDZ2 },
    Workload { name: "randwrite16k", workload: "randwrite16k", ..RAIDZ2 },
    Workload { name: "randread16k", workload: "randread16k", ..RAIDZ2 },
    Workload { name: "seqwrite128k_unaligned", workload: "seqwrite128k_unaligned", ..RAIDZ2 },
    Workload {
        name: "seqwrite128k mirror",
        workload: "seqwrite128k",
        vdev: "mirror",
        files: 2,
        volume: MIRRORED,
        ..RAIDZ2
    },
    Workload {
        name: "seqread128k mirror",
        workload: "seqread128k",
        vdev: "mirror",
        files: 2,
        volume: MIRRORED,
        ..RAIDZ2
    },
];

/// What is overwritten stays for three txgs more, and a bare object reserves no space.
const MIRRORED: &str = "500M";

/// Dirty data is limited alike on both sides.
pub const PEER_LIMITS: [&str; 2] = ["--set", "zfs_dirty_data_max=268435456"];

impl Workload {
    pub fn args(&self, dir: &Path, seconds: f64) -> Vec<String> {
        let files: Vec<String> =
            (0..self.files).map(|i| super::file(dir, i).to_string_lossy().into_owned()).collect();
        let vdev = format!("{} {}", self.vdev, files.join(" "));
        let seconds = seconds.to_string();
        let pairs = [
            ("--vdev", vdev.as_str()),
            ("--vdev-size", "1400M"),
            ("--volsize", self.volume),
            ("--arc-max", self.arc_max),
            ("--threads", "2"),
            ("--seconds", &seconds),
            ("--workload", self.workload),
        ];
        pairs.iter().flat_map(|(k, v)| [k.to_string(), v.to_string()]).collect()
    }
}
