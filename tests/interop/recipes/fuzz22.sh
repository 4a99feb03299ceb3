#: disks 160M
#: desc a random history
zpool create tank $D1
fuzz 22 450
finish tank
