#!/usr/bin/env python3
"""Takes blocks that OpenZFS wrote out of a pool on one file vdev, for ../openzfs.rs.

usage: extract.py POOL_FOLDER POOL OUT [--small]

POOL_FOLDER holds d1.img (the exported pool) and desc/manifest/*.jsonl: per dataset one line a file with its
path, object number (ino), size and sha256, as they were read through the mounted file system. OpenZFS's zdb says where
each block is and what its checksum is; the bytes are read from the image. OUT.txt lists, OUT.bin holds them.
With --small, small files of one block and one block of metadata a kind: what is kept in the repository.
"""

import glob, json, os, re, subprocess, sys, urllib.parse

folder, pool, out = sys.argv[1:4]
small = "--small" in sys.argv
LABELS = 4 << 20


def zdb(*args):
    return subprocess.run(["/usr/sbin/zdb", "-e", "-p", folder, *args], capture_output=True, text=True).stdout


image = open(os.path.join(folder, "d1.img"), "rb")


def read(offset, size):
    image.seek(offset)
    return image.read(size)


names = {i: n for n, i in re.findall(r"^Dataset (\S+) \[ZPL\], ID (\d+)", zdb("-d", pool), re.M)}
files = {}
for path in glob.glob(os.path.join(folder, "desc/manifest/*.jsonl")):
    dataset = urllib.parse.unquote(os.path.basename(path)[: -len(".jsonl")])
    for line in open(path):
        entry = json.loads(line)
        if entry["type"] == "f":
            files[dataset, entry["ino"]] = entry

lines, blob, seen, blocks = [], b"", set(), {}
salt = re.search(r"org.illumos:checksum_salt = ([0-9a-f]{64})", zdb("-dddddd", pool, "1"))
lines.append(f"salt {salt[1] if salt else '-'}")

BP = re.compile(
    r"objset (\d+) object (\d+) level (-?\d+) offset 0x([0-9a-f]+) (?:DVA\[0\]=<(\d+):([0-9a-f]+):[0-9a-f]+>.*?)?"
    r"(EMBEDDED )?\[[^]]*\] (?:et=\d+ )?(\S+) (\S+) .*?size=([0-9a-f]+)L/([0-9a-f]+)P.*?(?:cksum=([0-9a-f:]+))?$"
)
for line in zdb("-bbbbbb", pool).splitlines():
    m = BP.match(line)
    if not m:
        continue
    objset, obj, level, offset, _, dva, embedded, checksum, compression, lsize, psize, words = m.groups()
    key = (names.get(objset), int(obj))
    if key not in files or level != "0":
        key = None
    blocks.setdefault(key, []).append((offset, dva, embedded, checksum, compression, lsize, psize, words))

def worth_keeping(entry, bps):
    plain = entry["path"] == "odd" or all(bp[4] != "uncompressed" for bp in bps)
    return len(bps) == 1 and entry["size"] <= 8192 and plain


if small:
    # zle saves enough only on large files: one block of one of them.
    zle = [bp for key, bps in blocks.items() if key for bp in bps if bp[1] and bp[4] == "zle"]
    blocks[None] += sorted(zle, key=lambda bp: int(bp[6], 16))[:1]

for key, bps in sorted(blocks.items(), key=str):
    if key is not None:
        entry = files[key]
        if any(bp[2] for bp in bps) or (small and not worth_keeping(entry, bps)):
            continue
        lines.append(f"file {key[0]}/{entry['path']} {entry['size']} {entry['sha256']}")
    else:
        lines.append("meta")
    for offset, dva, embedded, checksum, compression, lsize, psize, words in bps:
        if embedded or dva is None:
            continue
        if key is None and small:
            large = int(psize, 16) > 4096 and compression != "zle"
            if (checksum, compression) in seen or large:
                continue
            seen.add((checksum, compression))
        data = read(LABELS + int(dva, 16), int(psize, 16))
        lines.append(f"block {int(offset, 16)} {checksum} {compression} {int(lsize, 16)} {len(data)} {words} {len(blob)}")
        blob += data

# The chain of each log that was not replayed.
LOG = re.compile(r"Block seqno .*DVA\[0\]=<\d+:([0-9a-f]+):.*size=([0-9a-f]+)L.*cksum=([0-9a-f:]+)", re.M)
for dva, size, words in LOG.findall(zdb("-iiiii", pool))[: 3 if small else None]:
    lines.append(f"block 0 zilog2 uncompressed {int(size, 16)} {int(size, 16)} {words} {len(blob)}")
    blob += read(LABELS + int(dva, 16), int(size, 16))

# The vdev_phys of label 0, and the uberblock slots of 1 KiB that hold one.
UBERBLOCK = bytes.fromhex("0cb1ba0000000000")
if not small:
    lines.append(f"label 16384 {112 << 10} {len(blob)}")
    blob += read(16 << 10, 112 << 10)
slots = [at for at in range(128 << 10, 256 << 10, 1024) if read(at, 8) == UBERBLOCK]
for at in slots[:1] if small else slots:
    lines.append(f"label {at} 1024 {len(blob)}")
    blob += read(at, 1024)

open(out + ".txt", "w").write("\n".join(lines) + "\n")
open(out + ".bin", "wb").write(blob)
