# What both sides do, each with its own `kstat NAME`, a number of arcstats. See scripts/caches.sh.
# shellcheck shell=bash
failed=0
tell() { printf '%s\n' "$*"; }
ok() { tell "ok $*"; }
bad() { tell "FAIL $*"; failed=$((failed + 1)); }

# A small ARC, whatever is read is fed, and a small device has log blocks, too.
# shellcheck disable=SC2034 # read by who sources this
tunables=(zfs_arc_max=67108864 zfs_prefetch_disable=1 l2arc_noprefetch=0 l2arc_write_max=33554432
  l2arc_rebuild_blocks_min_l2size=0)

# fill FOLDER SUMS: three times as much as the ARC may hold.
fill() {
  local n
  for n in $(seq 24); do head -c 8M /dev/urandom >"$1/$n"; done
  (cd "$1" && sha256sum ./*) >"$2"
  sync
}

# Reads all until the cache device has half of it; the kernel's own pages of it go first.
feed() {
  local size=0 file
  for _ in $(seq 40); do
    for file in "$1"/*; do
      dd if="$file" iflag=nocache count=0 status=none
      cat "$file" >/dev/null
    done
    sleep 2
    size=$(kstat l2_size)
    [ "$size" -lt $((96 << 20)) ] || break
  done
  [ "$size" -ge $((96 << 20)) ] && ok "the cache device was fed: $size bytes" || bad "it has $size bytes"
}

# taken FOLDER SUMS: what the other side fed is found again, hit, and right.
taken() {
  local size=0 name
  for _ in $(seq 60); do
    [ "$(kstat l2_rebuild_success)" = 0 ] || break
    sleep 1
  done
  size=$(kstat l2_size)
  [ "$(kstat l2_rebuild_success)" = 1 ] && [ "$size" -ge $((64 << 20)) ] &&
    ok "rebuilt: $size bytes in $(kstat l2_rebuild_log_blks) log blocks" || bad "rebuilt: $size bytes"
  (cd "$1" && sha256sum --quiet -c "$2") && ok 'every file is as it was' || bad 'files differ'
  [ "$(kstat l2_hits)" -ge 200 ] && ok "$(kstat l2_hits) hits" || bad "$(kstat l2_hits) hits"
  for name in l2_cksum_bad l2_io_error l2_rebuild_unsupported l2_rebuild_io_errors l2_rebuild_dh_errors \
    l2_rebuild_cksum_lb_errors; do
    [ "$(kstat $name)" = 0 ] || bad "$name is $(kstat $name)"
  done
}
