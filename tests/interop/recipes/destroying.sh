#: disks 128M
#: crash tank
#: desc reset in an asynchronous destroy
zpool create tank $D1
fs tank/keep; basic $M 5
fs tank/go -o recordsize=512 -o compression=off; for i in 1 2 3 4 5 6; do zgen rand $i 3m > $M/f$i; done; zpool sync; zfs snapshot tank/go@s
close_all
echo 1 > /sys/module/zfs/parameters/zfs_async_block_max_blocks; echo 1 > /sys/module/zfs/parameters/zfs_free_min_time_ms
zfs destroy -r tank/go; zpool sync
finish_crash
