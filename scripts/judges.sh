#!/usr/bin/env bash
# The long proofs, as root: 200 kills, memory under abuse for two minutes each, 100 kills under
# databases, pjdfstest, fsx, the bugs planted for the simulator, the whole corpus, 100,000 names,
# the package on a clean Debian, disks that are pulled and given back (50 runs), volumes (100 kills
# under file systems on them, others' NBD clients for an hour, a Debian system that boots from one),
# and OpenZFS's kernel module in a virtual machine.
# Hours on two cores. `scripts/judges.sh kill|memory|databases|posix|planted|corpus|debian|pulled|volumes|oracle`
# runs one.
# Where XFSTESTS names a built checkout of xfstests-dev, also its programs on a release build
# (xfstests.sh, stress.sh, full.sh, fsx.sh): `... xfstests|stress`.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh
need_to_build
need zstd=zstd tar=tar setfattr=attr setfacl=acl sqlite3=sqlite3
need_fuse || die '/dev/fuse is missing'
export CI=1
which=${1:-all}
wants() { [ "$which" = all ] || [ "$which" = "$1" ]; }
out=${JUDGES_OUT:-${CARGO_TARGET_DIR:-$top/target}/judges}
mkdir -p "$out"

cargo build --workspace --bins --locked
if wants kill; then
  ZILLA_KILLS=${ZILLA_KILLS:-200} cargo test --locked -p zilla-e2e --test kill -- --nocapture
fi
if wants memory; then
  ZILLA_MEMORY_SECONDS=${ZILLA_MEMORY_SECONDS:-120} cargo test --locked -p zilla --test memory -- --nocapture
fi
if wants databases; then
  need pg_ctlcluster=postgresql
  ZILLA_KILLS=${ZILLA_KILLS:-100} cargo test --locked -p zilla-e2e --test databases -- --include-ignored --nocapture --test-threads 1
fi
if wants posix; then
  have pjdfstest || cargo install --locked pjdfstest
  have fsx || cargo install --locked fsx
  cargo test --locked -p zilla-e2e --test posix -- --ignored --nocapture
fi
if [ -n "${XFSTESTS:-}" ] && { wants xfstests || wants stress; }; then
  cargo build --release --locked -p zilla-cli
  export JUDGES_OUT=$out
  if wants stress; then
    KILLS=10 scripts/stress.sh 1800
    for size in 512 16M; do RECORDSIZE=$size KILLS=10 scripts/stress.sh 600; done
    scripts/full.sh 20 120
    scripts/fsx.sh 3600
  fi
  if wants xfstests; then scripts/xfstests.sh -g auto; fi
elif [ "$which" = xfstests ] || [ "$which" = stress ]; then
  die 'XFSTESTS is not set: it names a built checkout of xfstests-dev'
fi
if wants planted; then
  # The simulator finds the bugs that are planted for it: a build of its own, so that nothing else has them.
  cargo test --locked -p zilla-sim --features planted --test planted --test returning
fi
if wants corpus; then
  cargo test --locked -p zilla-interop -- --nocapture
  ZILLA_NAMES=100000 cargo test --locked -p zilla-e2e --test names -- --nocapture
fi
if wants debian; then
  # The package of this build on a clean Debian, with a network.
  BUILT=${CARGO_TARGET_DIR:-target}/debug/zilla OUT=$out/packages XZ_LEVEL=0 packaging/package deb
  scripts/debian.sh "$(find "$out/packages" -name 'zilla_*.deb')"
fi
if wants pulled; then
  ZILLA_BIN=${ZILLA_BIN:-${CARGO_TARGET_DIR:-$top/target}/debug} scripts/pulled.sh 50
fi
if wants volumes; then
  export ZILLA_BIN=${ZILLA_BIN:-${CARGO_TARGET_DIR:-$top/target}/debug}
  scripts/volumes.sh 100
  scripts/nbd.sh 3600
  scripts/guest.sh 10
fi
if wants oracle; then
  oracle=${ZILLA_ORACLE:-../shared/judges/oracle}
  [ -x "$oracle/oracle" ] || die "OpenZFS's virtual machine is not at $oracle"
  vm=${ZILLA_ORACLE_VM:-$out/vm}
  [ -e "$vm/root.img" ] || "$oracle/oracle" build "$vm"
  # Makes a pool of every kind, keeps images and expectation, and after OpenZFS has written to it imports it again.
  ZILLA_ORACLE=$(cd "$oracle" && pwd) ZILLA_ORACLE_VM=$(cd "$vm" && pwd)
  export ZILLA_ORACLE ZILLA_ORACLE_VM ZILLA_BIN=${ZILLA_BIN:-${CARGO_TARGET_DIR:-$top/target}/debug}
  cargo test --locked -p zilla-interop --test oracle -- --ignored --nocapture --test-threads 1
  scripts/exchange.sh
  scripts/caches.sh
fi
say "judges: $which passed; see $out"
