#!/usr/bin/env bash
# The quick rings, for every change: formatting, house style, and the tests inside the crates (units, models, parsers). They need no
# FUSE, no root and no judges. `make lint` and `make test` are what a commit has to pass.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh
need_to_build

cargo fmt --all --check
cargo xtask tidy | grep -v '^warning: '
cargo test --workspace --lib --bins --locked "$@"
