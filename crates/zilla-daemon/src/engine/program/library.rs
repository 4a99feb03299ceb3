//! Functions of the interpreter's library that could take endless time within one call.
//!
//! Instructions are counted between calls, so what one call does must be bounded by itself. Text is
//! searched for patterns here ([`super::pattern`]) and not by C; what goes through a table first
//! pays for its length, which a table says itself; and a text of no bytes is not repeated.

use super::pattern::{Match, Piece};
use super::{CANCELED, CHUNK, NO_MEMORY, TIMED_OUT};
use mlua::{Function, Lua, MultiValue, String as Text, Table, Value};
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use zilla_control::presence::Presence;

/// Steps that count as one instruction.
const STEPS: u64 = 16;
/// After so many it is looked whether they were too many.
const LOOK: u64 = 1 << 12;

/// What a program has used, and how much it may.
#[derive(Clone)]
pub struct Meter {
    /// Instructions, and the most of them.
    pub used: Arc<AtomicU64>,
    pub most: u64,
    /// Bytes.
    pub memory: u64,
    pub presence: Presence,
}

impl Meter {
    /// Counts instructions, and ends a program that has had too many or that nobody waits for.
    pub fn count(&self, lua: &Lua, instructions: u64) -> mlua::Result<()> {
        let before = self.used.fetch_add(instructions, Ordering::Relaxed);
        let why = match before.saturating_add(instructions) > self.most {
            true => TIMED_OUT,
            false if self.presence.is_gone() => CANCELED,
            false => return Ok(()),
        };
        Err(mlua::Error::runtime(lua.traceback(Some(why), 0)?.to_string_lossy()))
    }
}

/// Why a match cannot be told: the pattern makes no sense, or the program is to end.
enum Why {
    Pattern(String),
    End(mlua::Error),
}

impl From<String> for Why {
    fn from(text: String) -> Why {
        Why::Pattern(text)
    }
}

type Told<T> = Result<T, Why>;

/// One call of a function, by its arguments.
struct Call<'a> {
    name: &'static str,
    lua: &'a Lua,
    args: &'a MultiValue,
    meter: &'a Meter,
    steps: Cell<u64>,
}

