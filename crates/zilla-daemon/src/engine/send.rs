//! `zfs send`: which snapshots a stream or package has, in which order, and what it says of them.
//!
//! A package (`-R`, `-I`, `-p`, `-h`, `-b`) begins with a list of its datasets, by guid, with their
//! snapshots and properties; then come the streams, a dataset after the one its origin is in.
//! Everything that will be sent is held before the first byte goes out, so that nobody destroys it
//! half-way. A dataset that lacks a snapshot is told to the client and passed over, and the command
//! fails at its end.

use super::errors::{Answer, of, of_dataset};
use super::leftout;
use super::pool::Pool;
use super::streams::{Stream, Told, Writer};
use super::{Engine, Serves};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use zilla::Value;
use zilla::stored::PropSource;
use zilla::streams::{From, RecordWriter, Redaction, SendOpts, Sink, Special};
use zilla::tree::{DatasetRef, Hold};
use zilla_control::props::{self, PropKind, naming, nicenum::nicebytes};
use zilla_control::types::StreamSend;
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::stream::{Begin, DMU_COMPOUNDSTREAM, Record, feature};
use zilla_ondisk::{NvList, NvValue};

/// How long one waits for those who still use a head before it is called busy.
const LINGERING: Duration = Duration::from_secs(5);

/// So long may a guest's pipe take nothing.
const GUEST_PATIENCE: Duration = Duration::from_secs(600);

/// How often a client is told how far a stream has come.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// One stream of the package.
pub(super) struct Step {
    pub snap: DatasetRef,
    pub from: Option<(From, String)>,
    /// The snapshot it starts from, unless that is a bookmark.
    pub from_snap: Option<DatasetRef>,
    pub opts: SendOpts,
    pub special: Special,
    pub _held: Hold,
}

pub(super) fn failed(what: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::Stream, what)
}

fn value(name: &str, v: &Value) -> Option<NvValue> {
    let text = match props::dataset_prop(name) {
        Some(desc) => matches!(desc.kind, PropKind::String),
        None => true,
    };
    match text {
        true => v.as_str().map(NvValue::from),
        false => v.as_u64().map(NvValue::from),
    }
}

fn is_sent(name: &str) -> bool {
    props::is_user_prop(name) || props::dataset_prop(name).is_some_and(|p| !p.readonly())
}

impl Pool {
    /// The properties of a dataset or snapshot that its package has: those that were set here, or
    /// received.
    pub(super) async fn props_to_send(&self, ds: &DatasetRef, backup: bool) -> Answer<NvList> {
        let mut out = NvList::new();
        if backup {
            for (name, v) in ds.received_properties().await.map_err(of_dataset)? {
                if let Some(v) = value(&name, &v).filter(|_| is_sent(&name)) {
                    out.add(name, v);
                }
            }
            return Ok(out);
        }
        for (name, p) in ds.properties().await.map_err(of_dataset)? {
            let own = matches!(p.source, PropSource::Local | PropSource::Received);
            if let Some(v) = value(&name, &p.value).filter(|_| own && is_sent(&name)) {
                out.add(name, v);
            }
        }
        Ok(out)
    }

    /// What a package says of one dataset.
    async fn package_entry(
        &self,
        r: &StreamSend,
        head: &DatasetRef,
        tosnap: &DatasetRef,
        parent_from: u64,
    ) -> Answer<NvList> {
        let mut fs = NvList::new();
        fs.add("name", head.name()).add("parentfromsnap", parent_from);
        let with_props = r.properties || r.backup || r.replicate;
        let told = with_props || r.holds;
        if head.dir().is_clone() && r.replicate {
            let origin = head.dir().origin().await.map_err(of_dataset)?;
            fs.add("origin", origin.guid());
        }
        if let Some(root) = head.dir().encryption_root().await.map_err(of_dataset)?.filter(|_| told) {
            // A receiver could not ask for the new keys that a tree of plain ones would need.
            if !r.raw {
                let (name, snap) = (head.name(), tosnap.snapshot_name());
                return Err(failed(format!(
                    "cannot send {name}@{snap}: encrypted dataset {name} may not be sent with properties without \
                     the raw flag"
                )));
            }
            if root.id() == head.dir().id() {
                fs.add_flag("is_encroot");
            }
        }
        if with_props {
            fs.add("props", self.props_to_send(head, r.backup).await?);
        }
        let (mut snaps, mut snapprops, mut holds) = (NvList::new(), NvList::new(), NvList::new());
        for s in head.snapshots().await.map_err(of_dataset)? {
            if s.created_txg() > tosnap.created_txg()
                || (!r.replicate && !r.intermediates && s.id() != tosnap.id())
            {
                continue;
            }
            snaps.add(s.snapshot_name(), s.guid());
            if with_props {
                snapprops.add(s.snapshot_name(), self.props_to_send(&s, r.backup).await?);
            }
            if r.holds {
                // A snapshot without holds is told too: OpenZFS's `zfs receive` aborts where one is
                // missing.
                let tags = s.holds().await.map_err(of_dataset)?;
                let tags: NvList = tags.into_iter().map(|(tag, time)| (tag, NvValue::from(time))).collect();
                holds.add(s.snapshot_name(), tags);
            }
        }
        fs.add("snaps", snaps);
        if with_props {
            fs.add("snapprops", snapprops);
        }
        if r.holds {
            fs.add("snapholds", holds);
        }
        Ok(fs)
    }

