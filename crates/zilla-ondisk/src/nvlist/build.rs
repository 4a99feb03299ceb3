//! Looking values up and putting them in.

use super::{NV_UNIQUE_NAME, NV_UNIQUE_NAME_TYPE, NvList, NvValue};
use crate::error::{FormatError, Problem, Result};

macro_rules! getters {
    ($($(#[$m:meta])* $get:ident, $need:ident, $v:ident => $t:ty, $x:ident => $e:expr;)*) => {$(
        $(#[$m])*
        pub fn $get(&self, name: &str) -> Option<$t> {
            match self.get(name) { Some(NvValue::$v($x)) => Some($e), _ => None }
        }

        /// The same, missing or of another type being an error that gives `name`.
        pub fn $need(&self, name: &'static str) -> Result<$t> {
            self.$get(name).ok_or_else(|| self.missing(name))
        }
    )*};
}

impl NvList {
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.iter().find(|(n, _)| *n == name).map(|(_, v)| v)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut NvValue> {
        self.pairs.iter_mut().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn missing(&self, name: &'static str) -> FormatError {
        let problem = if self.contains(name) { Problem::WrongType } else { Problem::Missing };
        FormatError::new("nvlist", name, 0, problem)
    }

    getters! {
        u64, need_u64, Uint64 => u64, x => *x;
        i64, need_i64, Int64 => i64, x => *x;
        u32, need_u32, Uint32 => u32, x => *x;
        i32, need_i32, Int32 => i32, x => *x;
        u8, need_u8, Uint8 => u8, x => *x;
        bool, need_bool, BooleanValue => bool, x => *x;
        str, need_str, String => &str, x => x;
        u64s, need_u64s, Uint64Array => &[u64], x => x;
        u8s, need_u8s, Uint8Array => &[u8], x => x;
        bytes, need_bytes, ByteArray => &[u8], x => x;
        strs, need_strs, StringArray => &[String], x => x;
        list, need_list, List => &NvList, x => x;
        lists, need_lists, ListArray => &[NvList], x => x;
    }

    /// A bare boolean of the name is there.
    pub fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Some(NvValue::Boolean))
    }

    pub fn list_mut(&mut self, name: &str) -> Option<&mut NvList> {
        match self.get_mut(name) {
            Some(NvValue::List(l)) => Some(l),
            _ => None,
        }
    }

    pub fn lists_mut(&mut self, name: &str) -> Option<&mut Vec<NvList>> {
        match self.get_mut(name) {
            Some(NvValue::ListArray(l)) => Some(l),
            _ => None,
        }
    }

    /// Adds a pair at the end. In a list of unique names one of the same name is taken out first,
    /// as OpenZFS does; so the pair moves to the end.
    pub fn add(&mut self, name: impl Into<String>, value: impl Into<NvValue>) -> &mut NvList {
        let (name, value) = (name.into(), value.into());
        if self.flags & NV_UNIQUE_NAME != 0 {
            self.remove(&name);
        } else if self.flags & NV_UNIQUE_NAME_TYPE != 0 {
            self.pairs.retain(|(n, v)| *n != name || v.type_number() != value.type_number());
        }
        self.pairs.push((name, value));
        self
    }

    /// Puts a value where one of the name stands, or at the end.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<NvValue>) -> &mut NvList {
        let (name, value) = (name.into(), value.into());
        match self.get_mut(&name) {
            Some(old) => *old = value,
            None => self.pairs.push((name, value)),
        }
        self
    }

    /// Adds a pair as a decoder finds it, without a search: duplicates of a hostile list stay.
    pub(super) fn push(&mut self, name: String, value: NvValue) {
        self.pairs.push((name, value));
    }

    pub fn remove(&mut self, name: &str) -> Option<NvValue> {
        let at = self.pairs.iter().position(|(n, _)| n == name)?;
        Some(self.pairs.remove(at).1)
    }

    pub fn retain(&mut self, mut keep: impl FnMut(&str, &NvValue) -> bool) {
        self.pairs.retain(|(n, v)| keep(n, v));
    }

    /// `add`, for building a list in one expression.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<NvValue>) -> NvList {
        self.add(name, value);
        self
    }

    /// Adds a bare boolean.
    pub fn add_flag(&mut self, name: impl Into<String>) -> &mut NvList {
        self.add(name, NvValue::Boolean)
    }
}

macro_rules! from {
    ($($t:ty => $v:ident),* $(,)?) => {$(
        impl From<$t> for NvValue {
            fn from(v: $t) -> NvValue { NvValue::$v(v.into()) }
        }
    )*};
}
from! {
    i16 => Int16, u16 => Uint16, i32 => Int32, u32 => Uint32, i64 => Int64, u64 => Uint64, i8 => Int8, u8 => Uint8,
    bool => BooleanValue, f64 => Double, String => String, &str => String, &String => String,
    Vec<i16> => Int16Array, Vec<u16> => Uint16Array, Vec<i32> => Int32Array, Vec<u32> => Uint32Array,
    Vec<i64> => Int64Array, Vec<u64> => Uint64Array, &[u64] => Uint64Array, Vec<String> => StringArray,
    NvList => List, Vec<NvList> => ListArray, Vec<bool> => BooleanArray, Vec<i8> => Int8Array,
    Vec<u8> => Uint8Array,
}

impl<'a> IntoIterator for &'a NvList {
    type Item = (&'a str, &'a NvValue);
    type IntoIter = Box<dyn Iterator<Item = (&'a str, &'a NvValue)> + 'a>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl<N: Into<String>> FromIterator<(N, NvValue)> for NvList {
    fn from_iter<I: IntoIterator<Item = (N, NvValue)>>(pairs: I) -> NvList {
        let mut out = NvList::new();
        for (n, v) in pairs {
            out.add(n, v);
        }
        out
    }
}
