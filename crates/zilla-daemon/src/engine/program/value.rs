//! Between a program's values and lists of names and values.
//!
//! A table's keys become text, and two that become the same text are an error, as is what has no
//! counterpart: functions, tables as keys, numbers with a fraction, tables deeper than they may be.

use mlua::{Lua, Value};
use zilla_control::types::ProgramValue;

/// Deepest table. Source: ZCP_NVLIST_MAX_DEPTH in module/zfs/zcp.c.
const MOST_DEEP: usize = 20;

/// A program's value, bounded by `room` bytes, which it takes its part of.
pub fn of_lua(value: &Value, depth: usize, room: &mut u64) -> Result<ProgramValue, String> {
    if depth > MOST_DEEP {
        return Err(format!("Maximum table depth of {MOST_DEEP} exceeded."));
    }
    take(room, 16)?;
    match value {
        Value::Nil => Ok(ProgramValue::Nil),
        Value::Boolean(b) => Ok(ProgramValue::Bool(*b)),
        Value::Integer(n) => Ok(ProgramValue::Int(*n)),
        Value::Number(n) => whole(*n).map(ProgramValue::Int),
        Value::String(s) => {
            take(room, s.as_bytes().len() as u64)?;
            Ok(ProgramValue::Str(s.to_string_lossy()))
        }
        Value::Table(t) => {
            let mut rows: Vec<(String, ProgramValue)> = Vec::new();
            let mut seen = std::collections::HashSet::new();
            for pair in t.pairs::<Value, Value>() {
                let (key, value) = pair.map_err(|e| e.to_string())?;
                let key = match &key {
                    Value::String(s) => s.to_string_lossy(),
                    Value::Integer(n) => n.to_string(),
                    Value::Number(n) => whole(*n)?.to_string(),
                    Value::Boolean(b) => b.to_string(),
                    other => return Err(format!("Invalid key type '{}' in table.", other.type_name())),
                };
                take(room, key.len() as u64)?;
                if !seen.insert(key.clone()) {
                    return Err(format!("Collision of key '{key}' in table."));
                }
                rows.push((key, of_lua(&value, depth + 1, room)?));
            }
            Ok(ProgramValue::Table(rows))
        }
        other => Err(format!("Invalid value type '{}' returned.", other.type_name())),
    }
}

fn take(room: &mut u64, bytes: u64) -> Result<(), String> {
    *room = room.checked_sub(bytes).ok_or_else(|| super::TOO_LARGE.to_owned())?;
    Ok(())
}

fn whole(number: f64) -> Result<i64, String> {
    // 2^63 is the first that does not fit.
    match number.fract() == 0.0 && number.abs() < 9_223_372_036_854_775_808.0 {
        true => Ok(number as i64),
        false => Err(format!("{number} is no whole number.")),
    }
}

/// The program's argument: `{argv = {...}}`.
pub fn arguments(lua: &Lua, argv: &[String]) -> mlua::Result<Value> {
    let table = lua.create_table()?;
    table.set("argv", lua.create_sequence_from(argv.iter().map(String::as_str))?)?;
    Ok(Value::Table(table))
}
