"""Files: by path, and beside Python's own."""

from __future__ import annotations

import errno
import io
import os
import pathlib
import random
import stat
import sys
import threading
import time

import zilla
from tests.world import MIB, World


class Files(World):
    def setUp(self) -> None:
        super().setUp()
        self.tank = self.pool()
        self.files = self.tank.dataset("tank").files(uid=1000, gid=100)

    def tearDown(self) -> None:
        if not self.tank.exported:
            self.files.close()
            self.tank.export()

    def end(self) -> None:
        """For tests that write much: what is left is looked at."""
        self.files.close()
        self.tank.export()
        self.judge()

    def test_names(self) -> None:
        files = self.files
        files.mkdir("/d")
        files.mkdir(pathlib.PurePosixPath("/d/e"))
        files.write_bytes("/d/f", b"12345")
        files.write_bytes("d/grün", b"")
        files.symlink("f", "/d/l")
        self.assertEqual(sorted(files.listdir("/d")), ["e", "f", "grün", "l"])
        self.assertEqual(files.listdir(), ["d"])
        self.assertEqual(files.readlink("/d/l"), "f")
        self.assertEqual(files.read_bytes("/d/l"), b"12345")
        self.assertTrue(files.exists("/d/l") and not files.exists("/x") and not files.exists("/d/f/x"))
        files.rename("/d/f", "/d/e/f")
        self.assertFalse(files.exists("/d/l"))
        files.unlink("/d/l")
        files.truncate("/d/e/f", 2)
        self.assertEqual(files.read_bytes("/d/e/f"), b"12")
        with self.refused(zilla.NotEmpty, errno.ENOTEMPTY):
            files.rmdir("/d/e")
        with self.refused(zilla.NotADirectory, errno.ENOTDIR):
            files.listdir("/d/e/f")
        with self.refused(zilla.IsADirectory, errno.EISDIR):
            files.open("/d")
        with self.refused(zilla.NotFound, errno.ENOENT):
            files.unlink("/nothing")
        with self.refused(zilla.Exists, errno.EEXIST):
            files.mkdir("/d")
        files.unlink("/d/e/f")
        files.rmdir("/d/e")
        with self.assertRaises(ValueError):
            files.exists(os.fsdecode(b"\xff"))
        with self.assertRaises(TypeError):
            files.exists(7)

    def test_stat(self) -> None:
        before = time.time()
        self.files.write_bytes("/f", b"12345")
        self.files.symlink("f", "/l")
        told = self.files.stat("/l")
        self.assertTrue(stat.S_ISREG(told.st_mode))
        self.assertEqual((told.st_size, told.st_uid, told.st_gid, told.st_nlink), (5, 1000, 100, 1))
        self.assertLess(abs(told.st_mtime - before), 60)
        self.assertEqual(told.st_mtime_ns // 10**9, int(told.st_mtime))
        self.assertGreater(told.st_blksize, 0)
        self.assertTrue(stat.S_ISLNK(self.files.stat("/l", follow_symlinks=False).st_mode))
        with self.files.open("/f", "rb", 0) as file:
            self.assertEqual(file.stat().st_ino, told.st_ino)

    def test_text_and_buffers(self) -> None:
        files = self.files
        with files.open("/t", "w", encoding="utf-8") as file:
            file.write("one\nzwölf\n")
            print("three", file=file)
        with files.open("/t", encoding="utf-8") as file:
            self.assertEqual(list(file), ["one\n", "zwölf\n", "three\n"])
        with files.open("/t", "a", encoding="utf-8") as file:
            file.write("four\n")
        with files.open("/t", "rb") as file:
            self.assertIsInstance(file, io.BufferedReader)
            self.assertEqual(file.readlines()[3], b"four\n")
        with files.open("/t", "r+b") as file:
            file.seek(4)
            file.write(b"eleven\n")
            file.seek(0)
            self.assertTrue(file.read().startswith(b"one\neleven\n"))
        with files.open("/new", "x"), self.refused(zilla.Exists, errno.EEXIST):
            files.open("/new", "x")
        with self.assertRaises(FileNotFoundError):
            files.open("/none")
        for mode in ("", "rw", "rr", "q", "rbt", "b", "+"):
            with self.assertRaises(ValueError, msg=mode):
                files.open("/t", mode)
        with self.assertRaises(ValueError):
            files.open("/t", "r", 0)
        with self.assertRaises(ValueError):
            files.open("/t", "rb", encoding="utf-8")

    def test_what_a_mode_forbids(self) -> None:
        with self.files.open("/f", "wb", 0) as file:
            self.assertIsInstance(file, io.RawIOBase)
            self.assertEqual((file.readable(), file.writable(), file.seekable()), (False, True, True))
            into = bytearray(1)
            for call in (file.read, file.readall, lambda: file.readinto(into), lambda: file.read_at(0, 1)):
                self.assertRaises(io.UnsupportedOperation, call)
        with self.files.open("/f", "rb", 0) as file:
            self.assertEqual((file.mode, file.name), ("rb", "/f"))
            for call in (lambda: file.write(b""), file.truncate, lambda: file.write_at(0, b"")):
                self.assertRaises(io.UnsupportedOperation, call)
            self.assertRaises(OSError, file.seek, -1)
            self.assertRaises(ValueError, file.seek, 0, 9)
            self.assertRaises(OSError, file.fileno)
        self.assertTrue(file.closed)
        file.close()
        for call in (file.read, file.tell, file.readable, file.stat, file.sync, lambda: file.seek(0)):
            self.assertRaises(ValueError, call)

    def test_large_and_sparse(self) -> None:
        data = os.urandom(1 << 20) * 20
        with self.files.open("/large", "w+b", 0) as file:
            self.assertEqual(file.write(memoryview(data).cast("I")), len(data))
            file.sync()
            self.assertEqual(file.read_at(3, len(data)), data[3:])
            file.seek(0)
            self.assertEqual(file.readall(), data)
            self.assertEqual(file.truncate(1 << 40), 1 << 40)
            self.assertEqual(file.seek(0, io.SEEK_END), 1 << 40)
            file.seek(-4, io.SEEK_CUR)
            self.assertEqual(file.read(100), bytes(4))
            self.assertEqual(file.read(100), b"")
            file.write_at(1 << 41, b"x")
            self.assertEqual(file.stat().st_size, (1 << 41) + 1)
        self.end()

    def test_beside_python_s_own(self) -> None:
        """Any calls do to a file of ours what they do to one of the host's."""
        for seed in range(30):
            rng = random.Random(seed)
            mode = rng.choice(["w+b", "r+b", "a+b", "wb", "ab"])
            host = os.path.join(self.folder, "model")
            with open(host, "wb") as file:
                file.write(b"what was there before")
            self.files.write_bytes("/model", b"what was there before")
            with open(host, mode, 0) as model, self.files.open("/model", mode, 0) as ours:
                self.assertEqual(model.tell(), ours.tell())
                for turn in range(200):
                    call = rng.choice(["read", "readinto", "readall", "write", "seek", "truncate", "tell"])
                    size = rng.choice([0, 1, 7, 4096, rng.randrange(300_000)])
                    whence = rng.randrange(3)
                    offset = rng.randrange(-50, 400_000) if whence == 0 else rng.randrange(-5000, 5000)
                    data = rng.randbytes(size)

                    def do(file):
                        if call == "read":
                            return file.read(size)
                        if call == "readinto":
                            buffer = bytearray(size)
                            return file.readinto(buffer), buffer
                        if call == "write":
                            return file.write(data)
                        if call == "seek":
                            return file.seek(offset, whence)
                        if call == "truncate":
                            return file.truncate(rng.choice([None, size]) if turn % 2 else None)
                        return getattr(file, call)()

                    state = rng.getstate()
                    results = []
                    for file in (model, ours):
                        rng.setstate(state)
                        try:
                            results.append(do(file))
                        except OSError as e:
                            # What a mode forbids is EBADF to some of Python's own methods.
                            unsupported = isinstance(e, io.UnsupportedOperation) or e.errno == errno.EBADF
                            results.append("unsupported" if unsupported else e.errno)
                    self.assertEqual(*results, msg=f"seed {seed}, {mode}: {call} {size} {offset} {whence}")
                    self.assertEqual(model.tell(), ours.tell(), msg=f"seed {seed}, {mode}: {call}")
            with open(host, "rb") as file:
                self.assertEqual(file.read(), self.files.read_bytes("/model"), msg=f"seed {seed}")
        self.end()

    def test_calls_leave_other_threads_running(self) -> None:
        """With the interpreter's lock kept, the first thread would end before the second begins."""
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        turns: list[int] = []
        ready = threading.Barrier(2)

        def work(which: int) -> None:
            with self.files.open(f"/{which}", "wb", 0) as file:
                ready.wait()
                for turn in range(100):
                    file.write_at(turn * 4096, bytes([which]) * 4096)
                    file.sync()
                    turns.append(which)

        threads = [threading.Thread(target=work, args=(which,)) for which in range(2)]
        # Nobody is made to give up the lock.
        sys.setswitchinterval(1000)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        changes = sum(a != b for a, b in zip(turns, turns[1:]))
        self.assertEqual(len(turns), 200)
        self.assertGreater(changes, 1)
        for which in range(2):
            self.assertEqual(self.files.read_bytes(f"/{which}"), bytes([which]) * 409600)
        self.end()
