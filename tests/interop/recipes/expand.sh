#: disks 96M 96M 96M 96M
#: desc raidz1 of three expanded to four
zpool create tank raidz1 $D1 $D2 $D3
fs tank/a; basic $M/basic 1; zpool sync
zpool attach tank raidz1-0 $D4; zpool wait -t raidz_expand tank
fs tank/b; basic $M/y 3
finish tank
