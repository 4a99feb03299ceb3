#!/usr/bin/env bash
# A Debian system that lives on a volume, as root: `scripts/guest.sh [KILLS]`, 2 by default. It is
# installed on a volume through a loop device; then qemu starts its kernel, with the volume over NBD
# as its only disk. It writes, syncs and reads back while the daemon is killed and started again,
# of which it must notice nothing, and then shuts down. Its file system must be clean, what it
# synced must be there, and zdb must find every block.
# ZILLA_BIN is the folder of the programs (target/release), JUDGES_DISK a folder with 4 GB for the
# pool, ACCELERATOR qemu's (tcg, or kvm), SUITE and MIRROR what debootstrap installs (the mirror of
# this machine's apt by default).
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it installs a system'
own_mounts "$0" "$@"
need qemu-system-x86_64=qemu-system-x86 debootstrap=debootstrap mkfs.ext4=e2fsprogs
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
kills=${1:-2}
suite=${SUITE:-bookworm}
apt=$(apt-get indextargets --format '$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)')
mirror=${MIRROR:-$(sed -n 's/|Debian|Debian|main$//p' <<<"$apt" | head -n 1)}
pool=guest$$
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/guest.XXXXXX")
export ZILLA_DIR=$disks/state ZILLA_ZVOL_DEVICES=off
mkdir -p "$ZILLA_DIR" "$disks/root"
z() { timeout 120 "$bin/zilla" "$@"; }
console=$disks/console
qemu=''
finish() {
  [ -z "$qemu" ] || kill -9 "$qemu" 2>/dev/null || true
  umount -R -l "$disks/root" 2>/dev/null || true
  z zvol detach "$pool/system" >/dev/null 2>&1 || true
  z stop >/dev/null 2>&1 || true
}
trap finish EXIT

truncate -s 4G "$disks/disk"
z zpool create -m none -O compression=zstd "$pool" "$disks/disk"
z zfs create -s -V 3G "$pool/system"
device=$(z zvol attach "$pool/system")
say "installing $suite on $device"
mkfs.ext4 -q -L system "$device"
mount -o discard "$device" "$disks/root"
packages=linux-image-cloud-amd64,systemd-sysv,udev,initramfs-tools
debootstrap --variant=minbase --include=$packages "$suite" "$disks/root" "$mirror" \
  >"$disks/log.debootstrap" 2>&1 ||
  { tail "$disks/log.debootstrap"; die "debootstrap: see $disks/log.debootstrap"; }
root=$disks/root
echo 'LABEL=system / ext4 defaults 0 1' >"$root/etc/fstab"
# What the guest does: rounds of files that are synced and then read from the disk again, as
# often as it is told; then it ends as a machine ends.
cat >"$root/usr/local/sbin/work" <<'WORK'
#!/bin/bash
told() { echo "guest: $*" >/dev/ttyS0; }
round() {
  mkdir -p $((n % 8)) && head -c $((RANDOM * 30 + 1)) /dev/urandom >$((n % 8))/$n &&
    sha256sum $((n % 8))/$n >>sums && sync && echo 3 >/proc/sys/vm/drop_caches &&
    sha256sum --quiet -c sums
}
told "booted, $(uname -r)"
mkdir -p /work
cd /work
for n in $(seq 1 $(cat /rounds)); do
  round || { told FAILED; break; }
  told "round $n"
  sleep 0.2
done
dmesg | grep -i 'i/o error\|ext4-fs error\|hung task' >/dev/ttyS0
told "done"
systemctl poweroff
WORK
chmod 755 "$root/usr/local/sbin/work"
rounds=$((kills * 30 + 60))
echo "$rounds" >"$root/rounds"
cat >"$root/etc/systemd/system/work.service" <<'UNIT'
[Unit]
Description=Write, sync, read
[Service]
ExecStart=/usr/local/sbin/work
[Install]
WantedBy=multi-user.target
UNIT
chroot "$root" systemctl enable work.service >"$disks/log.enable" 2>&1 ||
  die "systemctl: see $disks/log.enable"
