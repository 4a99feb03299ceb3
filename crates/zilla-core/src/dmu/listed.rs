//! The blocks of the dbuf cache, one by one, for who wants to see what is in memory.

use super::cache::DbufCache;
use super::dnode::Dnode;

/// A block in memory, and the object that it is of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DbufInfo {
    pub objset: u64,
    pub object: u64,
    pub level: u8,
    pub blkid: u64,
    /// Bytes of the block, uncompressed.
    pub bytes: u64,
    /// Used since the cache last thought of forgetting it.
    pub again: bool,
    /// The object's type and that of its bonus, with the bonus's bytes.
    pub otype: u8,
    pub bonus_type: u8,
    pub bonus_bytes: u64,
    /// Bytes of its blocks of data, and of its indirect ones.
    pub data_bytes: u64,
    pub indirect_bytes: u64,
    pub levels: u8,
    /// Blocks of data that it reaches to, and its bytes on disk.
    pub blocks: u64,
    pub used: u64,
}

impl DbufCache {
    /// At most so many of the blocks that are here, the oldest first.
    pub fn list(&self, most: usize) -> Vec<DbufInfo> {
        // Asked with the clock let go of: an object's lock comes before it.
        self.oldest(most).iter().filter_map(|(dn, level, blkid)| dn.listed(*level, *blkid)).collect()
    }
}

impl Dnode {
    /// None if the block was let go of meanwhile.
    fn listed(&self, level: u8, blkid: u64) -> Option<DbufInfo> {
        let inner = self.inner.lock();
        let head = inner.head;
        let (data_bytes, indirect_bytes) = (u64::from(head.blksz), 1 << head.indblkshift);
        let again = match level {
            0 => inner.dbufs.get(&blkid)?.touched,
            // These get no second round.
            _ => inner.indirects.get(level, blkid).map(|_| false)?,
        };
        Some(DbufInfo {
            objset: self.objset_id(),
            object: self.id().0,
            level,
            blkid,
            bytes: if level == 0 { data_bytes } else { indirect_bytes },
            again,
            otype: head.otype,
            bonus_type: head.bonustype,
            bonus_bytes: inner.bonus.len() as u64,
            data_bytes,
            indirect_bytes,
            levels: inner.phys.nlevels.max(head.levels),
            blocks: head.maxblkid + 1,
            used: inner.phys.used,
        })
    }
}
