//! Volumes as block devices under `/dev/zvol`, where root's daemon makes them.
//!
//! What is to be shown follows from the datasets: every volume, and with `snapdev=visible` its
//! snapshots, unless `volmode=none`; with partitions unless `volmode=dev`; read-only where it can
//! only be read. [`Engine::show_devices`] makes that so for a subtree after something changed in
//! it; [`Engine::hide_devices`] takes devices away before their volumes go, and refuses where one
//! is in use. Attaching itself is the keeper's (`crate::keeper`): nothing here opens a device.
//!
//! What it keeps true: what is under way in one place is waited for in another (one lock around the
//! keeper), and no lock of a pool is held meanwhile, for the keeper's questions come back to this
//! process as requests for the files of volumes. A machine without loop devices, or a keeper that
//! does not answer, costs the devices, which the log says once, and never the operation. An answer
//! that comes late is thrown away; the device that it was about is asked for again. A keeper that
//! ended is replaced, and the next shows the devices of all pools.

use super::Engine;
use super::errors::Answer;
use super::pool::Pool;
use super::values::Settings;
use crate::keeper::{self, Order};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use zilla::error::Result;
use zilla::tree::{DatasetDir, DatasetRef};
use zilla_control::types::VolumeFiles;
use zilla_control::{ApiError, ErrorCode};

/// The properties that decide over devices.
pub(super) const DECIDE: [&str; 4] = ["volmode", "snapdev", "readonly", "volsize"];
/// OpenZFS's number of `volmode=dev`.
const ZFS_VOLMODE_DEV: u64 = 2;
/// The longest that the keeper takes for an order: its own grace, and a slow pool.
const PATIENCE: Duration = Duration::from_secs(30);
/// A part of it is enough for a keeper that was late before.
const LESS_PATIENCE: u32 = 10;
/// So long a file that was closed is waited for: the kernel tells of it a moment later.
const CLOSING: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(5);

/// How a volume is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shown {
    /// The dataset's number.
    id: u64,
    size: u64,
    readonly: bool,
    scan: bool,
    /// The keeper said that it is there. Where it did not say anything in time it may be.
    sure: bool,
}

/// The process that attaches devices.
struct Keeper {
    child: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// What of the orders it did not take yet.
    unsent: Vec<u8>,
    /// So many answers are still to come to orders for which nobody waits any more.
    owed: u32,
}

#[derive(Default)]
struct State {
    keeper: Option<Keeper>,
    shown: BTreeMap<String, Shown>,
    /// How often names were taken away or given to others: what was found out before is to be
    /// found out again.
    moved: u64,
    /// What is wrong with this machine was said.
    said: bool,
    patience: Duration,
}

/// What the keeper says to an order.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    Done(String),
    /// It could not, or there is no keeper, which the log says.
    Failed,
    /// Nothing yet.
    Late,
}

/// The daemon's devices.
pub struct Devices {
    links: PathBuf,
    state: tokio::sync::Mutex<State>,
}

impl Devices {
    pub fn new(links: PathBuf) -> Devices {
        let state = State { patience: PATIENCE, ..State::default() };
        Devices { links, state: tokio::sync::Mutex::new(state) }
    }
}

impl Keeper {
    fn new(mut child: Child) -> Option<Keeper> {
        let (orders, answers) = (child.stdin.take()?, child.stdout.take()?);
        let answers = BufReader::new(answers).lines();
        Some(Keeper { child, orders, answers, unsent: Vec::new(), owed: 0 })
    }

    /// The answer to an order. None: it does not come in time.
    async fn ask(&mut self, order: &Order, patience: Duration) -> std::io::Result<Option<String>> {
        let patience = if self.owed > 0 { patience / LESS_PATIENCE } else { patience };
        self.unsent.extend(order.bytes());
        self.owed += 1;
        // Where this is given up nothing that was sent or received is forgotten.
        let asked = async {
            while !self.unsent.is_empty() {
                let sent = self.orders.write(&self.unsent).await?;
                self.unsent.drain(..sent);
            }
            loop {
                let ended = || std::io::Error::new(std::io::ErrorKind::UnexpectedEof, "it has ended");
                let answer = self.answers.next_line().await?.ok_or_else(ended)?;
                self.owed -= 1;
                if self.owed == 0 {
                    return Ok(answer);
                }
            }
        };
        tokio::time::timeout(patience, asked).await.ok().transpose()
    }
}