for file in vmlinuz initrd.img; do cp -L "$root/$file" "$disks/$file"; done
umount "$root"
z zvol detach "$pool/system"
z zfs snapshot "$pool/system@installed"
# A kill takes what was written and not flushed, which a guest that goes on without a reboot does
# not expect of a disk: it is given a disk without a cache of its own.
z zfs clone -o sync=always "$pool/system@installed" "$pool/guest"

# Emulated unless asked for otherwise: KVM below another hypervisor may take for ever to begin.
# qemu 7.2's emulation has cmpxchg16b wrong.
accelerator=${ACCELERATOR:-tcg} cpu=max,arch-capabilities=off
[ "$accelerator" != tcg ] || cpu=max,la57=off,avx2=off,cx16=off
disk="driver=raw,node-name=disk,file.driver=nbd,file.server.type=unix"
disk+=",file.server.path=$ZILLA_DIR/nbd.sock,file.export=$pool/guest,file.reconnect-delay=300"
disk+=",cache.direct=on,discard=unmap"
words='root=LABEL=system console=ttyS0 quiet systemd.show_status=no tsc=reliable no_timer_check'
qemu-system-x86_64 -nodefaults -no-user-config -display none -no-reboot -monitor none \
  -machine q35 -accel "$accelerator" -cpu "$cpu" -m 1024 -smp 2 -device virtio-rng-pci \
  -chardev "file,id=con,path=$console" -serial chardev:con \
  -kernel "$disks/vmlinuz" -initrd "$disks/initrd.img" -append "$words" \
  -blockdev "$disk" -device virtio-blk-pci,drive=disk >"$disks/log.qemu" 2>&1 &
qemu=$!
begun=$SECONDS
# seen TEXT: waits until the guest has said it.
seen() {
  for _ in $(seq 9000); do
    ! grep -a -q "$1" "$console" 2>/dev/null || return 0
    kill -0 "$qemu" 2>/dev/null || break
    sleep 0.1
  done
  tail -n 20 "$console" "$disks/log.qemu"
  die "the guest does not come to '$1': see $console"
}
seen 'guest: booted'
say "ok      booted from the volume ($accelerator) in $((SECONDS - begun)) s"
for kill in $(seq "$kills"); do
  seen "guest: round $((kill * 30))"
  pid=$(cat "$ZILLA_DIR/zillad.pid")
  kill -9 "$pid"
  for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
  sleep 1
  z zpool list "$pool" >/dev/null
  say "ok      kill $kill in round $(grep -a -c 'guest: round' "$console")"
done
# An orderly end takes nothing.
z zfs set sync=standard "$pool/guest"
seen "guest: round $((kills * 30 + 30))"
z stop >/dev/null
sleep 1
z zpool list "$pool" >/dev/null
say "ok      restart in round $(grep -a -c 'guest: round' "$console")"
seen 'guest: done'
for _ in $(seq 600); do kill -0 "$qemu" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$qemu" 2>/dev/null || die 'the guest does not end'
qemu=''
! grep -a -i 'FAILED\|i/o error\|ext4-fs error\|hung task' "$console" ||
  die "the guest has noticed something: see $console"
done=$(grep -a -c 'guest: round' "$console")
[ "$done" = "$rounds" ] || die "the guest did $done rounds of $rounds"
say "ok      $rounds rounds in $((SECONDS - begun)) s"

device=$(z zvol attach "$pool/guest")
e2fsck -fn "$device" >"$disks/log.e2fsck" 2>&1 ||
  { tail "$disks/log.e2fsck"; die "e2fsck: see $disks/log.e2fsck"; }
mount -o ro "$device" "$root"
(cd "$root/work" && sha256sum --quiet -c sums && [ "$(wc -l <sums)" = "$rounds" ]) ||
  die 'what the guest synced is not there'
umount "$root"
z zvol detach "$pool/guest"
healthy "$pool" "$disks"
z stop >/dev/null
trap - EXIT
rm -r "$disks"
say "guest: a Debian system booted from a volume, $kills kills of the daemon, without a finding"