    /// What a stream starts from: a snapshot of the dataset, its origin, or a bookmark.
    async fn source(
        &self,
        fs: &DatasetRef,
        snap: &DatasetRef,
        name: &str,
    ) -> Answer<(From, Option<DatasetRef>, Redaction)> {
        let not_earlier = || {
            let what = "not an earlier snapshot from the same fs";
            ApiError::with(ErrorCode::CrossTarget, what).subject(snap.name())
        };
        if let Some((of_fs, mark)) = name.split_once('#') {
            let head = self.zilla.by_name(of_fs).await.map_err(of(of_fs))?;
            let all = head.bookmarks_on_disk().await.map_err(of_dataset)?;
            let missing = || ApiError::new(ErrorCode::NoSource).subject(name);
            let (_, b) = all.into_iter().find(|(n, _)| n == mark).ok_or_else(missing)?;
            let from = match b.redaction_obj {
                0 => None,
                _ => Some(Arc::new(self.zilla.redaction_list(&b).await.map_err(|e| failed(e.to_string()))?)),
            };
            // What was left out of this very snapshot can be told afterwards.
            let again = from.is_some() && b.guid == snap.guid();
            let earlier = snap.is_after(&head, b.creation_txg).await.map_err(of_dataset)?;
            let newer = snap.is_snapshot() && b.creation_txg >= snap.created_txg();
            if !again && (newer || !earlier) {
                return Err(not_earlier());
            }
            let is_clone = head.dir().id() != fs.dir().id();
            let redaction = Redaction { from, ..Redaction::default() };
            return Ok((From { guid: b.guid, txg: b.creation_txg, is_clone }, None, redaction));
        }
        let from = self.zilla.by_name(name).await.map_err(|e| match e.is(zilla::error::Errno::NoEnt) {
            true => ApiError::new(ErrorCode::NoSource).subject(name),
            false => of_dataset(e),
        })?;
        let mut at = Some(snap.clone());
        while let Some(s) = at {
            at = s.prev().await.map_err(of_dataset)?;
            if at.as_ref().is_some_and(|p| p.id() == from.id()) {
                let is_clone = from.dir().id() != snap.dir().id();
                let redaction = Redaction { from_snaps: from.redact_snaps(), ..Redaction::default() };
                return Ok((
                    From { guid: from.guid(), txg: from.created_txg(), is_clone },
                    Some(from),
                    redaction,
                ));
            }
        }
        Err(not_earlier())
    }
}

impl Serves<StreamSend> for Engine {
    async fn serve(&self, caller: &Caller, r: StreamSend) -> Answer<()> {
        let taken = self.streams.take(&r.stream, caller)?;
        let told = taken.told();
        let opts = SendOpts {
            large_blocks: r.large_blocks,
            embed: r.embed,
            compressed: r.compressed,
            raw: r.raw,
            ..SendOpts::default()
        };
        let mut missing = false;
        let (pool, steps, package) = match &r.token {
            _ if r.saved => {
                let (pool, step) = self.saved_so_far(&r).await?;
                (pool, vec![step], None)
            }
            Some(text) => {
                let (pool, step) = self.resumed(text).await?;
                (pool, vec![step], None)
            }
            None => {
                let pool = self.pool_of(&r.snapshot)?;
                let planned = self.plan(&pool, &r, opts, &told, &mut missing).await;
                // A volume's device may be away.
                if planned.is_err() && !r.snapshot.contains('@') {
                    self.show_devices(&r.snapshot).await;
                }
                let (steps, package) = planned?;
                (pool, steps, package)
            }
        };
        let heads = steps.iter().filter(|s| !r.saved && !s.snap.is_snapshot());
        let heads: Vec<String> = heads.map(|s| s.snap.name()).collect();
        let done = self.send_planned(caller, &pool, &r, (steps, package), taken).await;
        for head in heads {
            self.show_devices(&head).await;
        }
        done?;
        if missing { Err(failed("some datasets could not be sent")) } else { Ok(()) }
    }
}

