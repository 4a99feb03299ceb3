# What both sides of scripts/exchange.sh share: OpenZFS in its virtual machine, and zilla here. `make.sh`
# and `take.sh` use the commands `zfs` and `zpool` of the side they run on, and from here on what differs:
#   view SNAPSHOT   prints where its files can be read      unview     ends that
#   device VOLUME   prints its block device                 tell ...   a line of the protocol
# A folder of streams has NAME.zsend; `plan`, what its receiver is to do with them; and `manifest`, the
# files of each snapshot that is compared.
# shellcheck shell=bash
failed=0
tell() { printf '%s\n' "$*"; }
ok() { tell "ok $*"; }
bad() { tell "FAIL $*"; failed=$((failed + 1)); }
flat() { printf %s "$1" | sed 's|/|%2f|g'; }

# list SNAPSHOT FILE: its files, by all that a stream has to keep.
list() {
  local dir
  dir=$(view "$1") || return 1
  # A snapshot's root has a number of its mount's.
  zmanifest -H "$dir" | sed -E -e '1s/,"ino":[0-9]+//' -e \
    's/,"(blocks|atime|btime|attributes|xflags|data)":("[^"]*"|-?[0-9.]+|\[(\[[0-9]+,[0-9]+\],?)*\])//g' >"$2"
  unview
}
