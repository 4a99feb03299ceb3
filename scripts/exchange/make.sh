# Makes a pool `src` on the disk $1 and streams of all kinds of it in the folder $2. See exchange.sh.
# shellcheck shell=bash
disk=$1 S=$2
mkdir -p "$S/manifest"
: >"$S/plan"
who=
plan() { printf '%s\n' "$who$*" >>"$S/plan"; }
# What follows is for zilla alone, or for both again. OpenZFS 2.3 does not take packages, also of its
# own, in which clones have taken their origins' places.
for_us() { who='here '; }
for_both() { who=; }
# put NAME ARGS...: zfs send ARGS > NAME.zsend
put() {
  local name=$1
  shift
  if zfs send "$@" >"$S/$name.zsend" 2>"$S/err"; then ok "send $*"; else bad "send $*: $(tr '\n' ' ' <"$S/err")"; fi
}
# recv NAME ARGS...: the receiver takes it so.
recv() { plan "recv $*"; }
# same TARGET SOURCE: snapshots that must have the same files.
same() {
  [ -e "$S/manifest/$(flat "$2")" ] || list "$2" "$S/manifest/$(flat "$2")" || bad "list $2"
  plan "same $1 $2"
}
at() { echo "$MNT/src/$1"; }

zpool create -f -O mountpoint="$MNT/src" -O xattr=sa -O acltype=posix src "$disk"
zpool create -f -O mountpoint="$MNT/tmp" tmp "$3"

# Plain file systems.
zfs create -o compression=lz4 src/a
M=$(at a)
zgen text 1 100 >"$M/tiny"
head -c 9000 /dev/zero | tr '\0' x >"$M/embedded"
zgen text 2 700k >"$M/text"
zgen rand 3 200k >"$M/rand"
zgen half 4 100k >"$M/half"
truncate -s 5m "$M/sparse" && printf middle | dd of="$M/sparse" bs=1 seek=2000000 conv=notrunc status=none
mkdir -p "$M/sub/a/b" && for i in $(seq 1 70); do echo "file $i" >"$M/sub/f$i"; done
ln -s tiny "$M/soft" && ln "$M/tiny" "$M/hard" && mkfifo "$M/fifo" && mknod "$M/chr" c 1 3
chmod 4755 "$M/half" && chown 1000:70000 "$M/rand" && touch -d '2001-09-09 01:46:40.123456789 UTC' "$M/text"
setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' y)" "$M/rand" 2>/dev/null || true
setfattr -n user.short -v one "$M/tiny" 2>/dev/null || true
zfs snapshot src/a@s1
zfs bookmark src/a@s1 src/a#s1
zgen text 5 300k | dd of="$M/text" bs=64k seek=3 conv=notrunc status=none
rm -r "$M/sub/a" && mv "$M/sub" "$M/moved" && : >"$M/rand" && zgen text 6 5000 >"$M/new"
zfs snapshot src/a@s2
truncate -s 100 "$M/text" && rm "$M/moved/f3" && zgen rand 7 300k >"$M/rand" && zgen text 8 40k >"$M/embedded"
zfs snapshot src/a@s3
put full src/a@s1 && recv full dst/full && same dst/full@s1 src/a@s1
put i -i @s1 src/a@s2 && recv i dst/full && same dst/full@s2 src/a@s2
put I -I @s1 src/a@s3 && recv full dst/I && recv I dst/I && same dst/I@s2 src/a@s2 && same dst/I@s3 src/a@s3
put mark -i '#s1' src/a@s2 && recv full dst/mark && recv mark dst/mark && same dst/mark@s2 src/a@s2
put c -c src/a@s1 && recv c dst/c && same dst/c@s1 src/a@s1
put ci -c -i @s1 src/a@s3 && recv ci dst/c && same dst/c@s3 src/a@s3
put e -e src/a@s1 && recv e dst/e && same dst/e@s1 src/a@s1
put cLe -c -L -e src/a@s3 && recv cLe -o compression=off dst/cLe && same dst/cLe@s3 src/a@s3
recv cLe -o recordsize=4k -o checksum=sha256 dst/cLe4k && same dst/cLe4k@s3 src/a@s3
put p -p src/a@s1 && recv p -x compression dst/p && same dst/p@s1 src/a@s1

