//! JSON as OpenZFS writes it: members in the order they were added, ASCII only, no white space.

use zilla_control::types::{PropValue, Source};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Json {
    Str(String),
    Num(u64),
    Int(i64),
    Bool(bool),
    Obj(Obj),
    Arr(Vec<Json>),
}

/// Members with unique names; a name set again moves to the end, as in an nvlist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Obj(Vec<(String, Json)>);

impl Obj {
    pub fn new() -> Obj {
        Obj::default()
    }

    pub fn set(&mut self, name: impl Into<String>, value: Json) {
        let name = name.into();
        self.0.retain(|(n, _)| *n != name);
        self.0.push((name, value));
    }

    pub fn str(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.set(name, Json::Str(value.into()));
    }

    pub fn obj(&mut self, name: impl Into<String>, value: Obj) {
        self.set(name, Json::Obj(value));
    }

    /// A number: as such where `--json-int` asks for it, else as text.
    pub fn num(&mut self, name: impl Into<String>, value: u64, as_int: bool) {
        self.set(name, if as_int { Json::Num(value) } else { Json::Str(value.to_string()) });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn render(&self) -> String {
        let mut text = String::new();
        write_obj(&mut text, self);
        text
    }
}

/// The head of every JSON output.
pub fn schema(program: &str, command: &str) -> Obj {
    let mut version = Obj::new();
    version.str("command", format!("{program} {command}"));
    version.set("vers_major", Json::Num(0));
    version.set("vers_minor", Json::Num(1));
    let mut root = Obj::new();
    root.obj("output_version", version);
    root
}

/// A property: its value and where it comes from.
pub fn property(value: &str, prop: &PropValue, as_int: bool) -> Obj {
    let numeric = value.bytes().all(|b| b.is_ascii_digit());
    let mut object = Obj::new();
    match value.parse::<u64>() {
        Ok(number) if as_int && numeric => object.set("value", Json::Num(number)),
        _ => object.str("value", value),
    }
    let (kind, data) = match &prop.source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
        Source::Received => ("RECEIVED", prop.received.as_deref().unwrap_or("-")),
    };
    let mut source = Obj::new();
    source.str("type", kind);
    source.str("data", data);
    object.obj("source", source);
    object
}

fn write_obj(text: &mut String, object: &Obj) {
    text.push('{');
    for (i, (name, value)) in object.0.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        write_str(text, name);
        text.push(':');
        write(text, value);
    }
    text.push('}');
}

fn write(text: &mut String, value: &Json) {
    match value {
        Json::Str(s) => write_str(text, s),
        Json::Num(n) => text.push_str(&n.to_string()),
        Json::Int(n) => text.push_str(&n.to_string()),
        Json::Bool(b) => text.push_str(&b.to_string()),
        Json::Obj(o) => write_obj(text, o),
        Json::Arr(values) => {
            text.push('[');
            for (i, value) in values.iter().enumerate() {
                if i > 0 {
                    text.push(',');
                }
                write(text, value);
            }
            text.push(']');
        }
    }
}

fn write_str(text: &mut String, s: &str) {
    text.push('"');
    for c in s.chars() {
        match c {
            '"' => text.push_str("\\\""),
            '\\' => text.push_str("\\\\"),
            '\n' => text.push_str("\\n"),
            '\r' => text.push_str("\\r"),
            '\t' => text.push_str("\\t"),
            '\x08' => text.push_str("\\b"),
            '\x0c' => text.push_str("\\f"),
            ' '..='\x7f' => text.push(c),
            // Beyond the first plane OpenZFS drops a character; a pair of surrogates keeps it.
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    text.push_str(&format!("\\u{unit:04x}"));
                }
            }
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_and_escapes() {
        let mut object = Obj::new();
        object.str("b", "\"\\\n\u{1}ä");
        object.num("a", 1, true);
        object.num("c", 2, false);
        object.str("b", "x");
        assert_eq!(object.render(), r#"{"a":1,"c":"2","b":"x"}"#);
        object.str("d", "\"\\\n\u{1}ä");
        assert!(object.render().ends_with(r#""d":"\"\\\n\u0001\u00e4"}"#));
    }
}
