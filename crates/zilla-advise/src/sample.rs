//! Accesses to a part of the blocks, which behave as all of them do in a cache that is smaller by
//! the same part.
//!
//! Spatial sampling (SHARDS): whether a block is looked at follows from its hash alone, so of those
//! that are every access is seen. When there are more than a fixed number of accesses, the part is
//! halved and what no longer belongs to it is dropped: the rest is what would have been taken at
//! the smaller part from the beginning.

use zilla_ondisk::trace::{BlockId, Found};

/// Accesses kept at most; 24 MB.
pub const MOST: usize = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Stands for the block.
    pub key: u64,
    /// Bytes that it takes in a cache.
    pub size: u32,
    /// Milliseconds from the trace's beginning.
    pub at: u32,
    pub prefetch: bool,
    pub found: Found,
}

impl Access {
    /// Whether somebody waited for it who will be the quicker for a cache device that has it.
    pub fn waited(&self) -> bool {
        !self.prefetch && self.found != Found::Memory
    }
}

pub struct Sample {
    /// Blocks whose hash shifted by this is zero are looked at.
    halvings: u32,
    most: usize,
    pub all: Vec<Access>,
}

/// Bits of a hash that decide; more halvings there cannot be.
const BITS: u32 = 40;

pub fn hash(block: &BlockId) -> u64 {
    let mut x = (block.offset >> 9) ^ block.birth.rotate_left(40) ^ u64::from(block.vdev).rotate_left(56);
    // The finalizer of splitmix64: each bit of the result depends on each of the input.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Sample {
    pub fn new(most: usize) -> Sample {
        Sample { halvings: 0, most, all: Vec::new() }
    }

    /// The part of the blocks that is looked at.
    pub fn part(&self) -> f64 {
        (-f64::from(self.halvings)).exp2()
    }

    fn takes(halvings: u32, key: u64) -> bool {
        key.trailing_zeros() >= halvings
    }

    pub fn add(&mut self, access: Access) {
        if !Sample::takes(self.halvings, access.key) {
            return;
        }
        while self.all.len() >= self.most && self.halvings < BITS {
            self.halvings += 1;
            let halvings = self.halvings;
            self.all.retain(|a| Sample::takes(halvings, a.key));
        }
        if Sample::takes(self.halvings, access.key) && self.all.len() < self.most {
            self.all.push(access);
        }
    }
}
