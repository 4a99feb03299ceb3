//! `zfs load-key`, `unload-key`, `change-key`, and the keys of new datasets.
//!
//! The commands ask people and read files; here their bytes become keys. A passphrase is hashed on
//! a thread of its own, because that takes a good part of a second; in pieces and up to a limit of
//! time, because how often it is hashed is said by the disk. Few are hashed at a time, some wait,
//! and who finds too many waiting is told so: requests for keys take no more than their part of the
//! processors. Guests, who may say themselves how often their datasets' passphrases are hashed,
//! wait among themselves, and nobody for them.

use super::errors::{Answer, of_dataset};
use super::pool::Pool;
use super::{Engine, Serves};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use zilla::error::{Errno, Error};
use zilla::keys::{Hashing, KeyFormat, NewCrypt, NewSuite, Rekey, Suite, WrappingKey};
use zilla_control::types::{KeyChange, KeyLoad, KeyMaterial, KeyUnload};
use zilla_control::{ApiError, Caller, ErrorCode};

/// Source: DEFAULT_PBKDF2_ITERATIONS and MIN_PBKDF2_ITERATIONS in sys/zio_crypt.h.
const DEFAULT_PBKDF2_ITERATIONS: u64 = 350_000;
const MIN_PBKDF2_ITERATIONS: u64 = 100_000;
/// How often a passphrase is hashed before the daemon looks at the clock: some milliseconds.
const HASHED_AT_ONCE: u64 = 1 << 14;
/// How long a passphrase is hashed before it is given up: a thousand times as long as a usual one
/// takes.
const HASH_PATIENCE: Duration = Duration::from_secs(300);
/// The same for a guest, for whom other guests wait.
const GUEST_PATIENCE: Duration = Duration::from_secs(30);
/// How many passphrases are hashed at a time, and how many more may wait for that.
const HASHED_TOGETHER: usize = 2;
const WAITING: usize = 64;
/// Of all guests together.
const GUESTS_TOGETHER: usize = 1;
const GUESTS_WAITING: usize = 16;
/// A passphrase's length. Source: MIN_PASSPHRASE_LEN and MAX_PASSPHRASE_LEN of libzfs_crypto.c.
const PASSPHRASE: std::ops::RangeInclusive<usize> = 8..=512;

/// The places for hashing passphrases.
struct Places {
    work: Semaphore,
    /// Those at work and those who wait.
    all: Semaphore,
}

static PLACES: Places = Places::new(HASHED_TOGETHER, WAITING);
static GUEST_PLACES: Places = Places::new(GUESTS_TOGETHER, GUESTS_WAITING);

/// Where a passphrase is hashed, and for how long at most.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    places: &'static Places,
    patience: Duration,
}

impl Turn {
    pub(super) const OWNER: Turn = Turn { places: &PLACES, patience: HASH_PATIENCE };
    const GUEST: Turn = Turn { places: &GUEST_PLACES, patience: GUEST_PATIENCE };

    pub(super) fn of(caller: &Caller) -> Turn {
        if caller.owner { Turn::OWNER } else { Turn::GUEST }
    }

    /// The same, but for no longer than that.
    pub(super) fn within(self, patience: Duration) -> Turn {
        Turn { patience: patience.min(self.patience), ..self }
    }
}

/// A place at work, as long as it is kept.
struct Place<'a> {
    _work: SemaphorePermit<'a>,
    _all: SemaphorePermit<'a>,
}

impl Places {
    const fn new(together: usize, waiting: usize) -> Places {
        Places { work: Semaphore::const_new(together), all: Semaphore::const_new(together + waiting) }
    }

    /// Waits for a place, in the order of asking; refused if too many do. Who is dropped waits no
    /// more.
    async fn take(&self) -> Answer<Place<'_>> {
        let busy = || failed("too many passphrases are being hashed: try again later.");
        let all = self.all.try_acquire().map_err(|_| busy())?;
        let work = self.work.acquire().await.map_err(|_| busy())?;
        Ok(Place { _work: work, _all: all })
    }
}

fn failed(what: impl Into<String>) -> ApiError {
    ApiError::with(ErrorCode::CryptoFailed, what)
}

