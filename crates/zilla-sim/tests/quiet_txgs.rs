//! A flush of all metaslabs is asked for when a txg finds that it has nothing to write: it waits
//! for one that is written, for what it changes is a part of the pool.

use zilla_sim::pool::files::Files;
use zilla_sim::pool::layout::{Layout, find, import};
use zilla_sim::pool::verify::audit;
use zilla_sim::{CrashPolicy, Sim};

const IN_IT: Files = Files(1100);

/// Who closes a pool asks for a flush of all metaslabs, and then that there is a txg to be written:
/// a txg that has nothing to write may come between.
#[test]
fn a_flush_that_is_asked_for_waits_for_a_txg_that_is_written() {
    let sim = Sim::new(6);
    Layout::Mirror.add_disks(&sim);
    let env = sim.env();
    sim.block_on(async {
        let spa = Layout::Mirror.create(&env).await.unwrap();
        for i in 0..6 {
            IN_IT.put(&env, &spa, i..i + 1).await.unwrap();
        }
        // What a mount leaves behind is written.
        for _ in 0..6 {
            spa.sync().await.unwrap();
        }
        let before = spa.uberblock().txg;
        spa.metaslabs.request_flush_all();
        spa.sync().await.unwrap();
        assert_eq!(spa.uberblock().txg, before, "there was nothing to write");
        IN_IT.put(&env, &spa, 6..7).await.unwrap();
    });
    let sim = sim.power_off(CrashPolicy::LoseAll, 6).boot(7);
    let env = sim.env();
    sim.block_on(async {
        let found = find(&env).await.unwrap().unwrap();
        let spa = import(&env, &found, false).await.unwrap();
        IN_IT.check(&env, &spa, 7, "after the power cut").await;
        audit(&spa, true, false).await.unwrap();
        spa.close(None).await.unwrap();
    });
}
