//! Names that exist now.

use std::sync::mpsc;
use std::time::Duration;
use zilla_control::types::{DatasetKind, DatasetQuery, PoolQuery, VdevNode};
use zilla_control::{Client, Operation, StateDir};

/// How long a person waits for a completion without thinking that the shell hangs.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than a terminal shows.
const MOST: usize = 2000;

/// Where names come from.
pub trait Live {
    fn pools(&self) -> Vec<String>;
    fn datasets(&self, volumes: bool) -> Vec<String>;
    fn snapshots(&self, dataset: &str) -> Vec<String>;
    /// The devices of a pool.
    fn devices(&self, pool: &str) -> Vec<String>;
    /// Files that begin with what is typed; directories with a slash.
    fn files(&self, current: &str) -> Vec<String>;
}

/// The daemon's, if one runs.
pub struct Names;

/// Asks in a thread of its own: a pool that does not answer must not hold up the shell.
fn ask<O: Operation + Clone>(request: O) -> Option<O::Reply>
where
    O::Reply: Send,
{
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let client = StateDir::to_ask().ok().and_then(|dir| Client::connect(&dir).ok());
        let reply = client.and_then(|mut client| client.call(&request).ok());
        let _ = sender.send(reply);
    });
    answer.recv_timeout(PATIENCE).ok().flatten()
}

fn query(kinds: Vec<DatasetKind>, root: Option<&str>) -> Vec<String> {
    let depth = root.map(|_| 1);
    let roots = root.map(str::to_owned).into_iter().collect();
    let reply = ask(DatasetQuery { roots, depth, kinds, ..DatasetQuery::default() });
    let names = reply.into_iter().flat_map(|r| r.datasets).map(|d| d.name);
    names.take(MOST).collect()
}

impl Live for Names {
    fn pools(&self) -> Vec<String> {
        ask(PoolQuery::default()).into_iter().flatten().map(|p| p.name).collect()
    }

    fn datasets(&self, volumes: bool) -> Vec<String> {
        query(vec![if volumes { DatasetKind::Volume } else { DatasetKind::Filesystem }], None)
    }

    fn snapshots(&self, dataset: &str) -> Vec<String> {
        query(vec![DatasetKind::Snapshot], Some(dataset))
    }

    fn devices(&self, pool: &str) -> Vec<String> {
        let pools = ask(PoolQuery { names: vec![pool.to_owned()], ..PoolQuery::default() });
        let mut found = Vec::new();
        for pool in pools.into_iter().flatten() {
            [&pool.root]
                .into_iter()
                .chain(&pool.spares)
                .chain(&pool.l2cache)
                .for_each(|v| paths(v, &mut found));
        }
        found
    }

    fn files(&self, current: &str) -> Vec<String> {
        let (dir, start) = match current.rsplit_once('/') {
            Some((dir, start)) => (format!("{dir}/"), start),
            None => (String::new(), current),
        };
        let at = if dir.is_empty() { "." } else { dir.as_str() };
        let entries = std::fs::read_dir(at).into_iter().flatten().flatten();
        let shown = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let hidden = name.starts_with('.') && !start.starts_with('.');
            let slash = if entry.path().is_dir() { "/" } else { "" };
            (name.starts_with(start) && !hidden).then(|| format!("{dir}{name}{slash}"))
        });
        shown.take(MOST).collect()
    }
}

fn paths(vdev: &VdevNode, out: &mut Vec<String>) {
    out.extend(vdev.path.clone());
    vdev.children.iter().for_each(|child| paths(child, out));
}
