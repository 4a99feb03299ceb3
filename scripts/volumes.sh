#!/usr/bin/env bash
# File systems on volumes under kills of the daemon, as root: `scripts/volumes.sh [KILLS]`, 10 by
# default (the long form is 100). ext4, xfs and btrfs are made on volumes through loop devices
# (`zilla zvol attach`) and filled with a source tree, a part of the files with fsync; the daemon is
# killed in the midst. After each kill all three are mounted again, every file that was fsynced must
# be there with its contents, and the file systems' own checkers must be content. At the end zdb
# must find every block. ZILLA_BIN is the folder of the programs (target/release), JUDGES_DISK a
# folder with some GB for the pool, SOURCE the tree (the project's crates), SEED where to begin.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it makes block devices, and mounts'
own_mounts "$0" "$@"
need mkfs.ext4=e2fsprogs mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs losetup=mount
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
kills=${1:-10}
seed=${SEED:-1}
source=$(cd "${SOURCE:-$top/crates}" && pwd)
pool=volumes$$
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/volumes.XXXXXX")
export ZILLA_DIR=$disks/state ZILLA_ZVOL_DEVICES=off
mkdir -p "$ZILLA_DIR"
z() { timeout 120 "$bin/zilla" "$@"; }
daemon() { cat "$ZILLA_DIR/zillad.pid"; }

systems=(ext4 xfs btrfs)
# Each with a volume of its own block size.
declare -A blocks=([ext4]=4k [xfs]=16k [btrfs]=128k)
for i in 1 2 3; do truncate -s 3G "$disks/disk$i"; done
z zpool create -m none -O compression=lz4 "$pool" raidz1 "$disks"/disk{1,2,3}
for fs in "${systems[@]}"; do
  mkdir -p "$disks/mnt/$fs"
  : >"$disks/ledger.$fs"
  z zfs create -s -V 1G -b "${blocks[$fs]}" "$pool/$fs"
done

# Where this ends in a failure nothing stays behind that waits for the daemon.
finish() {
  touch "$disks/stop"
  for fs in "${systems[@]}"; do umount -l "$disks/mnt/$fs" 2>/dev/null || true; done
  detach
  z stop >/dev/null 2>&1 || true
  umount -l "$ZILLA_DIR/zvol" 2>/dev/null || true
}
# The loop devices of this run, living or not: a file of a killed daemon has lost the folder that it
# was in.
ours() { grep -l "/$pool/" /sys/block/loop*/loop/backing_file 2>/dev/null || true; }
devices() { ours | wc -l; }
detach() {
  local below
  for below in $(ours); do
    below=${below%/loop/backing_file}
    losetup -d "/dev/${below##*/}" 2>/dev/null || true
  done
}
trap finish EXIT

attach() { z zvol attach "$pool/$1" || die "$pool/$1 is not attached"; }
check() {
  local fs=$1 device=$2 rc=0
  case $fs in
    ext4) e2fsck -fn "$device" ;;
    xfs) xfs_repair -n "$device" ;;
    btrfs) btrfs check --readonly "$device" ;;
  esac >"$disks/check.$fs" 2>&1 || rc=$?
  [ "$rc" = 0 ] && return
  tail -n 20 "$disks/check.$fs"
  die "the checker of $fs finds something ($rc): see $disks/check.$fs"
}
# mount_at FS DEVICE: waits for it as for everything that may hang.
mount_at() { timeout 120 mount -t "$1" -o discard "$2" "$disks/mnt/$1" || die "$1 does not mount"; }

