#!/usr/bin/env bash
# debian [DEB]: the package on a clean Debian 12 without Rust: installed, a pool in files, a file in its mount, the page,
# removed, purged. Says how many commands and seconds a person's first file takes. As root, with a network and mmdebstrap
# (and /dev/fuse); DEB is the newest of target/packages unless it is named, ROOT=FILE.tar a root that was made before.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh
deb=${1:-$(find target/packages -name 'zilla_*.deb' -printf '%T@ %p\n' 2>/dev/null | sort -n | tail -1 | cut -d' ' -f2-)}
[ -f "${deb:-}" ] || die "no package: make deb"
[ "$(id -u)" = 0 ] || die "takes root: a root folder is mounted and entered"
need mmdebstrap=mmdebstrap zdb=zfsutils-linux
need_fuse || die "takes /dev/fuse"
work=$(mktemp -d)
root=$work/root
mkdir "$root"
# What a failed run leaves: the daemon in the root, then its mounts, then the folder.
tidy() {
  if mountpoint -q "$root/proc"; then
    chroot "$root" zilla stop >/dev/null 2>&1 || true
    umount -l "$root/tank" 2>/dev/null || true
    umount "$root/proc" "$root/dev/fuse" 2>/dev/null || umount -l "$root/proc" "$root/dev/fuse" 2>/dev/null || true
  fi
  mountpoint -q "$root/proc" || rm -rf --one-file-system "$work"
}
trap tidy EXIT
if [ -n "${ROOT:-}" ]; then
  tar -C "$root" -xf "$ROOT"
else
  say "making a root of Debian 12"
  mmdebstrap --quiet --variant=minbase bookworm "$root"
fi
mount -t proc proc "$root/proc"
[ -e "$root/dev/fuse" ] || : >"$root/dev/fuse"
mount --bind /dev/fuse "$root/dev/fuse"
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$deb" "$root/srv/zilla.deb"
enter() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"; }
! enter sh -c 'command -v cargo rustc zpool zfs zilla' || die "the root is not clean"
enter apt-get update -qq
# What is there before; what apt and dpkg keep for themselves is not the package's.
listing() {
  (cd "$root" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./sys -o -path ./tmp -o -path ./run -o -path ./root -o -path ./srv \
    -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/apt -o -path ./var/lib/dpkg \) -prune -o -print | LC_ALL=C sort)
}
# What the package draws in is installed before, so that what is left is zilla's.
depends=$(dpkg-deb -f "$root/srv/zilla.deb" Depends Recommends | sed 's/^[A-Za-z]*: //; s/([^)]*)//g; s/,/ /g')
say "needs of Debian: $depends"
# shellcheck disable=SC2086 # (several words)
enter apt-get install -y -qq --no-install-recommends $depends >/dev/null 2>&1
listing >"$work/before"

commands=0 begin=$(date +%s.%N)
step() {
  commands=$((commands + 1))
  say "\$ $*"
  enter sh -ec "$*"
}
step apt-get install -y -qq /srv/zilla.deb '>/dev/null 2>&1'
step truncate -s 1G /srv/disk.img
step zpool create tank /srv/disk.img
step 'echo hello > /tank/first'
end=$(date +%s.%N)
[ "$(enter cat /tank/first)" = hello ]
say "the first file: $commands commands, $(echo "$end - $begin" | bc) s"

say "zilla doctor:"
enter zilla doctor || say "(zilla doctor finds that something is missing)"
enter zfs snapshot tank@then
enter zpool scrub -w tank
enter zpool status -x
enter zilla status
enter zilla stop >/dev/null
enter env ZILLA_HTTP=127.0.0.1:0 zpool list
page=$(enter zilla page)
token=${page#*#} address=${page%%/#*}
# The root has its own files and our network.
[ "$(curl -s -H "Authorization: Bearer $token" "$address/role")" = viewer ]
curl -s "$address/" | grep '<title>zilla</title>' >/dev/null
[ "$(curl -s -o /dev/null -w '%{http_code}' "$address/metrics")" = 401 ]
say "the page is served to who has the token"
enter env MANPAGER=cat zpool help create | grep ZPOOL-CREATE >/dev/null
say "the manual is found"
# A new program in the place of the old: the pools come back.
enter apt-get install -y -qq --reinstall /srv/zilla.deb >/dev/null 2>&1
[ "$(enter cat /tank/first)" = hello ] || enter zpool list
enter zpool export tank
mkdir "$work/disks"
mv "$root/srv/disk.img" "$work/disks/"
/usr/sbin/zdb -bcc -e -p "$work/disks" tank 2>/dev/null | grep -i 'no leaks' >/dev/null

enter apt-get remove -y -qq zilla >/dev/null 2>&1
! enter sh -c 'command -v zpool zfs zilla zillad' || die "commands are left"
for process in /proc/[0-9]*; do
  [ "$(readlink "$process/root" || true)" != "$root" ] || die "process ${process#/proc/} is left"
done
enter apt-get purge -y -qq zilla >/dev/null 2>&1
listing >"$work/after"
if ! diff "$work/before" "$work/after" >"$work/left"; then
  cat "$work/left"
  die "that is left"
fi
say "removed and purged: nothing is left"