impl Engine {
    async fn send_planned(
        &self,
        caller: &Caller,
        pool: &Arc<Pool>,
        r: &StreamSend,
        (steps, package): (Vec<Step>, Option<NvList>),
        taken: Stream,
    ) -> Answer<()> {
        let told = taken.told();
        self.tell_sizes(r, &steps, &told).await?;
        if r.dry_run {
            return Ok(());
        }
        // As long as it goes on, nobody destroys the snapshot.
        let mut out = taken.writer(if caller.owner { None } else { Some(GUEST_PATIENCE) })?;
        let sent = self.send_all(r, &steps, package, &told, &mut out).await;
        let written = out.finish().await;
        let done = sent.and(written.map_err(of_stream));
        // As with OpenZFS, where only what holds the snapshots meanwhile is written down.
        let holds = r.replicate || r.intermediates;
        if let Some(line) = caller.command.as_ref().filter(|_| holds && done.is_ok() && !pool.readonly()) {
            self.log(pool, caller, line).await;
        }
        done
    }

    /// Which streams there will be, and what the package says of them.
    async fn plan(
        &self,
        pool: &Arc<Pool>,
        r: &StreamSend,
        opts: SendOpts,
        told: &Told,
        missing: &mut bool,
    ) -> Answer<(Vec<Step>, Option<NvList>)> {
        naming::check_dataset_name(&r.snapshot, props::HEADS | props::SNAP, false)?;
        let snap = pool.zilla.by_name(&r.snapshot).await.map_err(of(&r.snapshot))?;
        let tosnap = snap.snapshot_name();
        let head = snap.dir().head().await.map_err(of_dataset)?;
        let packaged = r.replicate || r.intermediates || r.properties || r.backup || r.holds;
        if !snap.is_snapshot() && packaged {
            return Err(failed("argument must be a snapshot"));
        }
        if !packaged {
            let still = match snap.is_snapshot() {
                true => None,
                false if r.redact.is_some() => {
                    let what = "cannot do a redacted send to a filesystem";
                    return Err(ApiError::with(ErrorCode::BadType, what));
                }
                false if r.dry_run => Some(snap.hold()),
                false => Some(self.still(pool, &snap).await?),
            };
            let mut step = match &r.from {
                None => step(&snap, None, None, opts),
                Some(name) => {
                    let (from, from_snap, redaction) = pool.source(&head, &snap, name).await?;
                    let of = step(&snap, Some((from, name.clone())), from_snap, opts);
                    Step { special: Special { redaction, ..Special::default() }, ..of }
                }
            };
            if let Some(held) = still {
                step._held = held;
            }
            if let Some(mark) = &r.redact {
                step.special.redaction.list = Some(pool.redaction_of(&head, &snap, mark).await?);
            }
            return Ok((vec![step], None));
        }
        if r.from.as_ref().is_some_and(|f| f.contains('#')) && (r.replicate || r.intermediates) {
            return Err(failed("-R and -I need a snapshot to start from, not a bookmark"));
        }
        let fromsnap = r.from.as_ref().and_then(|f| f.split_once(['@', '#'])).map(|(_, s)| s.to_owned());
        let all = r.intermediates || (r.replicate && r.from.is_none());
        let (mut steps, mut list, mut left_out) = (Vec::new(), NvList::new(), NvList::new());
        let mut todo = vec![(head.dir(), 0u64)];
        let mut heads: Vec<(DatasetRef, DatasetRef)> = Vec::new();
        while let Some((dir, parent_from)) = todo.pop() {
            let name = dir.name();
            if r.exclude.contains(&name) {
                leftout::note(dir, &mut left_out).await?;
                continue;
            }
            let fs = dir.head().await.map_err(of(&name))?;
            let mut here = parent_from;
            match fs.snapshot(&tosnap).await.map_err(of_dataset)? {
                Some(to) => {
                    let wanted = fromsnap.as_deref().unwrap_or(&tosnap);
                    if let Some(from) = fs.snapshot(wanted).await.map_err(of_dataset)? {
                        here = from.guid();
                    }
                    let described = pool.package_entry(r, &fs, &to, parent_from).await?;
                    list.add(format!("{:#x}", fs.guid()), described);
                    heads.push((fs.clone(), to));
                }
                None if r.skip_missing => {
                    told.err(format!(
                        "WARNING: skipping dataset {name} and its children: snapshot {tosnap} does not exist"
                    ));
                    leftout::note(dir, &mut left_out).await?;
                    continue;
                }
                // It is younger than what is sent, and no receiver of that has it.
                None if fs.created_txg() > snap.created_txg() => {
                    if r.verbose > 0 {
                        told.err(format!("skipping dataset {name}: snapshot {tosnap} does not exist"));
                    }
                    // But one that is being received may be known to a receiver from before.
                    if fs.is_inconsistent() {
                        leftout::note(dir, &mut left_out).await?;
                    }
                    continue;
                }
                // Whoever receives with -F what lacks it would destroy his own.
                None => {
                    return Err(failed(format!(
                        "cannot send {} recursively: snapshot {name}@{tosnap} does not exist",
                        r.snapshot
                    )));
                }
            }
            if r.replicate {
                let mut below = dir.children().await.map_err(of_dataset)?;
                below.reverse();
                todo.extend(below.into_iter().map(|d| (d, here)));
            }
        }
        // A clone comes after what it was made from, if that is sent too.
        let mut sent: BTreeSet<u64> = BTreeSet::new();
        let members: BTreeSet<u64> = heads.iter().map(|(fs, _)| fs.dir().id()).collect();
        while !heads.is_empty() {
            let mut later = Vec::new();
            let before = heads.len();
            for (fs, to) in heads {
                let origin = match fs.dir().is_clone() {
                    true => Some(fs.dir().origin().await.map_err(of_dataset)?),
                    false => None,
                };
                let of_member = origin.as_ref().map(|o| o.dir().id()).filter(|id| members.contains(id));
                if of_member.is_some_and(|id| !sent.contains(&id)) {
                    later.push((fs, to));
                    continue;
                }
                let so_far = steps.len();
                self.steps_of(pool, r, &fs, &to, (fromsnap.as_deref(), all), origin, opts, &mut steps)
                    .await?;
                if let (true, Some(from)) = (so_far == steps.len(), &fromsnap) {
                    let name = fs.name();
                    told.err(format!("WARNING: could not send {name}@{tosnap}:"));
                    told.err(format!("incremental source ({name}@{from}) is not earlier than it"));
                    *missing = true;
                }
                sent.insert(fs.dir().id());
            }
            if later.len() == before {
                return Err(failed("datasets are each other's origin"));
            }
            heads = later;
        }
        let mut package = NvList::new();
        if let Some(from) = &fromsnap {
            package.add("fromsnap", from.as_str());
        }
        package.add("tosnap", tosnap.as_str());
        if !r.replicate {
            package.add_flag("not_recursive");
        }
        // The flag has OpenZFS's `zfs receive` give the datasets their sender's encryption roots,
        // for which their properties must be in the package.
        if r.raw && (r.replicate || r.properties || r.backup) {
            package.add_flag("raw");
        }
        package.add("fss", list);
        leftout::seal(left_out, &mut package);
        // `-I` alone says nothing of what it has.
        let told_of = r.replicate || r.properties || r.backup || r.holds;
        Ok((steps, Some(if told_of { package } else { NvList::new() })))
    }

