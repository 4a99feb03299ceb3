//! Disks that stand still: what a writer may still be told is written is bounded by the limit of
//! what waits for a txg, however often the same bytes are written. Each write leaves a log record
//! that stays until its txg is synced, though the data are one block.

use super::layout::{Layout, POOL};
use super::run::open_fs;
use crate::{Sim, SimConfig};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use zilla_core::txg::DirtyLimits;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::faulty::{Fault, FaultyDevice, Ops, Rule};

const LIMIT: u64 = 16 << 20;
const WRITE: u64 = 64 << 10;

/// Overwrites one range while no write of the disks ends. An error if more was accepted than the
/// limit lets wait.
pub fn stalled_run(seed: u64) -> Result<(), String> {
    let sim = Sim::with_config(seed, SimConfig::default());
    Layout::Single.add_disks(&sim);
    let (devices, inner) = (Arc::new(Mutex::new(Vec::<Arc<FaultyDevice>>::new())), sim.env());
    let all = devices.clone();
    let env = sim.env().wrap_devices(move |_, device| {
        let device = Arc::new(FaultyDevice::new(device, &inner));
        all.lock().push(device.clone());
        device
    });
    let done = sim.try_block_on(async {
        let text = |e: zilla_core::error::Error| e.to_string();
        let spa = Layout::Single.create(&env).await.map_err(text)?;
        let zfs = open_fs(&env, &spa, POOL).await.map_err(text)?;
        let new = NewFile::new(0o100644, Cred::default());
        let id = zfs.create(zfs.root(), b"f", new).await.map_err(text)?.0.id();
        spa.sync().await.map_err(text)?;
        spa.ctx.txgs.set_limits(DirtyLimits { max: LIMIT, ..DirtyLimits::default() });
        for d in devices.lock().iter() {
            d.add(Rule::new(Ops::Writes, Fault::Hang));
        }
        let accepted = Arc::new(AtomicU64::new(0));
        let (count, z) = (accepted.clone(), zfs.clone());
        let writer = env.spawn_with_result(async move {
            // Four times the limit in one txg and the next.
            for n in 0..4 * LIMIT / WRITE {
                let data = Bytes::from(vec![n as u8; WRITE as usize]);
                z.write(id, 0, &data, false).await?;
                count.fetch_add(WRITE, Ordering::Relaxed);
            }
            zilla_core::error::Result::Ok(())
        });
        env.sleep(Duration::from_secs(60)).await;
        let held = accepted.load(Ordering::Relaxed);
        for d in devices.lock().iter() {
            d.clear();
            d.release_hung();
        }
        writer.await.map_err(text)?;
        spa.sync().await.map_err(text)?;
        // The last write that is let in may reach over it.
        if held > LIMIT + WRITE {
            return Err(format!(
                "{held} bytes were accepted while the disks stood still, the limit being {LIMIT}"
            ));
        }
        Ok(())
    });
    done.map_err(|stuck| stuck.to_string())?
}
