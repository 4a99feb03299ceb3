//! Is a pool in use on another host? What an import does to find out, before it writes anything.
//!
//! A host that has a pool with the property `multihost` writes uberblocks all the time
//! ([`super::multihost`]), and each says how often, and after how many that failed the host stops
//! writing. Who wants the pool watches its uberblocks for longer than that:
//!
//! ```text
//!   newest uberblock: multihost off, cleanly exported, or our own -> nothing to watch
//!   it says interval and failures: twice interval x failures      (the other host would have stopped by then)
//!   it says that the other never stops, or nothing:  intervals of ours and theirs x zfs_multihost_import_intervals
//!   and up to a quarter longer, so that two who begin together do not end together
//! ```
//!
//! A change means that the pool is in use. The durations are OpenZFS's, since both sides must agree
//! on them.
//!
//! **Our own** is an uberblock of a host with our number, which is how a restart is quick. Another
//! may have just taken the pool, though, and not yet written its number into labels, which takes a
//! txg. So heartbeats carry 16 bits of the writer's number where other software sees nothing but a
//! slightly longer delay ([`tag`]).

use super::Spa;
use super::config::Host;
use super::discover::{FoundPool, set_paths};
use super::open::OpenOpts;
use crate::error::{Error, PoolRefusal as Refusal, Result};
use crate::tunables::{MULTIHOST_IMPORT_INTERVALS, MULTIHOST_INTERVAL};
use crate::vdev::{OPEN_TIMEOUT, OpenArgs, PoolLabels, VdevTree};
use std::sync::Arc;
use std::time::Duration;
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;
use zilla_ondisk::uberblock::MMP_MAGIC;
use zilla_ondisk::{NvList, Uberblock};

/// The shortest interval of heartbeats, in milliseconds. Source: MMP_MIN_INTERVAL in sys/mmp.h.
pub(super) const MIN_INTERVAL: u64 = 100;
/// Fewer failures than these stop nobody. Source: MMP_MIN_FAIL_INTERVALS in sys/mmp.h.
pub(super) const MIN_FAIL_INTERVALS: u64 = 2;
/// How much longer than the other host would go on is waited. Source: MMP_IMPORT_SAFETY_FACTOR (200
/// %) in sys/mmp.h.
const SAFETY: u64 = 2;
/// The shortest test where the other host says nothing. Source: spa_activity_check_duration() in
/// OpenZFS's spa.c.
const SHORTEST: Duration = Duration::from_secs(1);
/// How often a pool is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Nobody waits longer for an import: an uberblock that asks for more is damaged, or a host is set
/// up so that it cannot be taken over.
const LONGEST: Duration = Duration::from_secs(3600);

/// How long a device may take to be read. One that has not answered by then may have heartbeats
/// that nobody here knows of, so there is no answer to whose the pool is.
pub(super) const PATIENCE: Duration = OPEN_TIMEOUT;

/// Spreads numbers that are alike (2^64 divided by the golden ratio).
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

/// What tells a pool's uberblocks apart: txg, time, sequence.
pub type Rank = (u64, u64, u16);

/// 16 bits of a host's number, for the end of its heartbeats' delay.
pub(super) fn tag(host: u64) -> u64 {
    host.wrapping_mul(SPREAD) >> 48
}

/// Whether a host with this number may have written the uberblock.
fn ours(ub: &Uberblock, host: u64) -> bool {
    // With a txg the number stands in the labels.
    ub.mmp_seq().unwrap_or(0) == 0 || is_tagged(ub, host)
}

/// Whether the heartbeat says that it is of the host with this number; one that says nothing is
/// nobody's.
pub(super) fn is_tagged(ub: &Uberblock, host: u64) -> bool {
    ub.mmp_delay == 0 || ub.mmp_delay & 0xffff == tag(host)
}

/// Whether heartbeats are written.
pub(super) fn beats(ub: &Uberblock) -> bool {
    ub.mmp_valid() && ub.mmp_delay != 0
}

/// How long a test takes at least.
fn duration(ub: &Uberblock, interval_ms: u64, import_intervals: u64) -> Duration {
    let ms = Duration::from_millis;
    let (own, count) =
        (ms(interval_ms.max(MIN_INTERVAL)), u32::try_from(import_intervals.max(1)).unwrap_or(u32::MAX));
    let local = own.saturating_mul(count).max(SHORTEST);
    let delay = Duration::from_nanos(ub.mmp_delay);
    match (ub.mmp_interval(), ub.mmp_fail_intervals()) {
        (Some(theirs), Some(fails)) if fails > 0 => ms(u64::from(theirs) * u64::from(fails) * SAFETY),
        (Some(theirs), Some(_)) => {
            local.max((ms(u64::from(theirs)).saturating_add(delay)).saturating_mul(count))
        }
        // From before these were written.
        _ if ub.mmp_valid() => local.max(own.saturating_add(delay).saturating_mul(count)),
        _ => local,
    }
}

