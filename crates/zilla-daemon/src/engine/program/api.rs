//! What programs can do to datasets: `zfs.list`, `zfs.get_prop`, `zfs.exists`, `zfs.sync`,
//! `zfs.check`.
//!
//! A function is named once, with its arguments, and is called with them in order, or with one
//! table that has those that are optional by name. It fails with an error number that the program
//! may act on; what cannot be meant (a dataset of another pool, an argument too many) ends the
//! program.

use super::super::Engine;
use super::super::errors::Answer;
use super::super::pool::Pool;
use mlua::{Lua, MultiValue, Scope, Table, Value};
use std::sync::Arc;
use zilla_control::props::{self, DATASET_PROPS, PropKind, ZAP_MAXNAMELEN, ZFS_MAXPROPLEN};
use zilla_control::types::*;
use zilla_control::{ApiError, Caller, ErrorCode};

pub struct Bound<'a> {
    pub engine: &'a Engine,
    pub caller: &'a Caller,
    pub pool: &'a Arc<Pool>,
    pub handle: tokio::runtime::Handle,
    pub readonly: bool,
}

/// The error numbers that programs know by name. Source: zcp_global.c; the numbers are Linux's.
const ERRNOS: &[(&str, i64)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("E2BIG", E2BIG),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("ENOTBLK", 15),
    ("EBUSY", EBUSY),
    ("EEXIST", EEXIST),
    ("EXDEV", 18),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", EINVAL),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("ETXTBSY", 26),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("ESPIPE", 29),
    ("EROFS", 30),
    ("EMLINK", 31),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("ENAMETOOLONG", ENAMETOOLONG),
    ("EDQUOT", 122),
];
const E2BIG: i64 = 7;
const EBUSY: i64 = 16;
const EEXIST: i64 = 17;
const EINVAL: i64 = 22;
const ENAMETOOLONG: i64 = 36;
const ESRCH: i64 = 3;

fn errno_of(e: &ApiError) -> i64 {
    match e.code {
        ErrorCode::NoEnt | ErrorCode::NoParent => 2,
        ErrorCode::Exists => EEXIST,
        ErrorCode::Busy | ErrorCode::HasDependents => EBUSY,
        ErrorCode::NoSpc => 28,
        ErrorCode::Perm => 1,
        ErrorCode::PoolReadonly | ErrorCode::DsReadonly => 30,
        ErrorCode::NameTooLong => ENAMETOOLONG,
        ErrorCode::CrossTarget => 18,
        ErrorCode::BadVersion | ErrorCode::Unsupported | ErrorCode::NotSup => 95,
        ErrorCode::Io => 5,
        _ => EINVAL,
    }
}

/// A function's words: its name, the names of what it must be given, and of what it may.
struct Words {
    name: &'static str,
    must: &'static [&'static str],
    may: &'static [&'static str],
}

impl Words {
    fn usage(&self) -> mlua::Error {
        let must = self.must.iter().map(|name| format!("<{name}>"));
        let may = self.may.iter().map(|name| format!("[{name}=true|false]"));
        let all: Vec<String> = must.chain(may).collect();
        mlua::Error::runtime(format!("invalid arguments; usage: {}{{{}}}", self.name, all.join(", ")))
    }

    /// The texts in order, and which of the optional ones are on.
    fn read(&self, args: &MultiValue) -> mlua::Result<(Vec<String>, Vec<bool>)> {
        let text = |value: &Value| match value {
            Value::String(s) => Ok(String::from(&*s.to_str()?)),
            _ => Err(self.usage()),
        };
        let mut on = vec![false; self.may.len()];
        let mut texts = Vec::new();
        match (args.len(), args.front()) {
            (1, Some(Value::Table(table))) => {
                for pair in table.pairs::<Value, Value>() {
                    match pair? {
                        (Value::Integer(n), _) if n >= 1 && n as usize <= self.must.len() => {}
                        (Value::String(name), Value::Boolean(value)) => {
                            let name = name.to_string_lossy();
                            let place =
                                self.may.iter().position(|may| *may == name).ok_or_else(|| self.usage())?;
                            on[place] = value;
                        }
                        _ => return Err(self.usage()),
                    }
                }
                for n in 1..=self.must.len() {
                    texts.push(text(&table.get(n)?)?);
                }
            }
            (n, _) if n == self.must.len() => {
                for value in args {
                    texts.push(text(value)?);
                }
            }
            _ => return Err(self.usage()),
        }
        Ok((texts, on))
    }
}

