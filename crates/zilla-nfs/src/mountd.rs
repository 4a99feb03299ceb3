//! MOUNT version 3 (RFC 1813, appendix I): from the path of a share to the file handle of its root.
//!
//! Nothing is kept of who has mounted what: a client that vanishes says no goodbye, so such a list
//! would only grow. DUMP is answered with an empty one. Who may come in at all is judged at every
//! call of NFS, not here.

#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::indexing_slicing))]

use crate::attr::Status;
use crate::nfs::{self, Caller};
use crate::rpc::{AUTH_SYS, Refusal, Reply};
use crate::xdr::In;

/// Source: MNTPATHLEN in RFC 1813.
const MAX_PATH: usize = 1024;
/// Source: MOUNTPROC3_EXPORT in RFC 1813.
pub(crate) const EXPORT: u32 = 5;

/// Answers a procedure's arguments.
pub(crate) async fn answer(
    caller: &Caller<'_>,
    procedure: u32,
    mut args: In,
    reply: &mut Reply,
) -> Result<(), Refusal> {
    match procedure {
        0 => {}
        1 => {
            let path = args.opaque(MAX_PATH).map_err(|_| Refusal::Garbage)?;
            mount(caller, &path, reply).await;
        }
        // DUMP
        2 => {
            reply.head.bool(false);
        }
        // UMNT, UMNTALL
        3 => {
            args.opaque(MAX_PATH).map_err(|_| Refusal::Garbage)?;
        }
        4 => {}
        EXPORT => list(caller, reply),
        _ => return Err(Refusal::ProcedureUnavailable),
    }
    Ok(())
}

/// A path is a share's, or leads to a directory in one.
async fn mount(caller: &Caller<'_>, path: &[u8], reply: &mut Reply) {
    let path = String::from_utf8_lossy(path);
    let path = path.trim_end_matches('/');
    let below = |share: &str| {
        let rest = path.strip_prefix(share.trim_end_matches('/'))?;
        (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
    };
    let found = caller.exports.all().into_iter().filter_map(|e| Some((below(&e.path)?, e)));
    let result = match found.max_by_key(|(_, e)| e.path.len()) {
        None => Err(Status::NoEnt),
        Some((rest, export)) => match caller.admission(&export) {
            None => Err(Status::Access),
            Some(_) => nfs::walk(export, &rest).await,
        },
    };
    match result {
        Err(status) => {
            tracing::debug!("nfs: {} may not mount {path:?}: {status:?}", caller.peer);
            reply.head.u32(status as u32);
        }
        Ok(handle) => {
            reply.head.u32(0);
            handle.put(&mut reply.head);
            reply.head.u32(1).u32(AUTH_SYS);
        }
    }
}

/// The shares that a client may mount, with the words that name who may.
fn list(caller: &Caller<'_>, reply: &mut Reply) {
    let out = &mut reply.head;
    for export in caller.exports.all().into_iter().filter(|e| caller.admission(e).is_some()) {
        if export.path.len() > MAX_PATH {
            continue;
        }
        out.bool(true).opaque(export.path.as_bytes());
        // Source: MNTNAMLEN in RFC 1813.
        for group in export.options.groups().iter().filter(|g| g.len() <= 255) {
            out.bool(true).opaque(group.as_bytes());
        }
        out.bool(false);
    }
    out.bool(false);
}
