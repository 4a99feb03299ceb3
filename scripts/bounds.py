#!/usr/bin/env python3
"""How much memory the daemon has under mixed load, and how much it says it has.

    scripts/bounds.py [-a ARC_MIB] [-m MEMORY_MIB] [-t SECONDS] [-o CURVE.csv] PROGRAMS FOLDER

PROGRAMS is a folder with zilla, zpool, zfs and zillad; FOLDER is made, with a pool of three files
in it, and left there. `zfs_arc_max` is ARC_MIB; `ulimit -m` says MEMORY_MIB. Four clients work on
the mount until SECONDS are over: small files, up to a million; large streams; shared mappings;
snapshots. Each second the resident set is written down beside what `arcstats` say: blocks in the
ARC and the second level's index, blocks ready in the dbuf cache, objects, dirty data; what is lost
by rounding, buffers that are kept for the next, and what else buffers and heap hold.

What no statistics say is the program itself, its stacks, and what its heap has lost between pieces
in use. The first is looked at before there is a pool: it is the same at any limit.

It ends with 1 if the resident set was above MEMORY_MIB at any time, and prints the largest of the
ratios of the two, without the program and with it, and what the resident set has beside.
"""

import argparse
import mmap
import os
import random
import resource
import signal
import subprocess
import sys
import time

PARTS = [
    "size", "overhead_size", "dbuf_size", "dnode_size", "anon_size", "l2_hdr_size",
    "abd_chunk_waste_size", "free_buffers_size", "other_size",
]
MIB = 1 << 20


def small_files(root, until):
    """Directories of a thousand files each, and a look at old ones."""
    made, data = 0, os.urandom(8192)
    while time.time() < until and made < 1_000_000:
        folder = f"{root}/small/{made // 1000}"
        os.makedirs(folder, exist_ok=True)
        for n in range(1000):
            with open(f"{folder}/{n}", "wb") as file:
                file.write(data[: random.randrange(8192)])
            made += 1
            if time.time() >= until:
                break
        for entry in os.scandir(f"{root}/small/{random.randrange(max(1, made // 1000))}"):
            entry.stat()


def streams(root, until):
    """Files of 256 MiB, written and read from one end to the other; the newest four are kept."""
    os.makedirs(f"{root}/streams", exist_ok=True)
    n, piece = 0, os.urandom(MIB)
    while time.time() < until:
        path = f"{root}/streams/{n}"
        with open(path, "wb") as file:
            for i in range(256):
                file.write(piece[i:] + piece[:i])
                if time.time() >= until:
                    return
        for old in range(max(0, n - 1), n + 1):
            with open(f"{root}/streams/{old}", "rb") as file:
                while file.read(MIB) and time.time() < until:
                    pass
        if n >= 4:
            os.remove(f"{root}/streams/{n - 4}")
        n += 1


