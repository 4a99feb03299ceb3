//! How code that must not block meets a block that is not in memory.
//!
//! Operations on metadata (a ZAP, a directory, a znode) are plain functions over what is in memory.
//! One that meets something missing returns [`Stop::Need`], having changed nothing; [`resident`]
//! then loads it, without any lock held, and runs the operation again. A cache hit is thus a
//! function call with no task and no allocation, locks are never held across a wait, and a client
//! may be dropped at any await because nothing is half done.
//!
//! The rule for operations that change something: look at everything first, change afterwards. Once
//! an operation has made its first change it may no longer return `Need`.

use super::dnode::Dnode;
use super::objset::Objset;
use crate::error::{Errno, Error, Result};
use crate::txg::{Tx, TxgState};
use crate::types::ObjectId;
use std::sync::Arc;

/// Something that must be read from disk before the operation can go on.
#[derive(Clone)]
pub enum Need {
    Block {
        dnode: Arc<Dnode>,
        level: u8,
        blkid: u64,
    },
    Spill {
        dnode: Arc<Dnode>,
    },
    Object {
        objset: Arc<Objset>,
        id: ObjectId,
    },
    /// Nothing from disk, but a later txg: see [`Dnode::in_order`].
    LaterTxg,
}

impl Need {
    #[crate::boxed]
    pub async fn load(self) -> Result<()> {
        match self {
            Need::Block { dnode, level, blkid } => dnode.load(level, blkid).await,
            Need::Spill { dnode } => dnode.load_spill().await,
            Need::Object { objset, id } => objset.load(id).await,
            Need::LaterTxg => Ok(()),
        }
    }
}

impl std::fmt::Debug for Need {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Need::Block { dnode, level, blkid } => {
                write!(f, "block {level}:{blkid} of object {}", dnode.id())
            }
            Need::Spill { dnode } => write!(f, "spill of object {}", dnode.id()),
            Need::Object { id, .. } => write!(f, "object {id}"),
            Need::LaterTxg => write!(f, "a later txg"),
        }
    }
}

/// Why an in-memory operation did not finish.
#[derive(Debug)]
pub enum Stop {
    Need(Need),
    Err(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Stop {
        Stop::Err(e)
    }
}

/// The result of an in-memory operation.
pub type Now<T> = std::result::Result<T, Stop>;

/// Runs `op` until all it needs is in memory.
pub async fn resident<T>(mut op: impl FnMut() -> Now<T>) -> Result<T> {
    loop {
        match op() {
            Ok(v) => return Ok(v),
            Err(Stop::Err(e)) => return Err(e),
            Err(Stop::Need(need)) => need.load().await?,
        }
    }
}

/// Runs `op` in a transaction until all it needs is in memory. Nothing is held while it waits.
pub async fn in_tx<T>(txgs: &Arc<TxgState>, mut op: impl FnMut(&Tx) -> Now<T>) -> Result<T> {
    loop {
        let tx = txgs.assign().await?;
        match op(&tx) {
            Ok(v) => return Ok(v),
            // Space is so short that it must first be known what the open transactions really use.
            Err(Stop::Err(e)) if e.is(Errno::Again) => {
                let txg = tx.txg();
                drop(tx);
                txgs.wait_synced(txg).await?;
            }
            Err(Stop::Err(e)) => return Err(e),
            Err(Stop::Need(Need::LaterTxg)) => {
                let txg = tx.txg();
                drop(tx);
                // There is a later one, or nothing else would have been in it. Where that is not so
                // this must not try again without end.
                if txgs.open() <= txg {
                    txgs.wait_synced(txg).await?;
                }
            }
            Err(Stop::Need(need)) => {
                drop(tx);
                need.load().await?;
            }
        }
    }
}
