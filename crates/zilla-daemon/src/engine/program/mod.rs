//! `zfs program`: administration by a script that runs beside the pools.
//!
//! A program is Lua without a way out of it: no files, no loading of code, no clocks. What it can
//! do is in [`api`]. It is bounded in instructions, to which what a call of the library takes is
//! added ([`library`]), and in memory, and what it returns is bounded with it; who exceeds a bound
//! is stopped, and so is a program whose command was killed. What it had done by then stays done,
//! as OpenZFS has it; a step that was begun is done. Only root, or whose daemon it is, may run one.
//!
//! Each of its changes is one of the engine's own, in a txg of its own: a program is not one txg,
//! and others may change datasets between two of its steps, which OpenZFS keeps out. Nothing is
//! half done by a crash but the list of steps.
//!
//! It runs on the thread of its request, which the runtime replaces meanwhile; a step waits there
//! for the engine.

mod api;
mod dialect;
mod library;
mod pattern;
mod value;

use super::errors::Answer;
use super::{Engine, Serves};
use library::Meter;
use mlua::{HookTriggers, Lua, LuaOptions, MultiValue, StdLib, Value, VmState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla::tunables::LUA_MAX_MEMLIMIT;
use zilla_control::types::{ProgramReply, ProgramRun};
use zilla_control::{ApiError, Caller, ErrorCode};

/// What errors call the program.
const CHUNK: &str = "[string \"channel program\"]";
/// The most that may be asked for. Source: zfs_lua_max_instrlimit.
const MOST_INSTRUCTIONS: u64 = 100_000_000;
/// How often it is looked whether they were too many. Source: ZCP's own step.
const STEP: u32 = 100;

const NO_SUCH_LIMIT: &str = "Invalid instruction or memory limit.";
const TOO_LARGE: &str = "Return value too large.";
const NO_MEMORY: &str = "Memory limit exhausted.";
const TIMED_OUT: &str = "Channel program timed out.";
const CANCELED: &str = "Channel program was canceled.";

/// Functions of the base library that lead out of a program, or past its errors.
const REMOVED: [&str; 7] = ["dofile", "loadfile", "load", "pcall", "print", "require", "xpcall"];

fn failed(error: impl Into<String>) -> ProgramReply {
    ProgramReply::Failed { error: error.into(), instructions: None }
}

impl Serves<ProgramRun> for Engine {
    async fn serve(&self, caller: &Caller, r: ProgramRun) -> Answer<ProgramReply> {
        self.check_running(&r.pool)?;
        if !caller.owner {
            let what = "permission denied. Channel programs must be run as root.";
            return Err(ApiError::with(ErrorCode::Perm, what));
        }
        let pool = self.pool(&r.pool)?;
        if r.memory > i64::MAX as u64 {
            return Ok(failed(TOO_LARGE));
        }
        if r.instructions == 0
            || r.instructions > MOST_INSTRUCTIONS
            || r.memory == 0
            || r.memory > LUA_MAX_MEMLIMIT.get()
        {
            return Ok(failed(NO_SUCH_LIMIT));
        }
        if pool.readonly() && !r.readonly {
            return Err(ErrorCode::PoolReadonly.into());
        }
        let script = match dialect::translate(&r.script) {
            Ok(script) => script,
            Err(what) => return Ok(failed(what)),
        };
        let handle = tokio::runtime::Handle::current();
        let bound = api::Bound { engine: self, caller, pool: &pool, handle, readonly: r.readonly };
        Ok(tokio::task::block_in_place(|| run(&bound, &script, &r)))
    }
}

fn run(bound: &api::Bound<'_>, script: &str, r: &ProgramRun) -> ProgramReply {
    let used = Arc::new(AtomicU64::new(0));
    match run_lua(bound, script, r, &used) {
        Ok(Ok(value)) => ProgramReply::Done(value),
        Ok(Err(what)) => failed(what),
        Err(e) => {
            let (memory, text) = told(&e);
            let over = used.load(Ordering::Relaxed);
            let instructions = (over > r.instructions).then_some(over);
            ProgramReply::Failed { error: if memory { NO_MEMORY.to_owned() } else { text }, instructions }
        }
    }
}

type Returned = Result<Option<zilla_control::types::ProgramValue>, String>;

fn run_lua(
    bound: &api::Bound<'_>,
    script: &str,
    r: &ProgramRun,
    used: &Arc<AtomicU64>,
) -> mlua::Result<Returned> {
    let lua = Lua::new_with(StdLib::COROUTINE | StdLib::STRING | StdLib::TABLE, LuaOptions::default())?;
    REMOVED.iter().try_for_each(|name| lua.globals().raw_remove(*name))?;
    let presence = bound.caller.presence.clone();
    let meter = Meter { used: used.clone(), most: r.instructions, memory: r.memory, presence };
    library::install(&lua, &meter)?;
    watch(&lua, meter)?;
    lua.scope(|scope| {
        api::install(&lua, scope, bound)?;
        let arguments = value::arguments(&lua, &r.argv)?;
        // What is there so far is not the program's.
        let own = usize::try_from(r.memory).unwrap_or(usize::MAX);
        lua.set_memory_limit(lua.used_memory().saturating_add(own))?;
        let returned: MultiValue = lua.load(script).set_name(format!("={CHUNK}")).call(arguments)?;
        lua.set_memory_limit(0)?;
        let mut room = r.memory;
        Ok(match returned.len() {
            0 => Ok(None),
            1 => value::of_lua(returned.front().unwrap_or(&Value::Nil), 0, &mut room).map(Some),
            n => Err(format!("Multiple return values not supported: {n} were returned.")),
        })
    })
}

/// Stops a program that takes too many instructions, or that nobody waits for any more.
fn watch(lua: &Lua, meter: Meter) -> mlua::Result<()> {
    lua.set_global_hook(HookTriggers::new().every_nth_instruction(STEP), move |lua, _| {
        meter.count(lua, u64::from(STEP)).map(|()| VmState::Continue)
    })
}

/// Whether memory was short, and an error's words with their trace.
fn told(error: &mlua::Error) -> (bool, String) {
    match error {
        mlua::Error::MemoryError(_) => (true, String::new()),
        mlua::Error::RuntimeError(text) => (false, text.clone()),
        mlua::Error::SyntaxError { message, .. } => (false, message.clone()),
        mlua::Error::CallbackError { traceback, cause } => {
            let (memory, text) = told(cause);
            (memory, if text.contains("stack traceback:") { text } else { format!("{text}\n{traceback}") })
        }
        mlua::Error::WithContext { context, cause } => {
            let (memory, text) = told(cause);
            (memory, format!("{context}: {text}"))
        }
        other => (false, other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_control::presence::Presence;

    #[test]
    fn a_program_ends_when_nobody_waits_for_it_any_more() {
        let run = |presence: Presence, script: &str| {
            let lua = Lua::new();
            let meter = Meter { used: Arc::default(), most: 1_000_000, memory: 1 << 20, presence };
            watch(&lua, meter).unwrap();
            lua.load(script).exec().map_err(|e| told(&e).1)
        };
        let endless = "while true do end";
        let waits = Arc::new(());
        for there in [Presence::default(), Presence::of(&waits)] {
            assert!(run(there.clone(), endless).unwrap_err().starts_with(TIMED_OUT));
            assert_eq!(run(there, "for i = 1, 1000 do end"), Ok(()));
        }
        let gone = Presence::of(&waits);
        drop(waits);
        let said = run(gone.clone(), endless).unwrap_err();
        assert!(said.starts_with(CANCELED) && said.contains("stack traceback"), "{said}");
        // What a program begins of its own ends with it.
        let within = "coroutine.wrap(function() while true do end end)()";
        assert!(run(gone, within).unwrap_err().contains(CANCELED));
    }
}
