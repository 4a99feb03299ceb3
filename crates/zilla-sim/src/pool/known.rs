//! The power goes in the midst of a scrub of known errors, again and again: no error is forgotten
//! whose block is still bad, and each scrub goes on by itself with the next import; once the blocks
//! are as they were, the next scrub forgets all.

use super::hurt::{DATA, Hurt, Outcome, RECORD, text};
use super::layout::{Layout, find, import};
use crate::{CrashPolicy, Sim, SimRng};
use std::time::Duration;
use zilla_core::dmu::resident;
use zilla_core::scan::Scan;
use zilla_core::types::ObjectId;

const FILES: u64 = 3;
const RECORDS: u64 = 8;
const CUTS: u64 = 6;

/// A record that was spoiled: where, and what was there.
type Spoiled = (u64, Vec<u8>);

async fn counted(scan: &Scan, wanted: u64, when: &str) -> Outcome {
    let found = scan.errors.count().await.map_err(text("errors"))?;
    if found == wanted { Ok(()) } else { Err(format!("{when}: {found} errors are known, not {wanted}")) }
}

/// Files of which every other record is spoiled, and a scrub that finds that. Returns them, and how
/// long a scrub of these errors takes.
async fn spoil(sim: &Sim, rng: SimRng) -> Outcome<(Vec<Spoiled>, Duration)> {
    let (env, mut spoiled) = (sim.env(), Vec::new());
    let mut w = Hurt::fresh(sim, &env, Layout::Single, rng).await?;
    let disk = sim.disk(Layout::path(0)).ok_or("no disk")?;
    for n in 0..FILES {
        w.make(n, RECORDS).await?;
    }
    w.spa.sync().await.map_err(text("sync"))?;
    let ds = w.spa.dsl.by_name(super::layout::POOL).await.map_err(text("dataset"))?;
    let os = w.spa.dsl.objset(&ds).await.map_err(text("objset"))?;
    for n in 0..FILES {
        let dn = os.hold_wait(ObjectId(w.files[&n].id)).await.map_err(text("object"))?;
        for record in (0..RECORDS).step_by(2) {
            let bp =
                resident(|| dn.block_pointer(record)).await.map_err(text("pointer"))?.ok_or("no block")?;
            let at = DATA + bp.dva(0).offset;
            let mut before = vec![0; RECORD as usize];
            disk.snapshot().read(at, &mut before);
            disk.damage(at, &w.noise(RECORD));
            spoiled.push((at, before));
        }
    }
    w.spa.drop_caches();
    let scan = w.spa.scan().map_err(text("scan"))?.clone();
    scan.start().await.map_err(text("scrub"))?;
    scan.wait().await;
    counted(&scan, spoiled.len() as u64, "after a scrub").await?;
    let begin = env.now();
    scan.start_errors_only().await.map_err(text("scrub of errors"))?;
    scan.wait().await;
    let took = env.now().saturating_sub(begin);
    counted(&scan, spoiled.len() as u64, "after a scrub of errors").await?;
    Ok((spoiled, took))
}

pub fn known_errors_cut(seed: u64) -> Outcome {
    let mut rng = SimRng::new(seed, "cuts");
    let mut sim = Sim::new(seed);
    Layout::Single.add_disks(&sim);
    let made = sim.try_block_on(spoil(&sim, SimRng::new(seed, "known")));
    let (spoiled, took) = made.map_err(|stuck| stuck.to_string())??;
    let wanted = spoiled.len() as u64;
    for cut in 0..=CUTS {
        sim = sim.power_off(CrashPolicy::LoseAll, seed + cut).boot(seed + 1000 * (cut + 1));
        let until = Duration::from_micros(rng.below(took.as_micros() as u64 * 5 / 4 + 1));
        let lived = sim.try_block_on(async {
            let env = sim.env();
            let found = find(&env).await.map_err(text("looking for pools"))?.ok_or("there is no pool")?;
            let spa = import(&env, &found, false).await.map_err(text("import"))?;
            let scan = spa.scan().map_err(text("scan"))?.clone();
            counted(&scan, wanted, "after a power cut").await?;
            // Some of them resume one.
            scan.start_errors_only().await.ok();
            if cut < CUTS {
                env.sleep(until).await;
                return Ok(());
            }
            scan.wait().await;
            counted(&scan, wanted, "at the end of one that went on").await?;
            let disk = sim.disk(Layout::path(0)).ok_or("no disk")?;
            spoiled.iter().for_each(|(at, before)| disk.damage(*at, before));
            scan.start_errors_only().await.map_err(text("the last scrub"))?;
            scan.wait().await;
            counted(&scan, 0, "with all blocks as they were").await
        });
        lived.map_err(|stuck| stuck.to_string())?.map_err(|e: String| format!("cut {cut}: {e}"))?;
    }
    Ok(())
}
