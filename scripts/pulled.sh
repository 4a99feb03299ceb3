#!/usr/bin/env bash
# Disks that are pulled and given back, as root: `scripts/pulled.sh [RUNS]`, 10 by default (the long
# form is 50). Each run makes a pool of another shape on loop devices, writes files with fsync, has
# the pool at something (nothing, a scrub, a disk replaced, another attached, a vdev removed, a RAID-Z
# expanded, exports and imports), and in the midst pulls a device, all of a vdev's, the log, or kills
# the daemon; and gives it back. A pulled device is there, but answers every request with an error: it
# is made as short as a sector. Then the pool must become whole by itself, or by `zpool clear` where it
# is suspended; every fsynced file must be there, also when any one device that the pool's shape can
# spare is left away at an import; and zdb must find every block. ZILLA_BIN is the folder of the
# programs (target/release), JUDGES_DISK a folder with some GB, SEED where to begin.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it makes block devices, and mounts'
own_mounts "$0" "$@"
need losetup=mount zdb=zfsutils-linux python3=python3
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
runs=${1:-10}
seed=${SEED:-1}
pool=pulled$$
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/pulled.XXXXXX")
export ZILLA_DIR=$disks/state
mkdir -p "$ZILLA_DIR" "$disks/mnt" "$disks/img" "$disks/devices"
z() { timeout 180 "$bin/zilla" "$@"; }

finish() {
  touch "$disks/stop"
  umount -l "$disks/mnt/$pool" 2>/dev/null || true
  z stop >/dev/null 2>&1 || true
  local loop
  for loop in $(losetup -nlO NAME,BACK-FILE | awk -v d="$disks/" 'index($2, d) == 1 {print $1}'); do
    losetup -d "$loop" || true
  done
}
trap finish EXIT

# sized DEVICE BYTES: a loop device shows only so many bytes of its file; 0: all of them.
sized() {
  python3 - "$1" "$2" <<'PY'
import fcntl, os, struct, sys, time
GET, SET, CAPACITY = 0x4C05, 0x4C04, 0x4C07
fd = os.open(sys.argv[1], os.O_RDWR)
info = bytearray(232)
# linux/loop.h: lo_sizelimit is the fifth 64-bit word of struct loop_info64.
for _ in range(100):
    fcntl.ioctl(fd, GET, info)
    struct.pack_into("=Q", info, 32, int(sys.argv[2]))
    try:
        fcntl.ioctl(fd, SET, info)
        fcntl.ioctl(fd, CAPACITY, 0)
        sys.exit(0)
    except OSError as e:
        # Pages of the device are being written.
        last = e
        time.sleep(0.05)
sys.exit(f"{sys.argv[1]}: {last}")
PY
}
pull() { for d in "$@"; do sized "${loop[$d]}" 512; done; }
give_back() { for d in "$@"; do sized "${loop[$d]}" 0; done; }

declare -A loop
# disk NAME: a loop device on a file of its own, with a link by which imports find it.
disk() {
  truncate -s 320M "$disks/img/$1"
  loop[$1]=$(losetup --show -f --direct-io=on "$disks/img/$1")
  ln -s "${loop[$1]}" "$disks/devices/$1"
}
# fill: files with fsync; each is in the ledger from when that returned.
fill() {
  local i=0 f
  while [ ! -e "$disks/stop" ]; do
    i=$((i + 1))
    # The folder is the pool's: where that is exported there is none.
    f=$disks/mnt/$pool/files/$1.$i
    head -c $((1 + (i * 7919) % 90000)) /dev/urandom >"$disks/new.$1"
    # A suspended pool keeps it waiting.
    dd if="$disks/new.$1" of="$f" bs=64k conv=fsync status=none 2>/dev/null || { sleep 0.2; continue; }
    (cd "$disks" && printf '%s  %s\n' "$(sha256sum <"new.$1" | cut -d' ' -f1)" "$f" >>"ledger.$1")
    # Some are removed, which was promised no longer.
    if [ $((i % 5)) = 0 ]; then
      f=$(head -n 1 "$disks/ledger.$1")
      sed -i '1d' "$disks/ledger.$1"
      rm -f "${f#*  }" 2>/dev/null || true
    fi
  done
}
check() {
  cat "$disks"/ledger.* >"$disks/ledger"
  sha256sum --quiet -c "$disks/ledger" >"$disks/missing" 2>&1 || { head "$disks/missing"; die "run $run: $1"; }
}
state() { z zpool list -H -o health "$pool"; }
import() { z zpool import -d "$disks/devices" "$@" "$pool"; }

