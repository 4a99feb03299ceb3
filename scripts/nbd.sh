#!/usr/bin/env bash
# Volumes by others' NBD clients: `scripts/nbd.sh [SECONDS]`, 60 by default, which is how long fio
# verifies (the long form is 3600). qemu-img converts, compares and checks, qemu-io writes patterns,
# nbdinfo and nbdcopy of libnbd, libnbd without its own checks sends what is wrong, clients that
# reconnect (qemu's, nbdkit's retry) work while the daemon is killed and stopped, and TLS is spoken
# with certificates. At the end zdb must find every block. ZILLA_BIN is the folder of the programs
# (target/release), JUDGES_DISK a folder with some GB for the pool, SEED where to begin. As root fio
# also goes through a loop device.
set -euo pipefail
top=$(cd "$(dirname "$0")/.." && pwd)
. "$top/scripts/packages.sh"
need qemu-img=qemu-utils nbdinfo=libnbd-bin nbdkit=nbdkit nbdsh=python3-libnbd fio=fio \
  openssl=openssl mke2fs=e2fsprogs
need_fuse || die '/dev/fuse is missing'
bin=$(programs)
seconds=${1:-60}
seed=${SEED:-1}
pool=nbd$$
disks=$(mktemp -d "${JUDGES_DISK:-/var/tmp}/nbd.XXXXXX")
export ZILLA_DIR=$disks/state ZILLA_ZVOL_DEVICES=off
mkdir -p "$ZILLA_DIR" "$disks/tls"
sock=$ZILLA_DIR/nbd.sock
z() { timeout 120 "$bin/zilla" "$@"; }
daemon() { cat "$ZILLA_DIR/zillad.pid"; }
uri() { printf 'nbd+unix:///%s/%s?socket=%s' "$pool" "$1" "$sock"; }
device=''
finish() {
  [ -z "$device" ] || losetup -d "$device" 2>/dev/null || true
  z stop >/dev/null 2>&1 || true
}
trap finish EXIT
# within CMD...: whatever takes longer than this hangs. Functions call it themselves.
within() {
  if [ "$(type -t "$1")" = function ]; then "$@"; else timeout $((seconds + 300)) "$@"; fi
}
# try NAME CMD...: one check, with its output in a file.
try() {
  local name=$1 rc=0
  shift
  within "$@" >"$disks/log.$name" 2>&1 || rc=$?
  [ "$rc" = 0 ] ||
    { tail -n 20 "$disks/log.$name"; die "$name ends with $rc: see $disks/log.$name"; }
  say "ok      $name"
}

for i in 1 2; do truncate -s 3G "$disks/disk$i"; done
z zpool create -m none -O compression=lz4 "$pool" mirror "$disks/disk1" "$disks/disk2"
for volume in small:4k middle:16k large:128k; do
  z zfs create -s -V 256M -b "${volume#*:}" "$pool/${volume%:*}"
done

# What is written: a file system with files in it, noise, and holes.
image=$disks/image
truncate -s 256M "$image"
mke2fs -q -F -t ext4 -d "$top/crates" "$image" 96M
head -c 40000000 /dev/urandom | dd of="$image" bs=1M seek=150 conv=notrunc status=none

