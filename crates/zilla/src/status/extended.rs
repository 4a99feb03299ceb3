//! Queues and histograms of a pool's vdevs, for `zpool iostat -l`, `-q`, `-r` and `-w`.
//!
//! Leaves count; a vdev above them shows the sum of what is below it, as OpenZFS does.

use std::sync::Arc;
use zilla_control::types::{PoolInfo, QueueDepth, VdevNode, VdevStatsEx};
use zilla_core::vdev::{Leaf, VdevTree};
use zilla_core::zio::Priority;

/// Fills `stats_ex` of every vdev of the pool.
pub(super) fn fill(info: &mut PoolInfo, tree: &VdevTree) {
    fill_node(&mut info.root, tree);
    info.l2cache.iter_mut().chain(&mut info.spares).for_each(|v| fill_node(v, tree));
}

fn fill_node(node: &mut VdevNode, tree: &VdevTree) {
    let found = tree.find(node.guid).map(|v| v.walk()).unwrap_or_default();
    let mut sum = VdevStatsEx::default();
    found.iter().filter_map(|v| v.leaf.as_ref()).for_each(|leaf| add_leaf(&mut sum, leaf));
    node.stats_ex = Some(sum);
    node.children.iter_mut().for_each(|c| fill_node(c, tree));
}

fn add_leaf(sum: &mut VdevStatsEx, leaf: &Arc<Leaf>) {
    let (stats, depths) = (&leaf.stats, leaf.queue_depths());
    for (queue, class) in [
        (&mut sum.sync_read, Priority::SyncRead),
        (&mut sum.sync_write, Priority::SyncWrite),
        (&mut sum.async_read, Priority::AsyncRead),
        (&mut sum.async_write, Priority::AsyncWrite),
        (&mut sum.scrub, Priority::Scrub),
        (&mut sum.trim, Priority::Trim),
        (&mut sum.rebuild, Priority::Rebuild),
    ] {
        let QueueDepth { pending, active, wait, individual, aggregate } = queue;
        let i = class as usize;
        *pending += depths[i].0;
        *active += depths[i].1;
        add(wait, &stats.queue_latency[i].snapshot());
        add(individual, &stats.alone_size[i].snapshot());
        add(aggregate, &stats.merged_size[i].snapshot());
    }
    add(&mut sum.total_wait_read, &stats.total_latency[0].snapshot());
    add(&mut sum.total_wait_write, &stats.total_latency[1].snapshot());
    add(&mut sum.disk_wait_read, &stats.disk_latency[0].snapshot());
    add(&mut sum.disk_wait_write, &stats.disk_latency[1].snapshot());
}

fn add(sum: &mut Vec<u64>, more: &[u64]) {
    sum.resize(more.len(), 0);
    sum.iter_mut().zip(more).for_each(|(a, b)| *a += b);
}
