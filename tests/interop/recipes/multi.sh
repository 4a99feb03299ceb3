#: disks 72M 72M 72M 72M 72M 72M
#: desc mixed top-level vdevs
zpool create -f tank mirror $D1 $D2 raidz1 $D3 $D4 $D5 $D6
fs tank/a; basic $M/basic 1
fs tank/b -o copies=3; small $M/y 3
fs tank/c -o copies=2 -o compression=zstd-19 -o checksum=sha512; small $M/y 4
finish tank