impl State {
    /// Has the keeper do something.
    async fn order(&mut self, order: &Order) -> Said {
        let Some(keeper) = self.keeper.as_mut() else { return Said::Failed };
        match keeper.ask(order, self.patience).await {
            Ok(Some(answer)) => match answer.strip_prefix("error ") {
                None => Said::Done(answer),
                Some(why) => {
                    if !std::mem::replace(&mut self.said, true) {
                        tracing::warn!("a volume's block device: {why}");
                    }
                    Said::Failed
                }
            },
            Ok(None) => {
                tracing::warn!("the keeper of volumes' devices does not answer in time to {order:?}");
                Said::Late
            }
            Err(e) => {
                tracing::error!("the keeper of volumes' devices: {e}: another follows with the next device");
                self.keeper = None;
                self.shown.clear();
                Said::Failed
            }
        }
    }

    fn below(&self, top: &str) -> Vec<String> {
        self.shown.keys().filter(|n| is_below(n, top)).cloned().collect()
    }
}

/// The dataset itself, what is below it, and snapshots of both.
fn is_below(name: &str, top: &str) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
}

impl Pool {
    async fn device_of(self: &Arc<Self>, ds: &DatasetRef) -> Result<Option<Shown>> {
        if !self.is_offered(ds).await? || ds.is_locked().await? {
            return Ok(None);
        }
        let settings = Settings::of(ds).await?;
        let used = self.use_volume(ds).await?;
        let (size, readonly) = (used.volume.size()?, used.volume.is_readonly()?);
        Ok(Some(Shown {
            id: ds.id(),
            size,
            readonly,
            scan: settings.num("volmode") != ZFS_VOLMODE_DEV,
            sure: true,
        }))
    }

    /// How what lies below a name is to be shown.
    async fn devices_below(self: &Arc<Self>, top: &str) -> BTreeMap<String, Shown> {
        let mut out = BTreeMap::new();
        let head = top.split('@').next().unwrap_or(top);
        let mut dirs = match self.zilla.dir_by_name(head).await {
            Ok(dir) => vec![dir],
            // It is gone, and so are its devices.
            Err(_) => Vec::new(),
        };
        while let Some(dir) = dirs.pop() {
            // What is damaged has no device; the others have.
            if let Err(e) = self.devices_in(&dir, &mut dirs, &mut out).await {
                tracing::warn!("no block devices for what '{}' holds: {e}", dir.name());
            }
        }
        out
    }

    /// The same of one directory; those below it are added to `dirs`.
    async fn devices_in(
        self: &Arc<Self>,
        dir: &DatasetDir,
        dirs: &mut Vec<DatasetDir>,
        out: &mut BTreeMap<String, Shown>,
    ) -> Result<()> {
        dirs.extend(dir.children().await?);
        if !dir.has_head() {
            return Ok(());
        }
        let head = dir.head().await?;
        if !head.is_volume().await? {
            return Ok(());
        }
        let mut all = head.snapshots().await?;
        all.push(head);
        for ds in all {
            // The name is what a disk says, which may be a stranger's, and becomes a path that root
            // follows.
            if let Err(e) = zilla_control::props::naming::check_entity(&ds.name()) {
                let why = e.description();
                tracing::warn!("a volume gets no block device, for its name {:?}: {why}", ds.name());
                continue;
            }
            match self.device_of(&ds).await {
                Ok(Some(shown)) => drop(out.insert(ds.name(), shown)),
                Ok(None) => {}
                Err(e) => tracing::warn!("'{}' gets no block device: {e}", ds.name()),
            }
        }
        Ok(())
    }
}

impl Engine {
    /// Makes the devices of a dataset and of all below it what they should be. Where that takes a
    /// new keeper it knows of no others: they are shown too.
    pub(super) async fn show_devices(&self, top: &str) {
        if self.show_below(top).await {
            let pools: Vec<String> = self.pools.read().keys().cloned().collect();
            for pool in pools {
                self.show_below(&pool).await;
            }
        }
    }

