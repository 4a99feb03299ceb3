//! A device in memory: sparse, complete inside `submit`. For tests, and the body of modelled
//! devices.

use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use crate::{Device, DeviceInfo, Io, IoOp, IoResult, SparseImage, check_bounds};

pub struct MemDevice {
    image: RwLock<SparseImage>,
    size: AtomicU64,
    info: DeviceInfo,
}

impl MemDevice {
    pub fn new(size: u64) -> MemDevice {
        MemDevice::from_image(SparseImage::new(), size)
    }

    pub fn from_image(image: SparseImage, size: u64) -> MemDevice {
        let info = DeviceInfo {
            path: PathBuf::from("memory"),
            logical_block: 512,
            physical_block: 512,
            rotational: Some(false),
            writable: true,
            direct: true,
            can_discard: true,
            can_write_zeroes: true,
            is_block_dev: false,
            fuse: None,
            backend: "memory",
        };
        MemDevice { image: RwLock::new(image), size: AtomicU64::new(size), info }
    }

    /// The same device under a name of its own, for messages.
    pub fn named(mut self, path: impl Into<PathBuf>) -> MemDevice {
        self.info.path = path.into();
        self
    }

    /// What the device holds now; later writes do not change the copy.
    pub fn snapshot(&self) -> SparseImage {
        self.image.read().clone()
    }

    /// Grows (or shrinks) the device, as an administrator grows a file.
    pub fn resize(&self, size: u64) {
        self.image.write().truncate(size);
        self.size.store(size, Ordering::Release);
    }

    fn run(&self, op: IoOp) -> IoResult {
        check_bounds(&op, self.size())?;
        match op {
            IoOp::Read { offset, mut buf } => {
                self.image.read().read(offset, &mut buf);
                return Ok(Some(buf));
            }
            IoOp::Write { mut offset, data } => {
                let mut image = self.image.write();
                for piece in data {
                    image.write(offset, &piece);
                    offset += piece.len() as u64;
                }
            }
            IoOp::Flush => {}
            IoOp::Discard { offset, len } | IoOp::WriteZeroes { offset, len } => {
                self.image.write().zero(offset, len);
            }
        }
        Ok(None)
    }
}

impl Device for MemDevice {
    fn submit(&self, batch: Vec<Io>) {
        for io in batch {
            io.done.complete(self.run(io.op));
        }
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }
}
