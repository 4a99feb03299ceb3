//! The keys that a starting daemon loads by itself: those whose `keylocation` is a file or a
//! server.
//!
//! OpenZFS's units do the same at boot (`zfs load-key -a`, then `zfs mount -a`). Pools of the cache
//! file are opened and mounted one after the other. After each one the files are looked for: a key
//! may lie in a file system that has just been mounted, and a pool's devices in one that a key has
//! just opened. Servers are asked when all pools are open, beside everything else, because there
//! may be no network yet. Keys with `keylocation=prompt` wait for a person.
//!
//! What it keeps true: a key that is not found costs its datasets and one line of the log, never
//! the start: files are looked for together, one that does not answer is not asked again, and all
//! of them have little more than [`FILE_PATIENCE`]. A pool chooses what its `keylocation` is, so
//! only regular files are read, no more of them than a key has, and nothing of them is told. It
//! chooses how often a passphrase is hashed, too: for those that are the wrong ones a pool has
//! [`HASH_PATIENCE`] in all. A pool that `zpool import` opens is none of these: there `-l` says
//! that keys are to be loaded.

use super::Engine;
use super::keys::Turn;
use super::pool::Pool;
use futures_util::stream::{StreamExt, iter};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::BufReader;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use zilla::error::Result;
use zilla::keys::KeyFormat;
use zilla_control::key_source;
use zilla_control::types::{KeyLoad, KeyMaterial};

/// How long files that do not answer (they may lie in a network file system) may keep the start
/// waiting, and how long at least each look for some waits.
const FILE_PATIENCE: Duration = Duration::from_secs(30);
const A_LOOK: Duration = Duration::from_secs(1);
/// Files that are looked for at a time: each has a thread.
const TOGETHER: usize = 256;
/// The same for a server.
const SERVER_PATIENCE: Duration = Duration::from_secs(30);
/// So long are passphrases of a pool hashed to no avail: two hundred times as long as a usual one
/// takes.
const HASH_PATIENCE: Duration = Duration::from_secs(60);
/// How long a mount may still take when the daemon is told to end, or its pool is suspended.
const A_MOUNT: Duration = Duration::from_secs(5);
/// How long servers are tried before they are given up, and how long after a failure again.
const NETWORK_PATIENCE: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_secs(5);

/// An encryption root whose key is looked for.
struct Locked {
    pool: Weak<Pool>,
    name: String,
    location: String,
    format: &'static str,
    /// Why it has no key so far.
    why: String,
    /// Its file did not answer, and is not asked again.
    silent: bool,
}

/// Those of the pools that were opened.
#[derive(Default)]
pub(super) struct StartKeys {
    locked: Vec<Locked>,
    /// How long files that did not answer were waited for.
    waited: Duration,
    hashed: Hashed,
}

/// How long passphrases were hashed that were not the keys, by the guids of their pools.
#[derive(Default)]
struct Hashed(BTreeMap<u64, Duration>);

impl Hashed {
    /// Loads what was found of a key, if its pool has not taken too much time already.
    async fn load(&mut self, locked: &Locked, engine: &Engine, found: Found) -> Look {
        let pool = locked.pool.upgrade().map_or(0, |pool| pool.zilla.guid());
        let left = match self.left(pool) {
            None if found.is_ok() => return Look::Wrong(TOO_LONG.to_owned()),
            left => left.unwrap_or_default(),
        };
        let begun = Instant::now();
        let look = locked.load(engine, found, Turn::OWNER.within(left)).await;
        if matches!(look, Look::Wrong(_)) {
            self.took(pool, begun.elapsed());
        }
        look
    }

    /// What a pool still has of its time.
    fn left(&self, pool: u64) -> Option<Duration> {
        let took = self.0.get(&pool).copied().unwrap_or_default();
        HASH_PATIENCE.checked_sub(took).filter(|left| !left.is_zero())
    }

    fn took(&mut self, pool: u64, time: Duration) {
        *self.0.entry(pool).or_default() += time;
    }
}

/// A key, or why there is none.
type Found = std::result::Result<KeyMaterial, String>;

/// What one look for a key came to.
enum Look {
    Loaded(Arc<Pool>),
    /// Somebody else loaded it, or the pool is gone.
    Settled,
    /// Not found.
    Missing(String),
    /// It is not the key.
    Wrong(String),
}

impl StartKeys {
    /// Notes what a pool that was just opened needs.
    pub(super) async fn note(&mut self, pool: &Arc<Pool>) {
        match locked_roots(pool).await {
            Ok(mut roots) => self.locked.append(&mut roots),
            Err(e) => tracing::error!("pool '{}': its keys cannot be looked for: {e}", pool.name()),
        }
    }

