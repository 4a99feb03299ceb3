//! A pool of mirrors is split: both halves have everything, and OpenZFS agrees with each.

use super::*;
use std::collections::BTreeMap;
use zilla_core::spa::{Refusal, Split};
use zilla_ondisk::enums::VdevAux;
use zilla_testkit::zdb_clean;

impl World {
    fn split(&self, spa: &Spa, names: &[&str]) -> Split {
        let sides = names.iter().map(|n| guid(spa, &self.path(n))).collect();
        Split { sides, opts: self.opts("half") }
    }

    fn opts(&self, name: &str) -> OpenOpts {
        OpenOpts {
            host: Host { id: 0x1234, name: "here".into() },
            name: Some(name.into()),
            dbuf_cache: 8 << 20,
            arc_max: 16 << 20,
            ..OpenOpts::default()
        }
    }

    /// The pool of that name, from whatever devices there are.
    async fn named(&self, name: &str) -> Arc<Spa> {
        let found = discover(&self.env, &[self.dir.path().to_owned()]).await.unwrap();
        let names: Vec<_> = found.iter().map(|f| f.name.clone()).collect();
        let found = found.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{names:?}"));
        Spa::open(&self.env, found, self.opts(name)).await.unwrap()
    }

    /// The files of a pool, whatever its name is.
    async fn has_files(&self, spa: &Arc<Spa>, files: std::ops::Range<u32>) {
        let ds = spa.dsl.by_name(&spa.name()).await.unwrap();
        let os = spa.dsl.objset(&ds).await.unwrap();
        let txgs = Some(spa.ctx.txgs.clone());
        let zfs =
            Zfs::open(self.env.clone(), os, txgs, Arc::new(Unlimited), FsProps::default()).await.unwrap();
        for i in files {
            let (h, a) = zfs.lookup(zfs.root(), format!("f{i}").as_bytes()).await.unwrap();
            let data = zfs.read(h.id(), 0, a.size as usize).await.unwrap();
            assert!(data.concat() == contents(i), "{}: f{i}", spa.name());
        }
    }
}

fn top(kind: VdevKind, leaves: Vec<LeafSpec>, is_log: bool) -> TopSpec {
    TopSpec { kind, leaves, is_log, bias: None, ashift: Some(9) }
}

#[test]
fn each_half_is_a_pool() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..30).await;
        let what = w.split(&spa, &["b"]);
        let half = spa.split(what).await.unwrap();
        assert_eq!((half.name().as_str(), shape(&half).as_str(), shape(&spa).as_str()), ("half", "b", "a"));
        assert_ne!(half.guid(), spa.guid());
        w.has_files(&half, 0..30).await;
        // They go their own ways.
        w.put(&spa, 30..50).await;
        half.close(Some(PoolState::Exported)).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(w.dir.path(), "tank");
        zdb_clean(w.dir.path(), "half");
        let (spa, half) = (w.named("tank").await, w.named("half").await);
        spa.drop_caches();
        w.has_files(&spa, 0..50).await;
        w.has_files(&half, 0..30).await;
        assert_eq!(half.tree().root.state().0, VdevState::Healthy);
        // Another side each, and again.
        for (spa, old, new) in [(&spa, "a", "c"), (&half, "b", "d")] {
            spa.attach(guid(spa, &w.path(old)), &w.leaf(new), ATTACH).await.unwrap();
            w.whole(spa).await;
        }
        let what = Split { opts: w.opts("third"), ..w.split(&spa, &["a"]) };
        let third = spa.split(what).await.unwrap();
        w.has_files(&third, 0..50).await;
        for spa in [spa, half, third] {
            spa.close(Some(PoolState::Exported)).await.unwrap();
        }
        ["tank", "half", "third"].iter().for_each(|n| zdb_clean(w.dir.path(), n));
    });
}

