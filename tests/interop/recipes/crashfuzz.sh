#: disks 160M
#: crash tank
#: desc a random history, then a reset with a log
zpool create tank $D1
fuzz 44 250
zpool sync
echo 3600 > /sys/module/zfs/parameters/zfs_txg_timeout
cd /m/tank%2fz0; for i in $(seq 1 30); do zgen half $i $((i*997)) | dd of=f$((i%12)) bs=1 seek=$((i*731)) conv=notrunc status=none iflag=fullblock obs=64k; mv -f f$((i%12)) g$((i%5)); mkdir -p q$((i%7)); done; sync -d g1; echo x | dd of=last conv=fsync status=none
finish_crash