# Large blocks, volumes, a head without a snapshot.
zfs create -o recordsize=1M -o compression=zstd src/big
zgen text 9 2500k >"$(at big)/large" && zgen rand 10 1200k >"$(at big)/noise"
zfs snapshot src/big@s1
zgen text 11 500k | dd of="$(at big)/large" bs=64k seek=9 conv=notrunc status=none
zfs snapshot src/big@s2
put L -L src/big@s1 && recv L dst/L && same dst/L@s1 src/big@s1
put Li -L -i @s1 src/big@s2 && recv Li dst/L && same dst/L@s2 src/big@s2
put Lc -L -c src/big@s2 && recv Lc dst/Lc && same dst/Lc@s2 src/big@s2
put noL src/big@s2 && recv noL dst/noL && same dst/noL@s2 src/big@s2
put cnoL -c src/big@s2 && recv cnoL dst/cnoL && same dst/cnoL@s2 src/big@s2
zfs create -V 4m src/vol
zgen text 12 1m | dd of="$(device src/vol)" bs=64k status=none conv=fsync
zfs snapshot src/vol@v1
zgen rand 13 20k | dd of="$(device src/vol)" bs=4k seek=10 status=none conv=fsync
zfs snapshot src/vol@v2
put vol src/vol@v1 && recv vol dst/vol
put voli -c -i @v1 src/vol@v2 && recv voli dst/vol
plan "vol dst/vol $(sha256sum <"$(device src/vol)" | cut -d' ' -f1)"
zfs create src/head && zgen text 14 200k >"$(at head)/text" && zfs unmount src/head
put head src/head && recv head dst/head@given
zfs mount src/head && zfs snapshot src/head@given && same dst/head@given src/head@given

# A tree with a clone that is promoted, and new names.
zfs create src/t && zfs create -o compression=gzip src/t/one && zgen text 15 90k >"$(at t)/one/x"
zfs snapshot -r src/t@x0 && zfs clone src/t/one@x0 src/t/clone && zgen text 16 30k >"$(at t)/clone/y"
zfs set user:note=here src/t/one && zfs snapshot -r src/t@x1 && zfs hold keep src/t@x1
put R -R -h src/t@x1 && recv R dst/R
for s in t@x0 t@x1 t/one@x1 t/clone@x1; do same "dst/R${s#t}" "src/$s"; done
recv R -o compression=zstd -x user:note dst/Ro && plan "prop dst/Ro compression zstd" &&
  plan "prop dst/Ro/one compression zstd" && plan "source dst/Ro/one compression inherited from dst/Ro" &&
  plan "prop dst/Ro/one user:note -" && plan "prop dst/R/one user:note here"
zfs promote src/t/clone && zfs rename -r src/t@x0 src/t@null && zfs rename src/t/one src/t/eins
echo later >"$(at t)/clone/z" && zfs snapshot -r src/t@x2
for_us
put Ri -R -I @null src/t@x2 && recv Ri -F dst/R
for s in t@x2 t/eins@x2 t/clone@x2 t@null; do same "dst/R${s#t}" "src/$s"; done
plan "prop dst/R/eins origin dst/R/clone@null" && plan "prop dst/R/clone origin -"
for_both
recv R -o encryption=on -o keyformat=hex -o "keylocation=file://$KEYS/hex" dst/Re
plan "prop dst/Re/one encryptionroot dst/Re" && same dst/Re/clone@x1 src/t/clone@x1
recv full -o encryption=on -o keyformat=hex -o "keylocation=file://$KEYS/hex" dst/fe && same dst/fe@s1 src/a@s1
recv i -F dst/fe && same dst/fe@s2 src/a@s2
recv c dst/fe/kept && same dst/fe/kept@s1 src/a@s1 && plan "prop dst/fe/kept encryptionroot dst/fe"
recv full -x encryption dst/fe/inherits && plan "prop dst/fe/inherits encryptionroot dst/fe"

# Encrypted trees, raw. (OpenZFS changes what was received when it mounts it, hence -F.)
zfs create -o encryption=on -o keyformat=passphrase -o "keylocation=file://$KEYS/pass" src/enc
zfs create -o compression=zstd src/enc/child
zfs create -o encryption=aes-128-ccm -o keyformat=hex -o "keylocation=file://$KEYS/hex" src/enc/own
for d in enc enc/child enc/own; do zgen text 17 300k >"$(at $d)/text" && zgen rand 18 50k >"$(at $d)/rand"; done
setfattr -n user.long -v "$(head -c 3000 /dev/zero | tr '\0' y)" "$(at enc/child)/rand" 2>/dev/null || true
zfs snapshot -r src/enc@e1 && zfs clone src/enc/child@e1 src/enc/clone && echo mine >"$(at enc/clone)/mine"
zfs snapshot src/enc/clone@e1b
put w -w src/enc/child@e1 && recv w dst/w && plan "key dst/w pass" && same dst/w@e1 src/enc/child@e1
put wcl -w -i src/enc/child@e1 src/enc/clone@e1b && recv wcl dst/wclone && plan "key dst/w pass" &&
  same dst/wclone@e1b src/enc/clone@e1b
