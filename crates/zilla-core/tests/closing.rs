//! A closed pool gives everything back: a daemon lives longer than the pools it serves.

use std::sync::Arc;
use std::time::Duration;
use zilla_core::spa::{CreateOpts, OpenOpts, Spa, discover};
use zilla_core::vdev::{LeafSpec, PoolSpec, TopSpec, VdevKind};
use zilla_ondisk::enums::PoolState;

#[test]
fn nothing_of_a_closed_pool_stays_in_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("d0.img");
    std::fs::File::create(&path).unwrap().set_len(128 << 20).unwrap();
    let env = zilla_env::real_env(2);
    let leaf = LeafSpec { path, disk: false };
    let top = TopSpec { kind: VdevKind::File, leaves: vec![leaf], is_log: false, bias: None, ashift: None };
    let spec = PoolSpec { tops: vec![top], ..PoolSpec::default() };
    let opts = CreateOpts {
        name: "tank".into(),
        host: Default::default(),
        comment: None,
        owner: (0, 0),
        features: None,
        dbuf_cache: 1 << 20,
        arc_max: 64 << 20,
    };
    env.block_on(async {
        let spa = Spa::create(&env, &spec, opts).await.unwrap();
        close(&env, spa).await;
        let found = discover(&env, &[dir.path().to_owned()]).await.unwrap();
        let opts = OpenOpts { dbuf_cache: 1 << 20, arc_max: 64 << 20, ..OpenOpts::default() };
        let spa = Spa::open(&env, &found[0], opts).await.unwrap();
        close(&env, spa).await;
    });
}

async fn close(env: &zilla_env::Env, spa: Arc<Spa>) {
    spa.close(Some(PoolState::Exported)).await.unwrap();
    let (pool, cache) = (Arc::downgrade(&spa), Arc::downgrade(spa.zio.cache()));
    drop(spa);
    // Tasks that are just ending may hold it a moment longer.
    for _ in 0..100 {
        if pool.strong_count() + cache.strong_count() == 0 {
            return;
        }
        env.sleep(Duration::from_millis(20)).await;
    }
    panic!("the pool is held {} times, its cache {} times", pool.strong_count(), cache.strong_count());
}
