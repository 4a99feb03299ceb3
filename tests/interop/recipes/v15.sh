#: disks 96M
#: desc pool version 15, filesystem version 3
zpool create -o version=15 tank $D1
fs tank/a -o version=3; basic $M 221; zfs snapshot tank/a@s; rm $M/tiny
fs tank/b -o version=1; small $M 22
finish tank
