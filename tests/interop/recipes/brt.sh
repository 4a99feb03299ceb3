#: disks 128M
#: desc cloned blocks
echo 1 > /sys/module/zfs/parameters/zfs_bclone_enabled || true
zpool create tank $D1
fs tank/a; basic $M/basic 1; zpool sync
for f in rand200k text700k half100k; do cp --reflink=always $M/basic/$f $M/$f.clone; cp --reflink=always $M/basic/$f $M/$f.clone2; done
zpool sync; rm $M/basic/rand200k; printf changed | dd of=$M/text700k.clone bs=1 seek=140000 conv=notrunc status=none; rm $M/half100k.clone2
zpool sync
finish tank
