//! A repair that hangs in a disk while its block is freed: the space must not be given out before
//! it is over, or old bytes would be written over those of the new owner.

use super::hurt::{DATA, Hurt, Outcome, RECORD, text};
use super::layout::{Layout, POOL};
use crate::{Sim, SimRng};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use zilla_core::dmu::resident;
use zilla_core::types::ObjectId;
use zilla_core::zpl::SetAttr;
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};

pub fn late_repair(seed: u64) -> Outcome {
    let sim = Sim::new(seed);
    Layout::Mirror.add_disks(&sim);
    let (devices, inner) = (Arc::new(Mutex::new(Vec::<Arc<FaultyDevice>>::new())), sim.env());
    let all = devices.clone();
    let env = sim.env().wrap_devices(move |_, device| {
        let device = Arc::new(FaultyDevice::new(device, &inner));
        all.lock().push(device.clone());
        device
    });
    let done = sim.try_block_on(async {
        let mut w = Hurt::fresh(&sim, &env, Layout::Mirror, SimRng::new(seed, "late")).await?;
        w.make(0, 4).await?;
        w.spa.sync().await.map_err(text("sync"))?;
        let id = w.files[&0].id;
        let ds = w.spa.dsl.by_name(POOL).await.map_err(text("dataset"))?;
        let os = w.spa.dsl.objset(&ds).await.map_err(text("objset"))?;
        let dn = os.hold_wait(ObjectId(id)).await.map_err(text("object"))?;
        let each = |f: &dyn Fn(&FaultyDevice)| devices.lock().iter().for_each(|d| f(d));
        // One record is bad on one side, the next on the other: whichever side is read first, one
        // of them needs a repair, which hangs.
        for side in 0..2 {
            let bp = resident(|| dn.block_pointer(side)).await.map_err(text("pointer"))?.ok_or("no block")?;
            let at = DATA + bp.dva(0).offset;
            let noise = w.noise(RECORD);
            if let Some(d) = sim.disk(Layout::path(side as usize)) {
                d.damage(at, &noise);
            }
            each(&|d| {
                d.add(Rule::new(Ops::Writes, Fault::Hang).within(at..at + RECORD));
            });
        }
        w.spa.drop_caches();
        let z = w.zfs.clone();
        let read = env.spawn_with_result(async move { z.read(id, 0, 2 * RECORD as usize).await });
        env.sleep(Duration::from_millis(50)).await;
        each(&|d| d.clear());
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        w.zfs.setattr(id, cut).await.map_err(text("truncate"))?;
        let (s, freed) = (w.spa.clone(), Arc::new(AtomicBool::new(false)));
        let flag = freed.clone();
        let sync = env.spawn_with_result(async move {
            for _ in 0..3 {
                s.sync().await?;
            }
            flag.store(true, Ordering::Relaxed);
            zilla_core::error::Result::Ok(())
        });
        env.sleep(Duration::from_secs(20)).await;
        let early = freed.load(Ordering::Relaxed);
        let hung = devices.lock().iter().map(|d| d.release_hung()).sum::<usize>();
        sync.await.map_err(text("sync"))?;
        drop(read.await);
        match (early, hung) {
            (true, 1..) => Err("space was given back while a repair was still writing there".to_owned()),
            (_, 0) => Err("no repair was on its way: the test tests nothing".to_owned()),
            (false, _) => Ok(()),
        }
    });
    done.map_err(|stuck| stuck.to_string())?
}
