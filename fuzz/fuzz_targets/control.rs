//! Any bytes as a request of the control protocol: refused, or a request that says the same when
//! written and read again; and any text as names, properties and sizes.
#![no_main]
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use zilla_control::props::{self, naming};
use zilla_control::types::*;
use zilla_control::{Envelope, Outcome};

fn round<T: Serialize + DeserializeOwned>(body: &[u8]) {
    let Ok(request) = serde_json::from_slice::<Envelope<T>>(body) else { return };
    let once = serde_json::to_vec(&request).expect("a request that was read");
    let again: Envelope<T> = serde_json::from_slice(&once).expect("written by us");
    assert_eq!(serde_json::to_vec(&again).expect("a request that was read"), once);
}

macro_rules! requests {
    ($($request:ty),*) => { &[$(round::<$request>),*] };
}

const REQUESTS: &[fn(&[u8])] = requests![
    PoolCreate, PoolDestroy, PoolExport, PoolQuery, PoolSet, PoolScrub, PoolSync, PoolHistory, PoolLog, ImportSearch, PoolImport,
    PoolWait, DatasetCreate, DatasetDestroy, DatasetQuery, DatasetByPath, DatasetSet, DatasetInherit, DatasetMount, DatasetUnmount,
    DatasetSnapshot, DatasetClone, DatasetRollback, DatasetRename, DatasetPromote, SnapshotHold, SnapshotRelease, SnapshotHolds,
    PoolAdd, PoolClear, PoolReopen, PoolFreeze, VdevAttach, VdevDetach, VdevRemove, VdevOffline, VdevOnline, LogStatQuery
];

fuzz_target!(|data: &[u8]| {
    let Some((&pick, body)) = data.split_first() else { return };
    REQUESTS[pick as usize % REQUESTS.len()](body);
    let _ = serde_json::from_slice::<Outcome<Vec<PoolInfo>>>(body);
    let _ = serde_json::from_slice::<Outcome<Vec<ImportCandidate>>>(body);
    let Ok(text) = std::str::from_utf8(body) else { return };
    let _ = naming::check_pool_name(text, pick & 1 == 0);
    let _ = naming::check_entity(text);
    let _ = naming::check_nesting(text, u64::from(pick));
    if naming::check_mountpoint(text).is_ok() {
        let path = std::path::Path::new(text);
        assert!(path.is_absolute() && !path.components().any(|c| matches!(c, std::path::Component::ParentDir)));
    }
    let _ = props::parse_size(text);
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    let _ = (props::is_user_prop(name), props::is_userquota_prop(name), props::check_inherit(name, pick & 1 == 0));
    for desc in [props::dataset_prop(name), props::pool_prop(name), props::vdev_prop(name)].into_iter().flatten() {
        let _ = props::parse_value(desc, props::types_of(DatasetKind::Filesystem), value);
    }
});