/// A key of a user's bytes. `salt`: of a passphrase.
async fn wrapping(
    format: KeyFormat,
    key: &KeyMaterial,
    (salt, iterations): (u64, u64),
    turn: Turn,
) -> Answer<WrappingKey> {
    let bytes = key.bytes().ok_or_else(|| failed("Invalid key."))?;
    match format {
        KeyFormat::Passphrase => {
            let hashing = WrappingKey::passphrase(&bytes, salt, iterations);
            let hashing = hashing.map_err(|e| failed(e.to_string()))?;
            let _place = turn.places.take().await?;
            hashed(hashing, iterations, turn.patience).await
        }
        _ => WrappingKey::raw(format, &bytes).map_err(|e| failed(e.to_string())),
    }
}

/// Hashes a passphrase to the end, or until it takes too long. Between two pieces it can be
/// dropped, and does not keep a daemon that is to end.
async fn hashed(mut hashing: Hashing, iterations: u64, patience: Duration) -> Answer<WrappingKey> {
    let began = std::time::Instant::now();
    loop {
        let piece = move || {
            let made = hashing.hash(HASHED_AT_ONCE);
            (hashing, made)
        };
        let (rest, made) = tokio::task::spawn_blocking(piece).await.map_err(|e| failed(e.to_string()))?;
        if let Some(key) = made.map_err(|e| failed(e.to_string()))? {
            return Ok(key);
        }
        if began.elapsed() >= patience {
            let what = format!(
                "pbkdf2iters is {iterations}: hashing the passphrase was given up after {} seconds.",
                patience.as_secs()
            );
            return Err(failed(what));
        }
        hashing = rest;
    }
}

fn format_of(word: &str) -> Answer<KeyFormat> {
    match word {
        "raw" => Ok(KeyFormat::Raw),
        "hex" => Ok(KeyFormat::Hex),
        "passphrase" => Ok(KeyFormat::Passphrase),
        _ => Err(failed("Keyformat required for new encryption root.")),
    }
}

impl Engine {
    /// A key that is new to the pool.
    async fn new_key(
        &self,
        format: KeyFormat,
        key: &KeyMaterial,
        iterations: Option<&String>,
        turn: Turn,
    ) -> Answer<Arc<WrappingKey>> {
        let (mut salt, mut rounds) = (0, 0);
        if format == KeyFormat::Passphrase {
            if key.bytes().is_none_or(|b| !PASSPHRASE.contains(&b.len())) {
                return Err(failed("Passphrase too short (min 8)."));
            }
            // 0 would mean that there is none.
            while salt == 0 {
                salt = self.env.rng.u64();
            }
            rounds = match iterations {
                Some(text) => text.parse().map_err(|_| failed("'pbkdf2iters' must be a number"))?,
                None => DEFAULT_PBKDF2_ITERATIONS,
            };
            if rounds < MIN_PBKDF2_ITERATIONS {
                let what = format!("minimum pbkdf2 iterations is {MIN_PBKDF2_ITERATIONS}");
                return Err(ApiError::with(ErrorCode::BadProp, what));
            }
        } else if iterations.is_some() {
            return Err(failed("Cannot specify pbkdf2iters with a non-passphrase keyformat."));
        }
        Ok(Arc::new(wrapping(format, key, (salt, rounds), turn).await?))
    }