    /// Holds a head that is to be sent as it is on disk. In a pool that is written nobody may use
    /// it: a file system must not be mounted; a volume's device, if nobody has it open, is away
    /// until the stream has ended.
    pub(super) async fn still(&self, pool: &Arc<Pool>, head: &DatasetRef) -> Answer<Hold> {
        if pool.readonly() {
            return Ok(head.hold());
        }
        let name = head.name();
        let busy = || {
            let what = "target is busy; if a filesystem, it must not be mounted";
            ApiError::with(ErrorCode::Busy, what).subject(&name)
        };
        if head.is_inconsistent() || pool.mounted_at(&name).is_some() {
            return Err(busy());
        }
        // Where its device is in use, so is the volume.
        if let Err(e) = self.hide_devices(pool, std::slice::from_ref(&name), false).await {
            tracing::debug!("{e}: its device stays");
        }
        // What a mount began in the background may end a little after it.
        let _ = tokio::time::timeout(LINGERING, head.unheld()).await;
        let held = head.hold_alone().ok_or_else(busy)?;
        pool.zilla.sync().await.map_err(of_dataset)?;
        Ok(held)
    }

    /// The streams of one dataset of a package.
    #[expect(clippy::too_many_arguments, reason = "what a package is made of")]
    async fn steps_of(
        &self,
        pool: &Pool,
        r: &StreamSend,
        fs: &DatasetRef,
        to: &DatasetRef,
        (fromsnap, all): (Option<&str>, bool),
        origin: Option<DatasetRef>,
        opts: SendOpts,
        out: &mut Vec<Step>,
    ) -> Answer<()> {
        let snaps = fs.snapshots().await.map_err(of_dataset)?;
        let until = to.created_txg();
        let by_name = fromsnap.and_then(|name| snaps.iter().find(|s| s.snapshot_name() == name).cloned());
        let mut list: Vec<_> = snaps.into_iter().filter(|s| s.created_txg() <= until).collect();
        // (The one that is sent from the first dataset may be of another name or dataset: its
        // origin.)
        let named = match (&r.from, fs.name() == r.snapshot.split('@').next().unwrap_or_default()) {
            (Some(f), true) => match pool.source(fs, to, f).await {
                // Of several it is the matter of one.
                Err(e) if e.code == ErrorCode::CrossTarget && (r.replicate || r.intermediates) => {
                    return Ok(());
                }
                found => Some(found?),
            },
            _ => None,
        };
        let mut redaction = None;
        let mut from: Option<(From, String, Option<DatasetRef>)> = match named {
            Some((f, s, left_out)) => {
                redaction = Some(left_out);
                Some((f, r.from.clone().unwrap_or_default(), s))
            }
            None => by_name.map(|s| {
                let txg = s.created_txg();
                (From { guid: s.guid(), txg, is_clone: false }, s.name(), Some(s))
            }),
        };
        if let Some((f, ..)) = &from {
            list.retain(|s| s.created_txg() > f.txg);
        } else if let Some(o) = origin.filter(|_| r.replicate) {
            let f = From { guid: o.guid(), txg: o.created_txg(), is_clone: true };
            from = Some((f, o.name(), Some(o)));
        }
        // A dataset that is new since the package's start is sent with all it has.
        let new = fromsnap.is_some() && from.is_none();
        if !(all || new && r.replicate) {
            list.retain(|s| s.id() == to.id());
        }
        for s in list {
            let (f, from_snap) = match from {
                Some((f, name, snap)) => (Some((f, name)), snap),
                None => (None, None),
            };
            let next = From { guid: s.guid(), txg: s.created_txg(), is_clone: false };
            from = Some((next, s.name(), Some(s.clone())));
            let mut next = step(&s, f, from_snap, opts);
            if let Some(redaction) = redaction.take() {
                next.special.redaction = redaction;
            }
            if let Some(mark) = &r.redact {
                next.special.redaction.list = Some(pool.redaction_of(fs, &s, mark).await?);
            }
            out.push(next);
        }
        Ok(())
    }

