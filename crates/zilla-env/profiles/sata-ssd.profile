# A consumer SATA SSD with a DRAM cache and no protection against power loss.
#
# Samsung SSD 860 EVO data sheet (1 TB): 550 MB/s sequential read, 520 MB/s write; 4 KiB random read 10,000 IOPS at
#   queue depth 1 (100 us) and 98,000 at 32, which is what ten reads at once give; random write 42,000 IOPS at depth
#   1 (24 us: acknowledged from the cache) and 90,000 at 32, so a small write holds one of ten channels for 110 us
#   (several share a page). A flush has to program what is in the cache: consumer drives take
#   milliseconds per fsync (techpowerup.com's fsync tests show hundreds per second), of which this is the fixed part.
rotational = false
logical_block = 512
physical_block = 4096
read_us = 80
write_us = 110
channels = 10
media_read_mb_s = 550
media_write_mb_s = 520
bus_mb_s = 550
command_us = 18
queue = 32
cache_kib = 32768
flush_us = 1000
flush_blocks = true