/// What a change answers: an error number, and what stands in the way.
type Changed = Result<(), (i64, Vec<String>)>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Check,
    Sync,
}

/// `zfs.sync` and `zfs.check` have the same.
const CHANGES: &[(Words, &str)] = &[
    (Words { name: "destroy", must: &["filesystem | snapshot"], may: &["defer"] }, "destroy"),
    (Words { name: "promote", must: &["clone"], may: &[] }, "promote"),
    (Words { name: "rollback", must: &["filesystem"], may: &[] }, "rollback"),
    (Words { name: "snapshot", must: &["filesystem@snapname | volume@snapname"], may: &[] }, "snapshot"),
    (Words { name: "inherit", must: &["dataset", "property"], may: &[] }, "inherit"),
    (Words { name: "set_prop", must: &["dataset", "property", "value"], may: &[] }, "set_prop"),
    (Words { name: "bookmark", must: &["snapshot | bookmark", "newbookmark"], may: &[] }, "bookmark"),
    (
        Words {
            name: "rename_snapshot",
            must: &["filesystem | volume", "oldsnapname", "newsnapname"],
            may: &[],
        },
        "rename_snapshot",
    ),
];

fn one_dataset(name: &'static str) -> Words {
    Words { name, must: &["dataset"], may: &[] }
}

/// Puts `zfs` and the error numbers into the program's globals.
pub fn install<'s, 'e>(lua: &Lua, scope: &'s Scope<'s, 'e>, bound: &'e Bound<'e>) -> mlua::Result<()> {
    let globals = lua.globals();
    ERRNOS.iter().try_for_each(|(name, number)| globals.raw_set(*name, *number))?;
    let zfs = lua.create_table()?;
    zfs.raw_set(
        "debug",
        scope.create_function(|_, args: MultiValue| {
            let (texts, _) = Words { name: "debug", must: &["debug string"], may: &[] }.read(&args)?;
            tracing::info!("channel program: {}", texts[0]);
            Ok(())
        })?,
    )?;
    zfs.raw_set(
        "exists",
        scope.create_function(move |_, args: MultiValue| {
            let (texts, _) = one_dataset("exists").read(&args)?;
            bound.own(&texts[0])?;
            Ok(bound.query(&texts[0], 0, &[], &[]).is_ok_and(|found| !found.is_empty()))
        })?,
    )?;
    zfs.raw_set("get_prop", scope.create_function(move |lua, args: MultiValue| bound.get_prop(lua, &args))?)?;
    zfs.raw_set("list", lists(lua, scope, bound)?)?;
    for (name, mode) in [("sync", Mode::Sync), ("check", Mode::Check)] {
        let table = lua.create_table()?;
        for (words, change) in CHANGES {
            let function = scope.create_function(move |lua, args: MultiValue| {
                bound.change(lua, words, change, mode, &args)
            })?;
            table.raw_set(*change, &function)?;
            if *change == "set_prop" && mode == Mode::Check {
                table.raw_set("set_property", &function)?;
            }
        }
        zfs.raw_set(name, table)?;
    }
    globals.raw_set("zfs", zfs)
}

/// Rows of a list as the calls of an iterator.
fn iterate(lua: &Lua, rows: Vec<Vec<Value>>) -> mlua::Result<mlua::Function> {
    let mut rows = rows.into_iter();
    lua.create_function_mut(move |_, _: MultiValue| {
        Ok(rows.next().map_or_else(MultiValue::new, MultiValue::from_iter))
    })
}