    /// `-n`, `-v`, `-P`: how much it will be.
    async fn tell_sizes(&self, r: &StreamSend, steps: &[Step], told: &Told) -> Answer<()> {
        if r.verbose == 0 {
            return Ok(());
        }
        let say = |text: String| if r.dry_run { told.out(text) } else { told.err(text) };
        let mut total = 0u64;
        for s in steps {
            let size = s.size().await?;
            total += size;
            let name = s.snap.name();
            // Within one dataset OpenZFS names what it starts from by its last part.
            let from = s.from.as_ref().map(|(f, from)| match from.split_once('@') {
                Some((_, last)) if !f.is_clone => format!("@{last}"),
                _ => from.clone(),
            });
            let plain = |f: &str| f.trim_start_matches('@').to_owned();
            say(match (r.parsable, from) {
                (true, Some(f)) => format!("incremental\t{}\t{name}\t{size}", plain(&f)),
                (true, None) => format!("full\t{name}\t{size}"),
                (false, Some(f)) => {
                    format!("send from {f} to {name} estimated size is {}", nicebytes(size))
                }
                (false, None) => format!("full send of {name} estimated size is {}", nicebytes(size)),
            });
        }
        say(match r.parsable {
            true => format!("size\t{total}"),
            false => format!("total estimated size is {}", nicebytes(total)),
        });
        Ok(())
    }