listed() {
  [ "$(nbdinfo --list --json "nbd+unix://?socket=$sock" | grep -c '"export-name"')" = "$1" ]
}
try nbdinfo-list listed 3
for what in fua trim zero fast-zero multi-conn df cache structured-reply; do
  try "nbdinfo-can-$what" nbdinfo --can $what "$(uri middle)"
done

for volume in small middle large; do
  try "qemu-img-convert-$volume" qemu-img convert -n -W -m 16 -f raw -O raw \
    "$image" "$(uri $volume)"
  try "qemu-img-compare-$volume" qemu-img compare -f raw -F raw "$image" "$(uri $volume)"
  try "nbdcopy-from-$volume" nbdcopy "$(uri $volume)" "$disks/back"
  try "cmp-$volume" cmp "$image" "$disks/back"
done
holes() { nbdinfo --map --totals "$(uri middle)" | tee /dev/stderr | grep -q 'hole'; }
try nbdinfo-map holes
z zfs create -s -V 256M -b 8k "$pool/copy"
try nbdcopy-to nbdcopy --connections=4 --requests=64 "$image" "$(uri copy)"
try nbdcopy-to-compare qemu-img compare -f raw -F raw "$image" "$(uri copy)"
try nbdcopy-between nbdcopy "$(uri large)" "$(uri copy)"
try nbdcopy-between-compare qemu-img compare -f raw -F raw "$(uri copy)" "$image"
try qcow2-create qemu-img create -q -f qcow2 "$(uri copy)" 128M
try qcow2-write qemu-io -f qcow2 -c 'write -P 7 0 30M' -c 'write -z 10M 5M' -c 'discard 20M 2M' \
  "$(uri copy)"
try qcow2-check qemu-img check -f qcow2 "$(uri copy)"
z zfs snapshot "$pool/large@s"
z zfs set snapdev=visible "$pool/large"
readonly_snapshot() {
  nbdinfo --is read-only "$(uri large@s)" && ! qemu-io -f raw -c 'write 0 4k' "$(uri large@s)"
}
try snapshot readonly_snapshot
try snapshot-compare qemu-img compare -f raw -F raw "$image" "$(uri large@s)"

# patterns COUNT FUA: COUNT writes of random places and lengths that do not meet, then what must be
# there, as qemu-io's commands.
patterns() {
  local i at len what writes=() reads=()
  RANDOM=$seed
  for i in $(seq "$1"); do
    at=$((i * 131072 + (RANDOM % 128) * 512))
    len=$(((RANDOM % 120 + 1) * 512))
    what=$((i % 255 + 1))
    case $((RANDOM % 8)) in
      0) writes+=("write -z $2 $at $len") what=0 ;;
      1) writes+=("write $2 -P 9 $at $len" "write -z -u $2 $at $len") what=0 ;;
      *) writes+=("write $2 -P $what $at $len") ;;
    esac
    reads+=("read -P $what $at $len")
  done
  printf '%s\n' "${writes[@]}" flush "${reads[@]}" quit
}
# qemu_io PATTERNS OPTIONS: fails also where it only says so.
qemu_io() {
  local rc=0 image=driver=raw,file.driver=nbd,file.server.type=unix
  image+=,file.server.path=$sock,$2
  within qemu-io --image-opts "$image" <"$1" >"$1.out" 2>&1 || rc=$?
  ! grep -i -m 5 'fail\|error' "$1.out" || return 1
  return "$rc"
}
for volume in small middle large; do
  patterns 1500 '' >"$disks/patterns"
  try "qemu-io-patterns-$volume" qemu_io "$disks/patterns" "file.export=$pool/$volume"
  seed=$((seed + 1))
done

# Nothing but the wrong and the odd, which libnbd would not send by itself, beside a model.
cat >"$disks/wrong.py" <<'PYTHON'
import nbd, random, sys
h = nbd.NBD()
uri, seed = sys.argv[1], int(sys.argv[2])
rng = random.Random(seed)
h.add_meta_context("base:allocation")
h.connect_uri(uri)
h.set_strict_mode(0)
size = h.get_size()
SPAN = 4 << 20
ALLOWED = ("EINVAL", "ENOSPC", "ENOTSUP", "EOPNOTSUPP", "EOVERFLOW")
model = bytearray(SPAN)
h.zero(SPAN, 0)
told = {}
for turn in range(4000):
    wrong = rng.random() < 0.5
    length = rng.choice([0, 1, 511, 512, 4096, rng.randrange(1, 300000)])
    offset = rng.randrange(0, SPAN - 300000)
    if wrong and rng.random() < 0.7:
        offset = rng.choice([size, size - 1, size + 7, (1 << 63) - 5])
    flags = rng.randrange(0, 32) if wrong else 0
    what = rng.choice(["write", "read", "trim", "zero", "cache", "status", "flush"])
    exists = 0 < length and offset + length <= size
    inside = exists and offset + length <= SPAN
    try:
        if what == "write":
            data = rng.randbytes(length)
            h.pwrite(data, offset, flags)
            assert exists, "a write outside was answered as done"
            if inside:
                model[offset:offset + length] = data
        elif what == "read":
            data = h.pread(length, offset, flags)
            assert exists, "a read outside was answered as done"
            if inside:
                assert data == model[offset:offset + length], "other bytes than were written"
        elif what == "trim" and wrong:
            h.trim(length, offset if offset >= size - 1 else size - length, flags)
        elif what == "zero":
            h.zero(length, offset, flags)
            assert exists, "zeroes outside were answered as done"
            if inside:
                model[offset:offset + length] = bytes(length)
        elif what == "cache":
            h.cache(length, offset, flags)
        elif what == "status":
            h.block_status(length, offset, lambda *a: 0, flags)
        else:
            h.flush(flags)
    except nbd.Error as e:
        assert e.errno in ALLOWED, (what, offset, length, flags, e)
        # A write of which a part was out of the volume has changed nothing.
        told[e.errno] = told.get(e.errno, 0) + 1
    assert h.aio_is_ready(), (what, offset, length, flags)
assert h.pread(SPAN, 0) == model
assert told, "nothing was refused"
print(told)
h.shutdown()
PYTHON
z zfs create -s -V 64M -b 4k "$pool/wrong"
# (The distribution's python has the library.)
try libnbd-wrong /usr/bin/python3 "$disks/wrong.py" "$(uri wrong)" "$seed"

