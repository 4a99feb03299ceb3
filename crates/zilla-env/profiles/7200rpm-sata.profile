# A 3.5" 7200 rpm desktop disk on SATA.
#
# Mechanics: Hitachi Deskstar 7K1000.C specification, table 9: average seek 8.5 ms read, 9.5 ms write (typical);
#   with a square-root law between single track (0.8 ms) and full stroke that average means about 15 ms full stroke.
# Rate, cache, queue: Seagate Barracuda XT ST32000641AS data sheet: 138 MB/s sustained (outer tracks), 64 MiB
#   cache, 7200 rpm, NCQ (32 commands). Bus: SATA 6 Gb/s, 550 MB/s after 8b/10b coding and framing.
rotational = true
logical_block = 512
physical_block = 4096
rpm = 7200
seek_min_us = 800
seek_max_us = 15000
media_read_mb_s = 138
media_write_mb_s = 138
bus_mb_s = 550
command_us = 50
queue = 32
cache_kib = 65536
flush_us = 200
flush_blocks = true
