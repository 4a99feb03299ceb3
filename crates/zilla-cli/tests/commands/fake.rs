//! A daemon with pools of paper, and a folder to run commands in.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use zilla_control::props::{self, FS, SNAP, naming};
use zilla_control::types::*;
use zilla_control::{ApiError, Backend, Caller, ErrorCode, StateDir, server};

#[derive(Default)]
struct State {
    pools: BTreeMap<String, PoolInfo>,
    exported: Vec<PoolInfo>,
    datasets: BTreeMap<String, DatasetInfo>,
    history: BTreeMap<String, Vec<HistoryRecord>>,
    txg: u64,
}

#[derive(Default)]
struct Fake(Mutex<State>);

type Done<T> = Result<T, ApiError>;

fn no_such(name: &str) -> ApiError {
    ApiError::with(ErrorCode::NoEnt, "dataset does not exist").subject(name)
}

fn is_below(name: &str, root: &str) -> bool {
    name.strip_prefix(root).is_some_and(|rest| rest.starts_with(['/', '@', '#']))
}

fn node(top: &TopSpec, id: u64) -> VdevNode {
    let leaf = |l: &LeafSpec| VdevNode {
        kind: VdevKind::File,
        path: Some(l.path.clone()),
        stats: VdevStats { pspace: 64 << 20, ..VdevStats::default() },
        ..VdevNode::default()
    };
    let mut leaves: Vec<VdevNode> = top.leaves.iter().map(leaf).collect();
    let mut node = match top.kind {
        TopKind::Single => leaves.remove(0),
        TopKind::Mirror => VdevNode { kind: VdevKind::Mirror, children: leaves, ..VdevNode::default() },
        TopKind::Raidz { parity } | TopKind::Draid { parity, .. } => VdevNode {
            kind: if matches!(top.kind, TopKind::Raidz { .. }) { VdevKind::Raidz } else { VdevKind::Draid },
            nparity: u64::from(parity),
            children: leaves,
            ..VdevNode::default()
        },
    };
    if let TopKind::Draid { data, spares, .. } = top.kind {
        (node.draid_ndata, node.draid_nspares) = (data.into(), spares.into());
    }
    (node.id, node.class) = (id, top.class);
    node
}

impl Fake {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn add(&mut self, name: &str, kind: DatasetKind, properties: &BTreeMap<String, String>) -> Done<()> {
        if self.datasets.contains_key(name) {
            return Err(ApiError::with(ErrorCode::Exists, "dataset already exists"));
        }
        self.txg += 1;
        let mut dataset =
            DatasetInfo { name: name.to_owned(), kind, createtxg: self.txg, ..DatasetInfo::default() };
        for (name, value) in properties {
            dataset.properties.insert(name.clone(), PropValue::new(value.as_str(), Source::Local));
        }
        self.datasets.insert(name.to_owned(), dataset);
        Ok(())
    }

    fn parents(&mut self, name: &str) -> Done<()> {
        for (at, _) in name.match_indices('/') {
            if !self.datasets.contains_key(&name[..at]) {
                self.add(&name[..at], DatasetKind::Filesystem, &BTreeMap::new())?;
            }
        }
        Ok(())
    }
}

impl Backend for Fake {
    async fn hello(&self, _: &Caller, _: Hello) -> Done<HelloReply> {
        Ok(HelloReply { version: "0.0.0".into(), ..HelloReply::default() })
    }

    async fn pool_create(&self, _: &Caller, r: PoolCreate) -> Done<MountedReply> {
        naming::check_pool_name(&r.name, false)?;
        let mut state = self.state();
        if state.pools.contains_key(&r.name) {
            return Err(ApiError::with(ErrorCode::Exists, "pool already exists"));
        }
        let children = r.vdevs.tops.iter().zip(0..).map(|(top, id)| node(top, id)).collect();
        let root = VdevNode {
            kind: VdevKind::Root,
            stats: VdevStats { space: 64 << 20, ..VdevStats::default() },
            children,
            ..VdevNode::default()
        };
        let pool = PoolInfo { name: r.name.clone(), guid: 1, version: 5000, root, ..PoolInfo::default() };
        state.pools.insert(r.name.clone(), pool);
        state.add(&r.name, DatasetKind::Filesystem, &r.fs_properties)?;
        Ok(MountedReply::default())
    }

    async fn vdevs_check(&self, _: &Caller, _: VdevsCheck) -> Done<()> {
        Ok(())
    }

    async fn pool_destroy(&self, _: &Caller, r: PoolDestroy) -> Done<()> {
        self.state().pools.remove(&r.name);
        Ok(())
    }

    async fn pool_export(&self, _: &Caller, r: PoolExport) -> Done<()> {
        let mut state = self.state();
        let mut pool = state.pools.remove(&r.name).ok_or(ErrorCode::NoEnt)?;
        pool.label_state = PoolLabelState::Exported;
        state.exported.push(pool);
        Ok(())
    }

    async fn pool_query(&self, _: &Caller, r: PoolQuery) -> Done<Vec<PoolInfo>> {
        let state = self.state();
        let wanted = |p: &&PoolInfo| r.names.is_empty() || r.names.contains(&p.name);
        Ok(state.pools.values().filter(wanted).cloned().collect())
    }