    async fn send_all(
        &self,
        r: &StreamSend,
        steps: &[Step],
        package: Option<NvList>,
        told: &Told,
        out: &mut Writer,
    ) -> Answer<()> {
        let packaged = package.is_some();
        if let Some(list) = package {
            send_head(r, list, out).await.map_err(of_stream)?;
        }
        let mut _title = None;
        if r.title {
            let mut total = 0u64;
            for s in steps {
                total += s.size().await?;
            }
            _title = Some(tell_title(total, out, told));
        }
        for s in steps {
            let _progress = (r.verbose > 0).then(|| self.tell_progress(r, &s.snap, out, told));
            s.snap.send(&s.opts, &s.special, out).await.map_err(of_stream)?;
        }
        if packaged {
            RecordWriter::end_of_all(out).await.map_err(of_stream)?;
        }
        Ok(())
    }

    fn tell_progress(&self, r: &StreamSend, snap: &DatasetRef, out: &Writer, told: &Told) -> Telling {
        let (sent, told, name, parsable) = (out.sent.clone(), told.clone(), snap.name(), r.parsable);
        let before = sent.load(Ordering::Relaxed);
        Telling(tokio::spawn(async move {
            if !parsable {
                told.err(format!("TIME        SENT   SNAPSHOT {name}"));
            }
            loop {
                tokio::time::sleep(TELL_EVERY).await;
                let bytes = sent.load(Ordering::Relaxed) - before;
                // The client puts its own time there.
                let now = zilla_control::handover::LOCAL_TIME;
                told.err(match parsable {
                    true => format!("{now}\t{bytes}\t{name}"),
                    false => format!("{now}   {:>5}   {name}", nicebytes(bytes)),
                });
            }
        }))
    }
}

/// Says something each second for as long as there is one.
struct Telling(tokio::task::JoinHandle<()>);

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Says each second how far all is, in as few letters as a process has for its name.
fn tell_title(total: u64, out: &Writer, told: &Told) -> Telling {
    let (sent, told) = (out.sent.clone(), told.clone());
    Telling(tokio::spawn(async move {
        loop {
            let bytes = sent.load(Ordering::Relaxed);
            let part = u128::from(bytes) * 100 / u128::from(total.max(1));
            told.title(format!("{}% {}/{}", part.min(100), nicebytes(bytes), nicebytes(total)));
            tokio::time::sleep(TELL_EVERY).await;
        }
    }))
}

impl Step {
    /// About how long its stream is.
    async fn size(&self) -> Answer<u64> {
        let size = self.snap.send_size(self.from_snap.as_ref(), &self.opts, &self.special);
        size.await.map_err(of_dataset)
    }
}

fn step(
    snap: &DatasetRef,
    from: Option<(From, String)>,
    from_snap: Option<DatasetRef>,
    opts: SendOpts,
) -> Step {
    let opts = SendOpts { from: from.as_ref().map(|f| f.0), ..opts };
    // What was received redacted is known to be so by whoever has it.
    let from_snaps = from_snap.as_ref().and_then(|s| s.redact_snaps());
    let redaction = Redaction { from_snaps, ..Redaction::default() };
    let special = Special { redaction, ..Special::default() };
    Step { snap: snap.clone(), from, from_snap, opts, special, _held: snap.hold() }
}

/// What a package says of itself.
async fn send_head(r: &StreamSend, list: NvList, out: &mut dyn Sink) -> zilla::error::Result<()> {
    let payload = if list.is_empty() { Vec::new() } else { list.pack() };
    let begin = Begin {
        versioninfo: Begin::version(DMU_COMPOUNDSTREAM, if r.holds { feature::HOLDS } else { 0 }),
        toname: r.snapshot.clone(),
        payloadlen: u32::try_from(payload.len()).unwrap_or(0),
        ..Begin::default()
    };
    let mut w = RecordWriter::new(out);
    w.record(&Record::Begin(begin), payload.into()).await?;
    w.end_of_package().await
}

/// Of a stream that could not be written, or not be read from the pool.
fn of_stream(e: zilla::error::Error) -> ApiError {
    use zilla::error::Errno;
    match e.errno() {
        Errno::NotSup => ApiError::with(ErrorCode::Unsupported, e.to_string()),
        Errno::Intr => ErrorCode::Intr.into(),
        _ => ApiError::with(ErrorCode::Io, e.to_string()),
    }
}