def mapped(root, until):
    """Pages anywhere in a mapping of 512 MiB, read and written."""
    size = 512 * MIB
    with open(f"{root}/mapped", "w+b") as file:
        file.truncate(size)
        pages = mmap.mmap(file.fileno(), size)
        turn = 0
        while time.time() < until:
            for _ in range(2000):
                at = random.randrange(size // 4096) * 4096
                if random.random() < 0.5:
                    pages[at : at + 8] = turn.to_bytes(8, "little")
                else:
                    pages[at]
            turn += 1
            if turn % 20 == 0:
                pages.flush()
        pages.close()


def snapshots(zfs, root, until):
    """One every two seconds, looked into; the newest ten are kept."""
    n = 0
    while time.time() < until:
        subprocess.run([zfs, "snapshot", f"bounds@s{n}"], check=True)
        os.listdir(f"{root}/.zfs/snapshot/s{n}")
        if n >= 10:
            subprocess.run([zfs, "destroy", f"bounds@s{n - 10}"], check=True)
        n += 1
        time.sleep(2)


def arcstats(folder):
    with open(f"{folder}/kstat/arcstats") as file:
        lines = [line.split() for line in file][2:]
    return {line[0]: int(line[2]) for line in lines if len(line) == 3}


def resident(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS:"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-a", type=int, default=512, metavar="ARC_MIB")
    parser.add_argument("-m", type=int, default=1024, metavar="MEMORY_MIB")
    parser.add_argument("-t", type=int, default=600, metavar="SECONDS")
    parser.add_argument("-o", default="bounds.csv", metavar="CURVE.csv")
    parser.add_argument("programs")
    parser.add_argument("folder")
    args = parser.parse_args()
    folder, programs = os.path.abspath(args.folder), os.path.abspath(args.programs)
    os.makedirs(f"{folder}/state")
    with open(f"{folder}/state/parameters.conf", "w") as file:
        file.write(f"zfs_arc_max={args.a * MIB}\n")
    os.environ.update(ZILLA_DIR=f"{folder}/state", ZILLA_KSTATS=f"{folder}/kstat")
    os.chmod(f"{folder}/state", 0o700)
    limit = lambda: resource.setrlimit(resource.RLIMIT_RSS, (args.m * MIB, args.m * MIB))
    with open(f"{folder}/log", "wb") as log:
        daemon = subprocess.Popen([f"{programs}/zillad"], preexec_fn=limit, stdout=log, stderr=log)
    while subprocess.run([f"{programs}/zilla", "status"], capture_output=True).returncode != 0:
        if daemon.poll() is not None:
            sys.exit(f"the daemon has ended: see {folder}/log")
        time.sleep(0.1)
    time.sleep(2)
    alone = arcstats(folder)
    program = resident(daemon.pid) - sum(alone.get(name, 0) for name in PARTS)
    disks = [f"{folder}/disk{n}" for n in range(3)]
    for disk in disks:
        with open(disk, "wb") as file:
            file.truncate(16 << 30)
    root = f"{folder}/mnt"
    zpool, zfs = f"{programs}/zpool", f"{programs}/zfs"
    subprocess.run([zpool, "create", "-m", root, "bounds", *disks], check=True)
    begun = time.time()
    until = begun + args.t
    works = [(small_files, (root,)), (streams, (root,)), (mapped, (root,)), (snapshots, (zfs, root))]
    clients = []
    for work, what in works:
        pid = os.fork()
        if pid == 0:
            work(*what, until)
            os._exit(0)
        clients.append(pid)
    most, worst, whole, beside = 0, 0.0, 0.0, 0
    with open(args.o, "w") as curve:
        curve.write("second,resident,said," + ",".join(PARTS) + "\n")
        while time.time() < until:
            if daemon.poll() is not None:
                for pid in clients:
                    os.kill(pid, signal.SIGKILL)
                sys.exit(f"the daemon has ended: see {folder}/log")
            stats, rss = arcstats(folder), resident(daemon.pid)
            parts = [stats[name] for name in PARTS]
            said, second = sum(parts), int(time.time() - begun)
            curve.write(",".join(map(str, [second, rss, said, *parts])) + "\n")
            curve.flush()
            most, beside = max(most, rss), max(beside, rss - said)
            if second >= 30:
                worst = max(worst, rss / max(said, 1))
                whole = max(whole, rss / max(said + program, 1))
            time.sleep(1)
    ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in clients]
    print(f"arc {args.a} MiB, memory {args.m} MiB, {args.t} s: resident at most {most / MIB:.0f} MiB")
    print(f"  of what is said at most {worst:.2f}, beside it at most {beside / MIB:.0f} MiB; clients {ended}")
    print(f"  with the {program / MIB:.0f} MiB that the program has before any pool at most {whole:.2f}")
    subprocess.run([zpool, "export", "bounds"], check=True)
    subprocess.run([f"{programs}/zilla", "stop"], check=True)
    daemon.wait()
    sys.exit(0 if most <= args.m * MIB and not any(ended) else 1)


if __name__ == "__main__":
    main()
