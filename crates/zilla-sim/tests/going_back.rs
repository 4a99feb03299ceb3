//! An import goes back to an older txg after a crash: the intent logs that txg knows are done again
//! to their ends, also what later txgs, which are no more, had synced.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::spa::{OpenOpts, Rewind, Spa};
use zilla_core::zpl::{Cred, NewFile, Zfs};
use zilla_env::Env;
use zilla_sim::pool::layout::{Layout, find};
use zilla_sim::pool::run::open_fs;
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const PIECE: usize = 9000;

fn piece(i: u64) -> Vec<u8> {
    (0..PIECE).map(|b| (b as u64 * 7 + i * 13) as u8).collect()
}

/// Appends pieces, each stable before the next.
async fn append(zfs: &Arc<Zfs>, pieces: std::ops::Range<u64>) {
    let found = zfs.lookup(zfs.root(), b"f").await;
    let (h, _) = match found {
        Ok(found) => found,
        Err(_) => zfs.create(zfs.root(), b"f", NewFile::new(0o100644, Cred::default())).await.unwrap(),
    };
    for i in pieces {
        zfs.write(h.id(), i * PIECE as u64, &piece(i).into(), false).await.unwrap();
        zfs.fsync(h.id()).await.unwrap();
    }
}

async fn import_as_of(env: &Env, max_txg: u64) -> Arc<Spa> {
    let found = find(env).await.unwrap().unwrap();
    let rewind = Some(Rewind { max_txg, extreme: false });
    let opts =
        OpenOpts { rewind, force: true, dbuf_cache: 2 << 20, arc_max: 16 << 20, ..OpenOpts::default() };
    Spa::open(env, &found, opts).await.unwrap()
}

#[test]
fn a_log_is_done_again_to_its_end_where_a_pool_goes_back() {
    for back in 0..3 {
        let what = format!("{back} txgs back");
        let sim = Sim::new(21 + back);
        Layout::Single.add_disks(&sim);
        let env = sim.env();
        let newest = sim.block_on(async {
            let spa = Layout::Single.create(&env).await.unwrap();
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            for i in 0..8 {
                append(&zfs, i * 5..i * 5 + 5).await;
                if i < 7 {
                    spa.sync().await.unwrap();
                }
            }
            spa.uberblock().txg
        });
        let sim = sim.power_off(CrashPolicy::LoseAll, 1).boot(2);
        let env = sim.env();
        sim.block_on(async {
            let spa = import_as_of(&env, newest - back).await;
            assert!(spa.opened_at().txg <= newest - back, "{what}");
            let zfs = open_fs(&env, &spa, "tank").await.unwrap();
            let (h, a) = zfs.lookup(zfs.root(), b"f").await.unwrap();
            assert_eq!(a.size, 40 * PIECE as u64, "{what}");
            for i in 0..40 {
                let read = zfs.read(h.id(), i * PIECE as u64, PIECE).await;
                let read = read.unwrap_or_else(|e| panic!("{what}: piece {i}: {e}")).concat();
                assert!(read == piece(i), "{what}: piece {i}");
            }
            append(&zfs, 40..45).await;
            drop(zfs);
            for _ in 0..4 {
                spa.sync_anyway().await.unwrap();
                env.sleep(Duration::from_millis(10)).await;
            }
            audit(&spa, true, false).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            spa.close(None).await.unwrap();
        });
    }
}
