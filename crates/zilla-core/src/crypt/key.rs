//! A dataset's key, and the key that wraps it.

use crate::error::{Errno, Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use zilla_codec::crypt::{
    Cipher, HMAC_KEY_LEN, Hmac, IV_LEN, MAC_LEN, MASTER_KEY_MAX_LEN, Passphrase, SALT_LEN, Suite,
    WRAPPING_KEY_LEN, derive,
};
use zilla_env::{Locked, Rng};
use zilla_ondisk::crypt::{KEY_VERSION, key_aad};

/// How many blocks one salt is used for. Random IVs of 96 bits repeat among so many with a
/// probability of a trillionth. Source: ZFS_KEY_MAX_SALT_USES_DEFAULT of zio_crypt.c.
const MAX_SALT_USES: u64 = 400_000_000;
/// Derived keys of other salts that are kept: one for each time that the dataset's key was loaded
/// and something written.
const RECENT: usize = 16;

/// In what form a user gives a key. Source: `zfs_keyformat_t` in sys/fs/zfs.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFormat {
    Raw,
    Hex,
    Passphrase,
}

impl KeyFormat {
    pub const fn number(self) -> u64 {
        match self {
            KeyFormat::Raw => 1,
            KeyFormat::Hex => 2,
            KeyFormat::Passphrase => 3,
        }
    }

    pub const fn from_number(n: u64) -> Option<KeyFormat> {
        match n {
            1 => Some(KeyFormat::Raw),
            2 => Some(KeyFormat::Hex),
            3 => Some(KeyFormat::Passphrase),
            _ => None,
        }
    }
}

/// A user's key: 32 bytes, however he gives them.
#[derive(Debug)]
pub struct WrappingKey {
    key: Locked<WRAPPING_KEY_LEN>,
    pub format: KeyFormat,
    /// Of a passphrase; else 0.
    pub salt: u64,
    pub iterations: u64,
}

impl WrappingKey {
    /// A key of 32 bytes.
    pub fn raw(format: KeyFormat, bytes: &[u8]) -> Result<WrappingKey> {
        let key = Locked::new(|k: &mut [u8; WRAPPING_KEY_LEN]| match bytes.len() == k.len() {
            true => {
                k.copy_from_slice(bytes);
                Ok(())
            }
            false => Err(Error::inval("a key has 32 bytes")),
        })?;
        Ok(WrappingKey { key, format, salt: 0, iterations: 0 })
    }

    /// A passphrase, to be hashed so often with this salt.
    pub fn passphrase(bytes: &[u8], salt: u64, iterations: u64) -> Result<Hashing> {
        let hash = Passphrase::new(bytes, &salt.to_le_bytes(), iterations);
        let hash = hash.ok_or_else(|| Error::inval("pbkdf2iters is out of range"))?;
        Ok(Hashing { hash, salt, iterations })
    }

    fn cipher(&self, suite: Suite) -> Result<Cipher> {
        Cipher::new(suite.wrapping(), &self.key[..])
            .ok_or_else(|| Error::inval("a key is too short for its suite"))
    }
}

/// A passphrase that is being hashed. What usual keys ask for takes a good part of a second; what a
/// disk or a stream asks for may take years, so this is done in pieces.
pub struct Hashing {
    hash: Passphrase,
    salt: u64,
    iterations: u64,
}

impl Hashing {
    /// Hashes so often at most; the key when that was the last of it.
    pub fn hash(&mut self, iterations: u64) -> Result<Option<WrappingKey>> {
        let Some(hashed) = self.hash.hash(iterations) else { return Ok(None) };
        let key = Locked::new(|k: &mut [u8; WRAPPING_KEY_LEN]| {
            k.copy_from_slice(&hashed[..]);
            Ok::<_, Error>(())
        })?;
        let (format, salt, iterations) = (KeyFormat::Passphrase, self.salt, self.iterations);
        Ok(Some(WrappingKey { key, format, salt, iterations }))
    }
}

