//! One block, sealed and opened.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::DataKey;
use crate::error::{Errno, Error, Result};
use bytes::Bytes;
use zilla_codec::checksum::embedded;
use zilla_codec::crypt::{IV_LEN, MAC_LEN, SALT_LEN, digest, same};
use zilla_env::{IoBuf, Rng};
use zilla_ondisk::ByteOrder;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::crypt::{Parts, dnode_block, indirect_auth, log_block, objset_parts, put_objset_macs};
use zilla_ondisk::object_type::{DMU_OT_DNODE, DMU_OT_OBJSET};
use zilla_ondisk::objset::ZIO_OBJSET_MAC_LEN;

/// A block ready to be written, and what its pointer must say.
pub struct SealedBlock {
    pub data: Bytes,
    /// None: the block is in the clear.
    pub salt_iv: Option<([u8; SALT_LEN], [u8; IV_LEN])>,
    /// None: the block has its codes in itself.
    pub mac: Option<[u8; MAC_LEN]>,
}

fn forged() -> Error {
    Error::corrupt(None, "authentication", "the block was not written with this key, or was changed")
}

fn shape(e: zilla_ondisk::FormatError) -> Error {
    Error::corrupt(None, "encrypted block", e.to_string())
}

fn too_long(e: zilla_codec::crypt::TooLong) -> Error {
    Error::inval(e.to_string())
}

/// The checksum of the codes below an indirect block, which needs no key. `stored`: what it should
/// be.
pub fn indirect_mac(block: &[u8], stored: Option<&[u8; MAC_LEN]>) -> Result<[u8; MAC_LEN]> {
    let sum = |version| first::<MAC_LEN>(&digest(&indirect_auth(block, ByteOrder::NATIVE, version)));
    let now = sum(zilla_ondisk::crypt::KEY_VERSION);
    match stored {
        Some(s) if !same(s, &now) && !same(s, &sum(0)) => Err(Error::corrupt(
            None,
            "authentication",
            "the codes below an indirect block are not those it vouches for",
        )),
        _ => Ok(now),
    }
}

impl DataKey {
    /// Which parts of a block are encrypted, if not all.
    fn parts(&self, otype: u8, data: &[u8], order: ByteOrder) -> Result<Option<Parts>> {
        match otype {
            DMU_OT_DNODE => dnode_block(data, order, self.version).map(Some).map_err(shape),
            _ => Ok(None),
        }
    }

    /// Encrypts (or only authenticates) a level-0 block that is stored as `data`. One that is to be
    /// found again by its contents gets salt and IV from these: so the same is encrypted to the
    /// same, under this key.
    pub fn seal(&self, rng: &dyn Rng, otype: u8, data: Bytes, by_contents: bool) -> Result<SealedBlock> {
        if otype == DMU_OT_OBJSET {
            let (portable, local) = self.objset_macs(&data)?;
            let mut buf = IoBuf::from_slice(&data);
            put_objset_macs(&mut buf, &portable, &local);
            return Ok(SealedBlock { data: buf.into_bytes(), salt_iv: None, mac: None });
        }
        if !zilla_ondisk::object_type::is_encrypted(otype) {
            let mac = first(&self.hmac.of(&data));
            return Ok(SealedBlock { data, salt_iv: None, mac: Some(mac) });
        }
        let (salt, iv, cipher) = if by_contents {
            let code = self.hmac.of(&data);
            let (salt, iv) = salt_iv(&code);
            (salt, iv, self.for_one_block(&salt)?)
        } else {
            let (salt, cipher) = self.for_writing(rng)?;
            let mut iv = [0; IV_LEN];
            rng.fill(&mut iv);
            (salt, iv, cipher)
        };
        let mut buf = IoBuf::from_slice(&data);
        let mac = match self.parts(otype, &data, ByteOrder::NATIVE)? {
            Some(parts) => {
                let mut message = parts.gather(&data);
                let mac = cipher.seal(&iv, &parts.aad, &mut message).map_err(too_long)?;
                parts.scatter(&message, &mut buf);
                mac
            }
            None => cipher.seal(&iv, &[], &mut buf).map_err(too_long)?,
        };
        Ok(SealedBlock { data: buf.into_bytes(), salt_iv: Some((salt, iv)), mac: Some(mac) })
    }

    /// The contents, as stored, of a level-0 block that is not an objset's.
    pub fn open(&self, bp: &BlkPtr, stored: &Bytes) -> Result<Bytes> {
        if bp.is_authenticated() {
            let mac: [u8; MAC_LEN] = first(&self.hmac.of(stored));
            return if same(&mac, &bp.mac()) { Ok(stored.clone()) } else { Err(forged()) };
        }
        let cipher = self.for_salt(&bp.salt())?;
        let mut buf = IoBuf::from_slice(stored);
        match self.parts(bp.otype(), stored, bp.byteorder())? {
            Some(parts) => {
                let mut message = parts.gather(stored);
                cipher.open(&bp.iv(), &parts.aad, &mut message, &bp.mac()).map_err(|_| forged())?;
                parts.scatter(&message, &mut buf);
            }
            None => cipher.open(&bp.iv(), &[], &mut buf, &bp.mac()).map_err(|_| forged())?,
        }
        Ok(buf.into_bytes())
    }

