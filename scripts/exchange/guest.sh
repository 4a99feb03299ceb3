# The side of OpenZFS's kernel module, a job of its virtual machine: `make` fills the first disk and leaves
# streams in $OUT/streams; `take` receives those of /job/streams.tar into the second disk, `rest` those that go on there; `resume` sends
# what the tokens of /job/tokens.tar ask for. See scripts/exchange.sh.
# shellcheck shell=bash disable=SC1091
. /job/lib.sh
. /job/exchange-lib.sh
MNT=/m TMP=/tmp KEYS=/tmp/exchange-keys IN_GUEST=1
export MNT TMP KEYS IN_GUEST
mkdir -p $KEYS && tar xf /job/keys.tar -C $KEYS
view() { mkdir -p /view && mount -i -t zfs -o ro "$1" /view && echo /view; }
unview() { umount /view; }
device() { for _ in 1 2 3 4 5 6 7 8 9 10; do zvols "$1" && return; sleep 1; done; }
case $1 in
make)
  . /job/make.sh "$D1" "$OUT/streams" "$D3"
  zpool export src ;;
take)
  mkdir -p /tmp/streams && tar xf /job/streams.tar -C /tmp/streams
  zpool create -f -O mountpoint=/m/dst dst "$D2"
  . /job/take.sh /tmp/streams
  zpool export dst ;;
rest)
  mkdir -p /tmp/streams && tar xf /job/streams.tar -C /tmp/streams
  zimport dst && . /job/take.sh /tmp/streams
  zpool scrub -w dst && zpool status dst | grep -q 'with 0 errors' && ok 'scrub of dst' || bad 'scrub of dst'
  zpool export dst ;;
resume)
  zimport src && zfs load-key -a
  mkdir -p /tmp/tokens "$OUT/rest" && tar xf /job/tokens.tar -C /tmp/tokens
  for t in /tmp/tokens/*.token; do
    name=$(basename "$t" .token)
    if zfs send -t "$(cat "$t")" >"$OUT/rest/$name.zsend" 2>/tmp/said; then ok "send -t of $name"
    else bad "send -t of $name: $(cat /tmp/said)"; fi
  done
  zpool export src ;;
esac
dmesg | grep -E 'Kernel panic|PANIC|VERIFY|BUG: |Oops' && bad 'the kernel complained'
tell "$1: $failed failed"
[ $failed = 0 ]
