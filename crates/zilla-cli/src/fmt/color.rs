//! Colours, where `ZFS_COLOR` asks for them and the output is a terminal that has them.

use std::io::IsTerminal;
use std::sync::OnceLock;

pub const BOLD: &str = "\x1b[1m";
pub const RED: &str = "\x1b[0;31m";
pub const YELLOW: &str = "\x1b[0;33m";
pub const BLUE: &str = "\x1b[0;34m";
pub const GREEN: &str = "\x1b[0;32m";
pub const BOLD_BLUE: &str = "\x1b[1;34m";
pub const RESET: &str = "\x1b[0m";

/// Whether the output is to be coloured.
pub fn wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    let set = |name: &str| std::env::var_os(name).is_some_and(|v| !v.is_empty() && v != "0");
    *WANTED.get_or_init(|| {
        let term = std::env::var("TERM").unwrap_or_default();
        set("ZFS_COLOR")
            && !set("NO_COLOR")
            && std::io::stdout().is_terminal()
            && !matches!(term.as_str(), "" | "dumb" | "unknown")
    })
}

/// `text` in `color`.
pub fn paint(color: Option<&str>, text: &str) -> String {
    match color {
        Some(color) if wanted() => format!("{color}{text}{RESET}"),
        _ => text.to_owned(),
    }
}

pub fn bold(text: &str) -> String {
    paint(Some(BOLD), text)
}

/// The colour of a state's row.
pub fn of_health(health: &str) -> Option<&'static str> {
    match health {
        "FAULTED" | "SUSPENDED" | "UNAVAIL" => Some(RED),
        "OFFLINE" | "DEGRADED" | "REMOVED" => Some(YELLOW),
        _ => None,
    }
}
