//! Fixed newstyle: the client asks what there is, and settles on an export and how to speak about
//! it.
//!
//! ```text
//!   server: NBDMAGIC IHAVEOPT flags        client: flags
//!   client: IHAVEOPT option length data    server: magic option reply length data, for each reply of the option
//! ```
//!
//! It ends with GO or EXPORT_NAME, which begins transmission, or with ABORT. The caller bounds the
//! time; here are bounds for the length of an option (64 KiB; up to 1 MiB is read over and refused)
//! and for how many there are.
//!
//! Where TLS is demanded nothing else is answered before ([`until_tls`]): no name, no size, no
//! setting. Nothing that was said before it counts after it, and what is sent behind STARTTLS
//! without waiting for the answer, which somebody in between may have put there, ends the
//! connection.

use crate::export::{Export, Exports, Facts};
use crate::proto::{self, BASE_ALLOCATION, Fields, NAME_MAX, PAYLOAD_MAX, info, option, rep, transmission};
use crate::reader::Reader;
use bytes::{BufMut, Bytes, BytesMut};
use std::io;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};

const OPTION_MAX: u32 = 64 << 10;
const SKIP_MAX: u32 = 1 << 20;
const OPTIONS_MAX: usize = 256;
/// Number of the one metadata context there is.
pub const CONTEXT_ID: u32 = 1;
/// The smallest preferred block, in bytes: what the page cache of a client writes.
const PREFERRED_MIN: u64 = 4096;

/// What was settled.
pub struct Agreed<X> {
    pub export: X,
    pub structured: bool,
    /// Block status may be asked for.
    pub status: bool,
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// The flags that a client gets with the size.
fn transmission_flags(facts: &Facts, structured: bool) -> u16 {
    use transmission::*;
    let mut flags = HAS_FLAGS | SEND_FLUSH | SEND_FUA | SEND_TRIM | SEND_WRITE_ZEROES;
    flags |= CAN_MULTI_CONN | SEND_CACHE | SEND_FAST_ZERO;
    if facts.readonly {
        flags |= READ_ONLY;
    }
    if structured {
        flags |= SEND_DF;
    }
    flags
}

struct Session<'s, R, W, E: Exports> {
    reader: &'s mut Reader<R>,
    writer: &'s mut W,
    exports: &'s E,
    no_zeroes: bool,
    structured: bool,
    /// The export for which block status was agreed on.
    status: Option<String>,
    tls: bool,
}

/// What a client said first.
#[derive(Clone, Copy)]
pub struct Greeted {
    no_zeroes: bool,
}

/// The first words of both.
pub async fn greet<R, W>(reader: &mut Reader<R>, writer: &mut W) -> io::Result<Greeted>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut hello = BytesMut::new();
    hello.put_u64(proto::NBDMAGIC);
    hello.put_u64(proto::IHAVEOPT);
    hello.put_u16(proto::FIXED_NEWSTYLE | proto::NO_ZEROES);
    writer.write_all(&hello).await?;
    let flags = Fields(&reader.take(4).await?).u32().unwrap_or(0);
    let known = u32::from(proto::FIXED_NEWSTYLE | proto::NO_ZEROES);
    if flags & !known != 0 {
        return Err(broken("unknown flags of a client"));
    }
    Ok(Greeted { no_zeroes: flags & u32::from(proto::NO_ZEROES) != 0 })
}

/// Refuses everything until the client asks for TLS, which is to begin now; false: it leaves.
pub async fn until_tls<R, W>(reader: &mut Reader<R>, writer: &mut W) -> io::Result<bool>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    for _ in 0..OPTIONS_MAX {
        let (option, data) = next_option(reader, writer).await?;
        match (option, data) {
            (option::EXPORT_NAME, _) => return Err(broken("an export was asked for before TLS")),
            (option::ABORT, _) => {
                // The client may be gone already.
                let _ = reply(writer, option, rep::ACK, b"").await;
                return Ok(false);
            }
            (_, None) => {}
            (option::STARTTLS, Some(data)) if data.is_empty() => {
                if reader.holds_more() {
                    return Err(broken("something was sent behind STARTTLS in the clear"));
                }
                reply(writer, option, rep::ACK, b"").await?;
                return Ok(true);
            }
            (option::STARTTLS, Some(_)) => reply(writer, option, rep::ERR_INVALID, b"").await?,
            (_, Some(_)) => reply(writer, option, rep::ERR_TLS_REQD, b"TLS is required here").await?,
        }
    }
    Err(broken("too many options"))
}