    /// Looks once for each file. The pools in which a key was loaded, whose file systems were then
    /// mounted. None, if the daemon is told to end meanwhile.
    pub(super) async fn load_files(&mut self, engine: &Engine) -> Vec<Arc<Pool>> {
        let (mut left, mut opened) = (Vec::new(), Vec::<Arc<Pool>>::new());
        let look = self.look_together(|locked| read(locked.format, locked.location.clone()));
        let Some(found) = engine.unless_stopped(look).await else { return Vec::new() };
        for (mut locked, found) in found {
            let Some(found) = found else {
                left.push(locked);
                continue;
            };
            let loaded = engine.unless_stopped(self.hashed.load(&locked, engine, found)).await;
            let Some(look) = loaded else { return Vec::new() };
            match look {
                Look::Loaded(pool) => {
                    if !opened.iter().any(|p| Arc::ptr_eq(p, &pool)) {
                        opened.push(pool);
                    }
                }
                Look::Settled => {}
                Look::Missing(why) => {
                    locked.why = why;
                    left.push(locked);
                }
                Look::Wrong(why) => locked.tell(&why),
            }
        }
        self.locked = left;
        for pool in &opened {
            pool.mount_by_itself(engine).await;
        }
        opened
    }

    /// All that are noted, and what `read` has found for those whose keys are in files.
    async fn look_together<F>(&mut self, read: impl Fn(&Locked) -> F) -> Vec<(Locked, Option<Found>)>
    where
        F: Future<Output = Found>,
    {
        let begun = tokio::time::Instant::now();
        let until = begun + FILE_PATIENCE.saturating_sub(self.waited);
        let looks = std::mem::take(&mut self.locked).into_iter().map(|mut locked| {
            let found = (!locked.silent && !is_remote(&locked.location)).then(|| read(&locked));
            async move {
                // (Where there are many this one may begin late.)
                let until = until.max(tokio::time::Instant::now() + A_LOOK);
                let found = match found {
                    None => None,
                    Some(found) => match tokio::time::timeout_at(until, found).await {
                        Ok(found) => Some(found),
                        Err(_) => {
                            locked.silent = true;
                            Some(Err(SILENT.to_owned()))
                        }
                    },
                };
                (locked, found)
            }
        });
        let all: Vec<_> = iter(looks).buffer_unordered(TOGETHER).collect().await;
        if all.iter().any(|(locked, found)| locked.silent && found.is_some()) {
            self.waited += begun.elapsed();
        }
        all
    }

    /// Tells of the files that were not found; what is left is asked of servers.
    pub(super) fn give_up_files(&mut self) {
        self.locked.retain(|locked| {
            let remote = is_remote(&locked.location);
            if !remote {
                locked.tell(&locked.why);
            }
            remote
        });
    }
}

impl Locked {
    fn tell(&self, why: &str) {
        let (name, location) = (&self.name, &self.location);
        tracing::warn!(
            "'{name}' stays locked, because its key was not loaded from '{location}': {why} When it is there: \
             zfs mount -l {name}"
        );
    }

    /// Its pool, if it is still there under the name: it may have been exported, and another have
    /// that.
    fn pool(&self, engine: &Engine) -> Option<Arc<Pool>> {
        let (pool, now) = (self.pool.upgrade()?, engine.pool_of(&self.name).ok()?);
        Arc::ptr_eq(&pool, &now).then_some(pool)
    }

    /// Loads what was found.
    async fn load(&self, engine: &Engine, found: Found, turn: Turn) -> Look {
        let Some(pool) = self.pool(engine) else { return Look::Settled };
        let key = match found {
            Ok(key) => key,
            Err(why) => return Look::Missing(why),
        };
        match engine.load_key(KeyLoad { name: self.name.clone(), key, check: false }, turn).await {
            Ok(()) => {
                tracing::info!("the key of '{}' is loaded", self.name);
                Look::Loaded(pool)
            }
            Err(_) if pool.has_own_loaded_key(&self.name).await => Look::Settled,
            Err(e) => Look::Wrong(e.description().to_owned()),
        }
    }
}