# ends HOW: the daemon ends and comes back.
ends() {
  local pid
  if [ "$1" = kill ]; then
    pid=$(daemon)
    kill -9 "$pid"
    for _ in $(seq 300); do [ -e "/proc/$pid" ] || break; sleep 0.1; done
  else
    z stop >/dev/null
  fi
  sleep 1
  z zpool list "$pool" >/dev/null
}
# while_it_ends HOW COUNT CMD...: and in between. What is asked for while it is killed is FUA: what
# was only answered may be gone then, as with any disk.
while_it_ends() {
  local how=$1 count=$2 pid rc=0
  shift 2
  "$@" &
  pid=$!
  for _ in $(seq "$count"); do
    sleep 1
    kill -0 $pid 2>/dev/null || break
    ends "$how"
    ended=$((ended + 1))
  done
  wait $pid || rc=$?
  return $rc
}
ended=0
for how in kill stop; do
  fua='' filters=(--filter=retry --filter=rate) fua_mode=()
  [ $how = stop ] || { fua=-f filters=(--filter=fua "${filters[@]}") fua_mode=(fuamode=force); }
  patterns 1900 "$fua" >"$disks/patterns"
  export=file.export=$pool/small,file.reconnect-delay=120
  while_it_ends $how 3 qemu_io "$disks/patterns" "$export" ||
    { tail -n 5 "$disks/patterns.out"; die "qemu notices: $how"; }
  say "ok      qemu-reconnects-$how ($ended times)"
  ended=0
  z zfs create -s -V 256M "$pool/$how"
  # Slow enough to be under way when it ends.
  while_it_ends $how 3 nbdkit -U - "${filters[@]}" nbd "socket=$sock" "export=$pool/$how" \
    retries=20 retry-delay=1 retry-exponential=no rate=100M "${fua_mode[@]}" \
    --run "nbdcopy '$image' \"\$uri\"" >"$disks/log.retry" 2>&1 ||
    { tail "$disks/log.retry"; die "nbdkit's retry notices: $how"; }
  say "ok      nbdkit-retries-$how ($ended times)"
  try "nbdkit-retries-$how-compare" qemu-img compare -f raw -F raw "$image" "$(uri $how)"
  ended=0
done

# fio: random sizes, flushes, checksums of all that was written.
verify() {
  within fio --name=verify "$@" --rw=randwrite --bsrange=512-256k --blockalign=512 --size=256M \
    --iodepth=16 --fsync=64 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --do_verify=1 \
    --randseed="$seed" --time_based --runtime="$each" --output-format=terse
}
ways=(small middle large)
[ "$(id -u)" != 0 ] || ways+=(loop)
each=$((seconds / ${#ways[@]}))
[ "$each" -gt 0 ] || each=1
for way in "${ways[@]}"; do
  if [ "$way" = loop ]; then
    device=$(z zvol attach "$pool/middle")
    try fio-loop verify --ioengine=libaio --direct=1 --filename="$device"
    z zvol detach "$pool/middle"
    device=''
  else
    try "fio-$way" verify --ioengine=nbd --uri="$(uri "$way")"
  fi
  seed=$((seed + 1))
done

# TLS over TCP, with certificates of one authority, as qemu and libnbd name them.
(
  cd "$disks/tls"
  new=(openssl req -newkey rsa:2048 -nodes)
  "${new[@]}" -x509 -keyout ca-key.pem -out ca-cert.pem -days 2 -subj /CN=authority
  for who in server client; do
    "${new[@]}" -keyout $who-key.pem -out $who.csr -subj /CN=localhost \
      -addext subjectAltName=DNS:localhost
    openssl x509 -req -in $who.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
      -copy_extensions copy -out $who-cert.pem
  done
) >"$disks/log.openssl" 2>&1
z stop >/dev/null
port=$((20000 + $$ % 20000))
"$bin/zilla" zillad --nbd-listen "127.0.0.1:$port" --nbd-tls "$disks/tls" \
  >"$disks/log.zillad" 2>&1 &
for _ in $(seq 100); do [ -e "$sock" ] && break; sleep 0.1; done
z zpool list "$pool" >/dev/null
tls="nbds://localhost:$port/$pool/copy?tls-certificates=$disks/tls"
try tls-nbdinfo nbdinfo --size "$tls"
try tls-nbdcopy nbdcopy "$image" "$tls"
other="driver=raw,file.driver=nbd,file.server.type=inet,file.server.host=localhost"
other+=",file.server.port=$port,file.export=$pool/copy,file.tls-creds=t"
try tls-compare qemu-img compare --object "tls-creds-x509,id=t,endpoint=client,dir=$disks/tls" \
  --image-opts "driver=raw,file.filename=$image" "$other"
no_tls() { ! within nbdinfo --size "nbd://localhost:$port/$pool/copy"; }
try tls-is-demanded no_tls
# Pre-shared keys are refused, in the handshake.
printf 'someone:%s\n' "$(openssl rand -hex 32)" >"$disks/psk"
keyed="nbds://someone@localhost:$port/$pool/copy?tls-psk-file=$disks/psk"
no_psk() { ! within nbdinfo --size "$keyed"; }
try psk-is-refused no_psk

healthy "$pool" "$disks"
z stop >/dev/null
trap - EXIT
rm -r "$disks"
say "nbd: others' clients, $seconds s of fio, without a finding"
