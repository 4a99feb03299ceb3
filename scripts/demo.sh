#!/usr/bin/env bash
# The main job, on real input: a mirrored pool of two image files, a real tree copied into it, scrubbed, exported, imported,
# and every file compared with its source. Leaves the images, and nothing running.
#
#   ZILLA_DEMO_DIR   folder to work in (default: demo/ below the build folder)
#   ZILLA_DEMO_BIN   folder with built commands (default: builds a release)
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top"
. scripts/packages.sh

MIN_FILES=20000
MIN_MB=500
step() { printf '\n== %s\n' "$*"; }

# --- what is needed ----------------------------------------------------------------------------------------------------
need_to_build
need diff=diffutils find=findutils awk=mawk
need_fuse || die "/dev/fuse is missing or closed to $(id -un): mounting needs it (a container wants --device /dev/fuse)"

if [ -z "${ZILLA_DEMO_BIN:-}" ]; then
  step 'Building a release'
  cargo build --release
  ZILLA_DEMO_BIN=${CARGO_TARGET_DIR:-$top/target}/release
fi
bin=$(cd "$ZILLA_DEMO_BIN" && pwd)
for command in zpool zfs zillad; do [ -x "$bin/$command" ] || die "$bin/$command was not built"; done
export PATH="$bin:$PATH:/usr/sbin"

dir=${ZILLA_DEMO_DIR:-${CARGO_TARGET_DIR:-$top/target}/demo}
rm -rf "$dir"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# A socket's path is short, so the state folder is too.
ZILLA_DIR=$(mktemp -d "${TMPDIR:-/tmp}/zilla-demo.XXXXXX")
export ZILLA_DIR
mnt=$dir/mnt

leave() {
  local code=$?
  trap - EXIT INT TERM
  stop || code=1
  rm -rf "$ZILLA_DIR"
  exit "$code"
}
# Ends the daemon, if one runs, and waits for it: a killed one would leave its mounts behind.
stop() {
  local pid
  pid=$(cat "$ZILLA_DIR/zillad.pid" 2>/dev/null) || return 0
  kill "$pid" 2>/dev/null || return 0
  for _ in $(seq 300); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.1; done
  echo "zillad ($pid) did not end within 30 s" >&2
  kill -9 "$pid" 2>/dev/null || true
  fusermount3 -u -z "$mnt/tank" 2>/dev/null || true
  return 1
}
trap leave EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# --- the tree: this machine's Rust toolchain, and more where that is small -------------------------------------------
step 'Choosing a real tree'
sources=() files=0 bytes=0
for candidate in "$(rustc --print sysroot)" "${CARGO_HOME:-$HOME/.cargo}/registry/src" /usr/share /usr/include /usr/lib; do
  [ "$files" -ge $MIN_FILES ] && [ $((bytes >> 20)) -ge $MIN_MB ] && break
  [ -d "$candidate" ] || continue
  read -r n b < <(find "$candidate" -type f -readable -printf '%s\n' 2>/dev/null | awk '{n++; b+=$1} END {printf "%d %.0f\n", n, b}')
  say "$candidate: $n files, $((b >> 20)) MB"
  sources+=("$candidate") files=$((files + n)) bytes=$((bytes + b))
done
[ "$files" -ge $MIN_FILES ] && [ $((bytes >> 20)) -ge $MIN_MB ] ||
  say "(this machine has no $MIN_FILES files of $MIN_MB MB to copy: going on with what there is)"

# --- the pool ----------------------------------------------------------------------------------------------------------
step "Creating pool 'tank': a mirror of two image files"
size=$(((bytes >> 20) * 2 + 1024))
truncate -s ${size}M "$dir/disk1.img" "$dir/disk2.img"
zpool create -m "$mnt/tank" tank mirror "$dir/disk1.img" "$dir/disk2.img"
zfs set compression=lz4 tank
say "2 x ${size} MB (sparse), mounted on $mnt/tank"

step "Copying $files files, $((bytes >> 20)) MB"
# Sizes first, then cp's own report file by file: what is done is what cp says it has done.
progress='
function line(now) { el = now - t0; if (el < 1) el = 1
  printf "\r  %6d of %d files, %5d of %d MB, %3d s, %4d files/s, %4d MB/s ", n, files, b / 1048576, total / 1048576, now - t0, n / el, b / 1048576 / el; fflush() }
BEGIN { t0 = systime(); last = t0 }
/^SIZE\t/ { split($0, f, "\t"); size[f[3]] = f[2]; next }
{ at = index($0, "\047 -> \047"); name = substr($0, 2, at - 2)
  if (name in size) { n++; b += size[name] }
  now = systime(); if (now != last) { line(now); last = now } }
