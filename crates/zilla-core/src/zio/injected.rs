//! What handlers of [`crate::inject`] do to blocks that are read, and what is told of blocks that
//! could not be.
//!
//! A copy is judged where it is checked, so a bad one is counted, and repaired from a good one, as
//! if the disk had lied; what cannot be decompressed or decrypted is judged where that is done.

#![deny(clippy::unwrap_used, clippy::indexing_slicing)]

use super::Zio;
use crate::error::{Error, Result};
use crate::inject::{self, BlockRead, Failure, injections};
use crate::types::Bookmark;
use crate::vdev::{DvaFailure, Top};
use zilla_ondisk::Dva;
use zilla_ondisk::blkptr::BlkPtr;
use zilla_ondisk::label::VDEV_LABEL_START_SIZE;

/// Blocks that are told of between two looks.
const MOST_TOLD: usize = 100;

/// A block that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub at: Bookmark,
    /// The bytes are there, but cannot be decrypted.
    pub sealed: bool,
}

impl Zio {
    /// Which of the pointer's copies it is.
    pub(super) fn copy_of(&self, bp: &BlkPtr, dva: &Dva) -> Option<usize> {
        if inject::any() { bp.dvas().position(|d| d == *dva) } else { None }
    }

    /// Whether a handler wants the block to fail in this way; the error is what is wrong with it
    /// then.
    pub(super) fn tampered(
        &self,
        failure: Failure,
        bp: &BlkPtr,
        at: Bookmark,
        copy: Option<usize>,
    ) -> Result<(), String> {
        if !inject::any() {
            return Ok(());
        }
        let read = BlockRead { pool: self.tree().root.guid, at, object_type: bp.otype(), copy };
        match injections().block(failure, &read, &*self.0.env.rng) {
            true => Err(format!("an injected error ({failure:?})")),
            false => Ok(()),
        }
    }

    /// The copy cannot be read because a handler wants it so. A gang's pieces are not judged one by
    /// one.
    pub(super) fn tampered_copy(
        &self,
        top: &Top,
        bp: &BlkPtr,
        dva: &Dva,
        at: Bookmark,
        copy: Option<usize>,
    ) -> Option<DvaFailure> {
        let mut failed = self.tampered(Failure::Io, bp, at, copy);
        let device = failed.is_err();
        if dva.gang && failed.is_ok() {
            failed = self.tampered(Failure::Checksum, bp, at, copy);
        }
        let what = failed.err()?;
        if device {
            let offset = dva.offset.saturating_add(VDEV_LABEL_START_SIZE);
            top.leaves().filter(|l| l.readable()).for_each(|l| l.count_failed_read(offset, bp.psize()));
        }
        let place = format!("vdev {} at {}", dva.vdev, dva.offset);
        Some(DvaFailure { place, what, checksum: false, device })
    }

    /// A block that was read well is about to be decompressed or decrypted.
    pub(super) fn open_block(&self, failure: Failure, bp: &BlkPtr, at: Bookmark) -> Result<()> {
        self.tampered(failure, bp, at, None).map_err(|what| {
            if failure == Failure::Decompress {
                self.damaged(at, bp);
            }
            Error::corrupt(Some(at), bp.to_string(), what)
        })
    }

    /// Keeps it for who watches the pool.
    pub(super) fn tell_unreadable(&self, lost: Unreadable) {
        let mut list = self.0.unreadable.lock();
        if list.len() < MOST_TOLD && !list.contains(&lost) {
            list.push(lost);
        }
    }

    /// Blocks that could not be read since this was last asked.
    pub fn take_unreadable(&self) -> Vec<Unreadable> {
        std::mem::take(&mut self.0.unreadable.lock())
    }
}
