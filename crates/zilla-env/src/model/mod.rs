//! Modelled devices: another device that takes as long as a real one of some kind would.
//!
//! The figures come from a [`Profile`]; the arithmetic is in `timing`; this file delays each
//! operation by the world's clock, so a modelled disk behaves the same in real and in virtual time.
//! In virtual time the same operations at the same times take the same time in every run.
//!
//! A delayed operation reaches the device below when its time is up. Reads of what is still on its
//! way see the old contents, as the trait allows: only completed writes are visible. A modelled
//! cache is a matter of time only; what a cut loses is the simulator's and the faulty device's
//! business.

mod platter;
mod profile;
mod timing;

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

pub use profile::{Profile, ProfileError};

use crate::{Clock, Device, DeviceInfo, Env, Io, IoOp, Spawner};
pub use timing::Timing;

pub struct ModelDevice {
    inner: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    spawner: Arc<dyn Spawner>,
    timing: Mutex<Timing>,
    info: DeviceInfo,
}

impl ModelDevice {
    pub fn new(inner: Arc<dyn Device>, profile: Profile, env: &Env) -> ModelDevice {
        let info = DeviceInfo {
            rotational: Some(profile.rotational),
            logical_block: profile.logical_block,
            physical_block: profile.physical_block,
            backend: "modelled",
            ..inner.info()
        };
        let timing = Mutex::new(Timing::new(profile, inner.size()));
        ModelDevice { inner, clock: env.clock.clone(), spawner: env.spawner.clone(), timing, info }
    }
}

impl Device for ModelDevice {
    fn submit(&self, batch: Vec<Io>) {
        let now = self.clock.now();
        let mut timing = self.timing.lock();
        let timed: Vec<_> = batch
            .into_iter()
            .map(|io| {
                let (offset, len) = io.op.range();
                let done = match &io.op {
                    IoOp::Read { .. } => timing.read(now, offset, len),
                    IoOp::Write { .. } => timing.write(now, offset, len),
                    IoOp::Flush => timing.flush(now),
                    IoOp::Discard { .. } | IoOp::WriteZeroes { .. } => timing.command(now),
                };
                (done.saturating_sub(now), io)
            })
            .collect();
        drop(timing);
        for (delay, io) in timed {
            let (inner, sleep) = (self.inner.clone(), self.clock.sleep(delay));
            self.spawner.spawn(Box::pin(async move {
                sleep.await;
                inner.submit(vec![io]);
            }));
        }
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.inner.refresh_size()
    }
}
