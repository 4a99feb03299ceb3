//! What handlers do to a leaf, and a device that does not answer.

use super::*;
use crate::inject::{Failure, Fault, Frequency, IoType, Place, injections};
use std::time::Duration;
use zilla_env::faulty::{Fault as Hang, FaultyDevice, Ops, Rule};

const AT: u64 = 8 << 20;

fn mirror(env: &Env, all: &[Arc<dyn Device>]) -> Arc<VdevTree> {
    let paths: Vec<PathBuf> = (0..all.len()).map(|i| PathBuf::from(format!("/m{i}"))).collect();
    let spec = PoolSpec { tops: vec![top(VdevKind::Mirror, &paths, 12)], ..PoolSpec::default() };
    let config = spec.config(77, &*env.rng).unwrap();
    env.block_on(opened(env, &config, all, true))
}

struct Asked(Vec<u64>);

impl Asked {
    fn add(&mut self, fault: Fault) {
        self.0.push(injections().add("tank", 77, fault, Frequency::Always).unwrap());
    }
    fn clear(&mut self) {
        self.0.drain(..).for_each(|id| drop(injections().clear(Some(id))));
    }
}

/// Other tests of the process have handlers of their own.
impl Drop for Asked {
    fn drop(&mut self) {
        self.clear();
    }
}

#[test]
fn a_leaf_fails_lies_and_forgets_as_it_was_asked_to() {
    let env = real_env(1);
    let all: Vec<Arc<dyn Device>> = vec![Arc::new(MemDevice::new(DEV)), Arc::new(MemDevice::new(DEV))];
    let tree = mirror(&env, &all);
    let leaf = tree.leaves[0].clone();
    let device =
        |failure, on| Fault::Device { vdev: leaf.guid(), place: Place::Data, failure, on, fail_fast: false };
    let mut asked = Asked(Vec::new());
    let data = Bytes::from(vec![7; 4096]);
    env.block_on(async {
        let read = || leaf.read_at(AT, 4096, Priority::SyncRead);
        let write = |data: &Bytes| leaf.write_at(AT, data.clone(), Priority::SyncWrite);
        write(&data).await.unwrap();
        asked.add(device(Failure::Io, IoType::Read));
        assert_eq!(read().await.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(leaf.read_errors.load(Ordering::Relaxed), 1, "counted once, and not tried again");
        assert!(leaf.read_at(0, 4096, Priority::SyncRead).await.is_ok(), "labels are left alone");
        write(&data).await.unwrap();
        asked.clear();
        assert_eq!(read().await.unwrap(), data, "nothing is wrong with the device");
        asked.add(device(Failure::Corrupt, IoType::Read));
        let other = read().await.unwrap();
        let bits: u32 = other.iter().zip(&data).map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!(bits, 1);
        asked.clear();
        assert_eq!(read().await.unwrap(), data);
        asked.add(device(Failure::Noop, IoType::Write));
        write(&Bytes::from(vec![8; 4096])).await.unwrap();
        asked.clear();
        assert_eq!(read().await.unwrap(), data, "it was never written");
        asked.add(device(Failure::Io, IoType::Flush));
        let mark = leaf.mark();
        write(&data).await.unwrap();
        assert!(leaf.flush(mark).await.is_err());
        asked.clear();
        let fail_fast = true;
        asked.add(Fault::Device {
            vdev: leaf.guid(),
            place: Place::Data,
            failure: Failure::Io,
            on: IoType::Read,
            fail_fast,
        });
        assert_eq!(read().await.unwrap(), data, "the second try goes well");
        asked.clear();
        asked.add(Fault::Delay {
            vdev: leaf.guid(),
            latency: Duration::from_millis(50),
            lanes: 1,
            on: IoType::All,
        });
        let begun = env.clock.now();
        let (a, b) = futures_util::future::join(read(), read()).await;
        assert!(a.is_ok() && b.is_ok());
        assert!(env.clock.now() - begun >= Duration::from_millis(100), "one lane, one after the other");
        asked.clear();
        tree.close().await;
    });
}

#[test]
fn a_device_that_does_not_answer_is_given_up_and_taken_back_when_it_has() {
    let env = real_env(1);
    let faulty = Arc::new(FaultyDevice::new(Arc::new(MemDevice::new(DEV)), &env));
    let all: Vec<Arc<dyn Device>> = vec![faulty.clone(), Arc::new(MemDevice::new(DEV))];
    let tree = mirror(&env, &all);
    let leaf = tree.leaves[0].clone();
    let (none, long) = (Duration::ZERO, Duration::from_secs(3600));
    env.block_on(async {
        let written = leaf.write_at(AT, Bytes::from(vec![7; 4096]), Priority::SyncWrite);
        written.await.unwrap();
        assert_eq!(leaf.look_for_hung(none, none), None, "it has answered all");
        faulty.add(Rule::new(Ops::All, Hang::Hang));
        // More than the device takes at once: some wait in the queue.
        let reads: Vec<_> = (0..30)
            .map(|i| {
                let leaf = leaf.clone();
                env.spawn_with_result(
                    async move { leaf.read_at(AT + i * 65_536, 4096, Priority::SyncRead).await },
                )
            })
            .collect();
        let flush = {
            let leaf = leaf.clone();
            env.spawn_with_result(async move { leaf.flush(leaf.mark()).await })
        };
        while leaf.load() < 30 || leaf.look_for_hung(long, none).is_none() {
            env.sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(leaf.look_for_hung(long, long), None, "it has not had the time");
        assert!(leaf.look_for_hung(none, long).is_some());
        leaf.give_up();
        for read in reads {
            assert_eq!(read.await.unwrap_err().raw_os_error(), Some(110));
        }
        assert!(flush.await.is_err());
        assert!(!leaf.readable() && !leaf.writable() && leaf.is_hung());
        assert!(leaf.read_at(AT, 4096, Priority::SyncRead).await.is_err(), "nothing more is sent");
        let hung = |t: &Trouble| matches!(t.kind, TroubleKind::Hung(_));
        assert_eq!(leaf.troubles.take().iter().filter(|t| hung(t) && t.told).count(), 1, "once a second");
        // Its answers are nobody's, and then it is as it was.
        faulty.clear();
        assert!(faulty.release_hung() > 0);
        assert!(leaf.answers().await && leaf.load() == 0);
        let args = OpenArgs { write: true, devices: devices(&tree, &all), pool_guid: None, newest: 0 };
        tree.reopen(&leaf, &args).await;
        assert!(leaf.readable() && !leaf.is_hung());
        assert_eq!(leaf.read_at(AT, 4096, Priority::SyncRead).await.unwrap()[..], [7; 4096]);
        tree.close().await;
    });
}