/// A little longer, by chance: so many of 1000.
pub(super) fn longer(d: Duration, chance: u64) -> Duration {
    d.saturating_add(d / 1000 * u32::try_from(chance.min(250)).unwrap_or(0))
}

/// How long a pool of this uberblock is to be watched.
pub(super) fn watch_for(env: &Env, ub: &Uberblock) -> Result<Duration> {
    let least = duration(ub, MULTIHOST_INTERVAL.get(), MULTIHOST_IMPORT_INTERVALS.get());
    if least > LONGEST {
        return Err(Error::inval(format!(
            "to see whether the pool is in use on another host would take {} hours, as its uberblock says (interval {} ms, \
             failures {}): set zfs_multihost_interval and zfs_multihost_fail_intervals lower there, or export the pool \
             there",
            least.as_secs() / 3600,
            ub.mmp_interval().unwrap_or(0),
            ub.mmp_fail_intervals().unwrap_or(0)
        )));
    }
    Ok(longer(least, env.random_below(250)))
}

/// What is known of who wrote an uberblock.
struct Owner {
    host: Host,
    state: Option<PoolState>,
}

impl Owner {
    fn of(config: Option<&NvList>) -> Owner {
        let number = config.and_then(|c| c.u64("hostid")).unwrap_or(0);
        let name = config.and_then(|c| c.str("hostname")).unwrap_or_default().to_owned();
        let state = config.and_then(|c| c.u64("state")).and_then(PoolState::from_number);
        Owner { host: Host { id: number, name }, state }
    }

    fn is(&self, us: &Host, ub: &Uberblock) -> bool {
        self.host.id == us.id && ours(ub, us.id)
    }
}

/// Another host has it.
pub(super) fn elsewhere(labels: &PoolLabels) -> Error {
    let config = labels.uberblocks.first().and_then(|f| labels.config(&f.ub));
    let Host { id, name } = Owner::of(config).host;
    Refusal::ActiveElsewhere { host: name, id }.into()
}

/// Whether the pool has to be watched before it is opened.
fn is_test_needed(ub: &Uberblock, owner: &Owner, us: &Host) -> bool {
    let off = ub.mmp_magic == MMP_MAGIC && ub.mmp_delay == 0;
    !off && !owner.is(us, ub) && owner.state.is_none_or(|s| s == PoolState::Active)
}

/// Whether whoever opens a pool with heartbeats has to see that nobody else does at the same time:
/// nobody had it open.
pub(super) fn is_claim_needed(labels: &PoolLabels, ub: &Uberblock, us: &Host) -> bool {
    let owner = Owner::of(labels.config(ub));
    !(owner.is(us, ub) && owner.state == Some(PoolState::Active))
}

/// Whether a pool that was not watched up to this uberblock has to be, before it is opened.
pub(super) fn is_unwatched(labels: &PoolLabels, ub: &Uberblock, opts: &OpenOpts) -> bool {
    let needed = is_test_needed(ub, &Owner::of(labels.config(ub)), &opts.host);
    needed && opts.quiet != Some(ub.rank())
}

/// Watches a pool for so long: an error if its newest uberblock is another one meanwhile.
pub(super) async fn watch(env: &Env, tree: &VdevTree, seen: Rank, least: Duration) -> Result<()> {
    let until = env.boottime() + least;
    loop {
        let labels = tree.read_labels_within(env, PATIENCE).await?;
        if labels.uberblocks.first().is_none_or(|f| f.ub.rank() != seen) {
            return Err(elsewhere(&labels));
        }
        let left = until.saturating_sub(env.boottime());
        if left.is_zero() {
            return Ok(());
        }
        env.sleep(left.min(LOOK)).await;
    }
}

impl Spa {
    /// Whether a pool is in use on another host, which may take a while to be found out. Nothing is
    /// written. What it gives is for [`OpenOpts::quiet`]: the uberblock that did not change;
    /// nothing, if there was nothing to be watched.
    #[crate::boxed]
    pub async fn look_for_activity(env: &Env, found: &FoundPool, opts: &OpenOpts) -> Result<Option<Rank>> {
        let mut tree_config = found.config.list("vdev_tree").cloned().unwrap_or_default();
        set_paths(&mut tree_config, &found.paths);
        let tree = Arc::new(VdevTree::from_config(env, &tree_config)?);
        // What is wrong with its devices is told by who opens it.
        let args = OpenArgs { pool_guid: Some(found.guid), ..OpenArgs::default() };
        let result = match tree.open_labelled(&args).await {
            Ok(labels) => activity_on(env, &tree, &labels, opts).await,
            Err(_) => Ok(None),
        };
        tree.close().await;
        result
    }
}

