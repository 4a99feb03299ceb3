# A 2.5" 5400 rpm notebook disk in a USB 2.0 enclosure.
#
# Mechanics: Hitachi Travelstar 5K320 OEM specification, tables 5-8 (typical): average seek 12 ms read, 13 ms
#   write; full stroke 20 ms; single track 1.0 ms; 5400 rpm. Cache 8 MiB.
# Media rate: Seagate Momentus 5400.4 data sheet, 58 MB/s sustained (outer tracks).
# Bus: fast SSD in a USB 2.0 enclosure measured at 33 MB/s read and write, 0.6 ms access
#   (petermoulding.com/usb_disk_speed); CNet's tests in the USB article: 25-42 MB/s. Bulk-only transport takes one
#   command at a time, so the drive has nothing to reorder but its own cached writes.
rotational = true
logical_block = 512
physical_block = 512
rpm = 5400
seek_min_us = 1000
seek_max_us = 20000
media_read_mb_s = 58
media_write_mb_s = 58
bus_mb_s = 33
command_us = 500
queue = 1
cache_kib = 8192
flush_us = 500
flush_blocks = true