/// A wrapped key as it is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysKey {
    pub suite: u64,
    pub guid: u64,
    pub version: u64,
    pub iv: [u8; IV_LEN],
    pub mac: [u8; MAC_LEN],
    pub master: [u8; MASTER_KEY_MAX_LEN],
    pub hmac: [u8; HMAC_KEY_LEN],
}

/// Master key and HMAC key one after the other, as long as the longest.
const SECRET_LEN: usize = MASTER_KEY_MAX_LEN + HMAC_KEY_LEN;

struct Current {
    salt: [u8; SALT_LEN],
    uses: u64,
    cipher: Arc<Cipher>,
}

/// The key of a dataset's blocks.
pub struct DataKey {
    pub(super) suite: Suite,
    pub(super) guid: u64,
    pub(super) version: u64,
    secret: Locked<SECRET_LEN>,
    pub(super) hmac: Hmac,
    current: Mutex<Current>,
    recent: Mutex<Vec<([u8; SALT_LEN], Arc<Cipher>)>>,
}

impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DataKey").field("suite", &self.suite.name()).finish_non_exhaustive()
    }
}

impl DataKey {
    fn build(
        rng: &dyn Rng,
        suite: Suite,
        guid: u64,
        version: u64,
        secret: Locked<SECRET_LEN>,
    ) -> Result<DataKey> {
        let mut salt = [0; SALT_LEN];
        rng.fill(&mut salt);
        let (_, hmac) = secret.split_at(MASTER_KEY_MAX_LEN);
        let hmac = Hmac::new(hmac);
        let cipher = Arc::new(derived(suite, &secret, &salt)?);
        let current = Mutex::new(Current { salt, uses: 0, cipher });
        Ok(DataKey { suite, guid, version, secret, hmac, current, recent: Mutex::default() })
    }

    /// A new key, from the system's randomness.
    pub fn generate(rng: &dyn Rng, suite: Suite) -> Result<DataKey> {
        let secret = Locked::new(|s: &mut [u8; SECRET_LEN]| {
            rng.fill(s);
            Ok::<_, Error>(())
        })?;
        DataKey::build(rng, suite, rng.u64(), KEY_VERSION, secret)
    }

    /// Opens a wrapped key. `EACCES`: the wrapping key is not the right one.
    pub fn unwrap(rng: &dyn Rng, phys: &PhysKey, with: &WrappingKey) -> Result<DataKey> {
        let suite = Suite::from_number(phys.suite).ok_or_else(|| {
            Error::os(Errno::NotSup, format!("encryption suite {} does not exist", phys.suite))
        })?;
        if phys.version > KEY_VERSION {
            let what = format!("a key of version {}, newer than zilla knows", phys.version);
            return Err(Error::os(Errno::NotSup, what));
        }
        let cipher = with.cipher(suite)?;
        let aad = key_aad(phys.guid, phys.suite, phys.version);
        let wrong = || Error::os(Errno::Access, "the key is not the right one");
        let n = suite.key_len();
        let secret = Locked::new(|s: &mut [u8; SECRET_LEN]| {
            // One message: the master key without its padding, then the HMAC key.
            let message = s.get_mut(..n + HMAC_KEY_LEN).ok_or_else(wrong)?;
            let (master, hmac) = message.split_at_mut(n);
            master.copy_from_slice(phys.master.get(..n).unwrap_or_default());
            hmac.copy_from_slice(&phys.hmac);
            cipher.open(&phys.iv, &aad, message, &phys.mac).map_err(|_| wrong())?;
            s.copy_within(n..n + HMAC_KEY_LEN, MASTER_KEY_MAX_LEN);
            if let Some(pad) = s.get_mut(n..MASTER_KEY_MAX_LEN) {
                pad.fill(0);
            }
            Ok::<_, Error>(())
        })?;
        DataKey::build(rng, suite, phys.guid, phys.version, secret)
    }

