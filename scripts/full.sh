#!/usr/bin/env bash
# Work on pools that are nearly full, as root: `scripts/full.sh [RUNS] [SECONDS]`, 20 runs of 120
# seconds by default, pools of 300 MB to 3 GB of five shapes, every record size, compression,
# deduplication, copies, encryption, every second one with a kill of the daemon in the middle.
# Files are written until there is no space, some are removed, others are fsynced and remembered,
# beside fsstress. The pool must stay ONLINE, what was fsynced must be there after the kill and
# after an import, and `rm` must give all space back; zdb must find every block of the full pool
# and of the empty one. XFSTESTS is a built checkout of xfstests-dev, for its fsstress. ZILLA_BIN
# is the folder of the programs (target/release), JUDGES_DISK a folder with some GB for the pools,
# JOBS how many runs go at a time (1), FIRST the first of them (1).
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: fsstress makes devices and changes owners'
own_mounts "$0" "$@"
fsstress=$(of_xfstests fsstress)
bin=$(programs)
runs=${1:-20}
seconds=${2:-120}
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/full.XXXXXX")
z() { timeout 300 "$bin/zilla" "$@"; }

# MB, shape, record size, compression, further options of the pool.
kinds=(
  "300 single 128K on"
  "500 mirror 16M off"
  "3000 raidz1 128K on"
  "1000 stripe 512 off"
  "700 single 1M zstd"
  "300 raidz1 128K off"
  "2000 single 16M on"
  "400 mirror 4K on"
  "1500 raidz1 1M off"
  "600 stripe 128K lz4"
  "3000 single 128K off -O dedup=on"
  "300 mirror 512 on"
  "800 raidz1 16M off"
  "1200 single 4K off -O copies=2"
  "500 stripe 1M on"
  "2500 mirror 128K zstd"
  "350 single 16M on"
  "900 raidz1 512 on"
  "650 single 128K off -O encryption=on -O keyformat=hex -O keylocation=file://$disks/key"
  "1800 stripe 16M off"
)
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' >"$disks/key"

available() { z zfs get -Hp -o value available "$pool"; }
online() {
  local health
  health=$(z zpool list -H -o health "$pool") || return 1
  [ "$health" = ONLINE ] || { z zpool status "$pool"; return 1; }
}
# What was fsynced is there, as it was.
kept() { (cd "$mount/ack" && timeout 300 sha256sum --quiet --strict -c "$at/sums" >"$at/missing" 2>&1) || { head "$at/missing"; return 1; }; }

# Files that are fsynced and remembered: a few before the pool is full, so that there are some.
acknowledge() {
  local i=0 file=$mount/ack
  while [ ! -e "$stop" ]; do
    i=$((i + 1))
    head -c $((1 + (i * 7919 * 13) % 300000)) /dev/urandom >"$at/source"
    if dd if="$at/source" of="$file/$i" bs=64k conv=fsync status=none 2>>"$at/errors"; then
      printf '%s  %s\n' "$(sha256sum <"$at/source" | cut -d' ' -f1)" "$i" >>"$at/sums"
    else rm -f "$file/$i" 2>>"$at/errors" || true; fi
    sleep 0.3
  done
}
# Writes until there is no space, then removes some.
fill() {
  local i=0 old
  while [ ! -e "$stop" ]; do
    i=$((i + 1))
    dd if=/dev/urandom of="$mount/fill/$i" bs=1M count=$((1 + RANDOM % 60)) status=none 2>>"$at/errors" && continue
    for old in $(find "$mount/fill" -type f 2>>"$at/errors" | shuf -n 2); do
      rm -f "$old" 2>>"$at/refused" || true
    done
    sleep 0.5
  done
}
stress() {
  local seed=$1
  while [ ! -e "$stop" ]; do
    seed=$((seed + 1))
    mkdir -p "$mount/stress/$1" 2>/dev/null || true
    timeout 60 "$fsstress" -d "$mount/stress/$1" -p 2 -n 3000 -s "$seed" >/dev/null 2>&1 || true
    sleep 0.2
  done
}
workers_end() {
  local worker
  touch "$stop"
  for worker in "${workers[@]}"; do
    for _ in $(seq 1800); do kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$worker" 2>/dev/null || die "$pool: work hangs ($worker)"
  done
}

