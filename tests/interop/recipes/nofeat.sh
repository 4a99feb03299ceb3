#: disks 96M
#: desc no feature enabled
zpool create -d tank $D1
fs tank/a; basic $M/basic 1; zfs snapshot -r tank@s; rm -r $M/basic/sub; small $M/n 7; zfs clone tank/a@s tank/c; open_fs tank/c; rm $M/basic/one
finish tank
