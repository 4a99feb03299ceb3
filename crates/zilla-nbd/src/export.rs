//! What is served: the seam between the protocol and volumes.

use bytes::Bytes;
use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use tokio::sync::watch;
use zilla::{Errno, Error, Extent, ReadData, Result, Volume};

/// What a client is told of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// What is written in whole blocks of this size costs least: a power of two from 512 to 16M.
    pub block_size: u64,
    pub readonly: bool,
    /// Requests of one connection may be done one beside the other (the property `volthreading`).
    pub concurrent: bool,
}

/// There is no such export for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// All that clients can ask for.
pub trait Exports: Send + Sync + 'static {
    /// One that is in use.
    type Export: Export;
    /// The names of those that clients are shown.
    fn list(&self) -> impl Future<Output = Vec<String>> + Send;
    /// Begins to use one; it is let go of by dropping it.
    fn open(&self, name: &str) -> impl Future<Output = std::result::Result<Self::Export, Refused>> + Send;
}

/// An export in use. Ranges are within the size that [`Export::facts`] told last, unless it has
/// changed since.
pub trait Export: Send + Sync + 'static {
    /// ENXIO: it is closed.
    fn facts(&self) -> Result<Facts>;
    /// Returns when the export is not to be used any more.
    fn closed(&self) -> impl Future<Output = ()> + Send;
    /// Bytes that are in memory.
    fn try_read(&self, off: u64, len: usize) -> Result<Option<ReadData>>;
    fn read(&self, off: u64, len: usize) -> impl Future<Output = Result<ReadData>> + Send;
    fn write(&self, off: u64, data: Vec<Bytes>, fua: bool) -> impl Future<Output = Result<()>> + Send;
    fn flush(&self) -> impl Future<Output = Result<()>> + Send;
    fn trim(&self, off: u64, len: u64, fua: bool) -> impl Future<Output = Result<()>> + Send;
    /// `allocated`: space is not to be given back.
    fn write_zeroes(
        &self,
        off: u64,
        len: u64,
        allocated: bool,
        fua: bool,
    ) -> impl Future<Output = Result<()>> + Send;
    fn extents(&self, off: u64, len: u64) -> impl Future<Output = Result<Vec<Extent>>> + Send;
    fn cache(&self, off: u64, len: u64) -> impl Future<Output = Result<()>> + Send;
}

/// An open volume as an export.
pub struct VolumeExport {
    pub volume: Arc<Volume>,
    /// True when the export is not to be used any more.
    pub closed: watch::Receiver<bool>,
    pub concurrent: bool,
    /// What keeps the volume open for this client.
    pub hold: Box<dyn Any + Send + Sync>,
}

impl Export for VolumeExport {
    fn facts(&self) -> Result<Facts> {
        if *self.closed.borrow() {
            return Err(Error::os(Errno::NxIo, "the volume is closed"));
        }
        let v = &self.volume;
        let (size, block_size, readonly) = (v.size()?, v.block_size()?, v.is_readonly()?);
        Ok(Facts { size, block_size, readonly, concurrent: self.concurrent })
    }

    async fn closed(&self) {
        // A sender that is gone means the same.
        let _ = self.closed.clone().wait_for(|closed| *closed).await;
    }

    fn try_read(&self, off: u64, len: usize) -> Result<Option<ReadData>> {
        self.volume.try_read(off, len)
    }

    async fn read(&self, off: u64, len: usize) -> Result<ReadData> {
        self.volume.read(off, len).await
    }

    async fn write(&self, off: u64, data: Vec<Bytes>, fua: bool) -> Result<()> {
        self.volume.write(off, &data, fua).await
    }

    async fn flush(&self) -> Result<()> {
        self.volume.flush().await
    }

    async fn trim(&self, off: u64, len: u64, fua: bool) -> Result<()> {
        self.volume.trim(off, len).await?;
        if fua { self.volume.commit().await } else { Ok(()) }
    }

    async fn write_zeroes(&self, off: u64, len: u64, allocated: bool, fua: bool) -> Result<()> {
        self.volume.write_zeroes(off, len, allocated, fua).await
    }

    async fn extents(&self, off: u64, len: u64) -> Result<Vec<Extent>> {
        self.volume.extents(off, len).await
    }

    async fn cache(&self, off: u64, len: u64) -> Result<()> {
        self.volume.cache(off, len).await
    }
}
