#!/usr/bin/env python3
"""Takes raidz rows that OpenZFS wrote out of a pool's disks, for ../openzfs_parity.rs.

usage: rows.py POOL_FOLDER POOL NPARITY ASHIFT OUT_PREFIX LIMIT DISK...

The disks are vdev 0's, in order; the pool must never have been expanded. zdb lists the blocks; the layout of a
raidz block says which sectors are its columns. OUT.txt has a line a row: parity columns, the length of each
column (parity first), zdb's fletcher4 of the data, place in OUT.bin, where the columns lie one after another.
"""

import os, re, subprocess, sys

folder, pool, nparity, ashift, out, limit = sys.argv[1:7]
nparity, ashift, limit = int(nparity), int(ashift), int(limit)
disks = [open(os.path.join(folder, name), "rb") for name in sys.argv[7:]]
LABELS, sector = 4 << 20, 1 << ashift


def columns(offset, size):
    """(disk, offset, length) of each column, parity first."""
    width, start, data = len(disks), offset >> ashift, size >> ashift
    full, rest = divmod(data, width - nparity)
    big = rest + nparity if rest else 0
    result = []
    for i in range(width if full else big):
        at = start % width + i
        row = start // width + at // width
        result.append((at % width, row << ashift, (full + (i < big)) << ashift))
    # raidz1 changes the parity disk every megabyte.
    if nparity == 1 and offset & 1 << 20:
        (d0, o0, n0), (d1, o1, n1) = result[:2]
        result[:2] = [(d1, o1, n0), (d0, o0, n1)]
    return result


listing = subprocess.run(["/usr/sbin/zdb", "-e", "-p", folder, "-bbbbbb", pool], capture_output=True).stdout.decode(errors="replace")
BP = re.compile(r"DVA\[0\]=<0:([0-9a-f]+):[0-9a-f]+>.*? fletcher4 .* contiguous .*size=[0-9a-f]+L/([0-9a-f]+)P.*cksum=([0-9a-f:]+)$")
lines, blob, shapes = [], b"", set()
for dva, size, words in (m.groups() for m in map(BP.search, listing.splitlines()) if m):
    offset, size = int(dva, 16), int(size, 16)
    if size % sector:
        continue
    row = columns(offset, size)
    # One of each shape: how many columns, which of them longer, and for raidz1 both parity disks.
    shape = (len(row), len({n for _, _, n in row}), nparity == 1 and offset >> 20 & 1)
    if limit < 1 << 20 and (shape in shapes or size > 12 << ashift):
        continue
    shapes.add(shape)
    lines.append(f"{nparity} {','.join(str(n) for _, _, n in row)} {words} {len(blob)}")
    for disk, at, length in row:
        disks[disk].seek(LABELS + at)
        blob += disks[disk].read(length)
    if len(lines) == limit:
        break
open(out + ".txt", "w").write("\n".join(lines) + "\n")
open(out + ".bin", "wb").write(blob)
