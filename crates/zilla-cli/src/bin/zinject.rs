//! `zinject`: see `launch.rs`.

#[path = "../launch.rs"]
mod launch;

fn main() -> std::process::ExitCode {
    launch::launch("zinject")
}