    /// What a new dataset is to be encrypted with; takes what says so out of its properties.
    /// `above`: whether its parent is encrypted.
    pub(super) async fn new_crypt(
        &self,
        properties: &mut BTreeMap<String, String>,
        key: Option<&KeyMaterial>,
        above: bool,
        turn: Turn,
    ) -> Answer<NewCrypt> {
        let mut take = |name: &str| properties.remove(name);
        let (suite, format) = (take("encryption"), take("keyformat").filter(|f| f != "none"));
        let (location, iterations) = (take("keylocation").filter(|l| l != "none"), take("pbkdf2iters"));
        let suite = match suite.as_deref() {
            None => NewSuite::Inherit,
            Some("off") => NewSuite::Off,
            Some("on") => NewSuite::Of(Suite::ON_VALUE),
            Some(word) => {
                let found = (3..9).filter_map(Suite::from_number).find(|s| s.name() == word);
                let unknown =
                    || ApiError::with(ErrorCode::BadProp, format!("'encryption' cannot be '{word}'"));
                NewSuite::Of(found.ok_or_else(unknown)?)
            }
        };
        let on = matches!(suite, NewSuite::Of(_)) || suite == NewSuite::Inherit && above;
        if !on {
            if format.is_some() || location.is_some() || iterations.is_some() {
                return Err(failed("Encryption must be turned on to set encryption properties."));
            }
            return Ok(NewCrypt { suite, ..NewCrypt::default() });
        }
        let Some(format) = format else {
            if !above || location.is_some() || iterations.is_some() {
                return Err(failed("Keyformat required for new encryption root."));
            }
            return Ok(NewCrypt { suite, ..NewCrypt::default() });
        };
        let key = key.ok_or_else(|| failed("No key was given."))?;
        let key = self.new_key(format_of(&format)?, key, iterations.as_ref(), turn).await?;
        let location = Some(location.unwrap_or_else(|| "prompt".to_owned()));
        check_location(location.as_deref())?;
        Ok(NewCrypt { suite, key: Some(key), location })
    }

    pub(super) async fn load_key(&self, r: KeyLoad, turn: Turn) -> Answer<()> {
        let pool = self.pool_of(&r.name)?;
        let name = r.name.clone();
        let dir = pool.zilla.dir_by_name(&name).await.map_err(of_dataset)?;
        let shape = dir.key_shape().await.map_err(|e| refused(&name, &e))?;
        let key = wrapping(shape.format, &r.key, (shape.salt, shape.iterations), turn).await?;
        pool.load_key(&name, key, r.check).await?;
        self.show_devices(&name).await;
        Ok(())
    }

    pub(super) async fn unload_key(&self, r: KeyUnload) -> Answer<()> {
        let pool = self.pool_of(&r.name)?;
        self.withdraw_devices(&pool, &r.name).await;
        let unloaded = {
            let _one = pool.mounting.lock().await;
            pool.zilla.unload_key(&r.name).await
        };
        self.show_devices(&r.name).await;
        unloaded.map_err(|e| match e.errno() {
            Errno::Access => failed(format!("Key already unloaded for '{}'.", r.name)),
            _ => refused(&r.name, &e),
        })
    }
}

impl Serves<KeyLoad> for Engine {
    async fn serve(&self, caller: &Caller, r: KeyLoad) -> Answer<()> {
        self.check_running(&r.name)?;
        self.load_key(r, Turn::of(caller)).await
    }
}

impl Serves<KeyUnload> for Engine {
    async fn serve(&self, _: &Caller, r: KeyUnload) -> Answer<()> {
        self.unload_key(r).await
    }
}

impl Serves<KeyChange> for Engine {
    async fn serve(&self, caller: &Caller, r: KeyChange) -> Answer<()> {
        let pool = self.pool_of(&r.name)?;
        let dir = pool.zilla.dir_by_name(&r.name).await.map_err(of_dataset)?;
        let how = if r.inherit {
            Rekey::Inherit
        } else {
            let format = match &r.keyformat {
                Some(word) => format_of(word)?,
                None => dir.key_shape().await.map_err(|e| refused(&r.name, &e))?.format,
            };
            let key = r.key.as_ref().ok_or_else(|| failed("No key was given."))?;
            check_location(r.keylocation.as_deref())?;
            let key = self.new_key(format, key, r.pbkdf2iters.as_ref(), Turn::of(caller)).await?;
            Rekey::New { key, location: r.keylocation }
        };
        pool.zilla.change_key(&r.name, how).await.map_err(|e| match e.errno() {
            Errno::Access => failed("Key is not currently loaded."),
            Errno::Inval => failed("Invalid properties for key change."),
            _ => refused(&r.name, &e),
        })
    }
}

impl Pool {
    /// Whether a dataset is an encryption root whose key is loaded.
    pub(super) async fn has_own_loaded_key(&self, name: &str) -> bool {
        let own = async {
            let dir = self.zilla.dir_by_name(name).await?;
            let root = dir.encryption_root().await?;
            Ok::<_, Error>(root.is_some_and(|r| r.id() == dir.id()) && dir.key_loaded().await?)
        };
        own.await.unwrap_or(false)
    }

