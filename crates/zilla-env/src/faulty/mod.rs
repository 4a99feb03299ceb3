//! Faulty devices: another device that goes wrong by rule.
//!
//! Rules are tried in the order they were added; the first that strikes decides what happens to an
//! operation. They can be added and cleared while the device is in use. Apart from them the device
//! may keep unflushed writes in a cache of its own and lose them on demand, as a power cut would.

mod cache;
mod rules;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;

pub use rules::{Fault, Ops, Rule, When};

use crate::completion::Completion;
use crate::{Device, DeviceInfo, Env, Io, IoBuf, IoOp, Rng, check_bounds};
use cache::Unflushed;
use rules::Active;

const SECTOR: u64 = 512;

pub struct FaultyDevice(Arc<Shared>);

struct Shared {
    inner: Arc<dyn Device>,
    env: Env,
    rules: Mutex<Vec<Active>>,
    hung: Mutex<Vec<Io>>,
    /// Whether writes wait in `cache` for a flush.
    volatile: AtomicBool,
    cache: Arc<Mutex<Unflushed>>,
    /// One flush at a time, so that an older one cannot hand down over a newer one's writes.
    flushing: Arc<futures_util::lock::Mutex<()>>,
}

impl FaultyDevice {
    pub fn new(inner: Arc<dyn Device>, env: &Env) -> FaultyDevice {
        FaultyDevice(Arc::new(Shared {
            inner,
            env: env.clone(),
            rules: Mutex::default(),
            hung: Mutex::default(),
            volatile: false.into(),
            cache: Arc::default(),
            flushing: Arc::default(),
        }))
    }

    /// Adds a rule; the number is for [`FaultyDevice::hits`].
    pub fn add(&self, rule: Rule) -> usize {
        let mut rules = self.0.rules.lock();
        rules.push(Active { rule, seen: 0, hits: 0 });
        rules.len() - 1
    }

    /// How often a rule has struck.
    pub fn hits(&self, rule: usize) -> u64 {
        self.0.rules.lock().get(rule).map_or(0, |r| r.hits)
    }

    /// The device is sound again. What hangs keeps hanging until it is released.
    pub fn clear(&self) {
        self.0.rules.lock().clear();
    }

    /// Does the operations that hang after all; returns how many.
    pub fn release_hung(&self) -> usize {
        let hung = std::mem::take(&mut *self.0.hung.lock());
        let n = hung.len();
        self.0.pass(hung);
        n
    }

    /// From now on writes are kept back until a flush.
    pub fn keep_unflushed(&self) {
        self.0.volatile.store(true, Ordering::Release);
    }

    /// Loses the writes that no flush has handed down; returns how many.
    pub fn lose_unflushed(&self) -> usize {
        self.0.cache.lock().lose()
    }
}

