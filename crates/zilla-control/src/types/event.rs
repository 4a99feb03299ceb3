//! Events as the daemon tells them.

use crate::openapi::JsonSchema;
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

/// `zpool events`: those after the one of number `after`. Waits so long for one if there is none.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventQuery {
    pub after: u64,
    pub wait_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventReply {
    pub events: Vec<EventInfo>,
    /// So many came in between and are kept no more.
    pub dropped: u64,
}

/// `zpool events -c`; answered with how many were forgotten.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventClear {}

#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct EventInfo {
    pub eid: u64,
    pub class: String,
    /// Since 1970.
    pub seconds: u64,
    pub nanoseconds: u32,
    /// In the order in which they are printed.
    pub fields: Vec<(String, EventValue)>,
}

/// A value of an event; signed numbers by their bits.
#[derive(Debug, Clone, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EventValue {
    Number(u64),
    Numbers(Vec<u64>),
    Text(String),
    Texts(Vec<String>),
}

impl EventInfo {
    /// The event as an object of JSON without a line break, for programs: its number, class and
    /// time, then what it is about. Numbers are numbers: guids do not fit into a double, so a
    /// reader must take 64 bits.
    pub fn json(&self) -> String {
        serde_json::to_string(&Line(self)).unwrap_or_default()
    }

    /// The pool that it is about.
    pub fn pool(&self) -> Option<&str> {
        self.fields.iter().find_map(|(name, value)| match value {
            EventValue::Text(text) if name == "pool" => Some(text.as_str()),
            _ => None,
        })
    }
}

/// [`EventInfo::json`].
struct Line<'a>(&'a EventInfo);

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_map(None)?;
        map.serialize_entry("eid", &self.0.eid)?;
        map.serialize_entry("class", &self.0.class)?;
        map.serialize_entry("seconds", &self.0.seconds)?;
        map.serialize_entry("nanoseconds", &self.0.nanoseconds)?;
        // The event's own, which say the same in another form.
        let bare = |name: &str| matches!(name, "class" | "time" | "eid");
        for (name, value) in self.0.fields.iter().filter(|(name, _)| !bare(name)) {
            match value {
                EventValue::Number(n) => map.serialize_entry(name, n)?,
                EventValue::Numbers(all) => map.serialize_entry(name, all)?,
                EventValue::Text(text) => map.serialize_entry(name, text)?,
                EventValue::Texts(all) => map.serialize_entry(name, all)?,
            }
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_that_any_reader_takes() {
        let fields = vec![
            ("class".to_owned(), EventValue::Text("sysevent.fs.zfs.scrub_finish".into())),
            ("pool".to_owned(), EventValue::Text("ta\nnk".into())),
            ("pool_guid".to_owned(), EventValue::Number(u64::MAX)),
            ("time".to_owned(), EventValue::Numbers(vec![5, 7])),
            ("words".to_owned(), EventValue::Texts(vec!["a".into()])),
        ];
        let class = "sysevent.fs.zfs.scrub_finish".to_owned();
        let event = EventInfo { eid: 9, class, seconds: 5, nanoseconds: 7, fields };
        let text = event.json();
        assert!(!text.contains('\n'), "{text}");
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let wanted = serde_json::json!({
            "eid": 9, "class": "sysevent.fs.zfs.scrub_finish", "seconds": 5, "nanoseconds": 7,
            "pool": "ta\nnk", "pool_guid": u64::MAX, "words": ["a"],
        });
        assert_eq!(read, wanted);
        assert_eq!(event.pool(), Some("ta\nnk"));
    }
}
