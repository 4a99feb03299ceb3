//! `zfs receive`: where each stream of a package goes, with which properties, and what is mounted
//! meanwhile and after.
//!
//! The engine makes a stream a snapshot whole or not at all ([`zilla::streams`]). Here is what
//! people see around it: names, properties of the package, the words for what went wrong, and the
//! file system that is unmounted for the moment in which its contents change.
//!
//! A client that dies ends the stream, and the receive with it. A stream of a package that fails
//! ends the package: what came before stays.

use super::access::{is_mounted, mounts_by_itself, not_by_itself, who};
use super::errors::{Answer, of, of_dataset};
use super::follow::is_below;
use super::followkeys::RawKeys;
use super::onto::{is_resumed, makes_new};
use super::pool::Pool;
use super::received::{check_names, settings};
use super::streams::{Reader, Told};
use super::{Engine, Serves, onto};
use futures_util::stream::{StreamExt, iter};
use std::collections::HashSet;
use std::sync::Arc;
use zilla::error::{Errno, Error};
use zilla::stored::Setting;
use zilla::streams::{ReceiveOpts, Receiving, RecordReader, check_features, raw_key, unread};
use zilla::tree::DatasetRef;
use zilla_control::props::{self, naming};
use zilla_control::types::{ReceiveAbort, StreamReceive};
use zilla_control::{ApiError, Caller, ErrorCode};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::stream::{Begin, DMU_COMPOUNDSTREAM, Record};
use zilla_ondisk::{NvList, NvValue};

/// Tags of a snapshot that are put on it in one txg, whoever sent how many.
const HELD_TOGETHER: usize = 256;
/// Bytes that the beginning of a guest's stream may have: the list of a package of some ten
/// thousand snapshots. (Unpacked it takes several times that, for as long as he lets it.)
const GUEST_BEGIN: usize = 4 << 20;

/// One stream: what it is, and where it goes.
pub(super) struct Part<'a> {
    pub r: &'a StreamReceive,
    pub begin: Begin,
    /// The snapshot that `-o origin=` names, which is said of the first stream that comes.
    pub origin: Option<&'a str>,
    /// `fs@snap`
    pub target: String,
    /// What the package says of its dataset.
    pub fs: Option<&'a NvList>,
    pub new: bool,
    /// It is of the dataset that the package is of, or there is no package.
    pub first: bool,
    /// The package is of a dataset and those below.
    pub recursive: bool,
}

impl Part<'_> {
    /// The dataset that it goes into.
    pub fn fs_name(&self) -> &str {
        self.target.split('@').next().unwrap_or_default()
    }
}

pub(super) fn refuse(part: &Part<'_>, why: &str) -> ApiError {
    let kind = match (is_resumed(&part.begin), makes_new(&part.begin, part.origin)) {
        (true, _) => "resume",
        (_, true) => "new filesystem",
        _ => "incremental",
    };
    ApiError::with(ErrorCode::Stream, format!("cannot receive {kind} stream: {why}"))
}

/// The class of an error is the command's exit code; the sentence is the engine's, which says it as
/// OpenZFS does.
pub(super) fn why(e: &Error) -> String {
    if e.is(Errno::NoSpc) { "out of space".to_owned() } else { e.to_string() }
}

/// Of what is no stream's own, or of one that is only read.
fn plain(e: Error) -> ApiError {
    ApiError::with(ErrorCode::Stream, format!("cannot receive: {}", why(&e)))
}

/// The datasets of a package, by the guid in their name.
pub(super) fn members(list: &NvList) -> Vec<&NvList> {
    let fss = list.list("fss").map(|l| {
        l.iter().filter_map(|(_, v)| match v {
            NvValue::List(l) => Some(l),
            _ => None,
        })
    });
    fss.into_iter().flatten().collect()
}

