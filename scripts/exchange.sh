#!/usr/bin/env bash
# Streams exchanged with OpenZFS's kernel module, as root: `scripts/exchange.sh`. Both sides make the same
# pool with the same commands, and streams of it of every kind (exchange/make.sh): full, incremental,
# from bookmarks, with -c -L -e -p -R -h -w, of volumes, of a file system without a snapshot, redacted, cut.
# Each takes the other's, and lists every file of every snapshot, which must be the same; OpenZFS takes
# those as well that zilla sends of what it received from OpenZFS. What was cut is resumed by what its sender makes of
# the receiver's token. At the end zdb must find every block, on both sides' pools.
# ZILLA_ORACLE is the judge's folder, ZILLA_ORACLE_VM the machine that it has built, ZILLA_BIN the
# folder of the programs (target/release), JUDGES_DISK a folder with some GB.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
[ "$(id -u)" = 0 ] || die 'needs root: it mounts, and reads volumes'
own_mounts "$0" "$@"
need zdb=zfsutils-linux cc=gcc qemu-system-x86_64=qemu-system-x86
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
oracle=${ZILLA_ORACLE:?the folder of the judge} vm=${ZILLA_ORACLE_VM:?what the judge has built}
work=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/exchange.XXXXXX")
export ZILLA_DIR=$work/state PATH=$work/bin:$PATH
export MNT=$work/mnt TMP=$work/tmp KEYS=/tmp/exchange-keys OUT=$work/out
mkdir -p "$ZILLA_DIR" "$work/bin" "$MNT" "$TMP" "$OUT" "$KEYS"
say "exchange: in $work"
for name in zgen zmanifest; do cc -O1 -o "$work/bin/$name" "$oracle/guest/$name.c"; done
finish() {
  "$bin/zilla" stop >/dev/null 2>&1 || true
  umount -R -l "$MNT" 2>/dev/null || true
}
trap finish EXIT
zfs() { timeout 300 "$bin/zilla" zfs "$@"; }
zpool() { timeout 300 "$bin/zilla" zpool "$@"; }
view() {
  local at
  at=$(zfs get -H -o value mountpoint "${1%@*}")/.zfs/snapshot/${1#*@}
  [ -e "$at" ] && echo "$at"
}
unview() { :; }
device() { "$bin/zilla" zvol attach "$1"; }
. "$top/scripts/exchange/lib.sh"

printf 'a passphrase' >"$KEYS/pass"
printf 'another passphrase' >"$KEYS/pass2"
printf '%064d' 1 >"$KEYS/hex"
printf '%064d' 2 >"$KEYS/hex2"
tar -cf "$work/keys.tar" -C "$KEYS" .
for n in 1 2 3; do truncate -s 1G "$work/k$n.img" "$work/z$n.img"; done
x=$top/scripts/exchange
# guest WHAT FILE...: a run of the virtual machine, on its three disks.
guest() {
  local what=$1 add=() f
  shift
  for f in "$work/keys.tar" "$x/make.sh" "$x/take.sh" "$x/lib.sh:exchange-lib.sh" "$@"; do add+=(--add "$f"); done
  "$oracle/oracle" run "$vm" --timeout 3000 --script "$x/guest.sh" --disk "$work/k1.img" --disk "$work/k2.img" \
    --disk "$work/k3.img" "${add[@]}" --arg="$what" --out "$OUT/$what" || failed=$((failed + 1))
}

say '== OpenZFS makes streams'
guest make
say '== zilla makes streams'
. "$x/make.sh" "$work/z1.img" "$work/ours" "$work/z3.img"
say '== zilla takes those of OpenZFS'
zpool create -O mountpoint="$MNT/dst" dst "$work/z2.img"
. "$x/take.sh" "$OUT/make/streams"
# What came from OpenZFS is sent on to it, behind what zilla has made.
again() {
  local name=$1 target=$2 flags=$3 snap=$4 listed=$5
  # shellcheck disable=SC2086 # words
  if zfs send $flags "$target@$snap" >"$work/ours/$name.zsend" 2>"$TMP/said"; then ok "send $flags $target@$snap"
  else bad "send $flags $target@$snap: $(cat "$TMP/said")"; fi
  cp "$OUT/make/streams/manifest/$(flat "$listed")" "$work/ours/manifest/$(flat "again/$listed")"
  printf '%s\n' "recv $name -u dst/$name" >>"$work/ours/plan"
  case $flags in *w*) printf '%s\n' "key dst/$name pass" >>"$work/ours/plan" ;; esac
  printf '%s\n' "same dst/$name@$snap again/$listed" >>"$work/ours/plan"
}
again again1 dst/I '' s3 src/a@s3
again again2 dst/c '-c -L -e' s3 src/a@s3
again again3 dst/L '-L -c' s2 src/big@s2
again again4 dst/w '-w' e2 src/enc/child@e2
again again5 dst/fe '' s2 src/a@s2
again again6 dst/cLe4k '-e' s3 src/a@s3

say '== OpenZFS takes those of zilla'
tar -cf "$work/streams.tar" -C "$work/ours" .
guest take "$work/streams.tar"
say '== what was cut goes on'
tar -cf "$work/tokens.tar" -C "$OUT" dst%2fresumed.token dst%2fwresumed.token
guest resume "$work/tokens.tar"
for name in resumed wresumed; do
  if zfs receive -s -u "dst/$name" <"$OUT/resume/rest/dst%2f$name.zsend" >"$TMP/said" 2>&1; then ok "resume dst/$name"
  else bad "resume dst/$name: $(cat "$TMP/said")"; fi
done
# The sender's key was changed after the first part had been sent: it is that of the rest.
zfs load-key -L "file://$KEYS/hex" dst/wresumed && zfs mount -a
mkdir -p "$work/rest/manifest"
: >"$work/rest/plan"
for pair in 'resumed@s1 src/a@s1' 'wresumed@e1 src/enc/child@e1'; do
  list "dst/${pair% *}" "$TMP/list" && cmp "$TMP/list" "$OUT/make/streams/manifest/$(flat "${pair#* }")" &&
    ok "${pair% *} is what was sent" || bad "${pair% *} is not what was sent"
  name=${pair%%@*}
  zfs send -t "$(cat "$OUT/take/dst%2f$name.token")" >"$work/rest/$name.zsend" || bad "send -t of OpenZFS's token"
  cp "$work/ours/manifest/$(flat "${pair#* }")" "$work/rest/manifest/"
  printf '%s\n' "recv $name -s -u dst/$name" >>"$work/rest/plan"
  [ $name = resumed ] || printf '%s\n' "key dst/$name hex" >>"$work/rest/plan"
  printf '%s\n' "same dst/${pair% *} ${pair#* }" >>"$work/rest/plan"
done
tar -cf "$work/streams.tar" -C "$work/rest" .
guest rest "$work/streams.tar"

say '== every block'
zpool scrub dst && zpool wait -t scrub dst && zpool status dst | grep -q 'with 0 errors' || bad 'a scrub of dst'
for p in src dst; do zpool export $p; done
for n in z1:src z2:dst k1:src k2:dst; do
  mkdir -p "$work/one" && rm -f "$work/one/"* && ln "$work/${n%:*}.img" "$work/one/disk.img"
  if zdb -e -p "$work/one" -bcc "${n#*:}" >"$OUT/zdb-${n%:*}" 2>&1; then ok "zdb ${n%:*}"; else bad "zdb ${n%:*}"; fi
done
say "exchange: $failed failed; see $work"
[ $failed = 0 ]
