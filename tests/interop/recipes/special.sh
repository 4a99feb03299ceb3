#: disks 96M 72M 72M
#: desc special and dedup class
zpool create -f tank $D1 special $D2 dedup $D3
fs tank/a -o special_small_blocks=16k; basic $M/basic 1
fs tank/b -o dedup=on; small $M/x 3; small $M/y 3; rm -r $M/x
finish tank
