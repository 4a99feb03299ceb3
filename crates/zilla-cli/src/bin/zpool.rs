//! `zpool`: see the library.

fn main() -> std::process::ExitCode {
    zilla_cli::run(zilla_cli::zpool::main)
}