async fn activity_on(
    env: &Env,
    tree: &VdevTree,
    labels: &PoolLabels,
    opts: &OpenOpts,
) -> Result<Option<Rank>> {
    // Only who has to watch a pool must see all of it.
    let Some(ub) = labels.uberblocks.first().map(|f| f.ub) else { return Ok(None) };
    if beats(&ub) && (opts.host.id == 0 || opts.unset_hostid) {
        return Err(Refusal::NoHostid.into());
    }
    if !is_test_needed(&ub, &Owner::of(labels.config(&ub)), &opts.host) {
        return Ok(None);
    }
    if opts.quiet != Some(ub.rank()) {
        watch(env, tree, ub.rank(), watch_for(env, &ub)?).await?;
    }
    Ok(Some(ub.rank()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_ondisk::uberblock::UBERBLOCK_MAGIC;

    fn beat(delay: u64, config: Option<(u32, u16, u16)>) -> Uberblock {
        let mut ub = Uberblock {
            magic: UBERBLOCK_MAGIC,
            mmp_magic: MMP_MAGIC,
            mmp_delay: delay,
            ..Uberblock::default()
        };
        if let Some((interval, seq, fails)) = config {
            ub.set_mmp_config(interval, seq, fails);
        }
        ub
    }

    #[test]
    fn a_test_takes_as_long_as_openzfs_takes_for_it() {
        let s = Duration::from_secs;
        let of = |ub: &Uberblock, interval, imports| duration(ub, interval, imports);
        // The other stops after 10 failures of a second: twice that, whatever is set here.
        assert_eq!(of(&beat(1_000_000_000, Some((1000, 3, 10))), 1000, 20), s(20));
        assert_eq!(of(&beat(1_000_000_000, Some((1000, 3, 10))), 60_000, 100), s(20));
        assert_eq!(of(&beat(1, Some((100, 3, 2))), 1000, 20), Duration::from_millis(400));
        // It never stops: 20 of its intervals and delays, but not less than 20 of ours.
        assert_eq!(of(&beat(500_000_000, Some((2000, 3, 0))), 1000, 20), s(50));
        assert_eq!(of(&beat(0, Some((100, 3, 0))), 1000, 20), s(20));
        // A pool of 0.7, which does not say how often.
        assert_eq!(of(&beat(3_000_000_000, None), 1000, 20), s(80));
        // One from before.
        let plain = Uberblock { magic: UBERBLOCK_MAGIC, ..Uberblock::default() };
        assert_eq!(of(&plain, 1000, 20), s(20));
        assert_eq!(of(&plain, 0, 0), s(1), "at least a second");
        // Whatever stands there.
        assert!(of(&beat(u64::MAX, Some((0xff_ffff, 3, 0))), u64::MAX, u64::MAX) > LONGEST);
        assert!(of(&beat(u64::MAX, Some((0xff_ffff, 3, u16::MAX))), 1000, 20) > LONGEST);
        assert_eq!((longer(s(20), 0), longer(s(20), 250), longer(s(20), 999)), (s(20), s(25), s(25)));
    }

    #[test]
    fn what_is_watched_and_what_is_not() {
        let us = Host { id: 7, name: "us".into() };
        let owner = |id, state| Owner { host: Host { id, name: String::new() }, state: Some(state) };
        let needed = |ub: &Uberblock, id, state| is_test_needed(ub, &owner(id, state), &us);
        let mine = |seq| beat(1_000_000_000 & !0xffff | tag(7), Some((1000, seq, 10)));
        let theirs = |seq| beat(1_000_000_000 & !0xffff | tag(8), Some((1000, seq, 10)));
        use PoolState::{Active, Exported};
        assert!(needed(&theirs(3), 8, Active));
        assert!(needed(&theirs(0), 8, Active), "it synced last");
        assert!(!needed(&theirs(3), 8, Exported));
        assert!(!needed(&mine(3), 7, Active), "our own restart");
        assert!(!needed(&mine(0), 7, Active));
        assert!(needed(&theirs(3), 7, Active), "another has taken it and not yet said so in the labels");
        assert!(!needed(&beat(0, None), 8, Active), "multihost is off");
        let old = Uberblock { magic: UBERBLOCK_MAGIC, ..Uberblock::default() };
        assert!(needed(&old, 8, Active), "software that does not know multihost may have it");
        assert!(!needed(&old, 7, Active));
    }

    #[test]
    fn tags_tell_hosts_apart() {
        let all: std::collections::BTreeSet<u64> = (1..=1000_u64).map(|i| tag(i * 0x1_0001 + 5)).collect();
        assert!(all.len() > 900 && all.iter().all(|t| *t <= 0xffff), "{}", all.len());
        assert_ne!(tag(0x00ba_b10c), tag(0x0bad_c0de));
    }
}
