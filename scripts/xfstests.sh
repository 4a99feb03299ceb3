#!/usr/bin/env bash
# xfstests' generic group on a mount of zilla, as root: `scripts/xfstests.sh [what check takes]`, by
# default `-g quick`. XFSTESTS is a built checkout of xfstests-dev (its README says what it needs;
# configure, make). ZILLA_BIN is the folder of the programs (target/release), JUDGES_OUT where the
# results go, JUDGES_DISK a folder with 10 GB for the pool. PASSTHROUGH=PROGRAM runs them on
# libfuse's example passthrough instead: what fails there too is the kernel's FUSE. Everything that
# is changed outside (mounts, users, the mount helper) is changed in a mount namespace of its own.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it mounts, and tests as several users'
of_xfstests fsstress >/dev/null
xfstests=$XFSTESTS
bin=$(programs)
out=${JUDGES_OUT:-${CARGO_TARGET_DIR:-$top/target}/judges}/xfstests
[ -n "${ZILLA_XFSTESTS:-}" ] || exec env ZILLA_XFSTESTS=1 unshare -m --propagation private "$0" "$@"

mkdir -p "$out"
out=$(cd "$out" && pwd)
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/xfstests.XXXXXX")
export ZILLA_DIR=$disks/state
own=$disks/own
mkdir -p "$own/sbin" "$own/test" "$own/scratch" "$ZILLA_DIR"
chmod 755 "$disks" "$own"
finish() {
  umount "$own/scratch" "$own/test" 2>/dev/null || true
  if [ -z "${PASSTHROUGH:-}" ]; then
    "$bin/zilla" zpool export judged && zdb -e -p "$disks" -bcc judged >"$out/zdb" 2>&1 && say 'zdb: clean' ||
      say "zdb or the export is not content: see $out/zdb and $ZILLA_DIR"
    "$bin/zilla" stop >/dev/null 2>&1 || true
  fi
}

# The users that the tests want, and mount(8)'s helper.
for file in passwd group shadow; do cp -a "/etc/$file" "$own/$file"; done
for user in fsgqa:2000 fsgqa2:2001 123456-fsgqa:2002; do
  grep -q "^${user%:*}:" "$own/passwd" && continue
  printf '%s:x:%s:%s::/tmp:/bin/bash\n' "${user%:*}" "${user#*:}" "${user#*:}" >>"$own/passwd"
  printf '%s:x:%s:\n' "${user%:*}" "${user#*:}" >>"$own/group"
  printf '%s:*:20000:0:99999:7:::\n' "${user%:*}" >>"$own/shadow"
done
for file in passwd group shadow; do mount --bind "$own/$file" "/etc/$file"; done
cp -a /usr/sbin/. "$own/sbin"
if [ -n "${PASSTHROUGH:-}" ]; then
  type=.judged
  printf '#!/bin/sh\nulimit -n 65536\nexec %s -o fsname="$@"\n' "$PASSTHROUGH" >"$own/sbin/mount.fuse.judged"
else
  # The type is the kernel's word for our mounts.
  type=.zfs
  printf '#!/bin/sh\nexec env ZILLA_DIR=%s %s/zilla mount.fuse.zfs "$@"\n' "$ZILLA_DIR" "$bin" >"$own/sbin/mount.fuse.zfs"
fi
# check takes the type for plain `fuse`, and knows it from df.
mkdir "$own/bin"
printf '#!/bin/sh\n%s "$@" | sed "s/ fuse\\.[a-z_]* / fuse /"\n' "$(type -P df)" >"$own/bin/df"
chmod 755 "$own"/sbin/mount.fuse.* "$own/bin/df"
export PATH=$own/bin:$PATH
mount --bind "$own/sbin" /usr/sbin

if [ -n "${PASSTHROUGH:-}" ]; then
  mkdir "$own/below-test" "$own/below-scratch"
  options="-osource=$own/below-scratch,allow_other,default_permissions"
  test_options="-osource=$own/below-test,allow_other,default_permissions"
else
  options=''
  test_options=''
  truncate -s 10G "$disks/disk"
  "$bin/zilla" zpool create -O mountpoint=legacy -O acltype=posix -O xattr=sa -O relatime=on -O dnodesize=auto \
    judged "$disks/disk"
  "$bin/zilla" zfs create judged/test
  "$bin/zilla" zfs create judged/scratch
fi
trap finish EXIT
export FSTYP=fuse FUSE_SUBTYP=$type
export TEST_DEV=judged/test TEST_DIR=$own/test SCRATCH_DEV=judged/scratch SCRATCH_MNT=$own/scratch
export MOUNT_OPTIONS=$options TEST_FS_MOUNT_OPTS=$test_options
export RESULT_BASE=$out/results
cd "$xfstests"
[ $# -gt 0 ] || set -- -g quick
# Fails where one test fails; what they are is in $out/results.
./check "$@" || true
