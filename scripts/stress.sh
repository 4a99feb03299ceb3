#!/usr/bin/env bash
# fsstress beside snapshots, rollbacks, scrubs and kills of the daemon, as root:
# `scripts/stress.sh [SECONDS]`, 600 by default. XFSTESTS is a built checkout of xfstests-dev, for
# its fsstress. ZILLA_BIN is the folder of the programs (target/release), JUDGES_DISK a folder with
# some GB for the pool, PROCESSES how many stress it (4), KILLS how often the daemon is killed (1),
# RECORDSIZE that of the file system. At the end zdb must find every block, and the daemon's memory
# must be back.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it makes devices and changes owners'
own_mounts "$0" "$@"
fsstress=$(of_xfstests fsstress)
bin=$(programs)
seconds=${1:-600}
kills=${KILLS:-1}
pool=stressed
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/stress.XXXXXX")
export ZILLA_DIR=$disks/state
mkdir -p "$ZILLA_DIR" "$disks/mnt"

# Whatever takes longer than this hangs.
LONGEST=120
z() { timeout "$LONGEST" "$bin/zilla" "$@"; }
ended() {
  local rc=$1
  shift
  [ "$rc" != 124 ] || hung "$*"
}
hung() {
  local pid
  pid=$(daemon)
  say "HANGS: $*; the daemon is $pid, its state in $ZILLA_DIR"
  for task in "/proc/$pid/task/"*; do
    printf '%s %s\n' "$(cat "$task/comm")" "$(cat "$task/wchan" 2>/dev/null)"
  done | sort | uniq -c
  exit 1
}
must() {
  local rc=0
  z "$@" || rc=$?
  ended "$rc" "$*"
  [ "$rc" = 0 ] || die "failed with $rc: $*"
}
daemon() { cat "$ZILLA_DIR/zillad.pid" 2>/dev/null; }
rss() { awk '/^VmRSS/ { print $2 / 1024 " MiB" }' "/proc/$(daemon)/status"; }
mounted() { timeout 10 mountpoint -q "$disks/mnt/$1"; }

size=${SIZE:-1G}
for i in 1 2 3; do truncate -s "$size" "$disks/disk$i"; done
must zpool create -f -m "$disks/mnt" -O recordsize="${RECORDSIZE:-128K}" -O compression="${COMPRESSION:-on}" -O acltype=posix \
  "$pool" raidz1 "$disks/disk1" "$disks/disk2" "$disks/disk3"
must zfs create "$pool/a"
must zfs create "$pool/b"
say "begin: the daemon has $(rss)"

workers=()
stop=$disks/stop
# However this ends, they end.
trap 'touch "$stop"' EXIT
# fsstress on a file system, begun anew when it ends, as it does where the daemon is killed.
stress() {
  local seed=$2
  while [ ! -e "$stop" ]; do
    if mounted "$1"; then
      mkdir -p "$disks/mnt/$1/s" 2>/dev/null || true
      seed=$((seed + 1))
      timeout $((seconds + LONGEST)) "$fsstress" -d "$disks/mnt/$1/s" -p "${PROCESSES:-4}" -n 2000 -s "$seed" >/dev/null 2>&1 || true
    fi
    sleep 0.2
  done
}
# Snapshots are taken, mounted, destroyed and rolled back to.
snapshots() {
  local n=0 rc
  while [ ! -e "$stop" ]; do
    n=$((n + 1))
    z zfs snapshot "$pool/b@$n" >/dev/null 2>&1 && rc=0 || rc=$?
    ended $rc "snapshot $n"
    ls "$disks/mnt/b/.zfs/snapshot/$n" >/dev/null 2>&1 || true
    sleep 1
    if [ $((n % 3)) = 0 ]; then z zfs rollback -r "$pool/b@$n" >/dev/null 2>&1 && rc=0 || rc=$?; ended $rc "rollback $n"; fi
    if [ "$n" -gt 5 ]; then z zfs destroy "$pool/b@$((n - 5))" >/dev/null 2>&1 && rc=0 || rc=$?; ended $rc "destroy"; fi
  done
}
scrubs() {
  local rc
  while [ ! -e "$stop" ]; do
    z zpool scrub "$pool" >/dev/null 2>&1 && rc=0 || rc=$?
    ended $rc scrub
    sleep 7
  done
}
stress a 1000 & workers+=($!)
stress b 2000 & workers+=($!)
snapshots & workers+=($!)
scrubs & workers+=($!)

begun=$SECONDS
killed=0
while [ $((SECONDS - begun)) -lt "$seconds" ]; do
  sleep 5
  for worker in "${workers[@]}"; do kill -0 "$worker" 2>/dev/null || die "a worker ended: see above"; done
  if [ "$killed" -lt "$kills" ] && [ $((SECONDS - begun)) -ge $(((killed + 1) * seconds / (kills + 1))) ]; then
    killed=$((killed + 1))
    say "$((SECONDS - begun)) s: the daemon has $(rss) and is killed"
    pid=$(daemon)
    kill -9 "$pid"
    for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    [ ! -e "/proc/$pid" ] || die "process $pid survives SIGKILL"
    # The next command starts it again, and it mounts where it was mounted.
    z zpool list "$pool" || die 'the pool is not there after the kill'
    z zfs mount -a || true
    # (A rollback takes b away for a moment.)
    for fs in a b; do
      for _ in $(seq 50); do
        if mounted "$fs"; then break; fi
        sleep 0.2
      done
      mounted "$fs" || die "$fs is not mounted after the kill"
    done
  fi
done
touch "$stop"
for worker in "${workers[@]}"; do
  for _ in $(seq $((LONGEST * 10))); do kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
  ! kill -0 "$worker" 2>/dev/null || hung 'fsstress does not end'
done
say "end: the daemon has $(rss)"
must zpool sync "$pool"
must zpool wait -t scrub "$pool"
must zpool scrub -w "$pool"
must zpool status "$pool"
must zpool export "$pool"
say "exported: the daemon has $(rss)"
all_blocks "$pool" "$disks"
must zpool import -d "$disks" "$pool"
for fs in a b; do timeout 600 rm -rf "$disks/mnt/$fs/s" || die "rm of $fs"; done
for snap in $(z zfs list -H -o name -t snapshot -r "$pool"); do must zfs destroy "$snap"; done
must zpool sync "$pool"
say "all removed: the daemon has $(rss)"
must zpool export "$pool"
all_blocks "$pool" "$disks"
z stop >/dev/null
trap - EXIT
rm -r "$disks"
say "stress: $seconds s and $killed kills without a finding"
