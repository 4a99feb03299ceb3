#: disks 72M 72M 72M 72M 72M
#: keep 1 3 5
#: desc raidz2 without two disks
zpool create tank raidz2 $DISKS
fs tank/a; basic $M/basic 1
finish tank