fn lists<'s, 'e>(lua: &Lua, scope: &'s Scope<'s, 'e>, bound: &'e Bound<'e>) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    let heads = [DatasetKind::Filesystem, DatasetKind::Volume];
    for (name, kinds) in [
        ("children", heads.to_vec()),
        ("snapshots", vec![DatasetKind::Snapshot]),
        ("bookmarks", vec![DatasetKind::Bookmark]),
    ] {
        let list = scope.create_function(move |lua, args: MultiValue| {
            let (texts, _) = one_dataset(name).read(&args)?;
            bound.one(&texts[0], &heads)?;
            let found = bound.query(&texts[0], 1, &kinds, &[]).map_err(fatal)?;
            let below = found.into_iter().filter(|d| d.name != texts[0] && kinds.contains(&d.kind));
            let rows: mlua::Result<Vec<_>> = below.map(|d| Ok(vec![string(lua, &d.name)?])).collect();
            iterate(lua, rows?)
        })?;
        table.raw_set(name, list)?;
    }
    let clones = scope.create_function(move |lua, args: MultiValue| {
        let (texts, _) = one_dataset("clones").read(&args)?;
        bound.one(&texts[0], &[DatasetKind::Snapshot])?;
        let found = bound.query(&texts[0], 0, &[], &["clones"]).map_err(fatal)?;
        let names = found.first().and_then(|d| d.properties.get("clones")).map(|p| p.value.clone());
        let names = names.unwrap_or_default();
        let rows: mlua::Result<Vec<_>> = listed(&names).map(|n| Ok(vec![string(lua, n)?])).collect();
        iterate(lua, rows?)
    })?;
    table.raw_set("clones", clones)?;
    let holds = scope.create_function(move |lua, args: MultiValue| {
        let (texts, _) = one_dataset("holds").read(&args)?;
        bound.one(&texts[0], &[DatasetKind::Snapshot])?;
        let request = SnapshotHolds { snapshot: texts[0].clone(), recursive: false };
        let found = bound.wait(bound.engine.list_holds(request)).map_err(fatal)?;
        let rows: mlua::Result<Vec<_>> =
            found.iter().map(|h| Ok(vec![string(lua, &h.tag)?, Value::Integer(h.time as i64)])).collect();
        iterate(lua, rows?)
    })?;
    table.raw_set("holds", holds)?;
    for name in ["user_properties", "properties"] {
        let list = scope.create_function(move |lua, args: MultiValue| {
            let (texts, _) = one_dataset(name).read(&args)?;
            let dataset = bound.one(&texts[0], &[])?;
            let found = bound.query(&dataset.name, 0, &[], &["all"]).map_err(fatal)?;
            let all = found.into_iter().next().unwrap_or_default();
            let own = all.properties.iter().filter(|(name, _)| props::is_user_prop(name));
            let rows: mlua::Result<Vec<_>> = own
                .map(|(name, p)| {
                    Ok(vec![string(lua, name)?, string(lua, &p.value)?, source(lua, &all.name, &p.source)?])
                })
                .collect();
            iterate(lua, rows?)
        })?;
        table.raw_set(name, list)?;
    }
    let system = scope.create_function(move |lua, args: MultiValue| {
        let (texts, _) = one_dataset("system_properties").read(&args)?;
        let types = props::types_of(bound.one(&texts[0], &[])?.kind);
        let names = DATASET_PROPS.iter().filter(|p| p.visible && p.applies_to(types)).map(|p| p.name);
        lua.create_sequence_from(names)
    })?;
    table.raw_set("system_properties", system)?;
    Ok(table)
}

fn fatal(e: ApiError) -> mlua::Error {
    mlua::Error::runtime(e.to_string())
}

fn string(lua: &Lua, text: &str) -> mlua::Result<Value> {
    lua.create_string(text).map(Value::String)
}

fn listed(names: &str) -> impl Iterator<Item = &str> {
    names.split(',').filter(|name| !name.is_empty() && *name != "-")
}

