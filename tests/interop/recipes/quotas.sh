#: disks 128M
#: desc quotas, holds, bookmarks, projects
zpool create tank $D1
fs tank/a -o quota=60m -o refquota=50m -o userquota@1000=10m -o groupquota@2000=5m -o userobjquota@1000=500 -o projectquota@7=9m; basic $M/basic 1
mkdir $M/p; zfs project -p 7 -s -r $M/p; small $M/p/x 2
zfs snapshot tank/a@one; zfs hold keep tank/a@one; zfs bookmark tank/a@one tank/a#mark; rm -r $M/basic/sub; zfs snapshot tank/a@two; zfs destroy tank/a@two
fs tank/r -o reservation=20m -o refreservation=10m; zfs set filesystem_limit=5 snapshot_limit=9 tank; zfs create tank/r/c
finish tank