impl<'a> Call<'a> {
    fn new(name: &'static str, lua: &'a Lua, args: &'a MultiValue, meter: &'a Meter) -> Call<'a> {
        Call { name, lua, args, meter, steps: Cell::new(0) }
    }

    fn step(&self) -> Told<()> {
        self.steps.set(self.steps.get() + 1);
        if self.steps.get() < LOOK { Ok(()) } else { self.settle().map_err(Why::End) }
    }

    fn settle(&self) -> mlua::Result<()> {
        self.meter.count(self.lua, self.steps.take() / STEPS)
    }

    /// An error of the program's, with its line.
    fn error(&self, what: &str) -> mlua::Error {
        let line = self.lua.inspect_stack(1, |of| of.current_line()).flatten();
        mlua::Error::runtime(line.map_or_else(|| what.to_owned(), |n| format!("{CHUNK}:{n}: {what}")))
    }

    fn bad(&self, number: usize, what: &str) -> mlua::Error {
        self.error(&format!("bad argument #{number} to '{}' ({what})", self.name))
    }

    /// What a match has come to; what it took is paid for.
    fn told<T>(&self, told: Told<T>) -> mlua::Result<T> {
        self.settle()?;
        told.map_err(|why| match why {
            Why::Pattern(what) => self.error(&what),
            Why::End(error) => error,
        })
    }

    fn value(&self, number: usize) -> Value {
        self.args.get(number - 1).cloned().unwrap_or(Value::Nil)
    }

    /// An argument that is a text, or a number as one.
    fn text(&self, number: usize) -> mlua::Result<Text> {
        let value = self.value(number);
        let kind = value.type_name();
        let text = self.lua.coerce_string(value)?;
        text.ok_or_else(|| self.bad(number, &format!("string expected, got {kind}")))
    }

    /// A number that may be left out.
    fn whole(&self, number: usize) -> mlua::Result<Option<i64>> {
        match self.value(number) {
            Value::Nil => Ok(None),
            value => {
                let kind = value.type_name();
                let n = self.lua.coerce_integer(value)?;
                n.map(Some).ok_or_else(|| self.bad(number, &format!("number expected, got {kind}")))
            }
        }
    }

    fn piece(&self, text: &[u8], piece: Piece) -> mlua::Result<Value> {
        Ok(match piece {
            Piece::Text(range) => Value::String(self.lua.create_string(&text[range])?),
            Piece::Position(at) => Value::Integer(i64::try_from(at).unwrap_or(i64::MAX).saturating_add(1)),
        })
    }

    /// All captures of a match as values; the match itself if it has none and `whole`.
    fn pieces<F: FnMut() -> Told<()>>(
        &self,
        text: &[u8],
        matched: &Match<'_, F>,
        found: &Range<usize>,
        whole: bool,
    ) -> mlua::Result<Vec<Value>> {
        let count = matched.count().max(usize::from(whole));
        let piece = |n| self.told(matched.piece(n, found.clone())).and_then(|piece| self.piece(text, piece));
        (0..count).map(piece).collect()
    }

    /// `string.find` and `string.match`
    fn search(&self, find: bool) -> mlua::Result<MultiValue> {
        let (text, pattern) = (self.text(1)?, self.text(2)?);
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
        let none = || Ok(MultiValue::from_iter([Value::Nil]));
        let length = i64::try_from(text.len()).unwrap_or(i64::MAX);
        let from = self.whole(3)?.unwrap_or(1);
        let from = if from < 0 { length.saturating_add(from).saturating_add(1) } else { from }.max(1);
        if from > length + 1 {
            return none();
        }
        let from = usize::try_from(from - 1).unwrap_or(0);
        let plain = !matches!(self.value(4), Value::Nil | Value::Boolean(false));
        if find && (plain || !pattern.iter().any(|b| b"^$*+?.([%-".contains(b))) {
            let found = self.told(self.plain(&text[from..], pattern))?;
            return match found.map(|at| from + at) {
                Some(at) => self.places(at..at + pattern.len(), Vec::new()),
                None => none(),
            };
        }
        let anchored = pattern.first() == Some(&b'^');
        let mut matched = Match::new(text, &pattern[usize::from(anchored)..], || self.step());
        let last = if anchored { from } else { text.len() };
        for at in from..=last {
            if let Some(end) = self.told(matched.at(at))? {
                let pieces = self.pieces(text, &matched, &(at..end), !find)?;
                return if find { self.places(at..end, pieces) } else { Ok(pieces.into_iter().collect()) };
            }
        }
        none()
    }

    fn places(&self, found: Range<usize>, pieces: Vec<Value>) -> mlua::Result<MultiValue> {
        let number = |n: usize| Value::Integer(i64::try_from(n).unwrap_or(i64::MAX));
        Ok([number(found.start + 1), number(found.end)].into_iter().chain(pieces).collect())
    }

    fn plain(&self, text: &[u8], wanted: &[u8]) -> Told<Option<usize>> {
        for at in 0..(text.len() + 1).saturating_sub(wanted.len()) {
            self.step()?;
            let same = text[at..].iter().zip(wanted).take_while(|(a, b)| a == b).count();
            for _ in 0..same / 64 {
                self.step()?;
            }
            if same == wanted.len() {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// `string.gsub`
    fn replace(&self) -> mlua::Result<MultiValue> {
        let (text, pattern) = (self.text(1)?, self.text(2)?);
        let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
        let (text, pattern): (&[u8], &[u8]) = (&text, &pattern);
        let by = match self.value(3) {
            by @ (Value::String(_) | Value::Function(_) | Value::Table(_)) => by,
            Value::Integer(_) | Value::Number(_) => Value::String(self.text(3)?),
            other => {
                let what = format!("string/function/table expected, got {}", other.type_name());
                return Err(self.bad(3, &what));
            }
        };
        let most = self.whole(4)?.unwrap_or(i64::MAX);
        let anchored = pattern.first() == Some(&b'^');
        let mut matched = Match::new(text, &pattern[usize::from(anchored)..], || self.step());
        let (mut out, mut at, mut last, mut times) = (Vec::new(), 0, None, 0);
        while times < most {
            match self.told(matched.at(at))? {
                Some(end) if last != Some(end) => {
                    times += 1;
                    self.put(&by, text, &matched, &(at..end), &mut out)?;
                    (at, last) = (end, Some(end));
                }
                _ if at < text.len() => {
                    out.push(text[at]);
                    at += 1;
                }
                _ => break,
            }
            if anchored {
                break;
            }
        }
        out.extend_from_slice(&text[at..]);
        self.fits(&out)?;
        Ok([Value::String(self.lua.create_string(&out)?), Value::Integer(times)].into_iter().collect())
    }

    fn fits(&self, out: &[u8]) -> mlua::Result<()> {
        match out.len() as u64 > self.meter.memory {
            true => Err(mlua::Error::MemoryError(NO_MEMORY.to_owned())),
            false => Ok(()),
        }
    }

    /// Adds what takes the place of a match.
    fn put<F: FnMut() -> Told<()>>(
        &self,
        by: &Value,
        text: &[u8],
        matched: &Match<'_, F>,
        found: &Range<usize>,
        out: &mut Vec<u8>,
    ) -> mlua::Result<()> {
        let one = |n| self.told(matched.piece(n, found.clone())).and_then(|piece| self.piece(text, piece));
        let value = match by {
            Value::Function(function) => {
                let pieces: MultiValue = self.pieces(text, matched, found, true)?.into_iter().collect();
                function.call::<Value>(pieces)?
            }
            Value::Table(table) => table.get::<Value>(one(0)?)?,
            Value::String(words) => {
                let words = words.as_bytes();
                let mut rest = words.iter();
                while let Some(byte) = rest.next() {
                    match (byte, if *byte == b'%' { rest.next() } else { None }) {
                        (b'%', Some(b'%')) => out.push(b'%'),
                        (b'%', Some(b'0')) => out.extend_from_slice(&text[found.clone()]),
                        (b'%', Some(digit @ b'1'..=b'9')) => {
                            let piece = self.lua.coerce_string(one(usize::from(digit - b'1'))?)?;
                            out.extend_from_slice(&piece.map(|p| p.as_bytes().to_vec()).unwrap_or_default());
                        }
                        (b'%', _) => {
                            return Err(self.error("invalid use of '%' in replacement string"));
                        }
                        (byte, _) => out.push(*byte),
                    }
                    self.fits(out)?;
                }
                return Ok(());
            }
            _ => Value::Nil,
        };
        match value {
            Value::Nil | Value::Boolean(false) => out.extend_from_slice(&text[found.clone()]),
            value @ (Value::String(_) | Value::Integer(_) | Value::Number(_)) => {
                let words = self.lua.coerce_string(value)?;
                out.extend_from_slice(&words.map(|w| w.as_bytes().to_vec()).unwrap_or_default());
            }
            other => {
                return Err(self.error(&format!("invalid replacement value (a {})", other.type_name())));
            }
        }
        self.fits(out)
    }

    /// `string.gmatch`
    fn matches(&self) -> mlua::Result<Function> {
        let (text, pattern, meter) = (self.text(1)?, self.text(2)?, self.meter.clone());
        let (mut at, mut last) = (0, None);
        self.lua.create_function_mut(move |lua, args: MultiValue| {
            let call = Call::new("gmatch", lua, &args, &meter);
            let (text, pattern) = (text.as_bytes(), pattern.as_bytes());
            let text: &[u8] = &text;
            let mut matched = Match::new(text, &pattern, || call.step());
            while at <= text.len() {
                match call.told(matched.at(at))? {
                    Some(end) if last != Some(end) => {
                        let found = at..end;
                        (at, last) = (end, Some(end));
                        return Ok(call.pieces(text, &matched, &found, true)?.into_iter().collect());
                    }
                    _ => at += 1,
                }
            }
            Ok(MultiValue::new())
        })
    }
}

/// What a call pays for before it is made: steps, by its arguments.
type Price = fn(&Call<'_>) -> mlua::Result<u64>;

/// What a table says that its length is.
fn length(call: &Call<'_>) -> mlua::Result<u64> {
    match call.value(1) {
        Value::Table(table) => Ok(u64::try_from(table.len()?).unwrap_or(0)),
        _ => Ok(0),
    }
}

const PRICES: &[(&str, Price)] = &[
    ("insert", |call| if call.args.len() > 2 { length(call) } else { Ok(0) }),
    ("remove", |call| if call.args.len() > 1 { length(call) } else { Ok(0) }),
    // (By each of its bits, about.)
    ("sort", |call| Ok(length(call)?.saturating_mul(64))),
    ("concat", |call| {
        let first = call.whole(3)?.unwrap_or(1);
        let last =
            call.whole(4)?.map_or_else(|| length(call), |last| Ok(u64::try_from(last).unwrap_or(0)))?;
        Ok(last.saturating_add_signed(first.saturating_neg()))
    }),
];

/// Puts these functions in the place of the interpreter's.
pub fn install(lua: &Lua, meter: &Meter) -> mlua::Result<()> {
    let strings: Table = lua.globals().get("string")?;
    let with = |name: &'static str, act: fn(&Call<'_>) -> mlua::Result<MultiValue>| {
        let meter = meter.clone();
        let function =
            lua.create_function(move |lua, args: MultiValue| act(&Call::new(name, lua, &args, &meter)))?;
        strings.raw_set(name, function)
    };
    with("find", |call| call.search(true))?;
    with("match", |call| call.search(false))?;
    with("gsub", |call| call.replace())?;
    with("gmatch", |call| Ok(MultiValue::from_iter([Value::Function(call.matches()?)])))?;
    let (usual, own) = (strings.get::<Function>("rep")?, meter.clone());
    let rep = lua.create_function(move |lua, args: MultiValue| {
        let call = Call::new("rep", lua, &args, &own);
        let is_empty = |value: Value| matches!(&value, Value::String(s) if s.as_bytes().is_empty());
        let between = call.value(3);
        match is_empty(call.value(1)) && (between == Value::Nil || is_empty(between)) {
            true => Ok(MultiValue::from_iter([call.value(1)])),
            false => usual.call::<MultiValue>(args.clone()),
        }
    })?;
    strings.raw_set("rep", rep)?;
    let tables: Table = lua.globals().get("table")?;
    // OpenZFS's interpreter does not have it.
    tables.raw_remove("move")?;
    for (name, price) in PRICES {
        let (usual, own) = (tables.get::<Function>(*name)?, meter.clone());
        let function = lua.create_function(move |lua, args: MultiValue| {
            own.count(lua, price(&Call::new(name, lua, &args, &own))? / STEPS)?;
            usual.call::<MultiValue>(args)
        })?;
        tables.raw_set(*name, function)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mlua::{LuaOptions, StdLib};
    use proptest::prelude::*;

    fn meter(most: u64) -> Meter {
        Meter { used: Arc::default(), most, memory: 1 << 20, presence: Presence::default() }
    }

    fn lua(bounded: Option<&Meter>) -> Lua {
        let lua = Lua::new_with(StdLib::STRING | StdLib::TABLE, LuaOptions::default()).unwrap();
        if let Some(meter) = bounded {
            install(&lua, meter).unwrap();
        }
        lua
    }

    /// What a script returns, as text, or the words of its error without the place.
    fn run(lua: &Lua, script: &str, args: (&[u8], &[u8], &[u8], i64)) -> Result<String, String> {
        let (a, b, c) = (lua.create_string(args.0), lua.create_string(args.1), lua.create_string(args.2));
        let args = (a.unwrap(), b.unwrap(), c.unwrap(), args.3);
        let script = format!(
            "local out = {{}}\nlocal function say(...) for i, v in ipairs({{n = 0, ...}}) do out[#out + 1] = \
             math_type(v) .. tostring(v) end out[#out + 1] = '|' end\nlocal s, p, r, n = ...\n{script}\nreturn \
             table.concat(out, ';')"
        );
        lua.globals()
            .set("math_type", lua.create_function(|_, v: Value| Ok(v.type_name())).unwrap())
            .unwrap();
        lua.load(script).set_name("=x").call::<Text>(args).map(|t| t.to_string_lossy()).map_err(|e| {
            let text = super::super::told(&e).1;
            let line = text.lines().next().unwrap_or_default().to_owned();
            ["x:4: ", &format!("{CHUNK}:4: ")].iter().fold(line, |line, place| line.replace(place, ""))
        })
    }

    const SCRIPTS: [&str; 6] = [
        "say(string.find(s, p, n))",
        "say(string.find(s, p, n, true))",
        "say(string.match(s, p, n))",
        "for a, b, c in string.gmatch(s, p) do say(a, b, c) end",
        "say(string.gsub(s, p, r, n + 3))",
        "say(string.gsub(s, p, function(a, b) if a == 'a' then return b end return a end))",
    ];

    proptest! {
        #![proptest_config(ProptestConfig { cases: 3000, ..ProptestConfig::default() })]
        /// Against the interpreter's own.
        #[test]
        fn patterns_mean_what_they_mean_in_lua(
            text in "[ab.%\\](x1\n]{0,12}",
            pattern in "(\\^)?([ab.]|%[a-zA-Z.%]|\\[[ab^%\\]-]{0,4}\\]|\\(|\\)|\\(\\)|%b[ab(][ab)]|%f\\[[ab]\\]|%[0-3]|\\$|[*+?-]){0,7}",
            by in "[ab%0-3]{0,5}",
            from in -4..14i64,
        ) {
            let (ours, theirs) = (lua(Some(&meter(u64::MAX))), lua(None));
            for script in SCRIPTS {
                let args = (text.as_bytes(), pattern.as_bytes(), by.as_bytes(), from);
                let (found, expected) = (run(&ours, script, args), run(&theirs, script, args));
                match (&found, &expected) {
                    // Their words may say more.
                    (Err(a), Err(b)) => prop_assert!(b.starts_with(a.as_str()), "{a} / {b}"),
                    _ => prop_assert_eq!(found, expected, "{}", script),
                }
            }
        }
    }

    #[test]
    fn no_call_takes_endless_time() {
        for script in [
            "return ('a'):rep(10000):find(('.-'):rep(20) .. 'b')",
            "return ('a'):rep(10000):match(('a*'):rep(20) .. 'b')",
            "return ('a'):rep(10000):gsub(('.-'):rep(20) .. 'b', '')",
            "for x in ('a'):rep(10000):gmatch(('a?'):rep(100) .. ('a'):rep(100) .. 'b') do end",
            "return ('('):rep(1000000):gsub('%b()', '')",
            "return ('a'):rep(1000000):find(('a'):rep(500000) .. 'b', 1, true)",
            "local t = setmetatable({}, {__len = function() return 1 << 60 end}) table.insert(t, 1, 1)",
            "local t = setmetatable({}, {__len = function() return 1 << 60 end}) table.remove(t, 1)",
            "return table.concat(setmetatable({}, {__index = table.concat}), '', 1, 1 << 60)",
        ] {
            let (meter, begun) = (meter(100_000), std::time::Instant::now());
            let error = lua(Some(&meter)).load(script).exec().unwrap_err();
            assert!(super::super::told(&error).1.contains(TIMED_OUT), "{script}: {error}");
            assert!(begun.elapsed().as_secs() < 20, "{script}");
        }
        let lua = lua(Some(&meter(100_000)));
        let own = |script: &str| lua.load(script).eval::<bool>().unwrap();
        assert!(own("return (''):rep(1 << 60) == '' and ('a'):rep(3, 'b') == 'ababa' and table.move == nil"));
        assert!(own(
            "local t = {3, 1, 2} table.sort(t) table.insert(t, 1, 0) return table.concat(t, ',') == '0,1,2,3'"
        ));
        assert!(own("local t = {1, 2, 3} table.remove(t, 1) return table.concat(t, ',', 2, 2) == '3'"));
        let error = lua.load("return ('a'):rep(1000):gsub('a', ('b'):rep(2000))").exec().unwrap_err();
        assert!(super::super::told(&error).0, "memory: {error}");
    }

    #[test]
    fn who_is_gone_is_not_searched_for() {
        let waits = Arc::new(());
        let meter = Meter { presence: Presence::of(&waits), ..meter(u64::MAX) };
        let lua = lua(Some(&meter));
        drop(waits);
        let error = lua.load("return ('a'):rep(10000):find(('.-'):rep(20) .. 'b')").exec().unwrap_err();
        assert!(super::super::told(&error).1.contains(CANCELED), "{error}");
    }
}