fn source(lua: &Lua, dataset: &str, source: &Source) -> mlua::Result<Value> {
    match source {
        Source::None => Ok(Value::Nil),
        Source::Default => string(lua, "default"),
        Source::Inherited(from) => string(lua, from),
        Source::Local | Source::Temporary | Source::Received => string(lua, dataset),
    }
}

impl Bound<'_> {
    fn wait<T>(&self, work: impl Future<Output = Answer<T>>) -> Answer<T> {
        self.handle.block_on(work)
    }

    /// Refuses datasets of other pools.
    fn own(&self, name: &str) -> mlua::Result<()> {
        match props::naming::pool_of(name) == self.pool.name() {
            true => Ok(()),
            false => Err(mlua::Error::runtime(format!(
                "dataset '{name}' is not in the target pool '{}'",
                self.pool.name()
            ))),
        }
    }

    fn query(
        &self,
        name: &str,
        depth: u32,
        kinds: &[DatasetKind],
        properties: &[&str],
    ) -> Answer<Vec<DatasetInfo>> {
        let all =
            [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::Bookmark];
        let request = DatasetQuery {
            roots: vec![name.to_owned()],
            depth: Some(depth),
            kinds: if kinds.is_empty() { all.to_vec() } else { kinds.to_vec() },
            properties: properties.iter().map(|p| (*p).to_owned()).collect(),
            ..DatasetQuery::default()
        };
        let reply = self.wait(self.engine.answer_query(self.caller, request))?;
        match reply.errors.into_iter().next() {
            Some(e) => Err(e),
            None => Ok(reply.datasets),
        }
    }

    /// A dataset of this pool and of one of these kinds; any where none is named.
    fn one(&self, name: &str, kinds: &[DatasetKind]) -> mlua::Result<DatasetInfo> {
        self.own(name)?;
        let found = self.query(name, 0, &[], &[]).map_err(fatal)?;
        let found =
            found.into_iter().find(|d| d.name == name && (kinds.is_empty() || kinds.contains(&d.kind)));
        found.ok_or_else(|| {
            mlua::Error::runtime(format!("dataset '{name}' does not exist, or is of another kind"))
        })
    }

    fn get_prop(&self, lua: &Lua, args: &MultiValue) -> mlua::Result<(Value, Value)> {
        let (texts, _) = Words { name: "get_prop", must: &["dataset", "property"], may: &[] }.read(args)?;
        let (name, property) = (texts[0].as_str(), texts[1].as_str());
        let desc = props::dataset_prop(property).filter(|d| d.name == property);
        let counted = props::is_userquota_prop(property) || props::is_written_prop(property);
        if desc.is_none() && !counted && !props::is_user_prop(property) {
            return Err(mlua::Error::runtime(format!("'{property}' is not a property")));
        }
        let dataset = self.one(name, &[])?;
        let applies = desc.is_none_or(|d| d.applies_to(props::types_of(dataset.kind)));
        if !applies || property == "mounted" {
            return Ok((Value::Nil, Value::Nil));
        }
        if property == "name" {
            return Ok((string(lua, name)?, Value::Nil));
        }
        let found = self.query(name, 0, &[], &[property]).map_err(fatal)?;
        if props::is_userquota_prop(property) {
            return self.account(lua, name, property, &found);
        }
        let Some(value) = found.first().and_then(|d| d.properties.get(property)) else {
            return Ok((Value::Nil, Value::Nil));
        };
        let from = match desc.is_some_and(|d| d.readonly()) {
            true => Value::Nil,
            false => source(lua, name, &value.source)?,
        };
        let number = counted || desc.is_some_and(|d| d.kind == PropKind::Number);
        let value = match value.value.as_str() {
            _ if property == "clones" => {
                Value::Table(lua.create_sequence_from(listed(&value.value).map(str::to_owned))?)
            }
            "none" if property.ends_with("_limit") => Value::Integer(-1),
            // Nobody counts where there is no limit.
            "none" if property.ends_with("_count") => Value::Nil,
            "none" if number => Value::Integer(0),
            "-" | "" => Value::Nil,
            text if number && text.contains('.') => match text.parse::<f64>() {
                // A ratio is counted in hundredths.
                Ok(ratio) => Value::Integer((ratio * 100.0).round() as i64),
                Err(_) => string(lua, text)?,
            },
            text if number => match text.parse::<u64>() {
                Ok(n) => Value::Integer(n as i64),
                Err(_) => string(lua, text)?,
            },
            text => string(lua, text)?,
        };
        Ok((value, from))
    }

    /// What an owner uses, or may use; nothing where no quota is set.
    fn account(
        &self,
        lua: &Lua,
        name: &str,
        property: &str,
        found: &[DatasetInfo],
    ) -> mlua::Result<(Value, Value)> {
        let text = found.first().and_then(|d| d.properties.get(property)).map(|p| p.value.as_str());
        let number = text.and_then(|t| t.parse::<u64>().ok()).unwrap_or(0);
        match number == 0 && property.contains("quota@") {
            true => Ok((Value::Nil, Value::Nil)),
            false => Ok((Value::Integer(number as i64), string(lua, name)?)),
        }
    }

    fn change(
        &self,
        lua: &Lua,
        words: &Words,
        what: &str,
        mode: Mode,
        args: &MultiValue,
    ) -> mlua::Result<(i64, Value)> {
        let (texts, on) = words.read(args)?;
        if what == "snapshot" && !texts[0].contains('@') {
            return Ok((EINVAL, Value::Nil));
        }
        self.own(&texts[0])?;
        if mode == Mode::Sync && self.readonly {
            let text =
                format!("running {what} in a read-only program: this function requires passing sync=TRUE");
            return Err(mlua::Error::runtime(text));
        }
        let changed = match what {
            "destroy" => self.destroy(&texts[0], on[0], mode),
            "promote" => self.promote(&texts[0], mode),
            "rollback" => self.rollback(&texts[0], mode),
            "snapshot" => self.snapshot(&texts[0], mode),
            "inherit" => self.inherit(&texts[0], &texts[1], mode),
            "set_prop" => self.set_prop(&texts[0], &texts[1], &texts[2], mode),
            "bookmark" => self.bookmark(&texts[0], &texts[1], mode),
            _ => self.rename_snapshot(&texts[0], &texts[1], &texts[2], mode),
        };
        match changed {
            Ok(()) => Ok((0, Value::Nil)),
            Err((errno, names)) if names.is_empty() => Ok((errno, Value::Nil)),
            Err((errno, names)) => Ok((errno, Value::Table(lua.create_sequence_from(names)?))),
        }
    }

    /// Does it where it is to be done.
    fn done<T>(&self, mode: Mode, work: impl Future<Output = Answer<T>>) -> Changed {
        match mode {
            Mode::Check => Ok(()),
            Mode::Sync => self.wait(work).map(drop).map_err(|e| (errno_of(&e), Vec::new())),
        }
    }

    fn there(&self, name: &str) -> Result<DatasetInfo, (i64, Vec<String>)> {
        let found = self.query(name, 0, &[], &[]).map_err(|e| (errno_of(&e), Vec::new()))?;
        found.into_iter().find(|d| d.name == name).ok_or((2, Vec::new()))
    }

    /// A mounted file system is not taken away from under its users.
    fn unmounted(&self, name: &str) -> Changed {
        match self.pool.mounts().contains(name) {
            true => Err((EBUSY, Vec::new())),
            false => Ok(()),
        }
    }

    fn destroy(&self, name: &str, defer: bool, mode: Mode) -> Changed {
        let found = self.there(name)?;
        if defer && found.kind != DatasetKind::Snapshot {
            return Err((EINVAL, Vec::new()));
        }
        if found.kind == DatasetKind::Filesystem {
            self.unmounted(name)?;
        }
        let request = DatasetDestroy {
            target: name.to_owned(),
            defer,
            dry_run: mode == Mode::Check,
            ..Default::default()
        };
        self.wait(self.engine.destroy_whole(request, false)).map(drop).map_err(|e| (errno_of(&e), Vec::new()))
    }

    fn promote(&self, name: &str, mode: Mode) -> Changed {
        self.there(name)?;
        let conflicts = self.handle.block_on(self.pool.zilla.promote_conflicts(name));
        match conflicts {
            Ok(names) if names.is_empty() => {}
            Ok(names) => return Err((EEXIST, names)),
            Err(_) => return Err((EINVAL, Vec::new())),
        }
        self.done(mode, self.engine.promote(self.caller, DatasetPromote { name: name.to_owned() }))
    }

    fn rollback(&self, name: &str, mode: Mode) -> Changed {
        let found = self.there(name)?;
        if !matches!(found.kind, DatasetKind::Filesystem | DatasetKind::Volume) {
            return Err((EINVAL, Vec::new()));
        }
        self.unmounted(name)?;
        let all =
            self.query(name, 1, &[DatasetKind::Snapshot], &[]).map_err(|e| (errno_of(&e), Vec::new()))?;
        let last = all.into_iter().filter(|d| d.kind == DatasetKind::Snapshot).max_by_key(|d| d.createtxg);
        let snapshot = last.ok_or((ESRCH, Vec::new()))?.name;
        self.done(mode, self.engine.roll_back(DatasetRollback { snapshot, ..Default::default() }))
    }

    fn snapshot(&self, name: &str, mode: Mode) -> Changed {
        let Some((head, snap)) = name.split_once('@') else { return Err((EINVAL, Vec::new())) };
        if snap.is_empty() || props::naming::check_dataset_name(name, props::SNAP, true).is_err() {
            return Err((if name.len() >= ZAP_MAXNAMELEN { ENAMETOOLONG } else { EINVAL }, Vec::new()));
        }
        self.there(head)?;
        if self.there(name).is_ok() {
            return Err((EEXIST, Vec::new()));
        }
        let request = DatasetSnapshot { names: vec![name.to_owned()], ..Default::default() };
        self.done(mode, self.engine.snapshot(self.caller, request))
    }

    fn inherit(&self, name: &str, property: &str, mode: Mode) -> Changed {
        self.there(name)?;
        props::check_inherit(property, false).map_err(|_| (EINVAL, Vec::new()))?;
        let request =
            DatasetInherit { name: name.to_owned(), property: property.to_owned(), received: false };
        self.done(mode, self.engine.inherit_property(request))
    }

    fn set_prop(&self, name: &str, property: &str, value: &str, mode: Mode) -> Changed {
        self.there(name)?;
        if !props::is_user_prop(property) {
            return Err((EINVAL, Vec::new()));
        }
        if property.len() >= ZAP_MAXNAMELEN {
            return Err((ENAMETOOLONG, Vec::new()));
        }
        if value.len() >= ZFS_MAXPROPLEN * 2 {
            return Err((E2BIG, Vec::new()));
        }
        let properties = [(property.to_owned(), value.to_owned())].into();
        let request = DatasetSet { name: name.to_owned(), properties, no_mount: false };
        self.done(mode, self.engine.set_properties(self.caller, request))
    }

    fn bookmark(&self, from: &str, to: &str, mode: Mode) -> Changed {
        self.there(from)?;
        if self.there(to).is_ok() {
            return Err((EEXIST, Vec::new()));
        }
        let request = DatasetBookmark { source: from.to_owned(), target: to.to_owned() };
        self.done(mode, self.engine.bookmark(request))
    }

    fn rename_snapshot(&self, name: &str, from: &str, to: &str, mode: Mode) -> Changed {
        let (from, to) = (format!("{name}@{from}"), format!("{name}@{to}"));
        self.there(&from)?;
        if self.there(&to).is_ok() {
            return Err((EEXIST, Vec::new()));
        }
        if props::naming::check_dataset_name(&to, props::SNAP, true).is_err() {
            return Err((EINVAL, Vec::new()));
        }
        let request = DatasetRename { name: from, target: to, ..Default::default() };
        self.done(mode, self.engine.rename(self.caller, request))
    }
}