    async fn load_key(&self, name: &str, key: WrappingKey, check: bool) -> Answer<()> {
        let _one = self.mounting.lock().await;
        self.zilla.load_key(name, key, check).await.map_err(|e| refused(name, &e))
    }
}

/// Whether a key can be looked for there.
pub(super) fn check_location(location: Option<&str>) -> Answer<()> {
    let known =
        |l: &str| l == "prompt" || ["file:///", "https://", "http://"].iter().any(|p| l.starts_with(p));
    match location {
        Some(l) if !known(l) => Err(ApiError::with(ErrorCode::BadProp, "invalid keylocation")),
        _ => Ok(()),
    }
}

/// The sentences that scripts look for.
fn refused(name: &str, e: &Error) -> ApiError {
    if let Error::Corrupt(_) = e {
        return ApiError::with(ErrorCode::Io, e.to_string());
    }
    match e.errno() {
        Errno::Perm => failed("Permission denied."),
        Errno::Inval => failed(format!("Invalid parameters provided for dataset {name}.")),
        Errno::Exist => failed(format!("Key already loaded for '{name}'.")),
        Errno::Busy => failed(format!("'{name}' is busy.")),
        Errno::Access => ApiError::with(ErrorCode::WrongKey, format!("Incorrect key provided for '{name}'.")),
        _ => failed(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_disk_does_not_say_how_long_a_passphrase_is_hashed() {
        let of = |iterations| WrappingKey::passphrase(b"password", 7, iterations).unwrap();
        hashed(of(100_000), 100_000, HASH_PATIENCE).await.unwrap();
        let e = hashed(of(u64::MAX), u64::MAX, Duration::from_millis(50)).await.unwrap_err();
        assert!(format!("{e:?}").contains("given up"), "{e:?}");
    }

    #[tokio::test]
    async fn few_passphrases_are_hashed_at_a_time_and_few_wait() {
        let places = Places::new(2, 3);
        let first = places.take().await.unwrap();
        let second = places.take().await.unwrap();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(places.take())).collect();
        for w in &mut waiting {
            assert!(futures_util::poll!(w.as_mut()).is_pending());
        }
        let e = places.take().await.err().expect("too many wait");
        assert!(format!("{e:?}").contains("try again later"), "{e:?}");
        // Who gives up leaves his place to another.
        drop(waiting.pop());
        let mut late = Box::pin(places.take());
        assert!(futures_util::poll!(late.as_mut()).is_pending());
        drop(second);
        let third = waiting.remove(0).await.unwrap();
        assert!(futures_util::poll!(late.as_mut()).is_pending());
        drop((first, third));
        drop(waiting.remove(0).await.unwrap());
        late.await.unwrap();
    }

    #[tokio::test]
    async fn a_guest_s_passphrase_keeps_nobody_s_place_but_guests() {
        let turn = |owner| Turn::of(&Caller { owner, ..Caller::default() });
        let places = turn(false).places;
        let mut at_work = Vec::new();
        for _ in 0..GUESTS_TOGETHER {
            at_work.push(places.take().await.unwrap());
        }
        let mut waiting: Vec<_> = (0..GUESTS_WAITING).map(|_| Box::pin(places.take())).collect();
        for w in &mut waiting {
            assert!(futures_util::poll!(w.as_mut()).is_pending());
        }
        let key = KeyMaterial::new(b"password");
        let hash = |turn: Turn| wrapping(KeyFormat::Passphrase, &key, (7, 100_000), turn);
        assert!(format!("{:?}", hash(turn(false)).await.err()).contains("try again later"));
        hash(turn(true)).await.unwrap();
        // Nor does it take long.
        drop((waiting, at_work));
        assert!(turn(false).patience < turn(true).patience);
        let short = turn(false).within(Duration::from_millis(20));
        let e = wrapping(KeyFormat::Passphrase, &key, (7, u64::MAX), short).await.err();
        assert!(format!("{e:?}").contains("given up"), "{e:?}");
    }
}
