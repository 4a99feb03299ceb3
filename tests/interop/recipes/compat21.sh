#: disks 96M 96M
#: desc as 2.1 makes it
zpool create -o compatibility=openzfs-2.1-linux tank mirror $D1 $D2
fs tank/a; basic $M/basic 1; zfs snapshot -r tank@s; rm -r $M/basic/sub; small $M/n 7; zfs clone tank/a@s tank/c; open_fs tank/c; rm $M/basic/one
finish tank