impl Shared {
    fn fault_of(&self, op: &IoOp) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let chance = || self.env.rng.u64() as f64 / u64::MAX as f64;
        rules.iter_mut().find_map(|r| r.strikes(op, chance).then(|| r.rule.fault.clone()))
    }

    /// Does operations as a sound device would, with or without the cache.
    fn pass(self: &Arc<Self>, batch: Vec<Io>) {
        if !self.volatile.load(Ordering::Acquire) {
            return self.inner.submit(batch);
        }
        for Io { op, done } in batch {
            if let Err(e) = check_bounds(&op, self.inner.size()) {
                done.complete(Err(e));
                continue;
            }
            match op {
                IoOp::Read { offset, buf } => {
                    let me = self.clone();
                    let done = Completion::call(move |result| {
                        done.complete(result.map(|buf| {
                            buf.map(|mut buf| {
                                me.cache.lock().overlay(offset, &mut buf);
                                buf
                            })
                        }));
                    });
                    self.inner.submit(vec![Io { op: IoOp::Read { offset, buf }, done }]);
                }
                IoOp::Flush => {
                    let me = self.clone();
                    self.env.spawn(async move {
                        let _one = me.flushing.lock().await;
                        done.complete(cache::flush(&me.cache, &*me.inner).await);
                    });
                }
                op => {
                    self.cache.lock().keep(op);
                    done.complete(Ok(None));
                }
            }
        }
    }

    fn strike(self: &Arc<Self>, fault: Fault, Io { op, done }: Io) {
        let passed = match (fault, op) {
            (Fault::Error(errno), _) => return done.complete(Err(io::Error::from_raw_os_error(errno))),
            (Fault::Hang, op) => return self.hung.lock().push(Io { op, done }),
            (Fault::Delay(delay), op) => {
                let me = self.clone();
                return self.env.spawn(async move {
                    me.env.sleep(delay).await;
                    me.pass(vec![Io { op, done }]);
                });
            }
            (Fault::Ignore, IoOp::Read { buf, .. }) => return done.complete(Ok(Some(buf))),
            (Fault::Ignore, _) => return done.complete(Ok(None)),
            (Fault::Misdirect(by), op) => Io { op: moved(op, by), done },
            (Fault::Tear { sectors }, IoOp::Write { offset, data }) => {
                let data = first(data, sectors.saturating_mul(SECTOR));
                Io { op: IoOp::Write { offset, data }, done }
            }
            (fault, IoOp::Write { offset, data }) => {
                let mut whole = IoBuf::from_slice(&data.concat());
                damage(&fault, &mut whole, &*self.env.rng);
                Io { op: IoOp::Write { offset, data: SmallVec::from_iter([whole.into_bytes()]) }, done }
            }
            (fault, op @ IoOp::Read { .. }) => {
                let rng = self.env.rng.clone();
                let done = Completion::call(move |result| {
                    done.complete(result.map(|buf| {
                        buf.map(|mut buf| {
                            damage(&fault, &mut buf, &*rng);
                            buf
                        })
                    }));
                });
                Io { op, done }
            }
            // There is nothing to damage in an operation without data.
            (_, op) => Io { op, done },
        };
        self.pass(vec![passed]);
    }
}

fn moved(op: IoOp, by: u64) -> IoOp {
    match op {
        IoOp::Read { offset, buf } => IoOp::Read { offset: offset.saturating_add(by), buf },
        IoOp::Write { offset, data } => IoOp::Write { offset: offset.saturating_add(by), data },
        op => op,
    }
}

/// The first bytes of a gathering write.
fn first(data: impl IntoIterator<Item = Bytes>, mut len: u64) -> SmallVec<[Bytes; 4]> {
    let cut = data.into_iter().map(|mut piece| {
        piece.truncate(len.min(piece.len() as u64) as usize);
        len -= piece.len() as u64;
        piece
    });
    cut.filter(|piece| !piece.is_empty()).collect()
}

fn damage(fault: &Fault, data: &mut [u8], rng: &dyn Rng) {
    match fault {
        Fault::FlipBits { count } if !data.is_empty() => {
            for _ in 0..*count {
                let bit = ((rng.u64() as u128 * (data.len() as u128 * 8)) >> 64) as usize;
                data[bit / 8] ^= 1 << (bit % 8);
            }
        }
        Fault::Garbage => rng.fill(data),
        Fault::Zeroes => data.fill(0),
        _ => {}
    }
}

impl Device for FaultyDevice {
    fn submit(&self, batch: Vec<Io>) {
        let mut sound = Vec::with_capacity(batch.len());
        for io in batch {
            match self.0.fault_of(&io.op) {
                None => sound.push(io),
                Some(fault) => self.0.strike(fault, io),
            }
        }
        if !sound.is_empty() {
            self.0.pass(sound);
        }
    }

    fn size(&self) -> u64 {
        self.0.inner.size()
    }

    fn info(&self) -> DeviceInfo {
        DeviceInfo { backend: "faulty", ..self.0.inner.info() }
    }

    fn refresh_size(&self) -> io::Result<u64> {
        self.0.inner.refresh_size()
    }
}
