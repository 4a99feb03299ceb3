//! `zpool history`: writing commands down, and reading what stands there.

use super::errors::{Answer, of_pool};
use super::host::user_name;
use super::pool::Pool;
use super::{Engine, Serves};
use zilla_control::Caller;
use zilla_control::types::{HistoryRecord, HistoryWhat, PoolHistory, PoolHistoryReply, PoolLog};
use zilla_ondisk::{NvList, NvValue};

/// Longest command line that is kept.
const MAX_LINE: usize = 8 << 10;
/// Records in one reply.
const BATCH: usize = 2000;

const CMD: &str = "history command";
const WHO: &str = "history who";
const TIME: &str = "history time";
const HOST: &str = "history hostname";
const ZONE: &str = "history zone";
const TXG: &str = "history txg";
const INT_EVENT: &str = "history internal event";
const INT_STR: &str = "history internal str";
const INT_NAME: &str = "internal_name";

impl Engine {
    /// Writes a command line into a pool's history. A pool that cannot take it is no reason to fail
    /// a command that is done.
    pub(super) async fn log(&self, pool: &Pool, caller: &Caller, line: &str) {
        if pool.zilla.suspended().is_some() {
            // It would wait until the pool goes on.
            return;
        }
        let end =
            line.char_indices().map(|(at, c)| at + c.len_utf8()).take_while(|&at| at <= MAX_LINE).last();
        let line = line.get(..end.unwrap_or(0)).unwrap_or(line);
        let mut record = NvList::new();
        record.add(CMD, line).add(ZONE, "linux").add(WHO, u64::from(caller.uid));
        record.add(TIME, self.env.wall().as_secs()).add(HOST, super::host::host().name.as_str());
        if let Err(e) = pool.zilla.log_history(record).await {
            tracing::debug!("history of '{}': {e}", pool.name());
        }
    }
}

impl Serves<PoolHistory> for Engine {
    async fn serve(&self, _: &Caller, r: PoolHistory) -> Answer<PoolHistoryReply> {
        let pool = self.pool(&r.name)?;
        let all = pool.zilla.history().await.map_err(of_pool)?;
        let from = usize::try_from(r.offset).unwrap_or(usize::MAX).min(all.len());
        let end = from.saturating_add(BATCH).min(all.len());
        let some = all.get(from..end).unwrap_or_default();
        let records = some.iter().map(record).collect();
        Ok(PoolHistoryReply { records, next: (end < all.len()).then_some(end as u64) })
    }
}

impl Serves<PoolLog> for Engine {
    async fn serve(&self, caller: &Caller, r: PoolLog) -> Answer<()> {
        let pool = self.pool(&r.name)?;
        self.log(&pool, caller, &r.line).await;
        Ok(())
    }
}

fn record(nv: &NvList) -> HistoryRecord {
    let text = |name: &str| nv.str(name).map(str::to_owned);
    let txg = nv.u64(TXG).unwrap_or(0);
    let what = if let Some(line) = text(CMD) {
        HistoryWhat::Command { line }
    } else if let Some(event) = nv.u64(INT_EVENT) {
        HistoryWhat::Legacy { event, txg, text: text(INT_STR).unwrap_or_default() }
    } else if let Some(name) = text("ioctl") {
        HistoryWhat::Call {
            name,
            input: nv.list("in_nvl").map(lines).unwrap_or_default(),
            output: nv.list("out_nvl").map(lines).unwrap_or_default(),
            elapsed_ns: nv.i64("elapsed_ns").and_then(|n| u64::try_from(n).ok()).unwrap_or(0),
            errno: nv.i64("errno"),
        }
    } else {
        HistoryWhat::Internal {
            txg,
            name: text(INT_NAME).unwrap_or_default(),
            dataset: text("dsname").map(|name| (name, nv.u64("dsid").unwrap_or(0))),
            text: text(INT_STR).unwrap_or_default(),
        }
    };
    let uid = nv.u64(WHO);
    HistoryRecord {
        time: nv.u64(TIME).unwrap_or(0),
        what,
        uid,
        user: uid.and_then(user_name),
        host: text(HOST),
        zone: text(ZONE),
    }
}

/// A list as OpenZFS prints it in a history: a name and value a line, lists below their names.
fn lines(nv: &NvList) -> Vec<String> {
    let mut out = Vec::new();
    write(nv, 0, &mut out);
    out
}

/// A line for each value of an array.
fn each<T: std::fmt::Display>(
    pad: &str,
    name: &str,
    values: impl IntoIterator<Item = T>,
    out: &mut Vec<String>,
) {
    out.extend(values.into_iter().enumerate().map(|(i, v)| format!("{pad}{name}[{i}]: {v}")));
}

fn write(nv: &NvList, depth: usize, out: &mut Vec<String>) {
    let pad = " ".repeat(depth * 4);
    for (name, value) in nv.iter() {
        match value {
            NvValue::Boolean => out.push(format!("{pad}{name}")),
            NvValue::List(list) => {
                out.push(format!("{pad}{name}:"));
                write(list, depth + 1, out);
            }
            NvValue::ListArray(lists) => {
                for (i, list) in lists.iter().enumerate() {
                    out.push(format!("{pad}{name}[{i}]:"));
                    write(list, depth + 1, out);
                }
            }
            NvValue::String(text) => out.push(format!("{pad}{name}: '{text}'")),
            NvValue::Uint64(n) => out.push(format!("{pad}{name}: {n}")),
            NvValue::Int64(n) => out.push(format!("{pad}{name}: {n}")),
            NvValue::Uint32(n) => out.push(format!("{pad}{name}: {n}")),
            NvValue::Int32(n) => out.push(format!("{pad}{name}: {n}")),
            NvValue::BooleanValue(on) => out.push(format!("{pad}{name}: {on}")),
            NvValue::Uint64Array(all) => each(&pad, name, all, out),
            NvValue::Int64Array(all) => each(&pad, name, all, out),
            NvValue::Uint32Array(all) => each(&pad, name, all, out),
            NvValue::Int32Array(all) => each(&pad, name, all, out),
            NvValue::StringArray(all) => each(&pad, name, all.iter().map(|text| format!("'{text}'")), out),
            other => out.push(format!("{pad}{name}: {other:?}")),
        }
    }
}
