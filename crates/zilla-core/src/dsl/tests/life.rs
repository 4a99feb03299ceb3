//! Random operations on datasets, in pools of all ages; the whole pool is checked after each few.

use super::*;
use zilla_ondisk::enums::SPA_VERSION_BEFORE_FEATURES;

struct Life {
    seed: u64,
    /// Operations so far, for names.
    done: u32,
    fs: Vec<String>,
    snaps: Vec<String>,
}

impl Life {
    fn begin(p: &mut Pool, seed: u64) -> Life {
        p.create("tank/f0");
        Life { seed, done: 0, fs: vec!["tank/f0".to_owned()], snaps: Vec::new() }
    }

    fn below(&mut self, n: usize) -> usize {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed >> 33) as usize % n
    }

    fn one(&mut self, from: impl Fn(&Life) -> &Vec<String>) -> String {
        let at = self.below(from(self).len());
        from(self)[at].clone()
    }

    fn go_on(&mut self, p: &mut Pool, operations: u32) {
        for _ in 0..operations {
            self.step(p);
            self.done += 1;
            if self.done.is_multiple_of(10) {
                p.check();
            }
        }
        p.check();
    }

    fn step(&mut self, p: &mut Pool) {
        let i = self.done;
        match self.below(12) {
            10 => {
                let f = self.one(|l| &l.fs);
                match p.task(async |p, tx| p.rollback(tx, &f, None).await) {
                    Ok(()) => {}
                    Err(e) => assert!(e.is(Errno::NoEnt) || e.is(Errno::Exist), "{e}"),
                }
            }
            11 => {
                let f = self.one(|l| &l.fs);
                match p.task(async |p, tx| p.promote(tx, &f).await) {
                    // The shared snapshots have the clone's name now.
                    Ok(()) => {
                        let all = |f: &String| block_on(p.dsl.snapshots(&p.ds(f))).unwrap();
                        self.snaps = self.fs.iter().flat_map(all).map(|s| s.name()).collect();
                    }
                    Err(e) => assert!(e.is(Errno::Inval), "{e}"),
                }
            }
            0..=3 => {
                let f = self.one(|l| &l.fs);
                let (object, first) = (1 + self.below(3), self.below(60));
                let (blocks, byte) = (1 + self.below(20), 1 + self.below(200));
                p.write(&f, object as u64, first as u64, blocks as u64, byte as u8);
            }
            4..=5 => {
                let s = format!("{}@s{i}", self.one(|l| &l.fs));
                p.snapshot(&s);
                self.snaps.push(s);
            }
            6 if !self.snaps.is_empty() && self.fs.len() < 6 => {
                let (s, f) = (self.one(|l| &l.snaps), format!("tank/c{i}"));
                p.task(async |p, tx| p.clone_ds(tx, &f, &s).await).unwrap();
                self.fs.push(f);
            }
            7..=8 if !self.snaps.is_empty() => {
                let names = [self.one(|l| &l.snaps)];
                match p.task(async |p, tx| p.destroy_snapshots(tx, &names, false).await) {
                    Ok(()) => self.snaps.retain(|s| *s != names[0]),
                    Err(e) => assert!(e.is(Errno::Exist), "{e}"),
                }
            }
            9 if self.fs.len() > 1 => {
                let at = 1 + self.below(self.fs.len() - 1);
                let f = self.fs[at].clone();
                match p.task(async |p, tx| p.destroy_head(tx, &f).await) {
                    Ok(()) => self.fs.retain(|x| *x != f),
                    Err(e) => assert!(e.is(Errno::Busy), "{e}"),
                }
            }
            _ => p.sync(),
        }
    }
}

#[test]
fn random_life() {
    let mut p = Pool::new();
    Life::begin(&mut p, 42).go_on(&mut p, 200);
}

impl Pool {
    /// Raises the version as the pool does.
    fn upgrade(&mut self, version: u64) {
        self.task(async |p, tx| {
            if version == SPA_VERSION_FEATURES {
                let directory = p.directory().await?;
                p.ctx.features.create(p.mos(), &directory, tx).await?;
                for f in FEATURES {
                    p.ctx.features.enable(p.mos(), &directory, tx, f).await?;
                }
            }
            p.upgrade(tx, version).await?;
            p.ctx.set_version(version);
            Ok(())
        })
        .unwrap();
        self.version = version;
        self.check();
    }
}

/// Old pools as they are, and with each step of their upgrade in the middle of it.
#[test]
fn random_life_of_old_pools() {
    let new = SPA_VERSION_FEATURES;
    let ways: &[&[u64]] = &[
        &[1, 3, 10, 11, 13, 25, 26, SPA_VERSION_BEFORE_FEATURES, new],
        &[9, new],
        &[12, 26],
        &[15, new],
        &[25, SPA_VERSION_BEFORE_FEATURES],
        &[26, new],
    ];
    for (i, way) in ways.iter().enumerate() {
        let mut p = Pool::of(way[0], &[]);
        let mut life = Life::begin(&mut p, 7 + i as u64);
        for version in &way[1..] {
            life.go_on(&mut p, 60);
            p.upgrade(*version);
        }
        life.go_on(&mut p, 80);
    }
}
