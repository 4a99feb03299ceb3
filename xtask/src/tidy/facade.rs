//! The facade is where the engine ends: the engine's handles do not get out through it, and what
//! stands on the facade does not go past it.
//!
//! [`super::layers`] refuses servers a dependency on the engine. A server could still reach the
//! engine if the facade gave out the engine's own structures, or by the facade's module for tests
//! of the engine, which a build of the whole workspace switches on. So the facade's `pub use` of
//! the engine names things one by one, and none of those by which the engine works; and no server
//! names that module.

use super::Finding;
use super::layers::ON_THE_FACADE;
use super::tree::Source;

const FACADE: &str = "crates/zilla/src/";

/// The facade's module for who works on the engine.
const FOR_TESTS: &str = "zilla::engine";
const FOR_TESTS_FILE: &str = "crates/zilla/src/engine.rs";

/// By these the engine is driven.
const HANDLES: &[&str] = &[
    "Spa",
    "PoolCtx",
    "DslPool",
    "DslDataset",
    "DslDir",
    "LongHold",
    "Zap",
    "Tx",
    "TxgState",
    "Objset",
    "Dnode",
    "DbufCache",
    "Metaslabs",
    "Vdev",
    "VdevTree",
    "Top",
    "Leaf",
    "Zio",
    "Cache",
    "Scan",
    "Receive",
    "Heal",
    "Tracer",
    "Zvol",
    "Zilog",
];

pub fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        let folder = source.path.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
        if folder.is_some_and(|(name, rest)| ON_THE_FACADE.contains(&name) && rest.starts_with("src/")) {
            for (number, _) in source.product_lines().into_iter().filter(|(_, line)| line.contains(FOR_TESTS))
            {
                let what = format!("`{FOR_TESTS}` is for tests of the engine");
                findings.push(Finding::error(format!("{}:{number}", source.path), what));
            }
        }
        if source.path.starts_with(FACADE) && source.path != FOR_TESTS_FILE {
            findings.extend(given_out(source));
        }
    }
    findings
}

/// What a file of the facade gives out of the engine and should not.
fn given_out(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    let (mut begun, mut text) = (0, String::new());
    for (number, line) in source.product_lines() {
        if text.is_empty() && !line.trim_start().starts_with("pub use zilla_core::") {
            continue;
        }
        if text.is_empty() {
            begun = number;
        }
        text.push_str(line);
        text.push(' ');
        if !line.contains(';') {
            continue;
        }
        let whole = std::mem::take(&mut text);
        let names = whole.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '*');
        let last = whole.rsplit("::").next().unwrap_or_default().trim_end_matches([';', ' ']);
        let whole_module = !last.contains('{') && last.starts_with(|c: char| c.is_ascii_lowercase());
        for name in names.filter(|n| HANDLES.contains(n) || *n == "*" || *n == "self") {
            let what =
                format!("`{name}` of the engine is given out by the facade: wrap what is needed of it");
            findings.push(Finding::error(format!("{}:{begun}", source.path), what));
        }
        // Functions have small letters too, but not at the engine's root.
        if whole_module && whole.matches("::").count() == 1 {
            let what = "a whole module of the engine is given out by the facade: name what is needed of it";
            findings.push(Finding::error(format!("{}:{begun}", source.path), what));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> usize {
        check(&[Source::new(path, text)]).len()
    }

    #[test]
    fn the_engine_s_handles_stay_inside() {
        let facade = "crates/zilla/src/a.rs";
        assert_eq!(found(facade, "pub use zilla_core::spa::{\n    FoundPool,\n    Rank,\n};\n"), 0);
        assert_eq!(found(facade, "pub use zilla_core::vdev::probe;\n"), 0);
        assert_eq!(found(facade, "pub use zilla_core::spa::{\n    FoundPool,\n    Spa,\n};\n"), 1);
        assert_eq!(found(facade, "pub use zilla_core::dsl::DslPool;\n"), 1);
        assert_eq!(found(facade, "pub use zilla_core::zpl::*;\n"), 1);
        assert_eq!(found(facade, "pub use zilla_core::zpl;\n"), 1);
        assert_eq!(found(facade, "use zilla_core::spa::Spa;\n"), 0);
    }

    #[test]
    fn what_is_for_tests_is_not_for_servers() {
        let text = "fn f() {\n    zilla::engine::open_zfs();\n}\n";
        assert_eq!(found("crates/zilla-daemon/src/a.rs", text), 1);
        assert_eq!(found("crates/zilla-sim/src/a.rs", text), 0);
        assert_eq!(found("crates/zilla-nbd/tests/a.rs", text), 0);
    }
}
