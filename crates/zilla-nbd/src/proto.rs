//! The protocol's numbers and headers (NetworkBlockDevice/nbd, doc/proto.md). All integers are
//! big-endian.

pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST: u32 = 0x2560_9513;
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Flags of the handshake, the same bits for server and client.
pub const FIXED_NEWSTYLE: u16 = 1;
pub const NO_ZEROES: u16 = 2;

pub mod option {
    pub const EXPORT_NAME: u32 = 1;
    pub const ABORT: u32 = 2;
    pub const LIST: u32 = 3;
    pub const STARTTLS: u32 = 5;
    pub const INFO: u32 = 6;
    pub const GO: u32 = 7;
    pub const STRUCTURED_REPLY: u32 = 8;
    pub const LIST_META_CONTEXT: u32 = 9;
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Replies to options.
pub mod rep {
    pub const ACK: u32 = 1;
    pub const SERVER: u32 = 2;
    pub const INFO: u32 = 3;
    pub const META_CONTEXT: u32 = 4;
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// What is told of an export.
pub mod info {
    pub const EXPORT: u16 = 0;
    pub const NAME: u16 = 1;
    pub const DESCRIPTION: u16 = 2;
    pub const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags.
pub mod transmission {
    pub const HAS_FLAGS: u16 = 1;
    pub const READ_ONLY: u16 = 1 << 1;
    pub const SEND_FLUSH: u16 = 1 << 2;
    pub const SEND_FUA: u16 = 1 << 3;
    pub const SEND_TRIM: u16 = 1 << 5;
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub const SEND_DF: u16 = 1 << 7;
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    pub const SEND_CACHE: u16 = 1 << 10;
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

pub mod command {
    pub const READ: u16 = 0;
    pub const WRITE: u16 = 1;
    pub const DISC: u16 = 2;
    pub const FLUSH: u16 = 3;
    pub const TRIM: u16 = 4;
    pub const CACHE: u16 = 5;
    pub const WRITE_ZEROES: u16 = 6;
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    pub const FUA: u16 = 1;
    pub const NO_HOLE: u16 = 1 << 1;
    pub const DF: u16 = 1 << 2;
    pub const REQ_ONE: u16 = 1 << 3;
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured replies: the flag of the last chunk, and the chunks' types.
pub mod chunk {
    pub const DONE: u16 = 1;
    pub const OFFSET_DATA: u16 = 1;
    pub const BLOCK_STATUS: u16 = 5;
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Errors on the wire.
pub mod errno {
    pub const PERM: u32 = 1;
    pub const IO: u32 = 5;
    pub const NOMEM: u32 = 12;
    pub const INVAL: u32 = 22;
    pub const NOSPC: u32 = 28;
    pub const OVERFLOW: u32 = 75;
    pub const NOTSUP: u32 = 95;
    pub const SHUTDOWN: u32 = 108;
}

/// The metadata context there is, and its bits.
pub const BASE_ALLOCATION: &str = "base:allocation";
pub const STATE_HOLE: u32 = 1;
pub const STATE_ZERO: u32 = 2;

/// The longest read or write, in bytes. Clients that do not ask assume it.
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// The longest name, in bytes: as the protocol has it.
pub const NAME_MAX: usize = 4096;

/// Length of a request's header.
pub const REQUEST_LEN: usize = 28;

/// A request, without the data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    pub flags: u16,
    pub command: u16,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
}

impl Request {
    /// None: the framing is lost.
    pub fn decode(bytes: &[u8; REQUEST_LEN]) -> Option<Request> {
        let mut rest = Fields(bytes);
        if rest.u32()? != REQUEST {
            return None;
        }
        Some(Request {
            flags: rest.u16()?,
            command: rest.u16()?,
            cookie: rest.u64()?,
            offset: rest.u64()?,
            length: rest.u32()?,
        })
    }