    /// Whether a keeper began.
    async fn show_below(&self, top: &str) -> bool {
        let Some(devices) = &self.devices else { return false };
        let Ok(pool) = self.pool_of(top) else { return false };
        // To open a volume may wait for its pool, if that is suspended. Other pools' devices are
        // not to wait with it.
        let _one = pool.showing.lock().await;
        let (wanted, mut state) = loop {
            let moved = devices.state.lock().await.moved;
            // Of a pool that is suspended they are shown when it is cleared.
            let Ok(wanted) = pool.unless_suspended(pool.devices_below(top)).await else { return false };
            let state = devices.state.lock().await;
            if state.moved == moved {
                break (wanted, state);
            }
        };
        // It may have been exported meanwhile.
        if !self.pool_of(top).is_ok_and(|now| Arc::ptr_eq(&now, &pool)) {
            return false;
        }
        for name in state.below(top) {
            let Some(is) = state.shown.get(&name).copied() else { continue };
            let to_be = wanted.get(&name).copied();
            let order = match to_be {
                Some(to_be) if to_be == is => continue,
                // It is asked for again below.
                Some(_) if !is.sure => {
                    state.shown.remove(&name);
                    continue;
                }
                Some(to_be) if (Shown { size: is.size, ..to_be }) == is => Order::Resize(name.clone()),
                _ => Order::Detach(name.clone(), to_be.is_none()),
            };
            match (state.order(&order).await, order, to_be) {
                (Said::Done(_), Order::Resize(_), Some(to_be)) => drop(state.shown.insert(name, to_be)),
                // What is in use stays as it is.
                (Said::Done(answer), Order::Detach(..), Some(_)) if answer == "busy" => {}
                (_, Order::Detach(..), _) => drop(state.shown.remove(&name)),
                _ => {}
            }
        }
        let new: Vec<(String, Shown)> =
            wanted.into_iter().filter(|(name, _)| !state.shown.contains_key(name)).collect();
        let had = state.keeper.is_some();
        if new.is_empty() || !self.have_keeper(devices, &mut state).await {
            return false;
        }
        for (name, shown) in new {
            let file = self.handle.state_dir().zvol_dir().join(&name).to_string_lossy().into_owned();
            match state.order(&Order::Attach(name.clone(), file, shown.readonly, shown.scan)).await {
                Said::Done(_) => drop(state.shown.insert(name, shown)),
                Said::Late => drop(state.shown.insert(name, Shown { sure: false, ..shown })),
                Said::Failed => {}
            }
        }
        !had
    }

