//! Disks leave and return, in use and across exports, crashes and imports: what they missed is
//! always known and given to them, so that afterwards any other disk may be taken away.

use super::layout::{Layout, POOL, find, import};
use super::run::open_fs;
use crate::{CrashPolicy, Sim, Survivors};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use zilla_core::spa::Spa;
use zilla_core::vdev::VdevState;
use zilla_core::zpl::{Cred, NewFile};
use zilla_env::Env;
use zilla_ondisk::enums::PoolState;

const ROUNDS: u64 = 3;

/// What the files must hold, by name.
type Files = BTreeMap<String, Bytes>;

struct Story {
    layout: Layout,
    seed: u64,
    boots: u64,
    files: Files,
    left: Option<Survivors>,
}

/// How a time of use ends.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Export,
    Crash,
}

async fn put(env: &Env, spa: &Arc<Spa>, files: &mut Files) {
    let zfs = open_fs(env, spa, POOL).await.unwrap();
    for _ in 0..3 + env.random_below(4) {
        let name = format!("f{}", files.len());
        let len = 1 + env.random_below(40_000) as usize;
        let data: Bytes = (0..len).map(|i| (i * 7 + files.len()) as u8 ^ (i >> 8) as u8).collect();
        let new = NewFile::new(0o100644, Cred::default());
        let (h, _) = zfs.create(zfs.root(), name.as_bytes(), new).await.unwrap();
        zfs.write(h.id(), 0, &data, false).await.unwrap();
        files.insert(name, data);
    }
    spa.sync().await.unwrap();
}

async fn check(env: &Env, spa: &Arc<Spa>, files: &Files, what: &str) {
    let zfs = open_fs(env, spa, POOL).await.unwrap();
    for (name, data) in files {
        let (h, a) = zfs.lookup(zfs.root(), name.as_bytes()).await.unwrap();
        assert_eq!(a.size as usize, data.len(), "{what}: {name}");
        let read = zfs.read(h.id(), 0, data.len()).await;
        let read = read.unwrap_or_else(|e| panic!("{what}: {name}: {e}")).concat();
        assert!(read == data[..], "{what}: {name}");
    }
}

/// Nobody lacks anything any more.
async fn whole(env: &Env, spa: &Arc<Spa>, what: &str) {
    for _ in 0..600 {
        let behind = spa.tree().pool_leaves().any(|l| !l.dtl.is_empty());
        if !behind && !spa.scan().unwrap().is_scanning() {
            assert_eq!(spa.tree().root.state().0, VdevState::Healthy, "{what}");
            return;
        }
        env.sleep(Duration::from_millis(500)).await;
    }
    let tree = spa.tree();
    let dtls: Vec<_> = tree.pool_leaves().map(|l| (l.path(), l.state(), l.dtl.ranges())).collect();
    panic!("{what}: it does not become whole: {dtls:?} {:?}", spa.scan().unwrap().status());
}

impl Story {
    fn boot(&mut self) -> Sim {
        self.boots += 1;
        match self.left.take() {
            Some(left) => left.boot(self.seed * 100 + self.boots),
            None => {
                let sim = Sim::new(self.seed * 100);
                self.layout.add_disks(&sim);
                sim
            }
        }
    }

    async fn open(&self, env: &Env) -> Arc<Spa> {
        match find(env).await.unwrap() {
            Some(found) => import(env, &found, false).await.unwrap(),
            None => self.layout.create(env).await.unwrap(),
        }
    }

    /// The pool is used for a while. A disk may be pulled in the middle of it, and it may be waited
    /// for that all are whole.
    fn time_of_use(&mut self, pulled: Option<usize>, until_whole: bool, end: End) {
        let sim = self.boot();
        let (env, what) = (sim.env(), format!("seed {} boot {}", self.seed, self.boots));
        let mut files = std::mem::take(&mut self.files);
        sim.block_on(async {
            let spa = self.open(&env).await;
            if pulled.is_some() || !until_whole {
                put(&env, &spa, &mut files).await;
            }
            if let Some(disk) = pulled.and_then(|i| sim.disk(Layout::path(i))) {
                disk.set_offline(true);
                put(&env, &spa, &mut files).await;
                if env.random_below(2) == 0 {
                    disk.set_offline(false);
                    spa.clear(None).await.unwrap();
                    put(&env, &spa, &mut files).await;
                }
            }
            if until_whole {
                whole(&env, &spa, &what).await;
            }
            if end == End::Export {
                spa.close(Some(PoolState::Exported)).await.unwrap();
            } else {
                env.sleep(Duration::from_micros(env.random_below(3_000_000))).await;
            }
        });
        self.files = files;
        self.left = Some(sim.power_off(CrashPolicy::Random, self.seed * 100 + self.boots));
    }

    /// Every disk alone is taken away: everything reads.
    fn without_each(&self) {
        for i in 0..self.layout.disks() {
            let mut left = self.left.clone().unwrap();
            left.disks.remove(&Layout::path(i));
            let sim = left.boot(1);
            let env = sim.env();
            sim.block_on(async {
                let spa = import(&env, &find(&env).await.unwrap().unwrap(), true).await.unwrap();
                check(&env, &spa, &self.files, &format!("seed {} without disk {i}", self.seed)).await;
            });
        }
    }
}

/// A pool through several times of use, with disks that leave and return. Panics where something is
/// lost.
pub fn returning_run(layout: Layout, seed: u64) {
    let mut story = Story { layout, seed, boots: 0, files: Files::new(), left: None };
    let mut dice = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut one_of = move |n: u64| {
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % n
    };
    let end = |n: u64| if n == 0 { End::Export } else { End::Crash };
    for _ in 0..ROUNDS {
        let victim = one_of(layout.disks() as u64) as usize;
        let pulled = Some(victim).filter(|_| one_of(2) == 0);
        story.time_of_use(pulled, false, end(one_of(2)));
        if one_of(3) != 0 {
            let path = Layout::path(victim);
            let left = story.left.as_mut().unwrap();
            let aside = left.disks.remove(&path).unwrap();
            story.time_of_use(None, false, end(one_of(2)));
            story.left.as_mut().unwrap().disks.insert(path, aside);
        }
        if one_of(2) == 0 {
            // The resilver is cut short.
            story.time_of_use(None, false, end(one_of(2)));
        }
        story.time_of_use(None, true, End::Export);
        story.without_each();
    }
}
