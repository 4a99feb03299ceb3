#: disks 128M
#: desc dedup tables, fast
zpool create tank $D1
fs tank/a -o dedup=on -o recordsize=16k; small $M/x 3; small $M/y 3; zpool sync; rm -r $M/x; basic $M/b 7; cp -r $M/b $M/c
fs tank/b -o dedup=sha512,verify; basic $M/b 7; zpool sync; rm -r $M/b/sub
fs tank/n; basic $M/q 9
finish tank