    async fn pool_set(&self, _: &Caller, r: PoolSet) -> Done<()> {
        props::parse_pool_prop(&r.property, &r.value, props::PoolPropContext::Set, 5000)?;
        let mut state = self.state();
        let pool = state.pools.get_mut(&r.name).ok_or(ErrorCode::NoEnt)?;
        pool.properties.insert(r.property, PropValue::new(r.value, Source::Local));
        Ok(())
    }

    async fn pool_scrub(&self, _: &Caller, r: PoolScrub) -> Done<()> {
        if r.command != ScrubCommand::Start {
            return Err(ErrorCode::NoScrub.into());
        }
        let mut state = self.state();
        let pool = state.pools.get_mut(&r.name).ok_or(ErrorCode::NoEnt)?;
        let (func, state) = (ScanFunc::Scrub, ScanState::Finished);
        pool.scan = Some(ScanStat { func, state, start_time: 5, end_time: 5, ..ScanStat::default() });
        Ok(())
    }

    async fn pool_history(&self, _: &Caller, r: PoolHistory) -> Done<PoolHistoryReply> {
        let records = self.state().history.get(&r.name).cloned().unwrap_or_default();
        Ok(PoolHistoryReply { records, next: None })
    }

    async fn pool_log(&self, caller: &Caller, r: PoolLog) -> Done<()> {
        let record = HistoryRecord {
            time: 0,
            what: HistoryWhat::Command { line: r.line },
            uid: Some(u64::from(caller.uid)),
            user: None,
            host: None,
            zone: None,
        };
        self.state().history.entry(r.name).or_default().push(record);
        Ok(())
    }

    async fn import_search(&self, _: &Caller, _: ImportSearch) -> Done<Vec<ImportCandidate>> {
        let candidate =
            |pool: &PoolInfo| ImportCandidate { pool: pool.clone(), ..ImportCandidate::default() };
        Ok(self.state().exported.iter().map(candidate).collect())
    }

    async fn pool_import(&self, _: &Caller, r: PoolImport) -> Done<ImportReply> {
        let mut state = self.state();
        let at = state.exported.iter().position(|p| p.guid == r.guid).ok_or(ErrorCode::NoEnt)?;
        let mut pool = state.exported.remove(at);
        pool.name = r.new_name.unwrap_or(pool.name);
        let name = pool.name.clone();
        state.pools.insert(name.clone(), pool);
        Ok(ImportReply { name, mount_errors: Vec::new(), ..ImportReply::default() })
    }

    async fn pool_wait(&self, _: &Caller, _: PoolWait) -> Done<PoolWaitReply> {
        Ok(PoolWaitReply { done: true, ..PoolWaitReply::default() })
    }

    async fn dataset_create(&self, _: &Caller, r: DatasetCreate) -> Done<MountedReply> {
        naming::check_dataset_name(&r.name, FS, true)?;
        let mut state = self.state();
        if r.parents {
            state.parents(&r.name)?;
        }
        state.add(&r.name, DatasetKind::Filesystem, &r.properties)?;
        Ok(MountedReply::default())
    }

    async fn dataset_destroy(&self, _: &Caller, r: DatasetDestroy) -> Done<DestroyReply> {
        let mut state = self.state();
        if !state.datasets.contains_key(&r.target) {
            return Err(no_such(&r.target));
        }
        let below: Vec<String> = state.datasets.keys().filter(|n| is_below(n, &r.target)).cloned().collect();
        if !below.is_empty() && !r.recursive {
            let mut details = vec!["use '-r' to destroy the following datasets:".to_owned()];
            // In order of name, snapshots first: `@` sorts after `/`.
            let mut names = below;
            names.sort_by_key(|n| n.replace('@', "\u{1}"));
            details.extend(names);
            let error = ApiError::with(ErrorCode::HasDependents, "filesystem has children");
            return Err(error.details(details));
        }
        let mut destroyed = below;
        destroyed.push(r.target);
        if !r.dry_run {
            for name in &destroyed {
                state.datasets.remove(name);
            }
        }
        Ok(DestroyReply { destroyed, ..DestroyReply::default() })
    }

    async fn dataset_query(&self, _: &Caller, r: DatasetQuery) -> Done<DatasetQueryReply> {
        let state = self.state();
        let mut reply = DatasetQueryReply::default();
        let roots = if r.roots.is_empty() { state.pools.keys().cloned().collect() } else { r.roots.clone() };
        for root in &roots {
            if !state.datasets.contains_key(root) {
                reply.errors.push(no_such(root));
                continue;
            }
            for dataset in state.datasets.values() {
                let below = is_below(&dataset.name, root);
                let levels = dataset.name.get(root.len()..).unwrap_or("").matches(['/', '@']).count() as u32;
                let deep_enough = r.depth.is_none_or(|depth| levels <= depth);
                let listed = dataset.kind != DatasetKind::Snapshot || !r.pool_lists_snapshots;
                let wanted = r.kinds.contains(&dataset.kind);
                if (dataset.name == *root || (below && listed && deep_enough)) && wanted {
                    reply.datasets.push(dataset.clone());
                }
            }
        }
        Ok(reply)
    }

