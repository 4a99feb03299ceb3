//! `-C` and `-u`: the pool's configuration as the MOS has it, and the uberblock it was opened with.

use super::options::Opts;
use super::{Zdb, open, put};
use crate::fmt::time;
use std::fmt::Write;
use zilla_core::error::Result;
use zilla_core::spa::config::read_packed;
use zilla_core::zap::Zap;
use zilla_ondisk::dsl::{DMU_POOL_CONFIG, DMU_POOL_DIRECTORY_OBJECT};
use zilla_ondisk::uberblock::MMP_MAGIC;
use zilla_ondisk::{NvList, NvValue, Uberblock};

/// A list as text.
pub fn nvlist(nv: &NvList, indent: usize) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = nv.print(&mut out, indent);
    out
}

/// A number of any width.
pub fn number(v: &NvValue) -> i128 {
    match v {
        NvValue::Int32(n) => i128::from(*n),
        NvValue::Uint32(n) => i128::from(*n),
        NvValue::Int64(n) => i128::from(*n),
        NvValue::Uint64(n) => i128::from(*n),
        _ => 0,
    }
}

/// `zdb -C` without a pool: the cache file.
pub fn cache_file(opts: &Opts) -> Result<String, String> {
    let pools = open::cached_pools(opts)?;
    Ok(nvlist(&pools, 0))
}

/// An uberblock's lines, but the first.
pub fn uberblock(ub: &Uberblock) -> String {
    let mut out = String::new();
    let _ = write!(
        out,
        "\tmagic = {:016x}\n\tversion = {}\n\ttxg = {}\n\tguid_sum = {}\n\ttimestamp = {} UTC = {}\n\tbp = {}\n",
        ub.magic,
        ub.version,
        ub.txg,
        ub.guid_sum,
        ub.timestamp,
        time::ctime(ub.timestamp),
        ub.rootbp
    );
    let _ = writeln!(out, "\tmmp_magic = {:016x}", ub.mmp_magic);
    if ub.mmp_magic == MMP_MAGIC {
        let _ = writeln!(out, "\tmmp_delay = {}", ub.mmp_delay);
        if let Some(seq) = ub.mmp_seq() {
            let _ = writeln!(out, "\tmmp_seq = {seq}");
        }
        if let Some(fail) = ub.mmp_fail_intervals() {
            let _ = writeln!(out, "\tmmp_fail = {fail}");
        }
        if let Some(interval) = ub.mmp_interval() {
            let _ = writeln!(out, "\tmmp_write = {interval}");
        }
        let _ = writeln!(out, "\tmmp_valid = {:x}", ub.mmp_config & 0xff);
    }
    let _ = writeln!(out, "\tcheckpoint_txg = {}", ub.checkpoint_txg);
    let (state, off) = (ub.reflow_scratch_state(), ub.reflow_offset());
    let _ = writeln!(out, "\traidz_reflow state={state} off={off}");
    out
}

impl Zdb {
    pub(super) async fn config(&mut self) -> Result<()> {
        let mos = self.spa.ctx.mos().clone();
        let id = Zap::open(&mos, DMU_POOL_DIRECTORY_OBJECT).await?.get_u64(DMU_POOL_CONFIG).await?;
        let config = read_packed(&mos, id).await?;
        put!(self, "\nMOS Configuration:\n{}", nvlist(&config, 8));
        Ok(())
    }

    pub(super) fn uberblock(&mut self) {
        let text = uberblock(&self.spa.uberblock());
        put!(self, "\nUberblock:\n{text}\n");
    }
}
