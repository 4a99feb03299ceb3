//! `zilla`: see the library.

fn main() -> std::process::ExitCode {
    zilla_cli::main()
}
