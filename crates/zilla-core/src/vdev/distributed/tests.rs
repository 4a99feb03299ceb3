//! A spare's place against the definition, and what devices are asked for through spares.

use super::super::draid::Shape;
use super::*;
use proptest::prelude::*;
use zilla_env::real_env;

/// A dRAID, some of whose children are replaced by, or share their place with, spares.
fn tree(shape: Shape, stands: &[(u64, u64, bool)]) -> VdevTree {
    let leaf = |id: u64, guid: u64| {
        let nv = NvList::new().with("type", "file").with("id", id).with("guid", guid);
        nv.with("path", format!("/f{guid}"))
    };
    let spare = |id: u64, spare: u64| {
        let nv = NvList::new().with("type", "dspare").with("id", id).with("guid", 1000 + spare);
        nv.with("path", "draid").with("top_guid", 7u64).with("spareid", spare).with("is_spare", 1u64)
    };
    let children: Vec<NvList> = (0..shape.children)
        .map(|id| match stands.iter().find(|s| s.0 == id) {
            None => leaf(id, 10 + id),
            Some((_, which, true)) => spare(id, *which),
            Some((_, which, false)) => {
                let both = vec![leaf(0, 10 + id), spare(1, *which)];
                let nv = NvList::new().with("type", "spare").with("id", id).with("guid", 2000 + id);
                nv.with("children", both)
            }
        })
        .collect();
    let draid = NvList::new().with("type", "draid").with("id", 0u64).with("guid", 7u64);
    let draid = draid.with("nparity", shape.nparity).with("draid_ndata", shape.ndata);
    let draid = draid.with("draid_nspares", shape.nspares).with("draid_ngroups", shape.groups());
    let draid = draid.with("ashift", 12u64).with("asize", 1u64 << 40).with("children", children);
    let root = NvList::new().with("type", "root").with("id", 0u64).with("guid", 1u64);
    VdevTree::from_config(&real_env(1), &root.with("children", vec![draid])).unwrap()
}