    /// Encrypts a level-0 block's bytes as its pointer says they were. `ECKSUM`: they are others.
    /// Two texts under one IV would tell of each other, so what is not the block never leaves
    /// memory.
    pub fn reseal(&self, bp: &BlkPtr, data: &[u8]) -> Result<Bytes> {
        let mut buf = IoBuf::from_slice(data);
        let cipher = self.for_salt(&bp.salt())?;
        let mac = match self.parts(bp.otype(), data, bp.byteorder())? {
            Some(parts) => {
                let mut message = parts.gather(data);
                let mac = cipher.seal(&bp.iv(), &parts.aad, &mut message).map_err(too_long)?;
                parts.scatter(&message, &mut buf);
                mac
            }
            None => cipher.seal(&bp.iv(), &[], &mut buf).map_err(too_long)?,
        };
        match same(&mac, &bp.mac()) {
            true => Ok(buf.into_bytes()),
            false => Err(Error::os(Errno::Cksum, "these are not the block's contents: another code")),
        }
    }

    /// The two codes of an objset's head, in this machine's order.
    fn objset_macs(&self, data: &[u8]) -> Result<([u8; ZIO_OBJSET_MAC_LEN], [u8; ZIO_OBJSET_MAC_LEN])> {
        let parts = objset_parts(data, ByteOrder::NATIVE, self.version).map_err(shape)?;
        let local = parts.local.map_or([0; ZIO_OBJSET_MAC_LEN], |l| first(&self.hmac.of(&l)));
        Ok((first(&self.hmac.of(&parts.portable)), local))
    }

    /// Checks an objset's head.
    pub fn check_objset(&self, data: &[u8]) -> Result<()> {
        let parts = objset_parts(data, ByteOrder::NATIVE, self.version).map_err(shape)?;
        let (portable, local) = self.objset_macs(data)?;
        // Accounts that are not there, or not finished, have no code; one that stands there all the
        // same says nothing.
        let accounts = local == [0; ZIO_OBJSET_MAC_LEN] || same(&local, &parts.local_mac);
        if same(&portable, &parts.portable_mac) && accounts { Ok(()) } else { Err(forged()) }
    }

    /// Salt and IV for a log block that is allocated now and written later.
    pub fn for_log(&self, rng: &dyn Rng) -> Result<([u8; SALT_LEN], [u8; IV_LEN])> {
        let mut iv = [0; IV_LEN];
        rng.fill(&mut iv);
        Ok((self.salt_now(rng)?, iv))
    }

    /// Encrypts a log block, which is written once, under the IV that its pointer has.
    pub fn seal_log(&self, bp: &BlkPtr, data: &Bytes) -> Result<Bytes> {
        use zilla_codec::checksum::{ByteOrder as Order, Checksum};
        let parts = log_block(data, ByteOrder::NATIVE).map_err(shape)?;
        let mut message = parts.gather(data);
        let mac = self.for_salt(&bp.salt())?.seal(&bp.iv(), &parts.aad, &mut message).map_err(too_long)?;
        let mut buf = IoBuf::from_slice(data);
        clear_rest(&mut buf);
        parts.scatter(&message, &mut buf);
        embedded::seal_with_mac(Checksum::Zilog2, &mut buf, &bp.cksum(), Order::NATIVE, &mac)
            .map_err(|e| Error::inval(e.to_string()))?;
        Ok(buf.into_bytes())
    }

    /// The contents of a log block whose checksum was right.
    pub fn open_log(&self, bp: &BlkPtr, stored: &Bytes) -> Result<Bytes> {
        let parts = log_block(stored, bp.byteorder()).map_err(shape)?;
        let mut message = parts.gather(stored);
        let mac = embedded::log_mac(stored).ok_or_else(forged)?;
        let cipher = self.for_salt(&bp.salt())?;
        cipher.open(&bp.iv(), &parts.aad, &mut message, &mac).map_err(|_| forged())?;
        let mut buf = IoBuf::from_slice(stored);
        parts.scatter(&message, &mut buf);
        Ok(buf.into_bytes())
    }
}

/// What an older use of a log's buffer left behind its records must not get to the disk.
fn clear_rest(block: &mut [u8]) {
    let at = 8 + zilla_ondisk::blkptr::BLKPTR_SIZE;
    let used = block.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_ne_bytes(*b));
    if let Some(rest) = usize::try_from(used).ok().and_then(|used| block.get_mut(used..)) {
        rest.fill(0);
    }
}

/// The first bytes of a code of the contents.
fn salt_iv(code: &[u8; 64]) -> ([u8; SALT_LEN], [u8; IV_LEN]) {
    let both: [u8; SALT_LEN + IV_LEN] = first(code);
    let (mut salt, mut iv) = ([0; SALT_LEN], [0; IV_LEN]);
    salt.iter_mut().chain(&mut iv).zip(both).for_each(|(to, from)| *to = from);
    (salt, iv)
}

fn first<const N: usize>(code: &[u8; 64]) -> [u8; N] {
    let mut out = [0; N];
    out.iter_mut().zip(code).for_each(|(o, c)| *o = *c);
    out
}
