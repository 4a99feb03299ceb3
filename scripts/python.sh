#!/usr/bin/env bash
# The Python package (python/).
#   scripts/python.sh               its tests, as `make test` runs them: its own, and a pool that
#                                   it leaves to zpool, zfs and zdb
#   scripts/python.sh build FOLDER  a release of it in a folder, which is then a PYTHONPATH
#   scripts/python.sh wheel         a wheel in target/wheels; maturin comes from PyPI, into a venv
#                                   below target
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh
need_to_build
need python3=python3
target=${CARGO_TARGET_DIR:-$top/target}

case ${1:-test} in
  test)
    need_fuse || say "/dev/fuse is missing or closed to $(id -un): tests that mount cannot run here"
    cargo build --workspace --locked --bins
    cargo test --workspace --locked --test python
    ;;
  build)
    [ $# = 2 ] || die 'say a folder'
    cargo build --release --locked --package zilla-python
    mkdir -p "$2/zilla"
    cp python/zilla/*.py python/zilla/*.pyi python/zilla/py.typed "$2/zilla"
    install -m 755 -s "$target/release/lib_zilla.so" "$2/zilla/_zilla.abi3.so"
    PYTHONPATH=$2 python3 -c 'import zilla'
    say "the package is in $2"
    ;;
  wheel)
    venv=$target/python-venv
    [ -x "$venv/bin/pip" ] || python3 -m venv "$venv" || die 'python3 makes no venv: install python3-venv'
    "$venv/bin/pip" install --quiet 'maturin>=1.8,<2'
    rm -rf "$target/wheels"
    "$venv/bin/maturin" build --release --locked --strip --manifest-path python/Cargo.toml \
      --out "$target/wheels"
    ls "$target/wheels"
    ;;
  *) die 'say nothing, build FOLDER or wheel' ;;
esac
