#!/usr/bin/env bash
# xfstests' fsx with all operations that FUSE has, as root: `scripts/fsx.sh [SECONDS]`, 900 by
# default, divided among file systems of record sizes 4K, 128K and 1M, with compressions and with
# encryption, by read and write, mmap, O_DIRECT and asynchronous I/O, and a volume's file. XFSTESTS
# is a built checkout of xfstests-dev. ZILLA_BIN is the folder of the programs (target/release),
# JUDGES_DISK a folder with some GB for the pool, SEED where to begin.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: volumes have files for root alone'
fsx=$(of_xfstests fsx)
bin=$(programs)
seconds=${1:-900}
seed=${SEED:-1}
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/fsx.XXXXXX")
export ZILLA_DIR=$disks/state
mkdir -p "$ZILLA_DIR" "$disks/mnt"
z() { "$bin/zilla" "$@"; }
for i in 1 2; do truncate -s 3G "$disks/disk$i"; done
z zpool create -m "$disks/mnt" -O acltype=posix examined mirror "$disks/disk1" "$disks/disk2"

runs=()
for recordsize in 4K 128K 1M; do
  for compression in off lz4 zstd gzip-1; do runs+=("$recordsize $compression off"); done
  runs+=("$recordsize lz4 aes-256-gcm")
done
# How it reads and writes, by turns; the bounds of a file are a few records.
ways=("-l 3000000 -o 600000" "-l 300000 -o 60000 -f" "-l 3000000 -o 400000 -Z -R -W -r 4096 -w 4096 -t 4096" "-l 1000000 -o 200000 -A" "-l 200000 -o 30000 -y -c 50")
each=$((seconds / (${#runs[@]} + 1)))
[ "$each" -gt 0 ] || each=1
failed=0
check() {
  local name=$1 file=$2
  shift 2
  if timeout $((each + 120)) "$fsx" -q -S "$seed" --duration="$each" "$@" -P "$disks" "$file" >"$disks/log.$name" 2>&1; then
    say "ok      $name, seed $seed: $*: $(tail -n 1 "$disks/log.$name")"
  else
    failed=$((failed + 1))
    say "FAILED  $name, seed $seed: $*: see $disks/log.$name"
    tail -n 30 "$disks/log.$name"
  fi
  seed=$((seed + 1))
}
at=0
for run in "${runs[@]}"; do
  read -r recordsize compression encryption <<<"$run"
  name=$recordsize-$compression-$encryption
  options=(-o recordsize="$recordsize" -o compression="$compression")
  [ "$encryption" = off ] || options+=(-o encryption="$encryption" -o keyformat=passphrase)
  echo 'a passphrase' | z zfs create "${options[@]}" "examined/$name" >/dev/null
  # shellcheck disable=SC2086
  check "$name" "$disks/mnt/$name/file" ${ways[$((at % ${#ways[@]}))]}
  at=$((at + 1))
done
# A volume's size is fixed: no operation that changes one. Its file is not mapped.
z zfs create -V 16M examined/volume
volume=$(z zvol files)/examined/volume
[ -e "$volume" ] || die "the volume has no file: $volume"
check volume "$volume" -L -k -R -W -l 16000000
z zpool scrub -w examined
z zpool status examined
z zpool export examined
all_blocks examined "$disks"
z stop >/dev/null
[ "$failed" = 0 ] || die "$failed runs failed"
rm -r "$disks"
say "fsx: ${#runs[@]} file systems and a volume, $each s each, without a finding"