#[test]
fn mirrors_of_three_with_logs_caches_and_spares_are_split() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a", "b", "c"]).await;
        let log = top(VdevKind::Mirror, vec![w.leaf("l1"), w.leaf("l2")], true);
        spa.add_vdevs(&PoolSpec { tops: vec![log], cache: vec![] }).await.unwrap();
        let more = top(VdevKind::Mirror, vec![w.leaf("d"), w.leaf("e")], false);
        let special =
            TopSpec { bias: Some("special"), ..top(VdevKind::Mirror, vec![w.leaf("s"), w.leaf("t")], false) };
        spa.add_vdevs(&PoolSpec { tops: vec![more, special], cache: vec![] }).await.unwrap();
        spa.add_cache(&[w.leaf("k")]).await.unwrap();
        spa.add_spares(&[zilla_core::spa::SpareSpec { leaf: w.leaf("hot"), shared: None }]).await.unwrap();
        w.put(&spa, 0..60).await;
        let what = w.split(&spa, &["b", "d", "t"]);
        let half = spa.split(what).await.unwrap();
        assert_eq!(shape(&half), "b hole() d t");
        assert_eq!(shape(&spa), "mirror(a c) mirror(l1 l2) e s");
        assert!(half.tree().spares.is_empty() && half.tree().cache.is_empty());
        assert_eq!((spa.tree().spares.len(), spa.tree().cache.len()), (1, 1));
        assert_eq!(half.tree().tops[3].vdev.bias().as_deref(), Some("special"));
        assert_eq!(spa.tree().tops[3].vdev.bias().as_deref(), Some("special"));
        w.put(&spa, 60..70).await;
        w.has_files(&half, 0..60).await;
        half.close(Some(PoolState::Exported)).await.unwrap();
        spa.close(Some(PoolState::Exported)).await.unwrap();
        zdb_clean(w.dir.path(), "tank");
        zdb_clean(w.dir.path(), "half");
        let (spa, half) = (w.named("tank").await, w.named("half").await);
        w.has_files(&spa, 0..70).await;
        w.has_files(&half, 0..60).await;
        for spa in [spa, half] {
            spa.close(Some(PoolState::Exported)).await.unwrap();
        }
    });
}

#[test]
fn what_cannot_be_split_is_refused_and_stays_whole() {
    let w = World::new();
    w.env.clone().block_on(async move {
        let spa = w.create(VdevKind::Mirror, &["a", "b"]).await;
        w.put(&spa, 0..5).await;
        let refused = |e: Result<Arc<Spa>, Error>| e.err().expect("it is refused");
        let none = Split { sides: vec![], opts: w.opts("half") };
        assert_eq!(refused(spa.split(none).await).errno(), Errno::Inval);
        let both = w.split(&spa, &["a", "b"]);
        assert_eq!(refused(spa.split(both).await).errno(), Errno::Inval);
        // The other side lacks something.
        w.env.sleep(Duration::from_millis(1)).await;
        spa.offline(guid(&spa, &w.path("a")), false, false).await.unwrap();
        w.put(&spa, 5..9).await;
        let what = w.split(&spa, &["b"]);
        assert_eq!(refused(spa.split(what).await).errno(), Errno::Busy);
        let what = w.split(&spa, &["a"]);
        assert_eq!(refused(spa.split(what).await).errno(), Errno::Inval);
        spa.online(guid(&spa, &w.path("a")), false).await.unwrap();
        w.whole(&spa).await;
        let more = top(RAIDZ1, vec![w.leaf("x"), w.leaf("y")], false);
        spa.add_vdevs(&PoolSpec { tops: vec![more], cache: vec![] }).await.unwrap();
        let what = w.split(&spa, &["b"]);
        assert!(matches!(refused(spa.split(what).await), Error::Pool(why) if *why == Refusal::OnlyMirrors));
        assert_eq!(shape(&spa), "mirror(a b) raidz(x y)");
        let states: BTreeMap<_, _> = spa.tree().pool_leaves().map(|l| (l.path(), l.state())).collect();
        assert!(states.values().all(|s| *s == (VdevState::Healthy, VdevAux::None)), "{states:?}");
        w.has_files(&spa, 0..9).await;
        w.export(spa).await;
    });
}
