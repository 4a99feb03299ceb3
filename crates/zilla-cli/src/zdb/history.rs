//! `-h`: what was done to the pool.

use super::{Zdb, config, put};
use crate::fmt::time;
use zilla_core::error::Result;
use zilla_ondisk::NvList;

/// A record's lines; None for one of no kind that is known.
fn record(nv: &NvList) -> Option<String> {
    let when = time::history(nv.u64("history time").unwrap_or(0));
    if let Some(command) = nv.str("history command") {
        return Some(format!("{when} {command}\n"));
    }
    if let Some(name) = nv.str("internal_name") {
        let dataset = match (nv.str("dsname"), nv.u64("dsid")) {
            (Some(name), id) => format!(" {name} ({})", id.unwrap_or(0)),
            _ => String::new(),
        };
        let (txg, text) = (nv.u64("history txg").unwrap_or(0), nv.str("history internal str").unwrap_or(""));
        return Some(format!("{when} [txg:{txg}] {name}{dataset} {text}\n"));
    }
    let ioctl = nv.str("ioctl")?;
    let mut out = format!("{when} ioctl {ioctl}\n");
    for (key, title) in [("in_nvl", "input"), ("out_nvl", "output")] {
        if let Some(list) = nv.list(key) {
            out.push_str(&format!("    {title}:\n{}", config::nvlist(list, 8)));
        }
    }
    if let Some((_, errno)) = nv.iter().find(|(n, _)| *n == "errno") {
        out.push_str(&format!("    errno: {}\n", config::number(errno)));
    }
    Some(out)
}

impl Zdb {
    pub(super) async fn history(&mut self) -> Result<()> {
        let records = self.spa.history().await?;
        put!(self, "\nHistory:\n");
        for nv in &records {
            let text = record(nv);
            self.out.put(text.as_deref().unwrap_or(""));
            if self.level('h') > 1 {
                if text.is_none() {
                    put!(self, "unrecognized record:\n");
                }
                self.out.put(config::nvlist(nv, 2));
            }
        }
        Ok(())
    }
}