    /// What can be attached to is there, and who attaches.
    async fn have_keeper(&self, devices: &Devices, state: &mut State) -> bool {
        if state.keeper.is_some() {
            return true;
        }
        let begun = async {
            if !std::path::Path::new("/dev/loop-control").exists() {
                return Err("this machine has no loop devices ('/dev/loop-control')".to_owned());
            }
            let files = self.handle.state_dir().zvol_dir();
            let mut command = Command::new("/proc/self/exe");
            command.arg0("zillad").arg(keeper::WORD).arg(&devices.links).arg(files);
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).current_dir("/");
            let child = command.spawn().map_err(|e| format!("its keeper cannot be started: {e}"))?;
            let mut keeper = Keeper::new(child).ok_or("its keeper has no pipes")?;
            // First it clears up what a crash has left, which it knows by the mount that still lies
            // there.
            let ready = tokio::time::timeout(PATIENCE, keeper.answers.next_line()).await;
            if !matches!(ready, Ok(Ok(Some(word))) if word == keeper::READY) {
                return Err("its keeper does not begin".to_owned());
            }
            let mounted = self.volume_directory(VolumeFiles {}).await;
            mounted.map_err(|e| e.description().to_string())?;
            Ok(keeper)
        };
        match begun.await {
            Ok(keeper) => {
                state.keeper = Some(keeper);
                true
            }
            Err(why) => {
                if !std::mem::replace(&mut state.said, true) {
                    tracing::warn!("volumes get no block devices: {why}");
                }
                false
            }
        }
    }

    /// Takes away the devices of `names`, before their volumes go. With `force` even what is in
    /// use; otherwise that is refused.
    pub(super) async fn hide_devices(&self, pool: &Pool, names: &[String], force: bool) -> Answer<()> {
        let Some(devices) = &self.devices else { return Ok(()) };
        let mut state = devices.state.lock().await;
        state.moved += 1;
        for name in names {
            let Some(shown) = state.shown.get(name).copied() else { continue };
            let answer = state.order(&Order::Detach(name.clone(), force)).await;
            if answer == Said::Done("busy".to_owned()) && !force {
                return Err(ApiError::with(ErrorCode::Busy, "dataset is busy").subject(name));
            }
            state.shown.remove(name);
            pool.wait_until_closed(shown.id, CLOSING, POLL).await;
        }
        Ok(())
    }

    /// The names of a pool's devices, or of those below a dataset.
    pub(super) async fn devices_shown(&self, top: &str) -> Vec<String> {
        match &self.devices {
            Some(devices) => devices.state.lock().await.below(top),
            None => Vec::new(),
        }
    }

    /// Before a volume becomes another, or cannot be read any more. What is in use stays.
    pub(super) async fn withdraw_devices(&self, pool: &Pool, top: &str) {
        for name in self.devices_shown(top).await {
            if let Err(e) = self.hide_devices(pool, &[name], false).await {
                tracing::debug!("{e}: its device is in use and stays");
            }
        }
    }

    /// After a rename: devices in use go on under the new name, the others are made anew.
    pub(super) async fn move_devices(&self, pool: &Pool, from: &str, to: &str) {
        let Some(devices) = &self.devices else { return };
        for name in self.devices_shown(from).await {
            if self.hide_devices(pool, std::slice::from_ref(&name), false).await.is_ok() {
                continue;
            }
            let new = format!("{to}{}", name.strip_prefix(from).unwrap_or_default());
            let mut state = devices.state.lock().await;
            state.moved += 1;
            state.order(&Order::Move(name.clone(), new.clone())).await;
            if let Some(shown) = state.shown.remove(&name) {
                state.shown.insert(new, shown);
            }
        }
        self.show_devices(to).await;
    }

    /// Detaches all, while volumes are still served.
    pub(super) async fn leave_devices(&self) {
        let Some(devices) = &self.devices else { return };
        let mut state = devices.state.lock().await;
        state.moved += 1;
        state.shown.clear();
        let Some(Keeper { mut child, orders, .. }) = state.keeper.take() else { return };
        drop(orders);
        if tokio::time::timeout(PATIENCE, child.wait()).await.is_err() {
            tracing::warn!("volumes' devices are still being detached");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that answers the first order when it has the second.
    #[tokio::test]
    async fn an_answer_that_comes_late_costs_no_device() {
        let attach = |name: &str| Order::Attach(name.into(), "/f".into(), false, false);
        let (first, second) = (attach("a/v"), attach("a/w"));
        let taken = first.bytes().len() + second.bytes().len();
        let script = format!("head -c {taken} >/dev/null; echo ok late; echo ok second; cat >/dev/null");
        let mut command = Command::new("sh");
        let child =
            command.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let other = Shown { id: 1, size: 1, readonly: false, scan: false, sure: true };
        let mut state = State { keeper: Keeper::new(child), ..State::default() };
        state.shown.insert("b/v".into(), other);
        state.patience = Duration::from_millis(20);
        assert_eq!(state.order(&first).await, Said::Late);
        state.patience = Duration::from_secs(3600);
        assert_eq!(state.order(&second).await, Said::Done("ok second".into()));
        assert_eq!(state.keeper.as_ref().unwrap().owed, 0);
        assert_eq!(state.below("b"), ["b/v"]);

        let mut ended = Command::new("true");
        let child = ended.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        state.keeper = Keeper::new(child);
        assert_eq!(state.order(&first).await, Said::Failed);
        assert!(state.keeper.is_none() && state.shown.is_empty());
    }

    #[test]
    fn a_tree_is_its_datasets_and_their_snapshots() {
        assert!(is_below("a/v", "a/v") && is_below("a/v@s", "a/v") && is_below("a/v/w@s", "a/v"));
        assert!(!is_below("a/vw", "a/v") && !is_below("a", "a/v"));
    }
}