END { line(systime()); print "" }'
started=$(date +%s)
for source in "${sources[@]}"; do
  name=$(basename "$source")
  # (find fails where there is a folder that this user may not read.)
  { find "$source" -type f -readable -printf 'SIZE\t%s\t%p\n' 2>/dev/null || true
    cp -av "$source" "$mnt/tank/$name" 2>"$dir/cp-$name.err" || echo "cp failed" >>"$dir/cp-$name.failed"
  } | awk -v files="$files" -v total="$bytes" "$progress"
  # What this user may not read cannot be copied, by anybody's file system.
  if [ -e "$dir/cp-$name.failed" ]; then
    grep -vE "cannot (open|access) .*(Permission denied|for reading)" "$dir/cp-$name.err" && die "copying $source failed"
    rm "$dir/cp-$name.failed"
  fi
done
say "  waiting for the disks: zpool sync"
zpool sync tank
took=$(($(date +%s) - started))
say "  in $took s: $((files / (took > 0 ? took : 1))) files/s, $(((bytes >> 20) / (took > 0 ? took : 1))) MB/s, on the disks"

show() { printf '\n$ %s\n' "$*"; "$@"; }
step 'What the pool says'
show zpool status tank
show zpool list -v tank
show zfs list
show zpool iostat -v tank

step 'Scrubbing: every block read and checked'
show zpool scrub tank
zpool wait -t scrub tank
show zpool status tank
zpool status tank | grep -q 'with 0 errors' || die 'the scrub found errors'
[ "$(zpool list -H -o health tank)" = ONLINE ] || die 'the pool is not ONLINE'

step 'Exporting, ending the daemon, importing'
show zpool export tank
stop
show zpool import -d "$dir" tank

# --- the proof -----------------------------------------------------------------------------------------------------------
step 'Comparing every file with its source'
compared=0
for source in "${sources[@]}"; do
  name=$(basename "$source")
  # Kind, mode, time and target of everything; owners where this user could give files away. Only root could copy what is
  # unreadable, so others leave it out on both sides.
  # (The count of links is not compared: another name may lie outside the tree.)
  format='%y %#m %T@ %l\t%P\n'
  [ "$(id -u)" = 0 ] && format="%U:%G $format"
  (cd "$source" && find . -mindepth 1 ! -type l ! -readable -printf '%P\n' 2>/dev/null || true) >"$dir/unreadable.list"
  list() {
    (cd "$1" && find . -mindepth 1 -printf "$format" 2>/dev/null || true) |
      awk -F '\t' '!copy { skip[$0]; next } !($2 in skip)' "$dir/unreadable.list" copy=1 - | LC_ALL=C sort
  }
  list "$source" >"$dir/source.list"
  list "$mnt/tank/$name" >"$dir/copy.list"
  diff "$dir/source.list" "$dir/copy.list" >"$dir/list.diff" ||
    die "names, kinds, modes, times or owners differ: $dir/list.diff (first: $(sed -n 2p "$dir/list.diff"))"
  say "  $name: $(wc -l <"$dir/source.list") names with kind, mode, time$([ "$(id -u)" = 0 ] && echo ', owner') and target are the same"
  # diff reports each file that is identical; anything else it says is a difference.
  set +e
  LC_ALL=C diff -rs --no-dereference "$source" "$mnt/tank/$name" 2>&1 | awk -v out="$dir/content.diff" '
    /^Files .* are identical$/ { same++; now = systime(); if (now != last) { printf "\r  %d files are identical ", same; fflush(); last = now }; next }
    /^Symbolic links .* are identical$/ || /: Permission denied$/ || /^File .* is a / { next }
    { print > out; bad++ }
    END { printf "\r  %d files are identical, %d are not\n", same, bad; print same + 0 > (out ".count"); exit bad > 0 }'
  ok=${PIPESTATUS[1]}
  set -e
  [ "$ok" = 0 ] || die "contents differ: $dir/content.diff"
  compared=$((compared + $(cat "$dir/content.diff.count")))
done
[ "$compared" -gt 0 ] || die 'nothing was compared'

step 'Exporting for good'
show zpool export tank
stop
# Not ours, which PATH would find first: the one of the system.
zdb=$(PATH=/usr/sbin:/sbin:/usr/bin:/bin command -v zdb || true)
checked='OpenZFS is not installed here, so its zdb was not asked'
if [ -n "$zdb" ]; then
  step "Asking OpenZFS's own zdb: every block accounted for, every checksum"
  "$zdb" -e -p "$dir" -bcc tank >"$dir/zdb.out" 2>&1 || { tail -40 "$dir/zdb.out"; die 'zdb found errors'; }
  grep -q 'No leaks' "$dir/zdb.out" || { tail -40 "$dir/zdb.out"; die 'zdb found leaks'; }
  grep 'No leaks' "$dir/zdb.out"
  checked='OpenZFS'"'"'s zdb found no leak and no wrong checksum'
fi

step 'Proved'
say "$compared files ($((bytes >> 20)) MB) were copied into a mirrored pool by user $(id -un), in $took s;
a scrub read every block back without an error; the pool was exported, the daemon ended, and the pool imported by a new one;
every file then was identical to its source, with kind, mode, time and target of every name.
$checked.

The pool lies in $dir (disk1.img, disk2.img), exported. OpenZFS imports it too:  zpool import -d $dir tank
Nothing is left running."