zgen text 19 120k >"$(at enc/child)/text" && rm "$(at enc/child)/rand" && truncate -s 10m "$(at enc/own)/text"
zfs snapshot -r src/enc@e2 && zfs bookmark src/enc/child@e1 src/enc/child#e1
put wi -w -i @e1 src/enc/child@e2 && recv wi -F dst/w && plan "key dst/w pass" && same dst/w@e2 src/enc/child@e2
put wm -w -i '#e1' src/enc/child@e2 && recv w dst/wm && recv wm -F dst/wm && plan "key dst/wm pass" &&
  same dst/wm@e2 src/enc/child@e2
put wR -w -R src/enc@e2 && recv wR dst/wR && plan "key dst/wR pass" && plan "key dst/wR/own hex"
for s in enc@e2 enc/child@e1 enc/own@e2 enc/clone@e2; do same "dst/wR${s#enc}" "src/$s"; done
plan "prop dst/wR/child encryptionroot dst/wR" && plan "prop dst/wR/own encryptionroot dst/wR/own"
# The keys move, then a clone takes its origin's place.
zfs change-key -i src/enc/own && zfs snapshot -r src/enc@e3
put wRi -w -R -i @e2 src/enc@e3 && recv wRi -F -u dst/wR && plan "prop dst/wR/own encryptionroot dst/wR"
plan "key dst/wR pass" && same dst/wR/own@e3 src/enc/own@e3 && same dst/wR/child@e3 src/enc/child@e3
zfs change-key -o keyformat=hex -o "keylocation=file://$KEYS/hex" src/enc/child
zfs change-key -o keyformat=passphrase -o "keylocation=file://$KEYS/pass2" src/enc
zfs snapshot -r src/enc@e4
put wRi2 -w -R -i @e3 src/enc@e4 && plan "unload dst/wR" && recv wRi2 -F -u dst/wR
plan "prop dst/wR/child encryptionroot dst/wR/child" && plan "prop dst/wR/own encryptionroot dst/wR"
plan "prop dst/wR/clone encryptionroot dst/wR/child"
plan "key dst/wR pass2" && plan "key dst/wR/child hex"
for s in enc@e4 enc/child@e4 enc/own@e4 enc/clone@e4; do same "dst/wR${s#enc}" "src/$s"; done
put Renc -R src/t@x1 && recv Renc dst/fe/tree && plan "prop dst/fe/tree encryption off"

# A hierarchy whose clone is promoted beside its root.
zfs create -o encryption=on -o keyformat=hex -o "keylocation=file://$KEYS/hex" src/h
zfs create src/h/fs && zgen text 20 50k >"$(at h/fs)/text"
zfs create -o encryption=on -o keyformat=hex -o "keylocation=file://$KEYS/hex2" src/h/other
zfs create src/h/fs2 && zgen text 23 50k >"$(at h/fs2)/text"
zfs snapshot -r src/h@h1 && zfs clone src/h/fs@h1 src/h/cl && zfs clone src/h/fs2@h1 src/h/other/cl2
zfs snapshot -r src/h@h2
put wh -w -R src/h@h2 && recv wh -u dst/h
zfs change-key -o keyformat=hex -o "keylocation=file://$KEYS/hex2" src/h/fs
zfs change-key -o keyformat=hex -o "keylocation=file://$KEYS/hex" src/h/fs2
zfs promote src/h/cl && zfs promote src/h/other/cl2 && zfs snapshot -r src/h@h3
for_us
put whi -w -R -i @h2 src/h@h3 && recv whi -u dst/h
plan "prop dst/h/fs encryptionroot dst/h/cl" && plan "prop dst/h/cl encryptionroot dst/h/cl"
plan "prop dst/h/fs2 encryptionroot dst/h/other/cl2" && plan "prop dst/h/fs2 origin dst/h/other/cl2@h1"
plan "key dst/h hex" && plan "key dst/h/other hex2" && plan "key dst/h/cl hex2" && plan "key dst/h/other/cl2 hex"
for s in h/fs@h3 h/cl@h3 h/other@h3 h/fs2@h3 h/other/cl2@h3; do same "dst/$s" "src/$s"; done
for_both

# Redacted.
zfs create src/red && zgen text 21 300k >"$(at red)/open" && zgen text 22 300k >"$(at red)/secret"
zfs snapshot src/red@full && zfs clone src/red@full src/redc
zgen zero 0 300k | dd of="$(at redc)/secret" conv=notrunc bs=64k status=none && zfs snapshot src/redc@hidden
zfs redact src/red@full book src/redc@hidden
put red --redact book src/red@full && recv red -u dst/red
put redc -i src/red@full src/redc@hidden && recv redc dst/redc && same dst/redc@hidden src/redc@hidden

# Cut, to be resumed from what its receiver says; and one that its own receiver resumed.
halve() { head -c $(($(stat -c %s "$S/$1.zsend") / 2)) "$S/$1.zsend"; }
halve full >"$S/half.zsend"
plan "half half dst/resumed"
halve w >"$S/whalf.zsend"
plan "half whalf dst/wresumed"
rm -f "$S/err"
