use super::*;
use proptest::prelude::*;

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Files {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b", "c", "d", "e", "f"] {
            std::fs::File::create(dir.path().join(name)).unwrap().set_len(64 << 20).unwrap();
        }
        std::fs::File::create(dir.path().join("big")).unwrap().set_len(128 << 20).unwrap();
        Files(dir)
    }

    /// `@a` stands for the file `a`.
    fn words(&self, text: &str) -> Vec<String> {
        let path = |w: &str| match w.strip_prefix('@') {
            Some(name) => self.0.path().join(name).to_str().unwrap().to_owned(),
            None => w.to_owned(),
        };
        text.split_whitespace().map(path).collect()
    }

    fn shape(&self, text: &str) -> String {
        match parse(&self.words(text)) {
            Ok(spec) => {
                let tops = spec.tops.iter().map(|t| format!("{:?}/{:?}*{}", t.kind, t.class, t.leaves.len()));
                let tops: Vec<_> = tops.collect();
                format!("{} spares {} cache {}", tops.join(" "), spec.spares.len(), spec.l2cache.len())
            }
            Err(SpecError::Invalid(lines) | SpecError::Overridable(lines)) => lines.join("|"),
        }
    }
}

#[test]
fn grammar() {
    let f = Files::new();
    for (text, shape) in [
        ("@a @b", "Single/Normal*1 Single/Normal*1 spares 0 cache 0"),
        ("mirror @a @b mirror @c @d", "Mirror/Normal*2 Mirror/Normal*2 spares 0 cache 0"),
        ("raidz2 @a @b @c spare @d", "Raidz { parity: 2 }/Normal*3 spares 1 cache 0"),
        ("@a log mirror @b @c cache @d @e", "Single/Normal*1 Mirror/Log*2 spares 0 cache 2"),
        (
            "@a special mirror @b @c dedup @d",
            "Single/Normal*1 Mirror/Special*2 Single/Dedup*1 spares 0 cache 0",
        ),
        ("log @b mirror @c @d", "Single/Log*1 Mirror/Log*2 spares 0 cache 0"),
        ("mirror @a", "invalid vdev specification: mirror requires at least 2 devices"),
        ("raidz3 @a @b @c", "invalid vdev specification: raidz3 requires at least 4 devices"),
        ("@a log", "invalid vdev specification: log requires at least 1 device"),
        ("@a log @b log @c", "invalid vdev specification: 'log' can be specified only once"),
        ("@a spare @b spare @c", "invalid vdev specification: 'spare' can be specified only once"),
        ("@a log raidz @b @c", "invalid vdev specification: unsupported 'log' device: raidz"),
        ("spare @a", " spares 1 cache 0"),
        ("cache @a @b", " spares 0 cache 2"),
        (
            "nosuchdevice",
            "cannot open 'nosuchdevice': no such device in /dev|must be a full path or shorthand device name",
        ),
        (
            "@a spare draid1-0-0",
            "cannot open 'draid1-0-0': dRAID spares can only be used to replace primary vdevs",
        ),
        ("draid:1d:1s @a @b @c", "Draid { parity: 1, data: 1, spares: 1 }/Normal*3 spares 0 cache 0"),
        ("/no/such", "cannot resolve path '/no/such'"),
        ("/", "cannot use '/': must be a block device or regular file"),
        (
            "raidz4",
            "cannot open 'raidz4': no such device in /dev|must be a full path or shorthand device name",
        ),
    ] {
        assert_eq!(f.shape(text), shape, "{text}");
    }
}

#[test]
fn replication() {
    let f = Files::new();
    for (text, doubt) in [
        ("mirror @a @b mirror @c @d", ""),
        ("raidz @a @b @c mirror @d @e", ""),
        ("@a mirror @b @c", "mismatched replication level: both file and mirror vdevs are present"),
        (
            "raidz2 @a @b @c mirror @d @e",
            "mismatched replication level: raidz and mirror vdevs with different redundancy, 2 vs. 1 (2-way) are present",
        ),
        (
            "mirror @a @b mirror @c @d @e",
            "mismatched replication level: both 2-way and 3-way mirror vdevs are present",
        ),
        (
            "raidz @a @b @c raidz2 @d @e @f",
            "mismatched replication level: raidz and raidz vdevs with different redundancy, 1 vs. 2 are present",
        ),
        ("draid:1d @a @b draid:1d @c @d @e", ""),
        ("raidz @a @b @c raidz @d @e", ""),
        ("mirror @a @big", "mirror contains devices of different sizes"),
        ("@a log mirror @b @c", ""),
        ("@a log mirror @b @big", ""),
    ] {
        let spec = parse(&f.words(text)).unwrap();
        let found = match check_replication(&spec) {
            Ok(()) => String::new(),
            Err(SpecError::Overridable(lines) | SpecError::Invalid(lines)) => lines.join("|"),
        };
        assert_eq!(found, doubt, "{text}");
    }
}

