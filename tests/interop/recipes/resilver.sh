#: disks 96M 96M 96M
#: crash tank
#: desc reset while replacing
zpool create tank mirror $D1 $D2
fs tank/a; basic $M/basic 1; for i in 1 2 3 4; do zgen rand $i 5m > $M/r$i; done; zpool sync
echo 1 > /sys/module/zfs/parameters/zfs_scan_suspend_progress
zpool replace tank $D2 $D3; sleep 1; small $M/new 4; zpool sync
finish_crash
