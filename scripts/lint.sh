#!/usr/bin/env bash
# Formatting, clippy, house style, licenses: everything that needs no test to run.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh
need_to_build

cargo fmt --all --check
cargo clippy --workspace --all-targets --locked -- -D warnings
cargo xtask tidy
# Building it takes minutes, once; unoptimised is enough. In CI it must be there.
if ! cargo deny --version >/dev/null 2>&1; then
  if [ -n "${CI:-}" ] || [ -n "${INSTALL_CARGO_DENY:-}" ]; then
    say 'installing cargo-deny'
    cargo install --quiet --locked --debug cargo-deny
  else
    say 'cargo-deny is not installed (cargo install cargo-deny): tidy has checked licenses and sources, bans were not checked'
    exit 0
  fi
fi
cargo deny --log-level error check bans licenses sources