impl Pool {
    /// Mounts what wants to be; what cannot be is told in the log.
    pub(super) async fn mount_by_itself(&self, engine: &Engine) {
        let mut mounting = std::pin::pin!(self.mount_all(engine, &[]));
        let failed = match engine.unless_stopped(self.unless_suspended(mounting.as_mut())).await {
            Some(Ok(failed)) => failed,
            stopped => {
                if let Some(Err(why)) = stopped {
                    let name = self.name();
                    tracing::error!("pool '{name}' is suspended ({why}): clear it, then 'zfs mount -a'");
                }
                // One that is being mounted is not left half done, unless its mountpoint or its
                // pool does not answer.
                tokio::time::timeout(A_MOUNT, mounting).await.unwrap_or_default()
            }
        };
        for e in failed {
            let name = e.subject.clone().unwrap_or_default();
            tracing::warn!("cannot mount '{name}': {}", e.description());
        }
    }
}

fn is_remote(location: &str) -> bool {
    location.starts_with("https://") || location.starts_with("http://")
}

/// The encryption roots of a pool whose keys are not loaded, and may be found without a person.
async fn locked_roots(pool: &Arc<Pool>) -> Result<Vec<Locked>> {
    let mut all = Vec::new();
    let mut dirs = vec![pool.zilla.dir_by_name(&pool.name()).await?];
    while let Some(dir) = dirs.pop() {
        dirs.extend(dir.children().await?);
        let root = dir.encryption_root().await?;
        if !dir.has_head() || root.is_none_or(|root| root.id() != dir.id()) || dir.key_loaded().await? {
            continue;
        }
        let properties = dir.head().await?.properties().await?;
        let Some(location) = properties.get("keylocation").and_then(|p| p.value.as_str()) else { continue };
        if !is_remote(location) && !location.starts_with("file:///") {
            continue;
        }
        let format = match dir.key_shape().await?.format {
            KeyFormat::Raw => "raw",
            KeyFormat::Hex => "hex",
            KeyFormat::Passphrase => "passphrase",
        };
        let (pool, name) = (Arc::downgrade(pool), dir.name());
        all.push(Locked {
            pool,
            name,
            location: location.to_owned(),
            format,
            why: String::new(),
            silent: false,
        });
    }
    Ok(all)
}

const NOT_A_FILE: &str = "it is not a regular file.";
const SILENT: &str = "its file system did not answer.";
const TOO_LONG: &str = "other passphrases of the pool were the wrong ones, and took too long to hash.";

/// The key in a file. The file may lie in a file system of this very process, or in one that does
/// not answer.
async fn read(format: &'static str, location: String) -> Found {
    let look = move || {
        let path = location.trim_start_matches("file://");
        let failed =
            |e: std::io::Error| format!("Failed to open key material file: {}.", zilla_env::strerror(&e));
        // Some devices do something when they are opened.
        if !std::fs::metadata(path).map_err(failed)?.is_file() {
            return Err(NOT_A_FILE.into());
        }
        // Opening a pipe to which nobody writes would wait.
        let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(nonblock).open(path).map_err(failed)?;
        key_in(format, file)
    };
    zilla_env::apart(look).await.unwrap_or_else(|e| Err(format!("{e}.")))
}

fn key_in(format: &str, file: File) -> Found {
    match file.metadata() {
        Ok(about) if about.is_file() => {}
        Ok(_) => return Err(NOT_A_FILE.into()),
        Err(e) => return Err(format!("{}.", zilla_env::strerror(&e))),
    }
    let bytes = key_source::take(format, &mut BufReader::new(file))?;
    material(format, bytes)
}

/// The key that a server has.
async fn ask(format: &'static str, url: String) -> Found {
    let fetch = move || key_source::fetch(&url, SERVER_PATIENCE);
    let fetched = tokio::task::spawn_blocking(fetch).await.map_err(|e| format!("{e}."))?;
    let fetched = fetched.map_err(|why| format!("{why}."))?;
    let bytes = key_source::take(format, &mut &fetched[..]);
    key_source::wipe(fetched);
    material(format, bytes?)
}

fn material(format: &str, bytes: Vec<u8>) -> Found {
    let key = key_source::checked(format, false, &bytes).map(|key| {
        let material = KeyMaterial::new(&key);
        key_source::wipe(key);
        material
    });
    key_source::wipe(bytes);
    key
}

