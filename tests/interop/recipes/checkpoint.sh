#: disks 128M
#: desc a checkpoint
zpool create tank $D1
fs tank/a; basic $M/basic 1; small $M/gone 2
zpool checkpoint tank
rm -r $M/gone; small $M/new 5
finish tank