/// The name of a stream's snapshot, without the part that `top` (a package's first dataset) is.
pub(super) fn target_of(r: &StreamReceive, toname: &str, top: Option<&str>) -> Answer<String> {
    let bad =
        || ApiError::with(ErrorCode::Stream, format!("cannot receive: '{toname}' is no snapshot's name"));
    let (fs, snap) = toname.split_once('@').ok_or_else(bad)?;
    // Its datasets are the first one and those below, here as there: a package may touch no others.
    if top.is_some_and(|top| fs != top && !is_below(fs, top)) {
        let what = format!("cannot receive: invalid stream ('{fs}' is not below the package's dataset)");
        return Err(ApiError::with(ErrorCode::Stream, what));
    }
    if let Some((given_fs, given)) = r.target.split_once('@') {
        if top.is_some_and(|t| t != fs) {
            let what = "cannot receive: cannot specify snapshot name for multi-snapshot stream";
            return Err(ApiError::with(ErrorCode::Stream, what));
        }
        return Ok(format!("{given_fs}@{given}"));
    }
    let rest = if r.keep_path {
        fs.split_once('/').map(|(_, rest)| format!("/{rest}")).unwrap_or_default()
    } else if r.keep_last {
        // Of a package the last part of its first dataset's name, and what lies below.
        let base = top.unwrap_or(fs);
        let cut = base.rfind('/').unwrap_or(0);
        match cut {
            0 => format!("/{fs}"),
            cut => fs.get(cut..).unwrap_or_default().to_owned(),
        }
    } else {
        fs.strip_prefix(top.unwrap_or(fs)).unwrap_or_default().to_owned()
    };
    Ok(format!("{}{rest}@{snap}", r.target))
}

impl Serves<StreamReceive> for Engine {
    async fn serve(&self, caller: &Caller, r: StreamReceive) -> Answer<()> {
        let taken = self.streams.take(&r.stream, caller)?;
        let pool = self.pool_of(&r.target)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        naming::check_dataset_name(&r.target, props::HEADS | props::SNAP, false)?;
        check_names(&r)?;
        if r.heal {
            super::heal::check_options(&r)?;
        }
        let missing = |what: &str, name: &str| {
            let what = format!("cannot receive: specified {what} ({name}) does not exist");
            ApiError::with(ErrorCode::Stream, what)
        };
        if (r.keep_path || r.keep_last) && !r.target.contains('@') {
            match pool.zilla.by_name(&r.target).await {
                Ok(_) => {}
                Err(e) if e.is(Errno::NoEnt) => return Err(missing("fs", &r.target)),
                Err(e) => return Err(of_dataset(e)),
            }
        }
        if let Some(origin) = &r.origin {
            match pool.zilla.by_name(origin).await {
                Ok(_) => {}
                Err(e) if e.is(Errno::NoEnt) => return Err(missing("origin fs", origin)),
                Err(e) => return Err(of_dataset(e)),
            }
        }
        let told = taken.told();
        let mut source = taken.reader()?;
        let top = r.target.split('@').next().unwrap_or_default();
        let done = self.receive_all(&pool, caller, &r, &mut source, &told).await;
        if !r.dry_run {
            self.show_devices(top).await;
        }
        if let Some(line) = caller.command.as_ref().filter(|_| !r.dry_run) {
            self.log(&pool, caller, line).await;
        }
        done
    }
}