/// A pool of these vdevs: `raidz2*4`, `mirror*2 special`, `file log`.
fn pool(tops: &str) -> PoolInfo {
    let mut pool = PoolInfo::default();
    for words in tops.split(',') {
        let (shape, class) = words.trim().split_once(' ').unwrap_or((words.trim(), ""));
        let (kind, children) = shape.split_once('*').unwrap_or((shape, "0"));
        let parity = kind.trim_start_matches(char::is_alphabetic).parse().unwrap_or(0);
        let kind = match kind.trim_end_matches(char::is_numeric) {
            "file" => VdevKind::File,
            "mirror" => VdevKind::Mirror,
            "raidz" => VdevKind::Raidz,
            "draid" => VdevKind::Draid,
            "hole" => VdevKind::Hole,
            "indirect" => VdevKind::Indirect,
            other => panic!("{other}"),
        };
        let class = match class {
            "log" => AllocClass::Log,
            "special" => AllocClass::Special,
            _ => AllocClass::Normal,
        };
        let children = vec![VdevNode::default(); children.parse().unwrap()];
        pool.root.children.push(VdevNode { kind, class, nparity: parity, children, ..VdevNode::default() });
    }
    pool
}

#[test]
fn what_is_added_is_like_the_last_vdev_of_a_pool_of_one_kind() {
    let f = Files::new();
    let head = "mismatched replication level: pool";
    for (tops, text, doubt) in [
        ("mirror*2", "mirror @a @b", String::new()),
        ("mirror*2", "mirror @a @b @c", format!("{head} uses 2-way mirror and new vdev uses 3-way mirror")),
        ("mirror*2", "@a", format!("{head} uses mirror and new vdev is file")),
        ("mirror*2, file log, hole, indirect", "mirror @a @b", String::new()),
        ("mirror*2", "log @a", String::new()),
        ("mirror*2", "@a @b log @c", format!("{head} uses mirror and new vdev is file")),
        ("mirror*2, file", "raidz @a @b @c", String::new()),
        ("raidz1*3, mirror*2 special", "mirror @a @b", String::new()),
        ("raidz1*3, mirror*2 special", "raidz @a @b", String::new()),
        ("file, file special", "special mirror @a @b", format!("{head} uses file and new vdev is mirror")),
        ("raidz1*3", "raidz2 @a @b @c", format!("{head} uses 1 device parity and new vdev uses 2")),
        ("raidz1*3", "raidz @a @b @c @d", format!("{head} uses 3-way raidz and new vdev uses 4-way raidz")),
        ("raidz1*3", "mirror @a @b", String::new()),
        (
            "raidz2*4",
            "mirror @a @b",
            format!("{head} and new vdev with different redundancy, raidz and mirror vdevs, 2 vs. 1 (2-way)"),
        ),
        (
            "mirror*3",
            "draid @a @b @c",
            format!("{head} and new vdev with different redundancy, draid and mirror vdevs, 1 vs. 2 (3-way)"),
        ),
    ] {
        let spec = parse(&f.words(text)).unwrap();
        let found = match check_added(&pool(tops), &spec) {
            Ok(()) => String::new(),
            Err(SpecError::Overridable(lines) | SpecError::Invalid(lines)) => lines.join("|"),
        };
        assert_eq!(found, doubt, "{tops}: {text}");
    }
}

proptest! {
    #[test]
    fn survives_anything(words in proptest::collection::vec("(mirror|raidz[0-9]{0,2}|log|spare|cache|special|dedup|draid[:0-9]{0,3}|/|/dev/null|[a-z]{1,3})", 0..10)) {
        let _ = parse(&words);
    }
}
