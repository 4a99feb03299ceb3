#: disks 96M 96M 96M
#: desc a mirror with a spare in use
zpool create tank mirror $D1 $D2 spare $D3
fs tank/a; basic $M/basic 1; zpool sync
zpool replace tank $D2 $D3; zpool wait -t resilver tank; zpool offline tank $D2; small $M/new 4
finish tank