impl Engine {
    /// Asks servers for the keys that are still to be loaded, until all are there or it has taken
    /// too long.
    pub(super) fn ask_for_keys(self: &Arc<Self>) {
        let mut waiting = std::mem::take(&mut self.start_keys.lock().locked);
        if waiting.is_empty() {
            return;
        }
        let engine = Arc::downgrade(self);
        tokio::spawn(async move {
            let (begun, mut hashed) = (Instant::now(), Hashed::default());
            loop {
                let mut left = Vec::new();
                for mut locked in waiting {
                    let Some(engine) = engine.upgrade() else { return };
                    if engine.closing() {
                        return;
                    }
                    if locked.pool(&engine).is_none() {
                        continue;
                    }
                    let found = ask(locked.format, locked.location.clone()).await;
                    // The pool may have gone meanwhile; now it cannot until all is mounted.
                    let _changes = engine.changes.lock().await;
                    if engine.closing() {
                        return;
                    }
                    match hashed.load(&locked, &engine, found).await {
                        Look::Loaded(pool) => pool.mount_by_itself(&engine).await,
                        Look::Settled => {}
                        Look::Missing(why) => {
                            locked.why = why;
                            left.push(locked);
                        }
                        Look::Wrong(why) => locked.tell(&why),
                    }
                }
                if left.is_empty() {
                    return;
                }
                if begun.elapsed() >= NETWORK_PATIENCE {
                    left.iter().for_each(|locked| locked.tell(&locked.why));
                    return;
                }
                tokio::time::sleep(AGAIN).await;
                waiting = left;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of file systems that do not answer are waited for together, once, and all of them not
    /// much longer than one.
    #[tokio::test(start_paused = true)]
    async fn files_that_do_not_answer_do_not_hold_up_the_start() {
        let note = |keys: &mut StartKeys, location: String| {
            let (pool, name) = (Weak::new(), "tank/a".to_owned());
            keys.locked.push(Locked {
                pool,
                name,
                location,
                format: "raw",
                why: String::new(),
                silent: false,
            });
        };
        let read = |locked: &Locked| {
            let location = locked.location.clone();
            async move {
                if location.contains("dead") {
                    std::future::pending::<()>().await;
                }
                Err(location)
            }
        };
        let begun = tokio::time::Instant::now();
        let mut keys = StartKeys::default();
        for pool in 0..20 {
            for i in 0..20 {
                note(&mut keys, format!("file:///dead/{pool}/{i}"));
            }
            note(&mut keys, format!("file:///there/{pool}"));
            note(&mut keys, "https://dead".to_owned());
            // As often as a pool is opened and something is mounted.
            for round in 0..3 {
                let all = keys.look_together(read).await;
                let silent = all.iter().filter(|(l, f)| l.silent && f.is_some()).count();
                assert_eq!(silent, if round == 0 { 20 } else { 0 });
                assert_eq!(all.iter().filter(|(l, f)| !l.silent && f.is_some()).count(), pool + 1);
                keys.locked = all.into_iter().map(|(locked, _)| locked).collect();
            }
        }
        assert!(begun.elapsed() <= FILE_PATIENCE + 20 * A_LOOK, "{:?}", begun.elapsed());
        assert!(begun.elapsed() >= FILE_PATIENCE);
        keys.give_up_files();
        assert!(keys.locked.iter().all(|l| is_remote(&l.location)) && keys.locked.len() == 20);
    }

    #[test]
    fn a_pool_s_wrong_passphrases_cost_a_minute_and_other_pools_nothing() {
        let mut hashed = Hashed::default();
        hashed.took(1, HASH_PATIENCE / 2);
        assert_eq!((hashed.left(1), hashed.left(2)), (Some(HASH_PATIENCE / 2), Some(HASH_PATIENCE)));
        hashed.took(1, HASH_PATIENCE / 2);
        assert_eq!((hashed.left(1), hashed.left(2)), (None, Some(HASH_PATIENCE)));
        hashed.took(1, HASH_PATIENCE);
        assert_eq!(hashed.left(1), None);
    }

    #[tokio::test]
    async fn only_regular_files_are_read_and_no_more_than_a_key() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| format!("file://{}", dir.path().join(name).display());
        std::fs::write(dir.path().join("raw"), [7; 32]).unwrap();
        let key = read("raw", at("raw")).await.unwrap();
        assert_eq!(key.bytes().unwrap()[..], [7; 32]);
        std::fs::write(dir.path().join("long"), [7; 100]).unwrap();
        assert_eq!(read("raw", at("long")).await.unwrap_err(), "Raw key too long (expected 32).");
        let gone = read("raw", at("gone")).await.unwrap_err();
        assert_eq!(gone, "Failed to open key material file: No such file or directory.");
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        for odd in [at("pipe"), at(""), "file:///dev/zero".to_owned()] {
            assert_eq!(read("raw", odd.clone()).await.unwrap_err(), "it is not a regular file.", "{odd}");
        }
    }
}
