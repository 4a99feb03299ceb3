//! A list as `zdb -C` and `zdb -l` print it.

use std::fmt::{self, Write};

use super::{NvList, NvValue};

impl NvList {
    /// Prints the list with `indent` spaces before each line; inner lists get four more.
    pub fn print(&self, out: &mut dyn Write, indent: usize) -> fmt::Result {
        for (name, value) in self.iter() {
            value.print(out, name, indent)?;
        }
        Ok(())
    }
}

impl fmt::Display for NvList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print(f, 0)
    }
}

fn items<T: fmt::Display>(out: &mut dyn Write, pad: &str, name: &str, v: &[T]) -> fmt::Result {
    for (i, x) in v.iter().enumerate() {
        writeln!(out, "{pad}{name}[{i}]: {x}")?;
    }
    Ok(())
}

impl NvValue {
    fn print(&self, out: &mut dyn Write, name: &str, indent: usize) -> fmt::Result {
        let pad = " ".repeat(indent);
        let line = |out: &mut dyn Write, v: &dyn fmt::Display| writeln!(out, "{pad}{name}: {v}");
        match self {
            NvValue::Boolean => writeln!(out, "{pad}{name}"),
            NvValue::Byte(v) | NvValue::Uint8(v) => line(out, v),
            NvValue::Int8(v) => line(out, v),
            NvValue::Int16(v) => line(out, v),
            NvValue::Uint16(v) => line(out, v),
            NvValue::Int32(v) => line(out, v),
            NvValue::Uint32(v) => line(out, v),
            NvValue::Int64(v) | NvValue::Hrtime(v) => line(out, v),
            NvValue::Uint64(v) => line(out, v),
            NvValue::Double(v) => line(out, v),
            NvValue::BooleanValue(v) => line(out, v),
            NvValue::String(v) => writeln!(out, "{pad}{name}: '{v}'"),
            NvValue::ByteArray(v) | NvValue::Uint8Array(v) => items(out, &pad, name, v),
            NvValue::Int8Array(v) => items(out, &pad, name, v),
            NvValue::Int16Array(v) => items(out, &pad, name, v),
            NvValue::Uint16Array(v) => items(out, &pad, name, v),
            NvValue::Int32Array(v) => items(out, &pad, name, v),
            NvValue::Uint32Array(v) => items(out, &pad, name, v),
            NvValue::Int64Array(v) => items(out, &pad, name, v),
            NvValue::Uint64Array(v) => items(out, &pad, name, v),
            NvValue::BooleanArray(v) => items(out, &pad, name, v),
            NvValue::StringArray(v) => {
                for (i, x) in v.iter().enumerate() {
                    writeln!(out, "{pad}{name}[{i}]: '{x}'")?;
                }
                Ok(())
            }
            NvValue::List(l) => {
                writeln!(out, "{pad}{name}:")?;
                l.print(out, indent + 4)
            }
            NvValue::ListArray(v) => {
                for (i, l) in v.iter().enumerate() {
                    writeln!(out, "{pad}{name}[{i}]:")?;
                    l.print(out, indent + 4)?;
                }
                Ok(())
            }
        }
    }
}
