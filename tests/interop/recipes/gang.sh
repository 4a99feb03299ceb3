#: disks 128M
#: desc gang blocks
zpool create -O compression=off tank $D1
echo 16384 > /sys/module/zfs/parameters/metaslab_force_ganging; echo 100 > /sys/module/zfs/parameters/metaslab_force_ganging_pct
fs tank/a; basic $M/basic 1
fs tank/b -o recordsize=1m -o copies=2; small $M/y 3
zpool sync; rm -r $M/y/d; zpool sync
finish tank