run() {
  local number=$1 size=$2 shape=$3 recordsize=$4 compression=$5 sides=1 words=() devices=() i
  shift 5
  pool=full$number at=$disks/$number mount=$disks/$number/mnt/fs stop=$disks/$number/stop workers=()
  export ZILLA_DIR=$at/state
  mkdir -p "$at/disks" "$at/mnt" "$ZILLA_DIR"
  case $shape in
    mirror) sides=2 words=(mirror) ;;
    raidz1) sides=3 words=(raidz1) size=$((size / 2)) ;;
    stripe) sides=2 size=$((size / 2)) ;;
  esac
  for i in $(seq $sides); do truncate -s "${size}M" "$at/disks/$i"; devices+=("$at/disks/$i"); done
  z zpool create -f -m "$at/mnt" -O recordsize="$recordsize" -O compression="$compression" \
    -O acltype=posix -O xattr=sa "$@" "$pool" "${words[@]}" "${devices[@]}"
  z zfs create "$pool/fs"
  mkdir "$mount/ack" "$mount/stress" "$mount/fill"
  local fresh full=0 polls=0 killed begun pid
  fresh=$(available)
  : >"$at/sums"
  acknowledge & workers+=($!)
  sleep 3
  # Most of it at once, in parts that can be removed one by one.
  for i in $(seq 17); do dd if=/dev/urandom of="$mount/fill/before$i" bs=64K count=$((fresh / 20 / 65536)) status=none 2>>"$at/errors" || true; done
  fill & workers+=($!)
  stress 1000 & workers+=($!)
  stress 2000 & workers+=($!)
  killed=$((number % 2)) begun=$SECONDS
  while [ $((SECONDS - begun)) -lt "$seconds" ]; do
    sleep 3
    polls=$((polls + 1))
    online || die "$pool is not ONLINE"
    [ "$(available)" -ge $((fresh / 20)) ] || full=$((full + 1))
    if [ $killed = 0 ] && [ $((SECONDS - begun)) -gt $((seconds / 2)) ]; then
      killed=1
      pid=$(cat "$ZILLA_DIR/zillad.pid")
      kill -9 "$pid"
      for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
      [ ! -e "/proc/$pid" ] || die "$pool: process $pid survives SIGKILL"
      z zpool list "$pool" >/dev/null || die "$pool is not there after the kill"
      z zfs mount -a -l || true
    fi
  done
  workers_end
  [ $full -gt 0 ] || die "$pool was never full"
  [ -s "$at/sums" ] || die "$pool: nothing was fsynced"
  # (Those under way when the daemon is killed are told so.)
  ! grep -vE 'connection abort|not connected' "$at/refused" || die "$pool: rm is refused"
  kept || die "$pool: what was fsynced is not there"
  healthy "$pool" "$at/disks"
  z zpool import -l -d "$at/disks" "$pool"
  online || die "$pool is not ONLINE after an import"
  kept || die "$pool: what was fsynced is not there after an import"
  timeout 600 rm -rf "$mount/stress" "$mount/fill" "$mount/ack" || die "$pool: rm"
  for _ in $(seq 20); do
    z zpool sync "$pool"
    [ "$(available)" -lt $((fresh * 97 / 100)) ] || break
    sleep 1
  done
  [ "$(available)" -ge $((fresh * 95 / 100)) ] || die "$pool: rm does not free: $(available) of $fresh bytes"
  z zpool export "$pool"
  z stop >/dev/null
  all_blocks "$pool" "$at/disks"
  say "ok      $number: $shape of $size MB a side, $recordsize, $compression $*: full in $full of $polls looks, $(grep -c 'No space' "$at/errors") times no space, $(wc -l <"$at/sums") files fsynced"
  rm -r "$at"
}

failed=0 going=0
for number in $(seq "${FIRST:-1}" $((${FIRST:-1} + runs - 1))); do
  # shellcheck disable=SC2086 # words of a kind
  (trap '[ $? = 0 ] || say "FAILED  $number: see $disks/$number"' EXIT
   run "$number" ${kinds[$(((number - 1) % ${#kinds[@]}))]}) &
  going=$((going + 1))
  if [ $going -ge "${JOBS:-1}" ]; then wait -n || failed=$((failed + 1)); going=$((going - 1)); fi
done
while [ $going -gt 0 ]; do wait -n || failed=$((failed + 1)); going=$((going - 1)); done
[ $failed = 0 ] || die "$failed of $runs runs failed"
rm -r "$disks"
say "full: $runs runs of $seconds s without a finding"
