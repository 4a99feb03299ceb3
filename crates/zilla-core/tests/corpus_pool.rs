//! Labels, uberblocks and the MOS of pools that OpenZFS made.
//!
//! Looks for unpacked sets (`<set>/d1.img`, ...) in the folder `ZILLA_CORPUS` names, and passes
//! without it: the images are too large to be kept here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zilla_core::arc::Cache;
use zilla_core::types::Bookmark;
use zilla_core::vdev::{OpenArgs, VdevTree, label, open_device, probe_path};
use zilla_core::zio::{BlockStore, Priority, Zio};
use zilla_env::{OpenMode, real_env};
use zilla_ondisk::{ByteOrder, NvList, ObjsetPhys};
use zilla_testkit::zdb;

fn sets() -> Vec<(String, Vec<PathBuf>)> {
    let Ok(dir) = std::env::var("ZILLA_CORPUS") else { return Vec::new() };
    let mut out = Vec::new();
    for set in std::fs::read_dir(dir).unwrap().flatten() {
        let mut images: Vec<PathBuf> = std::fs::read_dir(set.path())
            .map(|d| {
                d.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "img")).collect()
            })
            .unwrap_or_default();
        images.sort();
        if !images.is_empty() {
            out.push((set.file_name().to_string_lossy().into_owned(), images));
        }
    }
    out.sort();
    out
}

/// The txg `zdb -u` gives for the active uberblock.
fn zdb_txg(image: &Path) -> Option<u64> {
    let out = zdb()?.arg("-lu").arg(image).output().ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    text.lines().filter_map(|l| l.trim().strip_prefix("txg = ")).filter_map(|t| t.parse().ok()).max()
}

#[test]
fn pools_open_and_their_mos_reads() {
    let env = real_env(2);
    for (set, images) in sets() {
        env.block_on(async {
            // Put the root together from the labels, as an import does.
            let mut tops: Vec<(u64, NvList)> = Vec::new();
            let mut args = OpenArgs::default();
            let mut pool = None;
            for path in &images {
                let Some((device, info)) = probe_path(&env, path).await.unwrap() else {
                    panic!("{set}: {} has no label", path.display());
                };
                if info.pool_guid().is_none() {
                    continue;
                }
                assert_eq!(info.valid, 4, "{set}: {}", path.display());
                args.devices.insert(info.guid().unwrap(), device);
                args.pool_guid = info.pool_guid();
                let tree = info.vdev_tree().unwrap().clone();
                let id = tree.u64("id").unwrap();
                if !tops.iter().any(|(i, _)| *i == id) {
                    tops.push((id, tree));
                }
                pool = Some(info.config.clone());
            }
            let pool = pool.unwrap();
            assert_eq!(pool.u64("vdev_children").unwrap_or(1), tops.len() as u64, "{set}");
            tops.sort_by_key(|(id, _)| *id);
            let children: Vec<NvList> = tops.into_iter().map(|(_, t)| t).collect();
            let root = NvList::new()
                .with("type", "root")
                .with("id", 0u64)
                .with("guid", pool.u64("pool_guid").unwrap())
                .with("children", children);
            let tree = VdevTree::from_config(&env, &root).unwrap();
            tree.open(&args).await.unwrap();
            assert_eq!(tree.root.state().0.name(), "ONLINE", "{set}");

            let found = tree.read_labels().await;
            let best = &found.uberblocks[0];
            assert_eq!(tree.guid_sum(), best.ub.guid_sum, "{set}: guid sum");
            if let Some(txg) = zdb_txg(&images[0]).filter(|_| set != "gpt") {
                assert_eq!(best.ub.txg, txg, "{set}");
            }
            let config = found.config(&best.ub).unwrap();
            assert!(config.u64("txg").unwrap() <= best.ub.txg);

            let tree = Arc::new(tree);
            let zio = Zio::new(&env, tree.clone(), Arc::new(Cache::new(64 << 20)));
            let data = zio.read(best.ub.rootbp, Bookmark::root(0), Priority::SyncRead).await.unwrap();
            let mos = ObjsetPhys::decode(&data, ByteOrder::NATIVE).unwrap();
            assert_eq!(mos.os_type, 1, "{set}: MOS");
            assert!(zio.cached(&best.ub.rootbp, 0).is_some());
            // All copies, with all redundancy.
            let scrubbed = zio.scrub(best.ub.rootbp, Bookmark::root(0)).await.unwrap();
            assert_eq!(scrubbed.bad, 0, "{set}");
            // And the first block of the MOS's dnodes, down the tree.
            let mut bp = mos.meta_dnode.blkptr[0];
            while bp.level() > 0 {
                let block = zio.read(bp, Bookmark::default(), Priority::SyncRead).await.unwrap();
                bp = zilla_ondisk::BlkPtr::at(&block, 0, ByteOrder::NATIVE).unwrap();
            }
            let block = zio.read(bp, Bookmark::default(), Priority::SyncRead).await.unwrap();
            let dn = zilla_ondisk::DnodePhys::decode(&block[512..1024], ByteOrder::NATIVE).unwrap();
            assert_eq!(dn.otype, 1, "{set}: object 1 is the directory");
            println!("{set}: txg {} {}", best.ub.txg, best.ub.rootbp);
        });
    }
}

#[test]
fn configurations_come_back_as_they_were() {
    let env = real_env(1);
    for (set, images) in sets() {
        env.block_on(async {
            let device = open_device(&env, &images[0], OpenMode::default()).await.unwrap();
            let labels = label::read_labels(&device).await;
            let config = label::best_config(&labels, u64::MAX).unwrap();
            let Some(top) = config.list("vdev_tree") else { return };
            let id = top.u64("id").unwrap();
            let hole = |i: u64| NvList::new().with("type", "hole").with("id", i).with("guid", 0u64);
            let mut children: Vec<NvList> = (0..id).map(hole).collect();
            children.push(top.clone());
            let guid = config.u64("pool_guid").unwrap();
            let root = NvList::new()
                .with("type", "root")
                .with("id", 0u64)
                .with("guid", guid)
                .with("children", children);
            let tree = VdevTree::from_config(&env, &root).unwrap();
            let again = tree.generate_top(&tree.tops[id as usize]);
            assert_same(&set, top, &again);
        });
    }
}

/// The same pairs, whatever their order.
fn assert_same(set: &str, a: &NvList, b: &NvList) {
    let names = |l: &NvList| l.iter().map(|(n, _)| n.to_owned()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names(a), names(b), "{set}");
    for (name, value) in a {
        if name != "children" {
            assert_eq!(Some(value), b.get(name), "{set}: {name}");
        }
    }
    for (a, b) in a.lists("children").unwrap_or_default().iter().zip(b.lists("children").unwrap_or_default())
    {
        assert_same(set, a, b);
    }
}
