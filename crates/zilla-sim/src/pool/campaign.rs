//! Power cuts: at every write and flush of one workload, and at random in many.

use super::faults::Faults;
use super::layout::Layout;
use super::run::{Journal, Workload};
use super::verify::{Depth, Expect, txg_of, verify};
use crate::{CrashPolicy, Sim, SimRng, Stuck, Survivors};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Actors that work side by side.
const ACTORS: usize = 3;

/// One workload and the power cuts it is put to.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    pub seed: u64,
    pub layout: Layout,
    /// Operations of all actors together.
    pub ops: usize,
}

/// Something is wrong, and how to see it again.
#[derive(Clone, Debug)]
pub struct Finding {
    pub seed: u64,
    pub layout: Layout,
    pub ops: usize,
    /// None: a random run.
    pub cut: Option<u64>,
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.what)?;
        let (seed, layout, ops) = (self.seed, self.layout.name(), self.ops);
        match self.cut {
            Some(cut) => {
                write!(f, "  again: cargo xtask sim --seed {seed} --layout {layout} --ops {ops} --cut {cut}")
            }
            None => write!(f, "  again: cargo xtask sim --seed {seed} --layout {layout} --runs 1"),
        }
    }
}

/// What a campaign went through.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub writes: u64,
    pub flushes: u64,
    /// Power cuts after which the pool was verified.
    pub cuts: u64,
    /// How many of them left the very disks that the cut before had left, with the same promises.
    pub same: u64,
    pub txgs: u64,
    pub trace: u64,
}

impl Campaign {
    pub fn new(seed: u64, layout: Layout, ops: usize) -> Campaign {
        Campaign { seed, layout, ops }
    }

    fn finding(&self, cut: Option<u64>, what: String) -> Finding {
        Finding { seed: self.seed, layout: self.layout, ops: self.ops, cut, what }
    }

    fn start(&self) -> (Sim, Workload) {
        let sim = Sim::new(self.seed);
        self.layout.add_disks(&sim);
        let work = Workload::start(&sim.env(), self.layout, self.seed, ACTORS, self.ops);
        (sim, work)
    }

    /// Runs the workload and cuts the power at each write and flush for which `wanted` says so,
    /// with each of the policies. The making of the pool is left out: before it is done nothing is
    /// promised.
    pub fn cuts(
        &self,
        mut wanted: impl FnMut(u64) -> Option<Depth>,
        policies: &[CrashPolicy],
        mut progress: impl FnMut(u64),
    ) -> Result<Tally, Finding> {
        let (sim, work) = self.start();
        sim.run_until(&work.ready).map_err(|s| self.finding(None, s.to_string()))?;
        let mut last = sim.counters().ops;
        let mut tally = Tally::default();
        let mut before: Vec<Option<Verified>> = vec![None; policies.len()];
        loop {
            sim.pause_at(last + 1);
            let went = sim.run_until(&work.done);
            let now = sim.counters().ops;
            let journal = Arc::new(work.journal.lock().clone());
            if let Some(failed) = &journal.failed {
                return Err(self.finding(None, failed.clone()));
            }
            for cut in last + 1..=now {
                let Some(depth) = wanted(cut) else { continue };
                for (&policy, before) in policies.iter().zip(&mut before) {
                    let seed = self.seed ^ cut.rotate_left(24) ^ policy as u64;
                    let left = sim.survivors_of(cut, policy, seed);
                    tally.cuts += 1;
                    if depth == Depth::Look && before.as_ref().is_some_and(|b| b.covers(&left, &journal)) {
                        tally.same += 1;
                        continue;
                    }
                    tally.txgs = verify_survivors(&left, &journal, seed, depth)
                        .map_err(|e| self.finding(Some(cut), format!("cut {cut}, {policy:?}: {e}")))?;
                    *before = Some(Verified { journal: journal.clone(), txg: tally.txgs, left });
                }
                progress(cut);
            }
            last = now;
            match went {
                Ok(()) => break,
                Err(Stuck::Paused { .. }) => sim.resume(),
                Err(stuck) => return Err(self.finding(None, stuck.to_string())),
            }
        }
        let c = sim.counters();
        (tally.writes, tally.flushes, tally.trace) = (c.writes, c.flushes, sim.trace_hash());
        Ok(tally)
    }

    /// Every cut from the `first` on (or every `step`-th, of those that are `mine`), all policies;
    /// every sixteenth pool is lived in afterwards.
    pub fn every_cut(
        &self,
        first: u64,
        step: u64,
        mine: impl Fn(u64) -> bool,
        progress: impl FnMut(u64),
    ) -> Result<Tally, Finding> {
        let wanted = |cut: u64| {
            let from = cut.checked_sub(first)?;
            let depth = if (from / step).is_multiple_of(16) { Depth::Live } else { Depth::Look };
            (from.is_multiple_of(step) && mine(cut)).then_some(depth)
        };
        self.cuts(wanted, &POLICIES, progress)
    }

    pub fn one_cut(&self, at: u64) -> Result<Tally, Finding> {
        self.cuts(|cut| (cut == at).then_some(Depth::Live), &POLICIES, drop)
    }

