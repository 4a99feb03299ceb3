//! Pools on pools: devices that are files of another pool's file systems, or another pool's
//! volumes.
//!
//! Such a pool comes after the one that it lies on and goes before it. While it is open the file
//! system below is in use, so that unmounting or exporting that one is refused as it is for any
//! other user. What has to know the order itself is the daemon's end, which takes all down
//! ([`inner_first`]), and its start, which brings all up (`cache.rs`).

use super::Engine;
use super::pool::Pool;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Network block devices (`NBD_MAJOR`, linux/major.h).
const NBD_MAJOR: u32 = 43;

/// What a pool lies on and what it serves, in the kernel's numbers of file systems.
struct Place {
    lies_on: BTreeSet<u64>,
    serves: BTreeSet<u64>,
    /// It lies on a volume, or on a pool that does. Of which pool the volume is no number tells.
    on_volumes: bool,
}

impl Place {
    fn of(pool: &Pool, volume_directory: Option<u64>) -> Place {
        let lies_on = pool.zilla.vdevs().fuse_devices();
        let of_volumes = |on: &u64| rustix::fs::major(*on) == NBD_MAJOR || Some(*on) == volume_directory;
        let on_volumes = lies_on.iter().any(of_volumes);
        let serves = pool.mounts().values().map(|m| m.mount.device()).collect();
        Place { lies_on, serves, on_volumes }
    }

    fn leans_on(&self, other: &Place) -> bool {
        !self.lies_on.is_disjoint(&other.serves) || self.on_volumes && !other.on_volumes
    }
}

/// The order in which to close pools, each before what it lies on; and how many of them are to be
/// closed before volumes are not served any more.
pub(super) fn inner_first(pools: Vec<Arc<Pool>>, volume_directory: Option<u64>) -> (Vec<Arc<Pool>>, usize) {
    let mut places: Vec<Place> = pools.iter().map(|pool| Place::of(pool, volume_directory)).collect();
    let order = order(&mut places);
    let on_volumes = order.iter().rposition(|i| places[*i].on_volumes).map_or(0, |last| last + 1);
    (order.into_iter().map(|i| pools[i].clone()).collect(), on_volumes)
}

fn order(places: &mut [Place]) -> Vec<usize> {
    spread_on_volumes(places);
    let mut left: Vec<usize> = (0..places.len()).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let is_free =
            |i: &usize| !left.iter().any(|other| other != i && places[*other].leans_on(&places[*i]));
        // Mirrors can be made so that two pools lie on each other. Then one must be the first.
        let at = left.iter().position(is_free).unwrap_or(0);
        order.push(left.remove(at));
    }
    order
}

/// Marks the pools that lie on a pool which lies on a volume. Otherwise that pool would be taken to
/// lean on them.
fn spread_on_volumes(places: &mut [Place]) {
    let lies_above = |places: &[Place], i: usize| {
        places.iter().any(|below| below.on_volumes && !places[i].lies_on.is_disjoint(&below.serves))
    };
    while let Some(i) = (0..places.len()).find(|i| !places[*i].on_volumes && lies_above(places, *i)) {
        places[i].on_volumes = true;
    }
}

impl Engine {
    /// Takes away what volumes are served by.
    pub(super) async fn stop_serving_volumes(&self) {
        if let Some(nbd) = &self.nbd {
            nbd.stop();
        }
        self.leave_devices().await;
        self.close_volume_directory().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(lies_on: &[u64], serves: &[u64], on_volumes: bool) -> Place {
        Place {
            lies_on: lies_on.iter().copied().collect(),
            serves: serves.iter().copied().collect(),
            on_volumes,
        }
    }

    #[test]
    fn each_goes_before_what_it_lies_on() {
        let mut chain = [place(&[], &[1, 2], false), place(&[2], &[3], false), place(&[3], &[4], false)];
        assert_eq!(order(&mut chain), [2, 1, 0]);
        // On a volume of nobody knows whom; and one on that.
        let mut mixed = [place(&[], &[1], false), place(&[9], &[2], true), place(&[2], &[], false)];
        assert_eq!(order(&mut mixed), [2, 1, 0]);
        // On each other: all are closed, in some order.
        let mut ring = order(&mut [place(&[2], &[1], false), place(&[1], &[2], false)]);
        ring.sort_unstable();
        assert_eq!(ring, [0, 1]);
    }
}