    async fn dataset_set(&self, _: &Caller, r: DatasetSet) -> Done<MountedReply> {
        let mut state = self.state();
        let dataset = state.datasets.get_mut(&r.name).ok_or(ErrorCode::NoEnt)?;
        for (name, text) in r.properties {
            let (_, value) = props::parse_dataset_prop(&name, &text, FS, false, None)?;
            let value = match value {
                props::TypedValue::Num(n)
                    if props::dataset_prop(&name).is_some_and(|d| d.index.is_empty()) =>
                {
                    n.to_string()
                }
                _ => text,
            };
            dataset.properties.insert(name, PropValue::new(value, Source::Local));
        }
        Ok(MountedReply::default())
    }

    async fn dataset_inherit(&self, _: &Caller, r: DatasetInherit) -> Done<MountedReply> {
        let mut state = self.state();
        let dataset = state.datasets.get_mut(&r.name).ok_or(ErrorCode::NoEnt)?;
        dataset.properties.remove(&r.property);
        Ok(MountedReply::default())
    }

    async fn dataset_snapshot(&self, _: &Caller, r: DatasetSnapshot) -> Done<()> {
        let mut state = self.state();
        for name in &r.names {
            naming::check_dataset_name(name, SNAP, true)?;
            let (head, snap) = name.split_once('@').ok_or(ErrorCode::InvalidName)?;
            let heads: Vec<String> = state
                .datasets
                .values()
                .filter(|d| d.kind == DatasetKind::Filesystem)
                .filter(|d| d.name == head || (r.recursive && is_below(&d.name, head)))
                .map(|d| d.name.clone())
                .collect();
            for head in heads {
                state.add(&format!("{head}@{snap}"), DatasetKind::Snapshot, &r.properties)?;
            }
        }
        Ok(())
    }

    async fn dataset_clone(&self, _: &Caller, r: DatasetClone) -> Done<MountedReply> {
        let mut state = self.state();
        state.add(&r.target, DatasetKind::Filesystem, &r.properties)?;
        if let Some(dataset) = state.datasets.get_mut(&r.target) {
            dataset.properties.insert("origin".into(), PropValue::new(r.snapshot, Source::None));
        }
        Ok(MountedReply::default())
    }
}

/// Held alone while a program's file is written, shared while a process is started. A child has a
/// copy of every open file of its parent until it executes its program, and a program whose file
/// somebody has open for writing is not executed ("Text file busy"): so one test's child could keep
/// another test's program from starting.
static PROGRAMS: RwLock<()> = RwLock::new(());

/// A folder with the daemon's state, files to be devices, and perhaps a daemon.
pub struct World {
    dir: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl World {
    /// Without a daemon; its commands are copies beside which a `zillad` can be put.
    pub fn empty() -> World {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("bin")).unwrap();
        let _alone = PROGRAMS.write().unwrap();
        let zilla = dir.path().join("bin/zilla");
        std::fs::copy(env!("CARGO_BIN_EXE_zilla"), &zilla).unwrap();
        // A command's own file, and a link as an installation has it.
        std::fs::copy(env!("CARGO_BIN_EXE_zpool"), zilla.with_file_name("zpool")).unwrap();
        std::os::unix::fs::symlink(&zilla, zilla.with_file_name("zfs")).unwrap();
        World { dir, stop: None, thread: None }
    }

    pub fn new() -> World {
        let mut world = World::empty();
        let state = StateDir::new(world.dir.path().join("state"));
        state.open().unwrap();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        world.stop = Some(stop);
        world.thread = Some(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            runtime.unwrap().block_on(async {
                let listener = server::listen(&state.socket()).unwrap();
                ready.send(()).unwrap();
                let shutdown = async { drop(stopped.await) };
                server::serve(listener, Arc::new(Fake::default()), shutdown).await.unwrap();
            });
        }));
        is_ready.recv().unwrap();
        world
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    /// A file of the size of a small device.
    pub fn file(&self, name: &str) -> String {
        let path = self.path(name);
        std::fs::File::create(&path).unwrap().set_len(64 << 20).unwrap();
        path
    }

    /// A program beside the commands.
    pub fn script(&self, name: &str, text: &str) {
        let path = self.dir.path().join("bin").join(name);
        let _alone = PROGRAMS.write().unwrap();
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// A file of the state folder.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("state").join(name)).unwrap()
    }

    fn run(&self, program: &str, args: &str) -> (i32, String, String) {
        let mut command = Command::new(self.dir.path().join("bin").join(program));
        command
            .args(args.split_whitespace())
            .env("ZILLA_DIR", self.dir.path().join("state"))
            .env_remove("ZPOOL_IMPORT_PATH")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = {
            let _others_too = PROGRAMS.read().unwrap();
            command.spawn().unwrap()
        };
        let output = child.wait_with_output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    pub fn zpool(&self, args: &str) -> (i32, String, String) {
        self.run("zpool", args)
    }

    pub fn zfs(&self, args: &str) -> (i32, String, String) {
        self.run("zfs", args)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
