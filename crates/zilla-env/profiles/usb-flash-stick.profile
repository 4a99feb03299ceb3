# A consumer USB 2.0 flash stick.
#
# Erase unit and read time: flashbench of a Patriot Xporter XT Boost 16 GB (Linaro's flashbench-results list): 8 MiB
#   erase blocks, 0.55-0.8 ms for a small read. Sticks keep few erase blocks open at a time; a write elsewhere closes
#   one, which copies what it held ("read-modify-write" of the erase block, wiki.linaro.org FlashCardSurvey).
# Writes: sticks of that kind write a small block in 2-4 ms inside an open unit and take 1.15-2.5 s where a
#   unit has to be switched at worst (sami-lehtinen.net, "Microbenchmarking Flash Drives"); 300 ms is the middle of
#   the road: 8 MiB at the stick's own rates. No cache to speak of, one command at a time.
# Rates: about 30 MB/s read and half of that written are typical of fast USB 2.0 sticks (Wikipedia, USB flash drive).
rotational = false
logical_block = 512
physical_block = 4096
read_us = 600
write_us = 2000
media_read_mb_s = 30
media_write_mb_s = 15
bus_mb_s = 33
command_us = 100
queue = 1
erase_unit_kib = 8192
open_units = 5
switch_unit_us = 300000
cache_kib = 0
flush_us = 100
flush_blocks = true
