//! A pool comes into being whole: with all that was asked for in its first txg, or not at all.

use super::{World, options};
use zilla_core::dsl::Setting;
use zilla_core::error::Errno;
use zilla_core::spa::{CreateOpts, Outward, RootFs, Spa, discover};
use zilla_core::vdev::{PoolSpec, TopSpec, VdevKind};
use zilla_core::zap::Value;

fn spec(w: &World) -> PoolSpec {
    let leaves = ["a", "b"].map(|n| w.leaf(n)).into();
    let top = TopSpec { kind: VdevKind::Mirror, leaves, is_log: false, bias: None, ashift: Some(9) };
    PoolSpec { tops: vec![top], ..PoolSpec::default() }
}

fn settings(all: &[(&str, u64)]) -> RootFs {
    let settings = all.iter().map(|(name, n)| ((*name).to_owned(), Setting::Local(Value::u64(*n))));
    RootFs { settings: settings.collect(), ..RootFs::default() }
}

#[test]
fn all_properties_are_in_the_first_txg() {
    let w = World::new();
    w.env.clone().block_on(async {
        let root = settings(&[("recordsize", 16 << 10), ("quota", 40 << 20), ("reservation", 8 << 20)]);
        let properties =
            vec![("autotrim".to_owned(), Value::u64(1)), ("org:what".to_owned(), Value::string("x"))];
        let outward = Outward { properties, ..Outward::default() };
        let spa = Spa::create_with(&w.env, &spec(&w), options(), root, outward).await.unwrap();
        assert_eq!(spa.uberblock().txg, 4, "there was one txg");
        for spa in [spa.clone(), w.turn(spa).await] {
            let ds = spa.dsl.by_name("tank").await.unwrap();
            for (name, wanted) in [("recordsize", 16u64 << 10), ("quota", 40 << 20), ("reservation", 8 << 20)]
            {
                let value = spa.dsl.prop(&ds, name).await.unwrap().and_then(|v| v.value.as_u64());
                assert_eq!(value, Some(wanted), "{name}");
            }
        }
    });
}

#[test]
fn what_is_refused_leaves_the_devices_as_they_were() {
    let w = World::new();
    w.env.clone().block_on(async {
        let spec = spec(&w);
        let root = settings(&[("refreservation", 1 << 40)]);
        let refused = Spa::create_with(&w.env, &spec, options(), root, Outward::default()).await;
        assert!(refused.err().is_some_and(|e| e.is(Errno::NoSpc)));
        assert!(discover(&w.env, &[w.path("a"), w.path("b")]).await.unwrap().is_empty());
        for name in ["a", "b"] {
            let bytes = std::fs::read(w.path(name)).unwrap();
            assert!(bytes.iter().all(|b| *b == 0), "{name} was written to");
        }
        let options = CreateOpts { features: Some(Vec::new()), ..options() };
        let root = settings(&[("compression", 16)]);
        let refused = Spa::create_with(&w.env, &spec, options, root, Outward::default()).await;
        assert!(refused.err().is_some_and(|e| e.is(Errno::NotSup)), "zstd needs its feature");
        // And nobody holds them.
        Spa::create(&w.env, &spec, super::options()).await.unwrap();
    });
}
