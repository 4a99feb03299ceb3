//! Synchronous writes through the kernel: threads of this process and a file below a mount point,
//! on modelled devices in real time.
//!
//! The pool is that of the measurements in virtual time, and the figures are lower by what
//! computing costs on this machine, the ways through the kernel, and timers, which wake who waits
//! for a modelled device a little late.

use super::perrin::{self, Gauge, Load};
use super::rig::{Devices, POOL, Rig};
use crate::engine::Result;
use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use tempfile::TempDir;
use zilla_env::{Env, real_env};
use zilla_fuse::{Mount, Options};

/// A mount at a folder of its own. Neither outlives it, whatever goes wrong.
struct Mounted {
    mount: Mount,
    folder: TempDir,
}

impl Mounted {
    fn new(rig: &Rig) -> Result<Mounted> {
        let folder = tempfile::tempdir()?;
        let mount = zilla_fuse::mount(rig.fs.clone(), rig.env.clone(), folder.path(), &Options::new(POOL))?;
        Ok(Mounted { mount, folder })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        match self.mount.unmount(true) {
            Ok(()) => zilla_env::block_on(self.mount.gone()),
            Err(e) => eprintln!("{} stays mounted: {e}", self.folder.path().display()),
        }
    }
}

/// MB/s of one pool.
pub fn one(main: Devices, logs: Option<Devices>, load: Load) -> Result<f64> {
    let rig = Rig::new(&real_env(0), main, logs)?;
    let rate = measure(&rig, load);
    let closed = rig.close();
    rate.and_then(|rate| closed.map(|()| rate))
}

fn measure(rig: &Rig, load: Load) -> Result<f64> {
    rig.env.block_on(perrin::fill(rig))?;
    let mounted = Mounted::new(rig)?;
    let file = mounted.folder.path().join(perrin::NAME);
    let gauge = Gauge::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..load.threads).map(|_| scope.spawn(|| writer(&rig.env, &file, load.write, &gauge))).collect();
        let rate = rig.env.block_on(gauge.measure(&rig.env, load.seconds));
        for thread in threads {
            thread.join().map_err(|_| "a writer died")??;
        }
        Ok(rate)
    })
}

fn writer(env: &Env, file: &Path, write: u64, gauge: &Gauge) -> io::Result<()> {
    let stable = OFlags::DSYNC.bits() as i32;
    let file = OpenOptions::new().write(true).custom_flags(stable).open(file)?;
    let data = perrin::random(env, write);
    while let Some(at) = gauge.next(env, write) {
        file.write_all_at(&data, at)?;
        gauge.add(write);
    }
    Ok(())
}
