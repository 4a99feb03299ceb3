#: disks 128M 64M
#: crash tank
#: desc reset with log records of many kinds on a log device
zpool create tank $D1 log $D2
fs tank/a -o xattr=sa -o acltype=posix; small $M/before 181; zpool sync
echo 3600 > /sys/module/zfs/parameters/zfs_txg_timeout
cd $M
for i in 1 2 3 4; do zgen text $((181+i)) 3000 > s$i; done
mkfifo p; mknod c c 1 5; mknod b b 8 1; ln -s target l; mkdir d1 d2; mv s1 d1/; ln s2 d2/s2
setfattr -n user.x -v y s3; setfacl -m u:7:rwx s4; setfacl -d -m g:9:rx d2; echo t > d2/inherits
cp --reflink=auto before/text300k clone; fallocate -p -o 1000 -l 5000 before/rand40k; truncate -s 1m before/half40k
rm before/tiny; rmdir before/d 2>/dev/null || true; rm -r before/d
chown 5:6 s3; chmod 4755 s4; touch -d 2001-01-01 s2
zgen rand 190 300k | dd of=big conv=fsync bs=128k status=none; sync -d s4; sync -d big
finish_crash