impl Engine {
    async fn receive_all(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        r: &StreamReceive,
        source: &mut Reader,
        told: &Told,
    ) -> Answer<()> {
        let mut reader = match caller.owner {
            true => RecordReader::new(source),
            false => RecordReader::bounded(source, GUEST_BEGIN),
        };
        let (first, payload) = match reader.begin().await.map_err(plain)? {
            Some((Record::Begin(b), payload)) => (b, payload),
            Some(_) => return Err(plain(Error::inval("invalid stream (bad magic number)"))),
            None => return Err(plain(unread())),
        };
        check_features(&first).map_err(plain)?;
        if first.header_type() != DMU_COMPOUNDSTREAM {
            let origin = r.origin.as_deref();
            return self.receive_one(pool, caller, r, first, &payload, &mut reader, None, origin, told).await;
        }
        let list = match payload.is_empty() {
            true => NvList::new(),
            false => {
                NvList::unpack(&payload).map_err(|e| plain(Error::inval(format!("invalid stream ({e})"))))?
            }
        };
        reader.end_of_package().await.map_err(plain)?;
        if list.contains("fromsnap") && !list.contains("not_recursive") && !r.dry_run && !r.heal {
            if !caller.owner {
                let what = "permission denied: it may rename and promote datasets";
                return Err(ApiError::with(ErrorCode::Perm, what));
            }
            self.follow(pool, caller, r, &first, &list, told).await?;
        }
        // By the names that the datasets have in the stream.
        let mut keys = RawKeys::new();
        let mut raw = false;
        let names: HashSet<&str> = members(&list).iter().filter_map(|m| m.str("name")).collect();
        let mut origin = r.origin.as_deref();
        loop {
            match reader.begin().await.map_err(plain)? {
                Some((Record::Begin(b), payload)) => {
                    if let Some(key) = raw_key(&b, &payload).map_err(plain)? {
                        raw = true;
                        // Of as many as the package says that it has, and for who may follow them.
                        let name = b.toname.split('@').next().unwrap_or_default();
                        if caller.owner && !r.dry_run && !r.heal && names.contains(name) {
                            keys.insert(name.to_owned(), key);
                        }
                    }
                    let package = Some((&first, &list));
                    self.receive_one(pool, caller, r, b, &payload, &mut reader, package, origin.take(), told)
                        .await?;
                }
                Some((Record::End(_), _)) if raw && !r.dry_run && !r.heal => {
                    if caller.owner {
                        return self.follow_roots(pool, r, &first, &list, &keys, told).await;
                    }
                    told.err("cannot follow the sender's encryption roots: permission denied");
                    return Ok(());
                }
                Some((Record::End(_), _)) => return Ok(()),
                _ => return Err(plain(unread())),
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "what a stream comes with")]
    async fn receive_one(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        r: &StreamReceive,
        begin: Begin,
        payload: &bytes::Bytes,
        reader: &mut RecordReader<'_>,
        package: Option<(&Begin, &NvList)>,
        origin: Option<&str>,
        told: &Told,
    ) -> Answer<()> {
        let top = package.and_then(|(b, _)| b.toname.split('@').next());
        let sent_fs = begin.toname.split('@').next().unwrap_or_default().to_owned();
        let target = target_of(r, &begin.toname, top)?;
        naming::check_dataset_name(&target, props::SNAP, true)?;
        let (fs, snap) =
            target.split_once('@').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap_or_default();
        if naming::pool_of(&fs) != pool.name() {
            return Err(super::errors::no_dataset(&fs));
        }
        let head = match pool.zilla.by_name(&fs).await {
            Ok(head) => Some(head),
            Err(e) if e.is(Errno::NoEnt) => None,
            Err(e) => return Err(of_dataset(e)),
        };
        let fs_list = package
            .and_then(|(_, l)| members(l).into_iter().find(|f| f.str("name").is_some_and(|n| n == sent_fs)));
        let part = Part {
            r,
            begin,
            origin,
            target: target.clone(),
            fs: fs_list,
            new: head.is_none(),
            first: top.is_none_or(|top| top == sent_fs),
            recursive: package.is_some_and(|(_, list)| !list.contains("not_recursive")),
        };
        let volume = u64::from(part.begin.objset_type) == ObjsetType::Zvol.number();
        if r.heal {
            return self.heal(pool, &part, reader, told).await;
        }
        if let Some(head) = &head
            && package.is_some()
            && self.is_there(head, &part.begin, &snap).await?
        {
            if r.verbose {
                told.out(format!("snap {target} already exists; ignoring"));
            }
            return self.pass_over(&part, reader).await;
        }
        let found = match is_clone(&part.begin) && origin.is_none() && !is_resumed(&part.begin) {
            true => Some(self.found_origin(pool, &part).await?),
            false => None,
        };
        if r.verbose {
            let told_of = |how: &str, name: &str| told.out(format!("{how} clone origin {name}"));
            origin.into_iter().for_each(|name| told_of("using provided", name));
            found.iter().for_each(|name| told_of("found", name));
        }
        onto::check(pool, &part, head.as_ref()).await?;
        let verb = if part.begin.fromguid != 0 { "incremental" } else { "full" };
        if r.verbose {
            let how = if r.dry_run { "would receive" } else { "receiving" };
            told.out(format!("{how} {verb} stream of {} into {target}", part.begin.toname));
        }
        let crypt = self.received_crypt(pool, &part).await?;
        if r.dry_run {
            return self.pass_over(&part, reader).await;
        }
        self.judge_part(caller, pool, &fs, r.force).await?;
        if head.is_none() && r.keep_path {
            self.create_parents(caller, pool, &fs, r.no_mount || !caller.owner).await?;
        }
        let origin = origin.map(str::to_owned).or(found).filter(|_| head.is_none());
        if let Some(origin) = &origin {
            self.judge_origin(caller, pool, origin).await?;
        }
        let local = match &head {
            Some(head) => head.local_names().await.map_err(of_dataset)?,
            None => Vec::new(),
        };
        let (mut of_fs, mut of_snap) = settings(&part, volume, &local, told)?;
        // What the pool cannot heed is left out, and the rest received.
        of_fs.retain(|(name, s)| match s {
            Setting::Received(v) => match pool.zilla.value_check(name, v.as_u64().unwrap_or(0)) {
                Ok(()) => true,
                Err(e) => {
                    told.err(format!("cannot receive {name} property on {fs}: {e}"));
                    false
                }
            },
            _ => true,
        });
        if let (Some(head), Some(sent)) = (&head, part.fs.and_then(|f| f.list("props"))) {
            // What its sender does not set any more is not received any more.
            let gone = head.received_names().await.map_err(of_dataset)?;
            let gone = gone.into_iter().filter(|name| !sent.contains(name));
            of_fs.extend(gone.map(|name| (name, Setting::NotReceived)));
        }
        self.leave_out(caller, pool, &fs, &mut of_fs, told).await?;
        if !volume && !caller.owner && mounts_by_itself(head.as_ref()).await? {
            of_fs.push(not_by_itself());
        }
        let opts = ReceiveOpts {
            keep_key: !self.may_change_key(caller, head.as_ref()).await?,
            who: who(caller),
            fs: fs.clone(),
            snap,
            force: r.force,
            resumable: r.resumable,
            origin,
            settings: of_fs,
            crypt,
        };
        // A volume of a package may have a device, which is made anew when all is received.
        if head.is_some() && volume {
            self.withdraw_devices(pool, &fs).await;
        }
        let began = std::time::Instant::now();
        let received = self.run(pool, caller, &part, payload, opts, reader).await?;
        self.leave_out(caller, pool, &fs, &mut of_snap, told).await?;
        // The snapshot is there; a property that it cannot have is no reason to fail.
        if !of_snap.is_empty()
            && let Err(e) = pool.change_props(&target, of_snap).await
        {
            told.err(format!("cannot receive properties of '{target}': {}", e.description()));
        }
        if !r.skip_holds {
            self.hold_as_sent(caller, pool, &part, told).await;
        }
        // What cannot be read without its key is mounted when that is loaded.
        let dir = pool.zilla.dir_by_name(&fs).await.map_err(of_dataset)?;
        let readable = dir.key_loaded().await.map_err(of_dataset)?;
        if received && readable && !volume && !r.no_mount && caller.owner {
            // One whose `canmount` says no is not mounted; one that has no place neither.
            if let Err(e) = pool.mount_one(self, &fs, &[], false).await {
                told.err(format!("cannot mount '{fs}': {}", e.description()));
            }
        }
        // Those below it inherit what came along.
        pool.refresh_volumes_of_others().await;
        if r.verbose {
            told.received(reader.bytes_read(), began.elapsed());
        }
        Ok(())
    }

    /// Holds a received snapshot under the tags it had where it was sent.
    async fn hold_as_sent(&self, caller: &Caller, pool: &Arc<Pool>, part: &Part<'_>, told: &Told) {
        let sent = part.begin.toname.split_once('@').map_or("", |(_, s)| s);
        let tags = part.fs.and_then(|f| f.list("snapholds")).and_then(|l| l.list(sent));
        let Some(tags) = tags.filter(|tags| !tags.is_empty()) else { return };
        let denied = self.judge_holds(caller, pool, &part.target).await.err();
        let hold = |tag: String| {
            let denied = &denied;
            async move {
                let held = match denied {
                    None => pool.zilla.hold_snapshots(vec![part.target.clone()], tag.clone()).await,
                    Some(denied) => return (tag, Err(denied.description().to_owned())),
                };
                (tag, held.map_err(|e| e.to_string()))
            }
        };
        let tags: Vec<String> = tags.iter().map(|(tag, _)| tag.to_owned()).collect();
        let mut held = std::pin::pin!(iter(tags).map(hold).buffered(HELD_TOGETHER));
        while let Some((tag, held)) = held.next().await {
            // The snapshot is there; a tag that cannot be put on it is no reason to fail.
            if let Err(e) = held {
                told.err(format!("cannot hold '{}' under '{tag}': {e}", part.target));
            }
        }
    }

    /// The snapshot here that a clone's stream starts from.
    async fn found_origin(&self, pool: &Pool, part: &Part<'_>) -> Answer<String> {
        let found = pool.zilla.by_guid(part.begin.fromguid, part.fs_name()).await.map_err(of_dataset)?;
        let what = || format!("cannot receive: local origin for clone {} does not exist", part.target);
        found.ok_or_else(|| ApiError::with(ErrorCode::Stream, what()))
    }

    /// Whether a package's snapshot was received before.
    async fn is_there(&self, head: &DatasetRef, b: &Begin, snap: &str) -> Answer<bool> {
        let found = head.snapshot(snap).await.map_err(of_dataset)?;
        Ok(found.is_some_and(|s| s.guid() == b.toguid))
    }

    pub(super) async fn pass_over(&self, part: &Part<'_>, reader: &mut RecordReader<'_>) -> Answer<()> {
        loop {
            let read = reader.next().await.map_err(|e| match e.is(Errno::Canceled) {
                true => plain(unread()),
                false => refuse(part, &why(&e)),
            });
            if let (Record::End(_), _) = read? {
                return Ok(());
            }
        }
    }

    /// Receives; says whether the dataset is new.
    async fn run(
        &self,
        pool: &Arc<Pool>,
        caller: &Caller,
        part: &Part<'_>,
        payload: &bytes::Bytes,
        opts: ReceiveOpts,
        reader: &mut RecordReader<'_>,
    ) -> Answer<bool> {
        let fs = opts.fs.clone();
        let began = pool.zilla.receive(part.begin.clone(), payload, opts).await;
        let mut receive = began.map_err(|e| refuse(part, &why(&e)))?;
        let new = receive.is_new();
        let into = if new { None } else { pool.zilla.by_name(&fs).await.ok().map(|head| head.id()) };
        let mut cut = false;
        let done = match receive.records(reader).await {
            Ok(()) if new => receive.end().await.map(drop).map_err(|e| refuse(part, &why(&e))),
            // It may have been mounted since it was judged.
            Ok(()) if !caller.owner && pool.mounted_at(&fs).is_some() => Err(is_mounted()),
            // The name may be another's by now, who is not to be unmounted for this.
            Ok(()) if pool.zilla.by_name(&fs).await.ok().map(|head| head.id()) != into => {
                let what = format!("{fs}: dataset was renamed while it was received to");
                Err(refuse(part, &what))
            }
            Ok(()) => self.put_in_place(pool, part, &fs, &mut receive).await,
            Err(e) => {
                cut = e.is(Errno::Canceled) || e.is(Errno::Cksum);
                Err(refuse(part, &why(&e)))
            }
        };
        let Err(e) = done else { return Ok(new) };
        match receive.abort().await {
            Ok(false) => Err(e),
            Ok(true) => {
                let of_kept =
                    |e| if cut { refuse(part, "checksum mismatch or incomplete stream.") } else { e };
                Err(self.saved(pool, &fs, e, of_kept).await)
            }
            Err(other) => {
                tracing::error!("'{fs}': what was received cannot be taken away: {other}");
                Err(e)
            }
        }
    }

    /// Ends a receive into a dataset that exists, which nobody uses meanwhile.
    async fn put_in_place(
        &self,
        pool: &Arc<Pool>,
        part: &Part<'_>,
        fs: &str,
        receive: &mut Receiving,
    ) -> Answer<()> {
        let mounted = pool.mounted_at(fs).is_some();
        let (unmounted, stopped) = match mounted {
            true => pool.unmount_tree(fs, part.r.force_unmount || part.r.force).await,
            false => (Vec::new(), None),
        };
        // Whatever becomes of it, what was unmounted is mounted again.
        let done = async {
            if let Some(e) = stopped {
                return Err(e);
            }
            let head = pool.zilla.by_name(fs).await.map_err(of(fs))?;
            let paused = pool.pause_volume(&head).await?;
            let done = receive.end().await.map(drop).map_err(|e| refuse(part, &why(&e)));
            pool.resume_volume(paused).await;
            done
        };
        let done = done.await;
        if let Some(e) = pool.mount_back(self, &unmounted).await {
            tracing::error!("'{fs}' cannot be mounted again: {}", e.description());
        }
        done
    }

    /// An error, and how to go on from what was saved.
    async fn saved(
        &self,
        pool: &Pool,
        fs: &str,
        e: ApiError,
        of_kept: impl FnOnce(ApiError) -> ApiError,
    ) -> ApiError {
        // What is noted is on disk with the txg of the last record.
        let synced = pool.zilla.sync().await;
        let found = match synced {
            Ok(()) => pool.zilla.resume_token(fs).await,
            Err(_) => None,
        };
        let Some(text) = found else { return e };
        of_kept(e).details(vec![
            "Partially received snapshot is saved.".to_owned(),
            "A resuming stream can be generated on the sending system by running:".to_owned(),
            format!("    zfs send -t {text}"),
        ])
    }
}

impl Serves<ReceiveAbort> for Engine {
    /// `zfs receive -A`
    async fn serve(&self, _: &Caller, r: ReceiveAbort) -> Answer<()> {
        let pool = self.pool_of(&r.name)?;
        if pool.readonly() {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let none = || {
            let what = format!("'{}' does not have any resumable receive state to abort", r.name);
            ApiError::with(ErrorCode::Stream, what)
        };
        let ds = pool.zilla.partly_received(&r.name).await.map_err(of(&r.name))?.ok_or_else(none)?;
        if ds.resume_state().await.map_err(of_dataset)?.is_none() {
            return Err(none());
        }
        ds.abort_receive().await.map_err(of_dataset)
    }
}

pub(super) fn is_clone(b: &Begin) -> bool {
    b.flags & zilla_ondisk::stream::DRR_FLAG_CLONE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sender chooses the names of its datasets, and its receiver what they may touch.
    #[test]
    fn a_package_goes_nowhere_but_below_its_target() {
        for (keep_path, keep_last) in [(false, false), (true, false), (false, true)] {
            let r = StreamReceive {
                target: "tank/back".into(),
                keep_path,
                keep_last,
                ..StreamReceive::default()
            };
            let at = |name: &str| target_of(&r, name, Some("X/a"));
            for stranger in ["X/aup@s", "X@s", "X/b@s", "tank@s", "Y/a@s", "X/a/../b"] {
                assert!(at(stranger).is_err(), "{stranger}");
            }
            let top = at("X/a@s").unwrap();
            let below = at("X/a/b@s").unwrap();
            assert_eq!(below, top.replace('@', "/b@"));
        }
        let plain = StreamReceive { target: "tank/back".into(), ..StreamReceive::default() };
        assert_eq!(target_of(&plain, "X/a/b@s", Some("X/a")).unwrap(), "tank/back/b@s");
        assert_eq!(target_of(&plain, "X/a/b@s", None).unwrap(), "tank/back@s");
    }
}