/// The next option and its data; None: it was too long, and the client was told so.
async fn next_option<R, W>(reader: &mut Reader<R>, writer: &mut W) -> io::Result<(u32, Option<Bytes>)>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let head = reader.take(16).await?;
    let mut fields = Fields(&head);
    let (magic, option, len) = (fields.u64(), fields.u32().unwrap_or(0), fields.u32().unwrap_or(0));
    if magic != Some(proto::IHAVEOPT) {
        return Err(broken("an option without its magic number"));
    }
    if len > OPTION_MAX {
        if len > SKIP_MAX || option == option::EXPORT_NAME {
            return Err(broken("an option of too many bytes"));
        }
        reader.skip(len.into()).await?;
        reply(writer, option, rep::ERR_TOO_BIG, b"").await?;
        return Ok((option, None));
    }
    Ok((option, Some(reader.take(len as usize).await?)))
}

async fn reply<W: AsyncWrite + Unpin>(writer: &mut W, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let mut out = BytesMut::with_capacity(20 + data.len());
    out.put_u64(proto::OPTION_REPLY);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(data.len() as u32);
    out.put_slice(data);
    writer.write_all(&out).await?;
    // TLS keeps what it could not send at once.
    writer.flush().await
}

/// Speaks with a client until it has chosen; None: it leaves. `tls`: what is said is encrypted.
pub async fn negotiate<R, W, E>(
    reader: &mut Reader<R>,
    writer: &mut W,
    exports: &E,
    greeted: Greeted,
    tls: bool,
) -> io::Result<Option<Agreed<E::Export>>>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
    E: Exports,
{
    let no_zeroes = greeted.no_zeroes;
    let mut session = Session { reader, writer, exports, no_zeroes, structured: false, status: None, tls };
    for _ in 0..OPTIONS_MAX {
        match session.option().await? {
            Next::Option => {}
            Next::Leave => return Ok(None),
            Next::Go(agreed) => return Ok(Some(agreed)),
        }
    }
    Err(broken("too many options"))
}

enum Next<X> {
    Option,
    Leave,
    Go(Agreed<X>),
}