# fill FS SEED: copies parts of the tree until the file system fails under it. A file is in the
# ledger from when its fsync returned until it is touched again.
fill() {
  local fs=$1 round=$2 to=$disks/mnt/$1 ledger=$disks/ledger.$1 at=0 dir names file n
  RANDOM=$round
  mapfile -t files < <(cd "$source" && find . -type f -size -2M | sort)
  while [ ! -e "$disks/stop" ]; do
    n=$((RANDOM % 12))
    dir=$to/$n
    # What is replaced was promised no longer.
    grep -v "  $dir/" "$ledger" >"$ledger.new" || true
    mv "$ledger.new" "$ledger"
    rm -rf "$dir" || return 0
    mkdir "$dir" 2>/dev/null || return 0
    names=()
    for _ in $(seq 24); do
      file=${files[$(((RANDOM * 32768 + RANDOM) % ${#files[@]}))]}
      at=$((at + 1))
      cp "$source/$file" "$dir/$at" 2>/dev/null || return 0
      names+=("$dir/$at")
    done
    # Half of what is written is left to the file system's own time.
    if [ $((RANDOM % 2)) = 0 ]; then
      # Sums of what the page cache has: what was written, not what came back.
      sha256sum "${names[@]}" >"$ledger.sums" 2>/dev/null || return 0
      sync "${names[@]}" "$dir" "$to" 2>/dev/null || return 0
      cat "$ledger.sums" >>"$ledger"
    fi
    if [ $((RANDOM % 40)) = 0 ]; then fstrim "$to" 2>/dev/null || return 0; fi
  done
}

declare -A device
for fs in "${systems[@]}"; do
  device[$fs]=$(attach "$fs")
  "mkfs.$fs" -q "${device[$fs]}" >"$disks/mkfs.$fs" 2>&1 || die "mkfs.$fs: see $disks/mkfs.$fs"
  mount_at "$fs" "${device[$fs]}"
  sync -f "$disks/mnt/$fs"
done
fsynced=0
begun=$SECONDS
for kill in $(seq "$kills"); do
  rm -f "$disks/stop"
  workers=()
  for fs in "${systems[@]}"; do
    seed=$((seed + 1))
    fill "$fs" "$seed" 2>>"$disks/log.$fs" & workers+=($!)
  done
  RANDOM=$((seed + kill))
  sleep "$((2 + RANDOM % 4)).$((RANDOM % 10))"
  pid=$(daemon)
  kill -9 "$pid"
  touch "$disks/stop"
  for worker in "${workers[@]}"; do
    for _ in $(seq 600); do kill -0 "$worker" 2>/dev/null || break; sleep 0.1; done
    ! kill -0 "$worker" 2>/dev/null || die "kill $kill: process $worker waits for a killed daemon"
  done
  wait
  for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
  [ ! -e "/proc/$pid" ] || die "process $pid survives SIGKILL"
  for fs in "${systems[@]}"; do
    timeout 120 umount "$disks/mnt/$fs" || die "kill $kill: $fs does not unmount"
  done
  # Every other time the dead devices are left to be found.
  [ $((kill % 2)) = 0 ] || detach
  z zpool list "$pool" >/dev/null || die "the pool is not there after kill $kill"
  attached=0
  for fs in "${systems[@]}"; do
    device[$fs]=$(attach "$fs")
    [ "$(devices)" = "$((++attached))" ] || die "kill $kill: dead devices are left: $(devices)"
    # Mounting replays the journal, which the checkers want to have been.
    mount_at "$fs" "${device[$fs]}"
    # (Nothing may have been fsynced since.)
    if [ -s "$disks/ledger.$fs" ]; then
      sha256sum --quiet -c "$disks/ledger.$fs" >"$disks/missing.$fs" 2>&1 ||
        { head "$disks/missing.$fs"; die "kill $kill, $fs: what was fsynced is not there"; }
    fi
    fsynced=$((fsynced + $(wc -l <"$disks/ledger.$fs")))
    timeout 120 umount "$disks/mnt/$fs" || die "kill $kill: $fs does not unmount"
    check "$fs" "${device[$fs]}"
    mount_at "$fs" "${device[$fs]}"
  done
  files=$(cat "$disks"/ledger.{ext4,xfs,btrfs} | wc -l)
  say "kill $kill after $((SECONDS - begun)) s: $files files were fsynced and are there, all clean"
done
for fs in "${systems[@]}"; do
  timeout 300 umount "$disks/mnt/$fs"
  check "$fs" "${device[$fs]}"
  z zvol detach "$pool/$fs"
done
healthy "$pool" "$disks"
z stop >/dev/null
trap - EXIT
rm -r "$disks"
say "volumes: $kills kills under three file systems, $fsynced files looked at, without a finding"