    /// No cut: the workload to its end, what it leaves, and a hash of all that happened.
    pub fn undisturbed(&self) -> Result<Tally, Finding> {
        let mut tally = self.cuts(|_| None, &[], drop)?;
        let (sim, work) = self.start();
        sim.run_until(&work.done).map_err(|s| self.finding(None, s.to_string()))?;
        let journal = work.journal.lock().clone();
        if sim.trace_hash() != tally.trace {
            return Err(self.finding(None, "two runs of one seed took different courses".into()));
        }
        let left = sim.survivors(CrashPolicy::LoseAll, self.seed);
        tally.txgs =
            verify_survivors(&left, &journal, self.seed, Depth::Live).map_err(|e| self.finding(None, e))?;
        Ok(tally)
    }
}

pub const POLICIES: [CrashPolicy; 4] =
    [CrashPolicy::LoseAll, CrashPolicy::KeepAll, CrashPolicy::Prefix, CrashPolicy::Shuffle];

/// Disks that were found to be as they should.
#[derive(Clone)]
struct Verified {
    left: Survivors,
    txg: u64,
    journal: Arc<Journal>,
}

impl Verified {
    /// Whether these are the same disks, of which nothing more is asked.
    fn covers(&self, left: &Survivors, journal: &Journal) -> bool {
        self.left.is_same(left) && self.journal.asks_the_same(journal, self.txg)
    }
}

fn verify_survivors(left: &Survivors, journal: &Journal, seed: u64, depth: Depth) -> Result<u64, String> {
    caught(|| verify(&left.boot(seed), journal, Expect::SOUND, depth))
}

/// A panic is a finding like others: what it says has been printed, and where to see it again is
/// told.
fn caught<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err("panicked, as said above".into()))
}

/// A workload of random length, cut at a random moment; some cut again while the pool is being
/// imported, some with disks that fail in ways the layout's redundancy covers.
pub fn random_run(seed: u64, layout: Layout) -> Result<Tally, Finding> {
    let mut rng = SimRng::new(seed, "run");
    let ops = 30 + rng.below(300) as usize;
    let c = Campaign::new(seed, layout, ops);
    match catch_unwind(AssertUnwindSafe(|| run_at_random(c, rng))) {
        Ok(done) => done,
        Err(_) => Err(c.finding(None, "panicked, as said above".into())),
    }
}

fn run_at_random(c: Campaign, mut rng: SimRng) -> Result<Tally, Finding> {
    let Campaign { seed, layout, ops } = c;
    let faults = Faults::draw(layout, &mut rng);
    let finding = |what: String, faults: &Faults| c.finding(None, format!("{faults:?}: {what}"));
    let (sim, work) = c.start();
    sim.run_until(&work.ready).map_err(|s| finding(s.to_string(), &faults))?;
    let from = sim.counters().ops;
    // Writes and flushes come to a few for each operation; what is beyond the end is the end.
    let cut = from + 1 + rng.below(ops as u64 * 12);
    for pause in faults.moments(from, cut) {
        sim.pause_at(pause);
        match sim.run_until(&work.done) {
            Ok(()) => break,
            Err(Stuck::Paused { .. }) => sim.resume(),
            Err(stuck) => return Err(finding(stuck.to_string(), &faults)),
        }
        if pause < cut {
            faults.strike(&sim);
        }
    }
    let journal = work.journal.lock().clone();
    if let Some(failed) = journal.failed {
        return Err(finding(failed, &faults));
    }
    let at = sim.counters();
    let mut left = sim.survivors(CrashPolicy::Random, rng.u64());
    let trace = sim.trace_hash();
    drop(sim);
    faults.at_boot(&mut left, &mut rng);
    let worked = txg_of(&left.boot(seed)).map_err(|e| finding(e, &faults))?;
    for again in 0.. {
        if !rng.one_in(3) || again == 3 {
            break;
        }
        left = cut_import(&left, &mut rng)
            .map_err(|e| finding(format!("import after {} writes: {e}", at.ops), &faults))?;
    }
    let depth = if rng.one_in(4) { Depth::Live } else { Depth::Look };
    let expect = Expect { worked: Some(worked), faults: faults.any() };
    let sim = left.boot(rng.u64());
    faults.while_verifying(&sim);
    let txgs = verify(&sim, &journal, expect, depth)
        .map_err(|e| finding(format!("after {} writes and flushes: {e}", at.ops), &faults))?;
    Ok(Tally { writes: at.writes, flushes: at.flushes, cuts: 1, same: 0, txgs, trace })
}

/// Begins to import and loses power on the way.
fn cut_import(left: &Survivors, rng: &mut SimRng) -> Result<Survivors, String> {
    let sim = left.boot(rng.u64());
    sim.pause_at(1 + rng.below(80));
    let env = sim.env();
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let (flag, e) = (done.clone(), env.clone());
    let failed = Arc::new(parking_lot::Mutex::new(None));
    let why = failed.clone();
    env.spawn(async move {
        let import = async {
            let found = super::run::find(&e).await?;
            match found {
                Some(found) => {
                    // The log is replayed, too, or a part of it.
                    let spa = super::run::import(&e, &found, false).await?;
                    super::run::open_fs(&e, &spa, super::layout::POOL).await.map(drop)
                }
                None => Err(zilla_core::error::Error::no_ent("there is no pool")),
            }
        };
        if let Err(e) = import.await {
            *why.lock() = Some(e.to_string());
        }
        flag.store(true, Ordering::Release);
    });
    match sim.run_until(&done) {
        Ok(()) | Err(Stuck::Paused { .. }) => {}
        Err(stuck) => return Err(stuck.to_string()),
    }
    match failed.lock().take() {
        Some(e) => Err(e),
        None => Ok(sim.survivors(CrashPolicy::Random, rng.u64())),
    }
}