impl<R: AsyncRead + Unpin, W: AsyncWrite + Unpin, E: Exports> Session<'_, R, W, E> {
    async fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        reply(self.writer, option, kind, data).await
    }

    async fn option(&mut self) -> io::Result<Next<E::Export>> {
        let (option, data) = next_option(self.reader, self.writer).await?;
        let Some(data) = data else { return Ok(Next::Option) };
        match option {
            option::EXPORT_NAME => return self.export_name(&data).await,
            option::ABORT => {
                // The client may be gone already.
                let _ = self.reply(option, rep::ACK, b"").await;
                return Ok(Next::Leave);
            }
            option::LIST if data.is_empty() => self.list().await?,
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.structured = true;
                self.reply(option, rep::ACK, b"").await?;
            }
            option::INFO | option::GO => return self.info(option, &data).await,
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.contexts(option, &data).await?,
            // Once is enough. Where there is none it is an option as unknown as others.
            option::STARTTLS if self.tls => self.reply(option, rep::ERR_INVALID, b"").await?,
            option::LIST | option::STRUCTURED_REPLY => self.reply(option, rep::ERR_INVALID, b"").await?,
            _ => self.reply(option, rep::ERR_UNSUP, b"").await?,
        }
        Ok(Next::Option)
    }

    async fn list(&mut self) -> io::Result<()> {
        for name in self.exports.list().await {
            let mut data = BytesMut::new();
            data.put_u32(name.len() as u32);
            data.put_slice(name.as_bytes());
            self.reply(option::LIST, rep::SERVER, &data).await?;
        }
        self.reply(option::LIST, rep::ACK, b"").await
    }

    fn agreed(&self, name: &str, export: E::Export) -> Agreed<E::Export> {
        let status = self.structured && self.status.as_deref() == Some(name);
        Agreed { export, structured: self.structured, status }
    }

    /// The old way, in which nothing can be refused but by hanging up.
    async fn export_name(&mut self, data: &Bytes) -> io::Result<Next<E::Export>> {
        let name = std::str::from_utf8(data).map_err(|_| broken("an export's name that is not UTF-8"))?;
        let export = self.exports.open(name).await.map_err(|_| broken("no such export"))?;
        let facts = export.facts().map_err(io::Error::other)?;
        let mut out = BytesMut::new();
        out.put_u64(facts.size);
        out.put_u16(transmission_flags(&facts, self.structured));
        if !self.no_zeroes {
            out.put_bytes(0, 124);
        }
        self.writer.write_all(&out).await?;
        self.writer.flush().await?;
        Ok(Next::Go(self.agreed(name, export)))
    }

    async fn info(&mut self, option: u32, data: &[u8]) -> io::Result<Next<E::Export>> {
        let mut fields = Fields(data);
        let parsed = fields.text().zip(fields.u16());
        let Some((name, count)) = parsed.filter(|(_, n)| fields.0.len() == usize::from(*n) * 2) else {
            self.reply(option, rep::ERR_INVALID, b"").await?;
            return Ok(Next::Option);
        };
        let wanted: Vec<u16> = (0..count).filter_map(|_| fields.u16()).collect();
        let opened = self.exports.open(name).await.ok().and_then(|x| Some((x.facts().ok()?, x)));
        let Some((facts, export)) = opened else {
            self.reply(option, rep::ERR_UNKNOWN, b"there is no such volume here").await?;
            return Ok(Next::Option);
        };
        let mut all = vec![info::EXPORT];
        all.extend([info::NAME, info::DESCRIPTION, info::BLOCK_SIZE].iter().filter(|i| wanted.contains(i)));
        for kind in all {
            let mut out = BytesMut::new();
            out.put_u16(kind);
            match kind {
                info::EXPORT => {
                    out.put_u64(facts.size);
                    out.put_u16(transmission_flags(&facts, self.structured));
                }
                info::NAME => out.put_slice(name.as_bytes()),
                info::DESCRIPTION if name.contains('@') => out.put_slice(b"snapshot of a ZFS volume"),
                info::DESCRIPTION => out.put_slice(b"ZFS volume"),
                _ => {
                    // Any request can be served; whole blocks are best.
                    out.put_u32(1);
                    out.put_u32(facts.block_size.max(PREFERRED_MIN) as u32);
                    out.put_u32(PAYLOAD_MAX);
                }
            }
            self.reply(option, rep::INFO, &out).await?;
        }
        self.reply(option, rep::ACK, b"").await?;
        if option == option::GO { Ok(Next::Go(self.agreed(name, export))) } else { Ok(Next::Option) }
    }

    /// Metadata contexts: which there are, or which are to be told of.
    async fn contexts(&mut self, option: u32, data: &[u8]) -> io::Result<()> {
        let set = option == option::SET_META_CONTEXT;
        let mut fields = Fields(data);
        let head = fields.text().zip(fields.u32());
        let mut queries = Vec::new();
        let valid = head.is_some_and(|(_, count)| {
            // Each takes four bytes at least, so that a false count cannot ask for memory.
            (0..count).all(|_| {
                fields.text().is_some_and(|q| {
                    queries.push(q);
                    true
                })
            }) && fields.0.is_empty()
        });
        let Some((name, _)) = head.filter(|_| valid && (self.structured || !set)) else {
            if set {
                self.status = None;
            }
            return self.reply(option, rep::ERR_INVALID, b"").await;
        };
        if name.len() > NAME_MAX || self.exports.open(name).await.is_err() {
            if set {
                self.status = None;
            }
            return self.reply(option, rep::ERR_UNKNOWN, b"there is no such volume here").await;
        }
        let all = !set && (queries.is_empty() || queries.contains(&"base:"));
        let chosen = all || queries.contains(&BASE_ALLOCATION);
        if set {
            self.status = chosen.then(|| name.to_owned());
        }
        if chosen {
            let mut out = BytesMut::new();
            out.put_u32(if set { CONTEXT_ID } else { 0 });
            out.put_slice(BASE_ALLOCATION.as_bytes());
            self.reply(option, rep::META_CONTEXT, &out).await?;
        }
        self.reply(option, rep::ACK, b"").await
    }
}