    pub fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// What is wrong with it, before anything is done: an error on the wire.
    pub fn check(&self, size: u64, readonly: bool, structured: bool, status: bool) -> Result<(), u32> {
        // FUA is accepted with every command, as the protocol demands.
        let mut known = flag::FUA;
        match self.command {
            command::READ if structured => known |= flag::DF,
            command::WRITE_ZEROES => known |= flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS if status => known |= flag::REQ_ONE,
            command::BLOCK_STATUS => return Err(errno::INVAL),
            command::READ | command::WRITE | command::TRIM | command::CACHE => {}
            command::FLUSH if self.offset == 0 && self.length == 0 => {}
            _ => return Err(errno::INVAL),
        }
        if self.flags & !known != 0 {
            return Err(errno::INVAL);
        }
        if self.command == command::FLUSH {
            return Ok(());
        }
        let writes = matches!(self.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && readonly {
            return Err(errno::PERM);
        }
        if self.length == 0 {
            return Err(errno::INVAL);
        }
        if self.command == command::READ && self.length > PAYLOAD_MAX {
            return Err(if self.has(flag::DF) { errno::OVERFLOW } else { errno::INVAL });
        }
        match self.offset.checked_add(u64::from(self.length)) {
            Some(end) if end <= size => Ok(()),
            _ if matches!(self.command, command::WRITE | command::WRITE_ZEROES) => Err(errno::NOSPC),
            _ => Err(errno::INVAL),
        }
    }
}

/// Fields of something received, from its front.
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    pub fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n)?;
        self.0 = tail;
        Some(head)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }
    /// A length and so many bytes of text.
    pub fn text(&mut self) -> Option<&'a str> {
        let len = self.u32()? as usize;
        std::str::from_utf8(self.take(len).filter(|t| t.len() <= NAME_MAX)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: u16, flags: u16, offset: u64, length: u32) -> Request {
        Request { flags, command, cookie: 7, offset, length }
    }

    #[test]
    fn what_is_wrong_with_a_request_has_its_error() {
        const SIZE: u64 = 1 << 30;
        let check = |r: Request| r.check(SIZE, false, true, true);
        for c in [command::READ, command::WRITE, command::TRIM, command::CACHE, command::WRITE_ZEROES] {
            assert_eq!(check(request(c, 0, 0, 4096)), Ok(()));
            assert_eq!(check(request(c, flag::FUA, SIZE - 1, 1)), Ok(()), "FUA is accepted everywhere");
            assert_eq!(check(request(c, 0, 0, 0)), Err(errno::INVAL));
            assert_eq!(check(request(c, 1 << 15, 0, 1)), Err(errno::INVAL));
            let beyond =
                if matches!(c, command::WRITE | command::WRITE_ZEROES) { errno::NOSPC } else { errno::INVAL };
            assert_eq!(check(request(c, 0, SIZE, 1)), Err(beyond));
            assert_eq!(check(request(c, 0, u64::MAX, 2)), Err(beyond));
            let readonly = request(c, 0, 0, 512).check(SIZE, true, true, true);
            let writes = !matches!(c, command::READ | command::CACHE);
            assert_eq!(readonly, if writes { Err(errno::PERM) } else { Ok(()) });
        }
        assert_eq!(check(request(command::READ, 0, 0, PAYLOAD_MAX + 1)), Err(errno::INVAL));
        assert_eq!(check(request(command::READ, flag::DF, 0, PAYLOAD_MAX + 1)), Err(errno::OVERFLOW));
        assert_eq!(
            request(command::READ, flag::DF, 0, 1).check(SIZE, false, false, false),
            Err(errno::INVAL)
        );
        assert_eq!(
            check(request(command::WRITE_ZEROES, flag::NO_HOLE | flag::FAST_ZERO, 0, 1 << 29)),
            Ok(())
        );
        assert_eq!(check(request(command::WRITE, flag::NO_HOLE, 0, 1)), Err(errno::INVAL));
        assert_eq!(check(request(command::FLUSH, 0, 0, 0)), Ok(()));
        assert_eq!(check(request(command::FLUSH, 0, 1, 0)), Err(errno::INVAL));
        assert_eq!(check(request(command::BLOCK_STATUS, flag::REQ_ONE, 0, 1)), Ok(()));
        assert_eq!(
            request(command::BLOCK_STATUS, 0, 0, 1).check(SIZE, false, true, false),
            Err(errno::INVAL)
        );
        assert_eq!(check(request(99, 0, 0, 1)), Err(errno::INVAL));
    }
}
