"""Pools: made, found, opened, exported, and what is refused."""

from __future__ import annotations

import errno
import os
import signal
import unittest
import warnings

import zilla
from tests.world import MIB, World


class Pools(World):
    def test_a_pool_comes_back(self) -> None:
        with self.pool() as pool:
            self.assertEqual(pool.name, "tank")
            with pool.dataset("tank").files() as files:
                files.write_bytes("/note", b"hello")
            guid = pool.guid
        self.assertTrue(pool.exported)
        [found] = zilla.find(self.folder)
        self.assertEqual((found.name, found.guid, found.state), ("tank", guid, "exported"))
        self.assertEqual(found.devices, [os.path.join(self.folder, "a.img")])
        for which in ("tank", str(guid)):
            with zilla.Pool.open(which, self.folder) as pool, pool.dataset("tank").files() as files:
                self.assertEqual(files.read_bytes("/note"), b"hello")

    def test_many_shapes(self) -> None:
        images = [self.image(f"{n}.img") for n in range(8)]
        vdevs = [zilla.Vdev.mirror(*images[:2]), zilla.Vdev.raidz(1, *images[2:5])]
        log = zilla.Vdev.single(images[5]).for_log()
        with zilla.Pool.create("tank", *vdevs, log, images[6], cache=[images[7]], owner=(1000, 100)) as pool:
            with pool.dataset("tank").files() as files:
                self.assertEqual(files.stat("/")[4:6], (1000, 100))
                files.write_bytes("/f", os.urandom(3 * MIB))
            scrub = pool.scrub()
            self.assertGreater(scrub.examined, 3 * MIB)
            self.assertEqual((scrub.repaired, scrub.errors), (0, 0))
        self.judge()

    def test_a_mirror_mends(self) -> None:
        images = [self.image("a.img"), self.image("b.img")]
        data = os.urandom(8 * MIB)
        with zilla.Pool.create("tank", zilla.Vdev.mirror(*images)) as pool:
            with pool.dataset("tank").files() as files:
                files.write_bytes("/f", data)
        with open(images[0], "r+b") as image:
            image.seek(5 * MIB)
            image.write(os.urandom(100 * MIB))
        with self.again() as pool:
            with pool.dataset("tank").files() as files:
                self.assertEqual(files.read_bytes("/f"), data)
            scrub = pool.scrub()
            self.assertGreater(scrub.repaired, 0)
            self.assertEqual(scrub.errors, 0)
        self.judge()

    def test_what_is_there_is_not_overwritten(self) -> None:
        self.pool().export()
        path = os.path.join(self.folder, "a.img")
        with self.refused(zilla.Exists, errno.EEXIST):
            zilla.Pool.create("other", path)
        with self.assertRaises(FileExistsError):
            zilla.image(path, MIB)
        zilla.Pool.create("other", path, overwrite=True).export()
        with self.refused(zilla.NotFound, errno.ENOENT):
            self.again()
        zilla.Pool.open("other", path).export()

    def test_what_is_wrong_is_said(self) -> None:
        with self.refused(zilla.NotFound, errno.ENOENT):
            zilla.Pool.create("tank", os.path.join(self.folder, "missing.img"))
        with self.refused(zilla.InvalidArgument, errno.EINVAL):
            zilla.Pool.create("tank")
        with self.refused(zilla.InvalidArgument, errno.EINVAL):
            zilla.Pool.create("mirror", self.image())
        with self.assertRaises(TypeError):
            zilla.Pool.create("tank", 7)
        with self.assertRaises(FileNotFoundError):
            zilla.Pool.open("tank", self.folder)

    def test_readonly(self) -> None:
        with self.pool() as pool:
            pool.create_filesystem("tank/home")
        with self.again(readonly=True) as pool, pool.dataset("tank/home").files() as files:
            with self.refused(zilla.ReadOnly, errno.EROFS):
                files.write_bytes("/f", b"")

    def test_an_open_file_keeps_the_pool(self) -> None:
        pool = self.pool()
        files = pool.dataset("tank").files()
        file = files.open("/f", "wb", 0)
        with self.refused(zilla.Busy, errno.EBUSY):
            pool.export()
        files.close()
        with self.refused(zilla.Busy, errno.EBUSY):
            pool.export()
        file.write(b"still open")
        file.close()
        pool.export()

    def test_what_is_closed_says_so(self) -> None:
        pool = self.pool()
        home = pool.create_filesystem("tank/home")
        snapshot = home.snapshot("s")
        files = home.files()
        files.close()
        self.assertTrue(files.closed)
        pool.export()
        for call in (
            pool.sync,
            pool.datasets,
            home.info,
            home.snapshots,
            snapshot.info,
            snapshot.files,
            lambda: files.listdir("/"),
            lambda: home.set(compression="off"),
            pool.export,
        ):
            with self.assertRaises(ValueError) as caught:
                call()
            self.assertNotIsInstance(caught.exception, zilla.Error)
        self.assertEqual(home.name, "tank/home")
        self.assertIn("exported", repr(pool))

    def test_an_exception_is_what_is_seen(self) -> None:
        with self.assertRaises(KeyError), self.pool() as pool:
            raise KeyError("mine")
        self.assertTrue(pool.exported)
        kept = []
        with warnings.catch_warnings(record=True) as said, self.assertRaises(KeyError):
            warnings.simplefilter("always")
            with self.again() as pool:
                kept.append(pool.dataset("tank").files())
                raise KeyError("mine")
        self.assertFalse(pool.exported)
        self.assertIn("tank", str(said[0].message))
        kept.pop().close()
        pool.export()

    @unittest.skipUnless(hasattr(os, "fork"), "needs fork")
    def test_a_forked_process_is_refused(self) -> None:
        pool = self.pool()
        files = pool.dataset("tank").files()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(60)
                try:
                    files.listdir("/")
                except RuntimeError as e:
                    code = 0 if "fork" in str(e) else 2
                files.close()
                del files
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        files.write_bytes("/f", b"the parent goes on")
        files.close()
        pool.export()
        self.judge()