    /// The key as it goes to disk, under a wrapping key.
    pub fn wrap(&self, rng: &dyn Rng, with: &WrappingKey) -> Result<PhysKey> {
        let cipher = with.cipher(self.suite)?;
        let n = self.suite.key_len();
        let mut iv = [0; IV_LEN];
        rng.fill(&mut iv);
        let (master_key, hmac_key) = self.secret.split_at(MASTER_KEY_MAX_LEN);
        let sealed = Locked::new(|s: &mut [u8; SECRET_LEN]| {
            let (front, rest) = s.split_at_mut(n);
            front.copy_from_slice(master_key.get(..n).unwrap_or_default());
            rest.get_mut(..HMAC_KEY_LEN).unwrap_or_default().copy_from_slice(hmac_key);
            Ok::<_, Error>(())
        })?;
        let mut message = sealed.get(..n + HMAC_KEY_LEN).unwrap_or_default().to_vec();
        let suite = self.suite.number();
        let mac = cipher.seal(&iv, &key_aad(self.guid, suite, self.version), &mut message);
        let mac = mac.map_err(|e| Error::inval(e.to_string()))?;
        let (mut master, mut hmac) = ([0; MASTER_KEY_MAX_LEN], [0; HMAC_KEY_LEN]);
        let (front, rest) = message.split_at(n);
        master.get_mut(..n).unwrap_or_default().copy_from_slice(front);
        hmac.copy_from_slice(rest);
        Ok(PhysKey { suite, guid: self.guid, version: self.version, iv, mac, master, hmac })
    }

    pub fn suite(&self) -> Suite {
        self.suite
    }

    /// Keys of the first version authenticate less than they should, and are only read with.
    pub fn may_write(&self) -> bool {
        self.version == KEY_VERSION
    }

    /// The salt and cipher for a new block.
    pub(super) fn for_writing(&self, rng: &dyn Rng) -> Result<([u8; SALT_LEN], Arc<Cipher>)> {
        let mut current = self.current.lock();
        if current.uses >= MAX_SALT_USES {
            let mut salt = [0; SALT_LEN];
            rng.fill(&mut salt);
            let cipher = Arc::new(derived(self.suite, &self.secret, &salt)?);
            *current = Current { salt, uses: 0, cipher };
        }
        current.uses += 1;
        Ok((current.salt, current.cipher.clone()))
    }

    /// The salt that log blocks allocated now are to have.
    pub(super) fn salt_now(&self, rng: &dyn Rng) -> Result<[u8; SALT_LEN]> {
        Ok(self.for_writing(rng)?.0)
    }

    /// The cipher of a salt that was made for one block, and is not worth keeping.
    pub(super) fn for_one_block(&self, salt: &[u8; SALT_LEN]) -> Result<Arc<Cipher>> {
        Ok(Arc::new(derived(self.suite, &self.secret, salt)?))
    }

    /// The cipher of a salt.
    pub(super) fn for_salt(&self, salt: &[u8; SALT_LEN]) -> Result<Arc<Cipher>> {
        {
            let current = self.current.lock();
            if current.salt == *salt {
                return Ok(current.cipher.clone());
            }
        }
        if let Some((_, c)) = self.recent.lock().iter().find(|(s, _)| s == salt) {
            return Ok(c.clone());
        }
        let cipher = Arc::new(derived(self.suite, &self.secret, salt)?);
        let mut recent = self.recent.lock();
        if recent.len() >= RECENT {
            recent.remove(0);
        }
        recent.push((*salt, cipher.clone()));
        Ok(cipher)
    }
}

fn derived(suite: Suite, secret: &Locked<SECRET_LEN>, salt: &[u8; SALT_LEN]) -> Result<Cipher> {
    let master = secret.get(..suite.key_len()).unwrap_or_default();
    Cipher::new(suite, &derive(suite, master, salt)).ok_or_else(|| Error::inval("a key is too short"))
}
