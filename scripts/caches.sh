#!/usr/bin/env bash
# Cache devices exchanged with OpenZFS's kernel module, as root: `scripts/caches.sh`. Each side makes
# a pool with one, reads files of three times its ARC until the device is fed, and exports. The other
# imports both disks: it must find the device's blocks again, hit them, and read every file as it
# was. OpenZFS's `zdb -l` reads the header that zilla wrote; zdb finds every block of both pools.
# ZILLA_ORACLE is the judge's folder, ZILLA_ORACLE_VM the machine that it has built, ZILLA_BIN the
# folder of the programs (target/release), JUDGES_DISK a folder with some GB.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it mounts'
own_mounts "$0" "$@"
need zdb=zfsutils-linux qemu-system-x86_64=qemu-system-x86
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
oracle=${ZILLA_ORACLE:?the folder of the judge} vm=${ZILLA_ORACLE_VM:?what the judge has built}
work=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/caches.XXXXXX")
export ZILLA_DIR=$work/state ZILLA_KSTATS=$work/kstat
mkdir -p "$ZILLA_DIR" "$work/ours" "$work/theirs"
say "caches: in $work"
finish() { "$bin/zilla" stop >/dev/null 2>&1 || true; }
trap finish EXIT
z() { timeout 300 "$bin/zilla" "$@"; }
. "$top/scripts/caches/lib.sh"
printf '%s\n' "${tunables[@]}" >"$ZILLA_DIR/parameters.conf"
kstat() { awk -v name="$1" '$1 == name {print $3}' "$ZILLA_KSTATS/arcstats"; }
# guest WHAT FOLDER ADDED...: a run of the virtual machine on the two images of a folder. A cache
# device is looked for where it was, so they have the same names there.
guest() {
  local what=$1 at=$2 add=() file
  shift 2
  for file in "$top/scripts/caches/lib.sh:caches-lib.sh" "$@"; do add+=(--add "$file"); done
  "$oracle/oracle" run "$vm" --timeout 3000 --script "$top/scripts/caches/guest.sh" --file "$at/data.img" \
    --file "$at/cache.img" "${add[@]}" --arg="$what" --arg="$at" --out "$work/$what" || failed=$((failed + 1))
}
for side in ours theirs; do truncate -s 512M "$work/$side/data.img" "$work/$side/cache.img"; done

say '== zilla feeds a cache device'
z zpool create -m "$work/mnt" -O compression=off ours "$work/ours/data.img" cache "$work/ours/cache.img"
fill "$work/mnt" "$work/sums"
feed "$work/mnt"
z zpool export ours
finish
say '== OpenZFS takes it'
guest take "$work/ours" "$work/sums"
say '== OpenZFS feeds a cache device'
guest make "$work/theirs"
say '== zilla takes it'
z zpool import -R "$work/alt" -d "$work/theirs" theirs
taken "$work/alt/m" "$work/make/sums"
z zpool scrub -w theirs
z zpool status theirs | grep -q 'with 0 errors' && ok 'scrub' || bad 'scrub'
z zpool export theirs

say '== every block'
for side in ours theirs; do
  if zdb -e -p "$work/$side" -bcc "$side" >"$work/zdb-$side" 2>&1; then ok "zdb $side"; else bad "zdb $side"; fi
done
say "caches: $failed failed; see $work"
[ $failed = 0 ]
