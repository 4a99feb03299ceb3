//! Devices that take writes only while their opener may write.
//!
//! A pool that several hosts can reach is its owner's for a while only, and that while may pass at
//! any moment: the process may have been stopped. So it is asked as late as can be, by the device
//! itself: a device that queues its operations asks again right before each system call. What is
//! refused was not written, and its error says so ([`is_refused`]); only a write that the kernel
//! did by half before may have left that half.
//!
//! What is between the question and the system call, and what the kernel holds back after it, no
//! process can answer for.

use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::{Device, DeviceInfo, Env, Io};

/// Says whether the device may be written now. It is asked often, and under a device's locks: the
/// answer must not wait for anything.
pub trait Fence: Send + Sync {
    fn allows(&self) -> bool;
}

/// The error of what a fence has stopped.
#[derive(Debug)]
struct Refused;

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("not written: the pool may be in use by another host")
    }
}

impl std::error::Error for Refused {}

/// Whether a fence has stopped the operation, rather than the device failed.
pub fn is_refused(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|inner| inner.is::<Refused>())
}

/// Gives the operation back if it may be done now; otherwise it ends here.
pub(crate) fn pass(io: Io, fence: &dyn Fence) -> Option<Io> {
    if !io.op.modifies() || fence.allows() {
        return Some(io);
    }
    io.done.complete(Err(refused()));
    None
}

pub(crate) fn refused() -> io::Error {
    io::Error::other(Refused)
}

struct Fenced {
    inner: Arc<dyn Device>,
    fence: Arc<dyn Fence>,
}

impl Device for Fenced {
    fn submit(&self, batch: Vec<Io>) {
        self.inner.submit_fenced(batch, &self.fence);
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.inner.refresh_size()
    }
}

impl Env {
    /// The same world, except that devices opened in it are written only while the fence allows it.
    pub fn fence_devices(&self, fence: Arc<dyn Fence>) -> Env {
        self.wrap_devices(move |_: &Path, inner| Arc::new(Fenced { inner, fence: fence.clone() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::{IoBackend, RealConfig};
    use crate::{IoBuf, IoOp, OpenMode, real_env_with};
    use smallvec::SmallVec;
    use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering};

    struct Gate(AtomicBool);

    impl Fence for Gate {
        fn allows(&self) -> bool {
            self.0.load(Ordering::Acquire)
        }
    }

    /// Shuts after so many questions.
    struct Closing(AtomicIsize);

    impl Fence for Closing {
        fn allows(&self) -> bool {
            self.0.fetch_sub(1, Ordering::SeqCst) > 0
        }
    }

    const RW: OpenMode = OpenMode { write: true, exclusive: false };

    fn env(io: IoBackend) -> Env {
        real_env_with(RealConfig { threads: 1, io, direct: false })
    }

    /// Whether the way of doing I/O is to be had here.
    fn is_here(env: &Env, io: IoBackend, path: &Path) -> bool {
        let here = io != IoBackend::Uring || env.block_on(env.open(path, RW)).is_ok();
        if !here {
            println!("io_uring is refused here: its runs are skipped");
        }
        here
    }

    #[test]
    fn a_shut_fence_stops_writes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::write(&path, vec![0; 1 << 20]).unwrap();
        for backend in [IoBackend::Threads, IoBackend::Inline, IoBackend::Uring] {
            let env = env(backend);
            if !is_here(&env, backend, &path) {
                continue;
            }
            let gate = Arc::new(Gate(AtomicBool::new(true)));
            let fenced = env.fence_devices(gate.clone());
            env.block_on(async {
                let device = fenced.open(&path, RW).await.unwrap();
                let data = |b: u8| IoBuf::from_slice(&[b; 4096]).into_bytes();
                device.write(0, data(1)).await.unwrap();
                gate.0.store(false, Ordering::Release);
                assert!(is_refused(&device.write(0, data(2)).await.unwrap_err()));
                assert!(is_refused(&device.discard(0, 4096).await.unwrap_err()));
                assert!(is_refused(&device.write_zeroes(0, 4096).await.unwrap_err()));
                device.flush().await.unwrap();
                assert_eq!(device.read(0, 4096).await.unwrap()[..], [1; 4096]);
                gate.0.store(true, Ordering::Release);
                device.write(0, data(3)).await.unwrap();
                let e = device.write(1 << 20, data(3)).await.unwrap_err();
                assert!(!is_refused(&e), "{e}");
            });
        }
    }

    /// What waits for its turn is asked again when it has it.
    #[test]
    fn a_fence_that_shuts_on_the_way_stops_what_is_queued() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        for backend in [IoBackend::Threads, IoBackend::Uring] {
            std::fs::write(&path, vec![1; 1 << 20]).unwrap();
            let env = env(backend);
            if !is_here(&env, backend, &path) {
                continue;
            }
            let fence = Arc::new(Closing(AtomicIsize::new(0)));
            let fenced = env.fence_devices(fence.clone());
            let data = || IoBuf::from_slice(&[2; 4096]).into_bytes();
            let gathered = || IoOp::Write { offset: 0, data: SmallVec::from_iter([data(), data()]) };
            env.block_on(async {
                let device = fenced.open(&path, RW).await.unwrap();
                let stopped = |e: io::Error| assert!(is_refused(&e), "{backend:?}: {e}");
                // The question at the submission is the last with a yes.
                let once = || fence.0.store(1, Ordering::SeqCst);
                once();
                stopped(device.write(0, data()).await.unwrap_err());
                once();
                stopped(device.io(gathered()).await.unwrap_err());
                once();
                stopped(device.discard(0, 4096).await.unwrap_err());
                once();
                stopped(device.write_zeroes(0, 4096).await.unwrap_err());
                assert_eq!(device.read(0, 8192).await.unwrap()[..], [1; 8192]);
                // Of a batch some are stopped, and each is answered.
                let write = |i: u64| IoOp::Write { offset: i * 4096, data: SmallVec::from_iter([data()]) };
                fence.0.store(8 + 3, Ordering::SeqCst);
                let results = device.batch((0..8).map(write).collect()).await;
                assert_eq!(results.iter().filter(|r| r.is_ok()).count(), 3, "{backend:?}");
                results.into_iter().filter_map(Result::err).for_each(stopped);
            });
        }
    }
}
