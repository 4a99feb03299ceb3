//! The project's own tools: `cargo xtask tidy | bench | sim`.
fn main() {
    eprintln!("usage: cargo xtask tidy");
    std::process::exit(2);
}
