# Sourced by the other scripts: installs what is missing, and says what needs root.
# shellcheck shell=bash

say() { printf '%s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

# as_root CMD...: as root, through sudo if need be.
as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then
    say "needs root, asking sudo: $*"
    sudo "$@"
  else die "needs root, and there is no sudo. Run this as root: $*"; fi
}

# have COMMAND: also in the folders that an ordinary user's PATH leaves out.
have() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

# need COMMAND=PACKAGE...: installs the packages of the commands that are not there.
need() {
  local pair missing=()
  for pair in "$@"; do have "${pair%%=*}" || missing+=("${pair#*=}"); done
  [ ${#missing[@]} = 0 ] && return 0
  have apt-get || die "please install: ${missing[*]}"
  say "installing ${missing[*]} (needs root)"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  for pair in "$@"; do have "${pair%%=*}" || die "${pair#*=} is installed, but ${pair%%=*} is not there"; done
}

# Libraries in C are built from source by their crates: that takes a C compiler.
need_to_build() {
  [ -n "${HOME:-}" ] && PATH="$PATH:$HOME/.cargo/bin"
  have cargo || die "Rust is missing: see https://rustup.rs"
  need cc=gcc ar=binutils
  [ -e /usr/include/stdio.h ] || as_root apt-get install -y -qq --no-install-recommends libc6-dev
}

# FUSE: the program that mounts for ordinary users, and the device.
need_fuse() {
  need fusermount3=fuse3
  [ -e /dev/fuse ] || as_root modprobe fuse 2>/dev/null || true
  [ -r /dev/fuse ] && [ -w /dev/fuse ]
}

# The folder of the programs that a judge looks at: ZILLA_BIN, or a release build's.
programs() { (cd "${ZILLA_BIN:-${CARGO_TARGET_DIR:-$top/target}/release}" && pwd); }

# A program of xfstests-dev, of whose built checkout XFSTESTS names the folder.
of_xfstests() {
  [ -x "${XFSTESTS:-}/ltp/$1" ] || die 'XFSTESTS is not a built checkout of xfstests-dev'
  printf '%s\n' "$XFSTESTS/ltp/$1"
}

# all_blocks POOL FOLDER: OpenZFS's zdb finds every block of an exported pool, each once.
all_blocks() {
  /usr/sbin/zdb -e -p "$2" -bcc "$1" >"$2/zdb" 2>&1 ||
    { tail -n 20 "$2/zdb"; die "zdb is not content: see $2/zdb"; }
  grep -q 'No leaks' "$2/zdb" || die "zdb finds leaks: see $2/zdb"
}

# healthy POOL FOLDER: a scrub finds nothing, and after the export zdb neither. `z` is zilla.
healthy() {
  z zpool scrub -w "$1"
  z zpool status "$1" >"$2/status"
  grep -q 'errors: No known data errors' "$2/status" || die "the pool has errors: see $2/status"
  z zpool export "$1"
  all_blocks "$1" "$2"
}

# own_mounts NAME ARGUMENTS: runs the script in mounts of its own. A namespace that others make
# meanwhile would keep copies of them, and their file systems in use.
own_mounts() {
  local script=$1
  shift
  [ -n "${ZILLA_OWN_MOUNTS:-}" ] ||
    exec env ZILLA_OWN_MOUNTS=1 unshare -m --propagation private "$script" "$@"
}
