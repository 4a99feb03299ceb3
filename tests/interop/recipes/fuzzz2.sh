#: disks 96M 96M 96M 96M
#: desc a random history, ashift 12, raidz2
zpool create -o ashift=12 tank raidz2 $DISKS
fuzz 33 350
finish tank
