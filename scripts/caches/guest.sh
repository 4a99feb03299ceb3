# The side of OpenZFS's kernel module, a job of its virtual machine: `make` leaves a pool with a
# cache device on the two disks, `take` looks at the one that zilla has made. See scripts/caches.sh.
# shellcheck shell=bash disable=SC1091
. /job/lib.sh
. /job/caches-lib.sh
tunable() { printf '%s' "$2" >"/sys/module/zfs/parameters/$1"; }
for pair in "${tunables[@]}"; do tunable "${pair%=*}" "${pair#*=}"; done
kstat() { awk -v name="$1" '$1 == name {print $3}' /proc/spl/kstat/zfs/arcstats; }
mkdir -p "$2"
ln -s "$F1" "$2/data.img"
ln -s "$F2" "$2/cache.img"
case $1 in
make)
  zpool create -f -O mountpoint=/m -O compression=off theirs "$2/data.img" cache "$2/cache.img"
  fill /m "$OUT/sums"
  feed /m
  zpool export theirs ;;
take)
  if zdb -l "$F2" >"$OUT/header" && grep -q 'L2ARC device header' "$OUT/header"; then
    ok 'zdb -l reads the header'
  else bad "zdb -l: $(cat "$OUT/header")"; fi
  zpool import -N -o cachefile=none -d "$2" ours
  taken "$(mnt ours)" /job/sums
  zpool scrub -w ours && zpool status ours | grep -q 'with 0 errors' && ok 'scrub' || bad 'scrub'
  zpool export ours ;;
esac
dmesg | grep -E 'Kernel panic|PANIC|VERIFY|BUG: |Oops' && bad 'the kernel complained'
tell "$1: $failed failed"
[ $failed = 0 ]