fn shapes() -> impl Strategy<Value = Shape> {
    (1u64..=3, 1u64..=6, 1u64..=4, 0u64..=9).prop_map(|(nparity, ndata, nspares, more)| Shape {
        nparity,
        ndata,
        nspares,
        children: nparity + ndata + nspares + more,
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// By the definition: in every slice the spare is the child in the column that belongs to
    /// it, from the last one down; if a spare stands for that child, that one's, and so on.
    #[test]
    fn a_spare_is_where_the_permutation_says(
        shape in shapes(), first in any::<u64>(), alone in any::<bool>(), slice in 0u64..5000, within in 0u64..(16 << 20)
    ) {
        let stands: Vec<(u64, u64, bool)> =
            (0..shape.nspares).map(|s| ((first % shape.children + s) % shape.children, s, alone)).collect();
        let tree = tree(shape, &stands);
        let top = &tree.tops[0];
        let draid = top.vdev.draid().unwrap();
        let offset = slice * (draid.run_end(0)) + within;
        prop_assert!(offset < draid.run_end(offset));
        for child in 0..shape.children {
            let mut expected = Vec::new();
            let (mut at, mut hops) = (child, 0);
            loop {
                let stand = stands.iter().find(|s| s.0 == at);
                if stand.is_none() || !alone {
                    expected.push(10 + at);
                }
                let Some(stand) = stand else { break };
                hops += 1;
                if hops > stands.len() {
                    break;
                }
                at = draid.spare_child(stand.1, offset).unwrap() as u64;
            }
            let sides = top.sides(child as usize, offset);
            let found: Vec<u64> = sides.iter().map(|s| s.leaf.guid()).collect();
            if hops <= stands.len() {
                prop_assert_eq!(&found, &expected);
                prop_assert_eq!(sides.last().map_or(0, |s| s.via.len()), hops);
            }
            prop_assert!(sides.iter().all(|s| !s.leaf.is_room()));
        }
    }

    /// Blocks' columns never meet: no two of them have a byte of a device in common, whatever
    /// spares stand in, so each failed device costs at most one column.
    #[test]
    fn columns_of_a_slice_lie_on_devices_of_their_own(
        shape in shapes(), first in any::<u64>(), at in 0u64..100_000
    ) {
        let stands: Vec<(u64, u64, bool)> =
            (0..shape.nspares).map(|s| ((first % shape.children + s) % shape.children, s, true)).collect();
        let tree = tree(shape, &stands);
        let top = &tree.tops[0];
        let draid = top.vdev.draid().unwrap();
        let map = draid.map(at * draid.stripe(12), shape.ndata << 12, 12);
        let mut seen = BTreeSet::new();
        for col in &map.cols {
            let sides = top.sides(col.child, col.offset);
            prop_assert_eq!(sides.len(), 1, "{:?}", col);
            prop_assert!(seen.insert(sides[0].leaf.guid()), "{:?}", col);
        }
    }
}

#[test]
fn a_spare_of_another_draid_or_twice_is_refused() {
    let shape = Shape { nparity: 1, ndata: 2, nspares: 1, children: 6 };
    let good = tree(shape, &[(2, 0, false)]);
    let config = good.generate_config(super::super::ConfigFor::Mos);
    for (name, value) in [("spareid", 1u64), ("top_guid", 8)] {
        let mut bad = config.clone();
        let top = &mut bad.lists_mut("children").unwrap()[0];
        let spare = &mut top.lists_mut("children").unwrap()[2];
        spare.lists_mut("children").unwrap()[1].set(name, value);
        assert!(VdevTree::from_config(&real_env(1), &bad).is_err(), "{name}");
    }
    let mut bad = config.clone();
    let top = &mut bad.lists_mut("children").unwrap()[0];
    let children = top.lists_mut("children").unwrap();
    let twice = children[2].lists("children").unwrap()[1].clone();
    let id = children[3].u64("id").unwrap();
    children[3] = twice;
    children[3].set("id", id);
    assert!(VdevTree::from_config(&real_env(1), &bad).is_err());
    assert_eq!(good.generate_config(super::super::ConfigFor::Mos), config);
}

#[test]
fn what_a_device_missed_its_spare_s_part_there_missed_too() {
    let shape = Shape { nparity: 1, ndata: 2, nspares: 1, children: 6 };
    let tree = tree(shape, &[(2, 0, false)]);
    let top = &tree.tops[0];
    top.leaves().for_each(|l| l.set_usable(true));
    let side = |offset| top.sides(2, offset)[1].clone();
    let places: Vec<u64> = (0..100).map(|s| s * top.vdev.draid().unwrap().run_end(0)).collect();
    let at = *places.iter().find(|at| side(**at).leaf.guid() != 12).unwrap();
    let there = side(at).leaf.clone();
    let elsewhere = *places.iter().find(|at| !Arc::ptr_eq(side(**at).leaf, &there)).unwrap();
    there.dtl.add(5, 6);
    assert!(!side(at).holds(5) && side(at).holds(6) && side(elsewhere).holds(5));
    there.set_unusable(super::super::VdevState::Faulted, super::super::VdevAux::External);
    assert!(!side(at).writable() && side(elsewhere).writable());
    assert!(side(at).unwritable().is_some_and(|l| Arc::ptr_eq(l, &there)));
    // Each device is one child: with this one's and the one that the spare stands for, too few.
    assert!(top.survives(|l| l.writable()));
    top.leaves().find(|l| l.is_room()).unwrap().dtl.add(0, 9);
    let lost = top.leaves().find(|l| l.guid() == 12).unwrap();
    lost.set_unusable(super::super::VdevState::Faulted, super::super::VdevAux::External);
    assert!(!top.survives(|l| l.writable() && l.holds(5)));
}
