# A consumer NVMe SSD (PCIe 3.0 x4) without protection against power loss.
#
# Samsung SSD 960 EVO 1 TB data sheet (as reviewed by hothardware.com): 3200 MB/s read, 1900 MB/s write; 4 KiB random
#   read 14,000 IOPS at queue depth 1 (71 us) and 380,000 at 32, which is what 27 reads at once give; random write
#   50,000 IOPS at depth 1 (20 us, from the cache), 360,000 at 32 (75 us of one of 27 channels). Flush: as for the SATA drive, the fixed part of a consumer drive's
#   fsync (its program time), smaller for the faster controller.
rotational = false
logical_block = 512
physical_block = 4096
read_us = 62
write_us = 75
channels = 27
media_read_mb_s = 3200
media_write_mb_s = 1900
bus_mb_s = 3500
command_us = 9
queue = 1024
cache_kib = 65536
flush_us = 700
