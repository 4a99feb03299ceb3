#: disks 96M 96M 96M 96M 96M 96M
#: desc draid1
zpool create tank draid1:3d:6c:1s $DISKS
fs tank/a; basic $M/basic 1
fs tank/b -o recordsize=4k -o compression=off; small $M/y 3
finish tank
