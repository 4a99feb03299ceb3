//! Handlers as OpenZFS prints them.

use super::words::{FAILURES, IO_TYPES, MOS, word};
use std::fmt::Write;
use zilla_control::types::{InjectFault, InjectHandler};

/// What is said of a handler that was just added.
pub fn added(h: &InjectHandler) -> String {
    let mut text = format!("Added handler {} with the following properties:\n  pool: {}\n", h.id, h.pool);
    match &h.fault {
        InjectFault::Device { guid, .. } | InjectFault::Delay { guid, .. } => {
            let _ = writeln!(text, "  vdev: {guid:x}");
        }
        InjectFault::Pause { seconds, .. } => {
            let _ = writeln!(text, " time: {seconds} seconds");
        }
        _ => {
            let row = Row::of(h);
            let _ = write!(
                text,
                "objset: {}\nobject: {}\n  type: {}\n level: {}\n",
                row.objset, row.object, row.number, row.level
            );
            match (row.first, row.last) {
                (0, u64::MAX) => text.push_str(" range: all\n"),
                (first, last) => {
                    let _ = writeln!(text, " range: [{first}, {})", last.saturating_add(1));
                }
            }
            let _ = writeln!(text, "  dvas: {:#x}", row.copies);
        }
    }
    text
}

/// A handler of data, as a row of its table.
struct Row {
    objset: u64,
    object: u64,
    kind: &'static str,
    /// The type's number.
    number: u8,
    level: u32,
    copies: u32,
    first: u64,
    last: u64,
}

impl Row {
    fn of(h: &InjectHandler) -> Row {
        let mut row =
            Row { objset: 0, object: 0, kind: "-", number: 0, level: 0, copies: 0, first: 0, last: u64::MAX };
        match &h.fault {
            InjectFault::Blocks { at, copies, .. } => {
                (row.objset, row.object, row.level) = (at.objset, at.object, at.level);
                (row.copies, row.first, row.last) = (*copies, at.first, at.last);
            }
            InjectFault::Mos { kind, .. } => {
                use zilla_control::types::InjectMos::*;
                row.kind = word(MOS, *kind);
                row.number = match kind {
                    Mos => 0,
                    Mosdir => 1,
                    Metaslab => 2,
                    Config => 3,
                    Bpobj => 5,
                    Spacemap => 8,
                    Errlog => 28,
                };
            }
            _ => {}
        }
        row
    }
}

/// All handlers, a table for each kind. Empty: there are none.
pub fn tables(all: &[InjectHandler]) -> String {
    let (mut devices, mut delays, mut data, mut pauses) = Default::default();
    for h in all {
        let (id, pool) = (h.id, &h.pool);
        let list: &mut String = match &h.fault {
            InjectFault::Device { .. } => &mut devices,
            InjectFault::Delay { .. } => &mut delays,
            InjectFault::Pause { .. } => &mut pauses,
            _ => &mut data,
        };
        let _ = match &h.fault {
            InjectFault::Device { guid, failure, io, .. } => {
                let (io, failure) = (word(IO_TYPES, *io), word(FAILURES, *failure));
                let percent = h.frequency.map_or(100.0, |n| f64::from(n) / f64::from(u32::MAX) * 100.0);
                writeln!(list, "{id:>3}  {pool:<15}  {guid:x}  {io:<5}  {failure:<10}  {percent:>8.4}%")
            }
            InjectFault::Delay { guid, nanoseconds, lanes, .. } => {
                writeln!(list, "{id:>3}  {pool:<15}  {:<15}  {lanes:<15}  {guid:x}", nanoseconds / 1_000_000)
            }
            InjectFault::Pause { import, seconds } => {
                let command = if *import { "import" } else { "export" };
                writeln!(list, "{id:>3}  {pool:<19}  {seconds:<11}  {command}")
            }
            _ => {
                let r = Row::of(h);
                let range = match (r.first, r.last) {
                    (0, u64::MAX) => "all".to_owned(),
                    (first, last) => format!("[{first}, {last}]"),
                };
                writeln!(
                    list,
                    "{id:>3}  {pool:<15}  {:<6}  {:<6}  {:<8}  {:<3}  {:#04x}  {range}",
                    r.objset, r.object, r.kind, r.level, r.copies
                )
            }
        };
    }
    let tables = [
        (
            devices,
            format!(
                "{:>3}  {:<15}  {:<16}  {:<5}  {:<10}  {:<9}",
                "ID", "POOL", "GUID", "TYPE", "ERROR", "FREQ"
            ),
            "---  ---------------  ----------------  -----  ----------  ---------",
        ),
        (
            delays,
            format!("{:>3}  {:<15}  {:<15}  {:<15}  {}", "ID", "POOL", "DELAY (ms)", "LANES", "GUID"),
            "---  ---------------  ---------------  ---------------  ----------------",
        ),
        (
            data,
            format!(
                "{:>3}  {:<15}  {:<6}  {:<6}  {:<8}  {:>3}  {:<4}  {:<15}",
                "ID", "POOL", "OBJSET", "OBJECT", "TYPE", "LVL", "DVAs", "RANGE"
            ),
            "---  ---------------  ------  ------  --------  ---  ----  ---------------",
        ),
        (
            pauses,
            format!("{:>3}  {:<19}  {:<11}  {}", "ID", "POOL", "DELAY (sec)", "COMMAND"),
            "---  -------------------  -----------  -------",
        ),
    ];
    let mut text = String::new();
    for (rows, head, rule) in tables.iter().filter(|(rows, ..)| !rows.is_empty()) {
        let _ = write!(text, "{head}\n{rule}\n{rows}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use zilla_control::types::{InjectBlocks, InjectFailure, InjectIo};

    fn handler(fault: InjectFault) -> InjectHandler {
        InjectHandler { id: 3, pool: "tank".to_owned(), fault, frequency: Some(u32::MAX / 2) }
    }

    #[test]
    fn tables_are_openzfs_s() {
        assert_eq!(tables(&[]), "");
        let io = InjectFault::Device {
            guid: 0x1234_5678_9abc_def0,
            label: None,
            failure: InjectFailure::Io,
            io: InjectIo::Read,
            fail_fast: false,
        };
        let delay = InjectFault::Delay { guid: 0xab, nanoseconds: 10_000_000, lanes: 2, io: InjectIo::All };
        let text = tables(&[handler(io), handler(delay)]);
        let expected = " ID  POOL             GUID              TYPE   ERROR       FREQ     
---  ---------------  ----------------  -----  ----------  ---------
  3  tank             123456789abcdef0  read   io           50.0000%

 ID  POOL             DELAY (ms)       LANES            GUID
---  ---------------  ---------------  ---------------  ----------------
  3  tank             10               2                ab

";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_was_added_is_said() {
        let at = InjectBlocks { objset: 54, object: 2, level: 0, first: 0, last: u64::MAX };
        let all = handler(InjectFault::Blocks { at: at.clone(), copies: 3, failure: InjectFailure::Io });
        let text = "Added handler 3 with the following properties:
  pool: tank
objset: 54
object: 2
  type: 0
 level: 0
 range: all
  dvas: 0x3
";
        assert_eq!(added(&all), text);
        let some = InjectBlocks { first: 1, last: 2, ..at };
        let some = handler(InjectFault::Blocks { at: some, copies: 0, failure: InjectFailure::Io });
        assert!(added(&some).contains(" range: [1, 3)\n  dvas: 0x0\n"));
        assert!(
            tables(&[some])
                .ends_with("  3  tank             54      2       -         0    0x00  [1, 2]\n\n")
        );
    }
}
