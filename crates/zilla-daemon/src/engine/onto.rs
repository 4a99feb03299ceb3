//! Whether a stream may go where it is to: onto a dataset that is there, or to where none is.
//!
//! A stream that makes a dataset of its own goes onto nothing: a dataset of that name must be given
//! up by `-F`, and have nothing left that others stand on. Any other stream goes onto a dataset.

use super::errors::{Answer, of_dataset};
use super::pool::Pool;
use super::receive::{Part, is_clone, refuse};
use zilla::error::Errno;
use zilla::tree::DatasetRef;
use zilla_control::{ApiError, ErrorCode};
use zilla_ondisk::enums::ObjsetType;
use zilla_ondisk::stream::{Begin, feature};

/// Whether a stream makes a dataset of its own, or is the rest of one that did: of a whole
/// snapshot, of a clone's, or one whose receiver names the snapshot to make a clone of.
pub(super) fn makes_new(b: &Begin, origin: Option<&str>) -> bool {
    b.fromguid == 0 || is_clone(b) || origin.is_some()
}

pub(super) fn is_resumed(b: &Begin) -> bool {
    b.features() & feature::RESUMING != 0
}

/// Refuses what has no place where it is to go. `head`: the dataset that is there.
pub(super) async fn check(pool: &Pool, part: &Part<'_>, head: Option<&DatasetRef>) -> Answer<()> {
    let fs = part.fs_name();
    let new = makes_new(&part.begin, part.origin);
    match (head, is_resumed(&part.begin)) {
        (None, false) if new => check_above(pool, part, fs).await,
        (None, _) => Err(refuse(part, &format!("destination '{fs}' does not exist"))),
        (Some(_), true) if new => check_rest(pool, part, fs).await,
        (Some(head), false) if new => check_overwritten(part, fs, head).await,
        (Some(_), _) => Ok(()),
    }
}

/// What is above a new dataset must be there, unless `-d` makes it, and be a file system.
async fn check_above(pool: &Pool, part: &Part<'_>, fs: &str) -> Answer<()> {
    let Some((parent, _)) = fs.rsplit_once('/') else { return Ok(()) };
    match pool.zilla.by_name(parent).await {
        Ok(above) if above.is_filesystem().await.map_err(of_dataset)? => Ok(()),
        Ok(_) => Err(refuse(part, &format!("parent '{parent}' is not a filesystem"))),
        Err(e) if e.is(Errno::NoEnt) && part.r.keep_path => Ok(()),
        Err(e) if e.is(Errno::NoEnt) => {
            let e = refuse(part, "unable to restore to destination");
            let what = format!("cannot open '{parent}': dataset does not exist\n{}", e.description());
            Err(ApiError::with(ErrorCode::Stream, what))
        }
        Err(e) => Err(of_dataset(e)),
    }
}

/// What is to take the place of a dataset lies beside it so far.
async fn check_rest(pool: &Pool, part: &Part<'_>, fs: &str) -> Answer<()> {
    let partly = pool.zilla.partly_received(fs).await.map_err(of_dataset)?;
    match partly.is_some_and(|p| p.name() != fs) && !part.r.force {
        true => {
            let what =
                format!("Resuming recv on existing destination '{fs}'\nmust specify -F to overwrite it");
            Err(refuse(part, &what))
        }
        false => Ok(()),
    }
}

async fn check_overwritten(part: &Part<'_>, fs: &str, head: &DatasetRef) -> Answer<()> {
    if !part.r.force {
        return Err(refuse(part, &format!("destination '{fs}' exists\nmust specify -F to overwrite it")));
    }
    if let Some(s) = head.snapshots().await.map_err(of_dataset)?.first() {
        let what = format!("destination has snapshots (eg. {})\nmust destroy them to overwrite it", s.name());
        return Err(refuse(part, &what));
    }
    if u64::from(part.begin.objset_type) == ObjsetType::Zvol.number() {
        if !fs.contains('/') {
            let what = format!("destination {fs} is the root dataset\ncannot overwrite with a ZVOL");
            return Err(refuse(part, &what));
        }
        if let Some(child) = head.dir().children().await.map_err(of_dataset)?.first() {
            let name = child.name();
            let what = format!("destination has children (eg. {name})\ncannot overwrite with a ZVOL");
            return Err(refuse(part, &what));
        }
    }
    if head.dir().is_clone() {
        let what = format!("destination '{fs}' is a clone\nmust destroy it to overwrite it");
        return Err(refuse(part, &what));
    }
    // The contents of a dataset can be replaced, not what it is a clone of.
    if part.begin.fromguid != 0 || part.origin.is_some() {
        let what = format!("invalid backup stream (a clone cannot replace '{fs}': destroy that first)");
        return Err(refuse(part, &what));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_ondisk::stream::DRR_FLAG_CLONE;

    #[test]
    fn an_origin_makes_a_dataset_of_any_stream() {
        let stream = |fromguid, flags| Begin { fromguid, flags, ..Begin::default() };
        let whole = stream(0, 0);
        let step = stream(7, 0);
        let clone = stream(7, DRR_FLAG_CLONE);
        assert!(makes_new(&whole, None) && makes_new(&clone, None) && !makes_new(&step, None));
        for b in [whole, step, clone] {
            assert!(makes_new(&b, Some("tank/a@s")));
        }
    }
}
