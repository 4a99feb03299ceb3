//! ONC RPC (RFC 5531): calls in, replies out, and who says that he calls.
//!
//! A record is a call whose arguments are the procedure's own. A call that is wrong gets the reply
//! that the protocol has for it; only what cannot be answered at all, because it is no call or too
//! short to have a number, ends the connection.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::xdr::{In, Out, Read};
use bytes::Bytes;

const CALL: u32 = 0;
const REPLY: u32 = 1;
const RPC_VERSION: u32 = 2;
/// Source: `opaque_auth` in RFC 5531.
const MAX_AUTH: usize = 400;
/// Source: `authsys_parms` in RFC 5531.
const MAX_MACHINE: usize = 255;
const MAX_GROUPS: u32 = 16;
const AUTH_NONE: u32 = 0;
pub(crate) const AUTH_SYS: u32 = 1;

/// Why a call is not done (`accept_stat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    ProgramUnavailable,
    /// The versions there are: from, to.
    ProgramMismatch(u32, u32),
    ProcedureUnavailable,
    Garbage,
    /// The caller does not say who he is in a way that is known (`auth_stat`).
    Auth(AuthStat),
    /// This is another version of RPC.
    RpcMismatch,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum AuthStat {
    BadCredential = 1,
    RejectedCredential = 2,
}

/// Who a client says that he is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(crate) enum Claim {
    #[default]
    Nobody,
    User {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
}

/// A call as far as RPC goes.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) claim: Claim,
    pub(crate) args: In,
}

/// What a record turned out to be.
#[derive(Debug)]
pub(crate) enum Parsed {
    Call(Call),
    /// To be answered with a refusal.
    Bad(u32, Refusal),
    /// Not to be answered.
    NoCall,
}

fn claim(flavor: u32, body: Bytes) -> Result<Claim, AuthStat> {
    match flavor {
        AUTH_NONE => Ok(Claim::Nobody),
        AUTH_SYS => user(&mut In(body)).map_err(|_| AuthStat::BadCredential),
        _ => Err(AuthStat::RejectedCredential),
    }
}

fn user(body: &mut In) -> Read<Claim> {
    body.u32()?;
    body.opaque(MAX_MACHINE)?;
    let (uid, gid, count) = (body.u32()?, body.u32()?, body.u32()?);
    if count > MAX_GROUPS {
        return Err(crate::xdr::Garbage);
    }
    let groups = (0..count).map(|_| body.u32()).collect::<Read<_>>()?;
    Ok(Claim::User { uid, gid, groups })
}

/// Reads a record.
pub(crate) fn parse(record: Bytes) -> Parsed {
    let mut args = In(record);
    let (Ok(xid), Ok(CALL)) = (args.u32(), args.u32()) else { return Parsed::NoCall };
    let header = |args: &mut In| -> Read<_> {
        let version = args.u32()?;
        let target = (args.u32()?, args.u32()?, args.u32()?);
        let flavor = args.u32()?;
        let body = args.opaque(MAX_AUTH)?;
        args.u32()?;
        args.opaque(MAX_AUTH)?;
        Ok((version, target, flavor, body))
    };
    let (rpc_version, (program, version, procedure), flavor, body) = match header(&mut args) {
        Ok(all) => all,
        Err(_) => return Parsed::Bad(xid, Refusal::Garbage),
    };
    if rpc_version != RPC_VERSION {
        return Parsed::Bad(xid, Refusal::RpcMismatch);
    }
    match claim(flavor, body) {
        Ok(claim) => Parsed::Call(Call { xid, program, version, procedure, claim, args }),
        Err(why) => Parsed::Bad(xid, Refusal::Auth(why)),
    }
}

/// A reply: what comes before a file's bytes, and the bytes, which are not copied.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) head: Out,
    pub(crate) data: Vec<Bytes>,
}

impl Reply {
    pub(crate) fn len(&self) -> usize {
        self.head.0.len() + self.data.iter().map(Bytes::len).sum::<usize>()
    }

    /// What an NFS procedure says how it went. None: RPC refused the call.
    pub(crate) fn status(&self) -> Option<u32> {
        let word = |n: usize| self.head.0.get(4 * n..4 * n + 4)?.try_into().ok().map(u32::from_be_bytes);
        // Behind xid, REPLY, accepted, a verifier of two words, success.
        let accepted = word(2)? == 0 && word(5)? == 0;
        word(6).filter(|_| accepted)
    }
}

/// Begins the reply to a call that is done.
pub(crate) fn accepted(xid: u32) -> Reply {
    let mut reply = Reply::default();
    // Accepted, a verifier of nothing, success.
    reply.head.u32(xid).u32(REPLY).u32(0).u32(AUTH_NONE).u32(0).u32(0);
    reply
}

/// The reply to a call that is not.
pub(crate) fn refused(xid: u32, why: Refusal) -> Reply {
    let mut reply = Reply::default();
    let out = reply.head.u32(xid).u32(REPLY);
    let accepted = |out: &mut Out, stat: u32| {
        out.u32(0).u32(AUTH_NONE).u32(0).u32(stat);
    };
    match why {
        Refusal::ProgramUnavailable => accepted(out, 1),
        Refusal::ProgramMismatch(low, high) => {
            accepted(out, 2);
            out.u32(low).u32(high);
        }
        Refusal::ProcedureUnavailable => accepted(out, 3),
        Refusal::Garbage => accepted(out, 4),
        Refusal::RpcMismatch => {
            out.u32(1).u32(0).u32(RPC_VERSION).u32(RPC_VERSION);
        }
        Refusal::Auth(stat) => {
            out.u32(1).u32(1).u32(stat as u32);
        }
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(flavor: u32, body: &[u8]) -> Bytes {
        let mut out = Out::default();
        out.u32(5).u32(CALL).u32(RPC_VERSION).u32(100_003).u32(3).u32(1).u32(flavor).opaque(body);
        out.u32(AUTH_NONE).opaque(b"").u32(42);
        out.0.into()
    }

    #[test]
    fn a_call_says_who_calls() {
        let mut who = Out::default();
        who.u32(0).opaque(b"host").u32(1000).u32(100).u32(2).u32(4).u32(27);
        let Parsed::Call(mut parsed) = parse(call(AUTH_SYS, &who.0)) else { panic!() };
        assert_eq!(parsed.claim, Claim::User { uid: 1000, gid: 100, groups: vec![4, 27] });
        assert_eq!((parsed.xid, parsed.procedure, parsed.args.u32()), (5, 1, Ok(42)));
    }

    #[test]
    fn a_wrong_call_gets_the_protocol_s_reply() {
        let mut many = Out::default();
        many.u32(0).opaque(b"").u32(0).u32(0).u32(17);
        let refusal = |record| match parse(record) {
            Parsed::Bad(5, why) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal(call(AUTH_SYS, &many.0)), Refusal::Auth(AuthStat::BadCredential));
        assert_eq!(refusal(call(6, b"")), Refusal::Auth(AuthStat::RejectedCredential));
        let whole = call(AUTH_NONE, b"");
        assert_eq!(refusal(whole.slice(..20)), Refusal::Garbage);
        assert!(matches!(parse(whole.slice(..7)), Parsed::NoCall));
        let mut old = whole.to_vec();
        old[11] = 1;
        assert_eq!(refusal(old.into()), Refusal::RpcMismatch);
        assert_eq!(
            refused(5, Refusal::RpcMismatch).head.0[8..],
            [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2]
        );
    }
}
