# A battery- or capacitor-backed DRAM card on PCIe: a log device whose cache does not forget.
#
# Kind: PMC Flashtec NV1616, Radian RMS-325: DRAM behind NVMe with on-board power to save it to flash. Rates: PCIe
#   3.0 x8, about 6 GB/s. Latency: PMC gives over a million random IOPS through NVMe; 8 us for a single command is
#   what the NVMe protocol leaves of that (an estimate: the makers give sub-microsecond figures for mapped memory
#   only). A flush has nothing to do.
rotational = false
logical_block = 512
physical_block = 4096
read_us = 1
write_us = 1
channels = 8
media_read_mb_s = 6000
media_write_mb_s = 6000
bus_mb_s = 6000
command_us = 7
queue = 1024
cache_kib = 1048576
cache_is_safe = true
flush_us = 0
