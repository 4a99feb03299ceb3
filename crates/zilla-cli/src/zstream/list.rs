//! The list that a package's BEGIN carries, as `nvlist_print` of OpenZFS's libnvpair shows it.

use std::fmt::Write;
use zilla_ondisk::{NvList, NvValue};

/// Appends a list, so many tabs in.
pub fn print(out: &mut String, list: &NvList, depth: usize) {
    let tabs = "\t".repeat(depth);
    // Writing to a string does not fail.
    let _ = writeln!(out, "{tabs}nvlist version: 0");
    for (name, value) in list.iter() {
        let _ = match value {
            NvValue::List(inner) => {
                let _ = writeln!(out, "{tabs}\t{name} = (embedded nvlist)");
                print(out, inner, depth + 1);
                writeln!(out, "{tabs}\t(end {name})\n")
            }
            NvValue::ListArray(all) => {
                let _ = writeln!(out, "{tabs}\t{name} = (array of embedded nvlists)");
                for (i, inner) in all.iter().enumerate() {
                    let _ = writeln!(out, "{tabs}\t(start {name}[{i}])");
                    print(out, inner, depth + 1);
                    let _ = writeln!(out, "{tabs}\t(end {name}[{i}])");
                }
                Ok(())
            }
            _ => writeln!(out, "{tabs}\t{name} = {}", text(value)),
        };
    }
}

fn hex<T: std::fmt::LowerHex>(all: &[T]) -> String {
    all.iter().map(|n| format!("0x{n:x}")).collect::<Vec<_>>().join(" ")
}

fn decimal<T: ToString>(all: &[T]) -> String {
    all.iter().map(T::to_string).collect::<Vec<_>>().join(" ")
}

/// Numbers without a sign in hexadecimal, with one in decimal.
fn text(value: &NvValue) -> String {
    match value {
        NvValue::Boolean => "1".into(),
        NvValue::BooleanValue(b) => u8::from(*b).to_string(),
        NvValue::Byte(n) | NvValue::Uint8(n) => format!("0x{n:x}"),
        NvValue::Uint16(n) => format!("0x{n:x}"),
        NvValue::Uint32(n) => format!("0x{n:x}"),
        NvValue::Uint64(n) => format!("0x{n:x}"),
        NvValue::Int8(n) => n.to_string(),
        NvValue::Int16(n) => n.to_string(),
        NvValue::Int32(n) => n.to_string(),
        NvValue::Int64(n) => n.to_string(),
        NvValue::Hrtime(n) => format!("0x{n:x}"),
        NvValue::Double(n) => format!("0x{n:.6}"),
        NvValue::String(s) => s.clone(),
        NvValue::StringArray(all) => all.join(" "),
        NvValue::BooleanArray(all) => {
            all.iter().map(|b| if *b { "1" } else { "0" }).collect::<Vec<_>>().join(" ")
        }
        NvValue::ByteArray(all) | NvValue::Uint8Array(all) => hex(all),
        NvValue::Uint16Array(all) => hex(all),
        NvValue::Uint32Array(all) => hex(all),
        NvValue::Uint64Array(all) => hex(all),
        NvValue::Int8Array(all) => decimal(all),
        NvValue::Int16Array(all) => decimal(all),
        NvValue::Int32Array(all) => decimal(all),
        NvValue::Int64Array(all) => decimal(all),
        NvValue::List(_) | NvValue::ListArray(_) => String::new(),
    }
}
