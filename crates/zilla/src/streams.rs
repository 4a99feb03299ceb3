//! Snapshots as streams, and back: `zfs send` and `zfs receive`.
//!
//! A stream is made of records ([`RecordWriter`], [`RecordReader`]) that go through a [`Sink`] or
//! come from a [`Source`]; who carries the bytes is the caller's matter. One stream is one
//! snapshot, whole or as what changed since an earlier one ([`From`]), and is received whole or not
//! at all ([`Receiving`]). Packages of several are the caller's to put together: see the daemon's.

use crate::access::Who;
use crate::error::Result;
use crate::keys::NewCrypt;
use crate::make::Settings;
use crate::pool::Pool;
use crate::tree::DatasetRef;
use bytes::Bytes;
use zilla_core::dsl::RecvOpts;
use zilla_core::send::{Heal, Receive, estimate, send_special};
use zilla_ondisk::stream::Begin;

pub use zilla_core::dsl::ResumeState;
pub use zilla_core::send::frame::{RecordReader, RecordWriter, Sink, Source, unread};
pub use zilla_core::send::{
    From, HEAD_NAME, Healed, Redaction, Resume, SendOpts, Special, Token, check_features, parse_token,
    raw_key, token,
};

/// Where a stream goes, and what else is said of it.
#[derive(Clone, Default)]
pub struct ReceiveOpts {
    /// The file system or volume.
    pub fs: String,
    /// The snapshot's name.
    pub snap: String,
    /// What the target has beyond the snapshot the stream starts from is destroyed.
    pub force: bool,
    /// What was received before an interruption is kept.
    pub resumable: bool,
    /// The snapshot to make a clone of, if the target does not exist.
    pub origin: Option<String>,
    /// Properties.
    pub settings: Settings,
    /// What a new dataset is encrypted with; raw streams and clones say it themselves.
    pub crypt: NewCrypt,
    /// The sender's new key does not take the place of the one that opens the dataset here.
    pub keep_key: bool,
    /// Whom limits bind, and who gets what is given to whoever creates a dataset.
    pub who: Who,
}

/// A stream that is being received.
pub struct Receiving(Receive);

impl Receiving {
    /// Whether the dataset was not there before.
    pub fn is_new(&self) -> bool {
        self.0.is_new()
    }

    /// Takes all records of the stream. None of it is to be seen yet.
    pub async fn records(&mut self, reader: &mut RecordReader<'_>) -> Result<()> {
        self.0.records(reader).await
    }

    /// Puts what was received in its place. Nobody may use the dataset meanwhile.
    pub async fn end(&mut self) -> Result<()> {
        self.0.end().await.map(drop)
    }

    /// Gives it up. Says whether what was received is kept, so that a later stream can go on.
    pub async fn abort(self) -> Result<bool> {
        self.0.abort().await
    }
}

impl Pool {
    /// Begins to receive a stream: its first record and that one's payload.
    pub async fn receive(&self, begin: Begin, payload: &Bytes, opts: ReceiveOpts) -> Result<Receiving> {
        let ReceiveOpts { fs, snap, force, resumable, origin, settings, crypt, keep_key, who } = opts;
        let opts = RecvOpts {
            fs,
            snap,
            force,
            resumable,
            origin,
            settings,
            crypt,
            keep_key,
            who,
            ..RecvOpts::default()
        };
        Ok(Receiving(Receive::begin(self.dsl(), begin, payload, opts).await?))
    }

    /// Mends the damaged blocks of a snapshot from a stream of it.
    pub async fn heal(&self, begin: Begin, reader: &mut RecordReader<'_>, snap: &str) -> Result<Healed> {
        Heal::begin(self.dsl(), begin, reader.order(), snap).await?.records(reader).await
    }

    /// What an interrupted receive into a dataset has come to.
    pub async fn partly_received(&self, fs: &str) -> Result<Option<DatasetRef>> {
        Ok(self.dsl().recv_partial(fs).await?.map(|ds| self.reference(ds)))
    }

    /// The token of an interrupted receive into a dataset, by which its sender can go on.
    pub async fn resume_token(&self, fs: &str) -> Option<String> {
        let ds = self.partly_received(fs).await.ok()??;
        let state = ds.resume_state().await.ok()??;
        token(&state)
    }
}

impl DatasetRef {
    /// Sends a snapshot, or a head that is held alone. Returns how many bytes.
    pub async fn send(&self, opts: &SendOpts, special: &Special, out: &mut dyn Sink) -> Result<u64> {
        send_special(&self.dsl, &self.ds, opts, special, out).await
    }

    /// How many bytes that will be, about. `from`: the snapshot it starts from.
    pub async fn send_size(
        &self,
        from: Option<&DatasetRef>,
        opts: &SendOpts,
        special: &Special,
    ) -> Result<u64> {
        estimate(&self.dsl, &self.ds, from.map(|f| &f.ds), opts, special).await
    }

    /// How far an interrupted receive has come ([`Pool::partly_received`]).
    pub async fn resume_state(&self) -> Result<Option<ResumeState>> {
        self.dsl.resume_state(&self.ds).await
    }

    /// What an incremental stream whose receive was interrupted starts from, and whether that is
    /// another dataset's.
    pub async fn receive_source(&self, guid: u64) -> Result<(DatasetRef, bool)> {
        let (ds, is_clone) = self.dsl.recv_source(&self.ds, guid).await?;
        Ok((DatasetRef { dsl: self.dsl.clone(), ds }, is_clone))
    }

    /// Takes away what an interrupted receive has come to.
    pub async fn abort_receive(&self) -> Result<()> {
        let (dsl, ds) = (self.dsl.clone(), self.ds.clone());
        let task = move |tx| -> futures_util::future::BoxFuture<'static, Result<()>> {
            Box::pin(async move { dsl.recv_abort(&tx, &ds).await })
        };
        self.dsl.ctx().sync_task(task).await
    }
}
