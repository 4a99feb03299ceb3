#: disks 256M 128M
#: desc a removed top-level vdev
zpool create tank $D1 $D2
fs tank/a; basic $M/basic 1; zpool sync; zfs snapshot tank/a@s
fs tank/b; small $M/y 3; zpool sync
zpool remove tank $D2; zpool wait -t remove tank
open_fs tank/b; rm -r $M/y/d; small $M/z 4
zpool sync
finish tank
