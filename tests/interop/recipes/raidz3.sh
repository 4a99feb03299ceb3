#: disks 72M 72M 72M 72M 72M 72M
#: desc raidz3 of six
zpool create tank raidz3 $DISKS
fs tank/a; basic $M/basic 1
fs tank/b -o recordsize=4k -o compression=off; small $M/y 3
finish tank