files=0 suspended=0
begun=$SECONDS
for run in $(seq "$runs"); do
  RANDOM=$((seed + run))
  rm -rf "$disks"/{ledger*,stop,img,devices}
  mkdir "$disks/img" "$disks/devices"
  loop=()
  for d in a b c d e f l n; do disk "$d"; done
  dev() { for d in "$@"; do printf '%s ' "${loop[$d]}"; done; }
  # What can be spared of each shape, and all devices of one of its vdevs.
  case $((run % 6)) in
    0) shape="mirror $(dev a b)" members=(a b) all=(a b) ;;
    1) shape="raidz1 $(dev a b c)" members=(a b c) all=(a b c) ;;
    2) shape="raidz2 $(dev a b c d)" members=(a b c d) all=(a b c) ;;
    3) shape="mirror $(dev a b) mirror $(dev c d)" members=(a b c d) all=(c d) ;;
    4) shape="mirror $(dev a b) log $(dev l)" members=(a b) all=(a b) ;;
    5) shape="draid1:2d:6c:1s $(dev a b c d e f)" members=(a b c d e f) all=(a b c d) ;;
  esac
  # shellcheck disable=SC2086 # The shape is several words.
  z zpool create -f -O recordsize=32k -m "$disks/mnt/$pool" "$pool" $shape
  mkdir "$disks/mnt/$pool/files"
  workers=()
  for w in 1 2; do fill "$w" & workers+=($!); done
  sleep 2
  what=nothing
  case $((RANDOM % 6)) in
    0) what=scrub; z zpool scrub "$pool" ;;
    1) what=replace; z zpool replace "$pool" "${loop[${members[0]}]}" "${loop[n]}" && members[0]=n ;;
    2)
      case $((run % 6)) in
        0 | 4) what=attach; z zpool attach "$pool" "${loop[a]}" "${loop[n]}"; members+=(n) ;;
        3) what=remove; z zpool remove "$pool" mirror-1; members=(a b); all=(a b) ;;
        1) what=expand; z zpool attach "$pool" raidz1-0 "${loop[n]}"; members+=(n) ;;
        *) what=scrub; z zpool scrub "$pool" ;;
      esac ;;
    3) what=export ;;
  esac
  sleep "0.$((RANDOM % 10))"
  # The disk that leaves in a replacement holds what the new one has not yet.
  victim=${members[$((1 + RANDOM % (${#members[@]} - 1)))]}
  [ "$what" != replace ] || victim=n
  case $((RANDOM % 4)) in
    0 | 1) pulled=("$victim") ;;
    2) pulled=("${all[@]}") ;;
    3) pulled=() ;;
  esac
  [ "$((run % 6))" != 4 ] || [ $((RANDOM % 2)) = 0 ] || pulled=(l)
  if [ ${#pulled[@]} = 0 ]; then
    pid=$(cat "$ZILLA_DIR/zillad.pid")
    kill -9 "$pid"
    for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
    z zpool list "$pool" >/dev/null || die "run $run: the pool is not there after a kill"
  else
    pull "${pulled[@]}"
    if [ "$what" = export ] && [ ${#pulled[@]} = 1 ] && [ "${pulled[0]}" != l ]; then
      z zpool export -f "$pool"
      import || die "run $run: not imported without ${pulled[*]}"
    fi
    sleep "$((1 + RANDOM % 4)).$((RANDOM % 10))"
    give_back "${pulled[@]}"
  fi
  # It becomes whole by itself, or by a clear.
  for try in $(seq 120); do
    health=$(state)
    [ "$health" != ONLINE ] || break
    [ "$health" != SUSPENDED ] || { suspended=$((suspended + 1)); z zpool clear "$pool" || true; }
    # A device that failed too often is not taken back unasked.
    [ "$try" != 30 ] || z zpool clear "$pool" || true
    sleep 1
  done
  touch "$disks/stop"
  for worker in "${workers[@]}"; do
    for _ in $(seq 600); do kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$worker" 2>/dev/null || die "run $run: process $worker waits for the pool"
  done
  wait
  z zpool status "$pool" >"$disks/status"
  told="$what, pulled ${pulled[*]:-the power}"
  [ "$health" = ONLINE ] || { cat "$disks/status"; die "run $run ($told): the pool does not become whole"; }
  for activity in resilver replace remove raidz_expand scrub; do
    z zpool wait -t "$activity" "$pool" || die "run $run ($told): no end of $activity"
  done
  check "$told: what was fsynced is not there"
  files=$((files + $(wc -l <"$disks/ledger")))
  # Any one of them may be lost now.
  for lost in "${members[@]}"; do
    z zpool export "$pool"
    mv "$disks/devices/$lost" "$disks/lost"
    import -o readonly=on || die "run $run ($told): not imported without $lost"
    check "$told: not everything is there without $lost"
    mv "$disks/lost" "$disks/devices/$lost"
  done
  z zpool export "$pool"
  all_blocks "$pool" "$disks/devices"
  import
  z zpool destroy "$pool"
  for d in "${!loop[@]}"; do losetup -d "${loop[$d]}"; done
  say "run $run after $((SECONDS - begun)) s: ${shape%% *}, $told: $(wc -l <"$disks/ledger") files"
done
z stop >/dev/null
trap - EXIT
rm -r "$disks"
say "pulled: $runs runs, $files files looked at, suspended $suspended times, without a finding"
