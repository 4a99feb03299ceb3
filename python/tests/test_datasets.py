"""Datasets, snapshots, properties and volumes."""

from __future__ import annotations

import errno
import os
import time

import zilla
from tests.world import MIB, World


class Datasets(World):
    def test_names_and_kinds(self) -> None:
        with self.pool() as pool:
            home = pool.create_filesystem("tank/home", {"canmount": False, "recordsize": 16384})
            disk = pool.create_volume("tank/disk", 8 * MIB, {"refreservation": "none"})
            self.assertEqual((home.name, home.kind), ("tank/home", "filesystem"))
            self.assertEqual((disk.name, disk.kind), ("tank/disk", "volume"))
            self.assertEqual([d.name for d in pool.datasets()], ["tank", "tank/disk", "tank/home"])
            home.rename("tank/house")
            self.assertEqual(home.name, "tank/house")
            self.assertEqual(pool.dataset("tank/house").get("recordsize").value, "16384")
            with self.refused(zilla.NotFound, errno.ENOENT):
                pool.dataset("tank/home")
            with self.refused(zilla.Exists, errno.EEXIST):
                pool.create_filesystem("tank/house")
            with self.refused(zilla.InvalidArgument, errno.EINVAL):
                pool.create_filesystem("tank/a b@c")
            with home.files() as files:
                files.write_bytes("/f", b"x")
                with self.refused(zilla.Busy, errno.EBUSY):
                    home.destroy()
            home.destroy()
            with self.assertRaises(ValueError):
                home.info()
            self.assertIn("destroyed", repr(home))

    def test_properties_have_sources(self) -> None:
        with self.pool() as pool:
            top = pool.dataset("tank")
            home = pool.create_filesystem("tank/home")
            self.assertEqual(home.get("atime").source, "default")
            top.set(compression="zstd", atime=False)
            inherited = home.get("compression")
            self.assertEqual(inherited.value, "zstd")
            self.assertEqual((inherited.source, inherited.inherited_from), ("inherited", "tank"))
            home.set({"org.example:by": "me", "quota": 64 * MIB}, recordsize="1M")
            self.assertEqual((home.get("quota").value, home.get("quota").source), (str(64 * MIB), "local"))
            self.assertEqual(home.get("recordsize").value, str(MIB))
            self.assertEqual(str(home.get("org.example:by")), "me")
            self.assertEqual((home.get("atime").value, home.get("atime").inherited_from), ("off", "tank"))
            self.assertEqual(home.get("compression"), home.get("compression"))
            home.inherit("recordsize")
            self.assertEqual(home.get("recordsize").source, "default")
            self.assertIsNone(home.get("nothing"))
            with self.refused(zilla.InvalidArgument, errno.EINVAL):
                home.set(compression="tight")
            with self.assertRaises(zilla.Error):
                home.set(quota="1G", nothing="x")
            self.assertEqual(home.get("quota").value, str(64 * MIB), "all or none")
        with self.again() as pool:
            self.assertEqual(pool.dataset("tank/home").get("org.example:by").value, "me")

    def test_snapshots_come_and_go(self) -> None:
        with self.pool() as pool:
            home = pool.create_filesystem("tank/home")
            for day, text in (("monday", b"first"), ("tuesday", b"second")):
                with home.files() as files:
                    files.write_bytes("/note", text)
                self.assertEqual(home.snapshot(day).name, f"tank/home@{day}")
            with home.files() as files:
                files.write_bytes("/note", b"third")
            monday, tuesday = home.snapshots()
            with monday.files() as files:
                self.assertEqual(files.read_bytes("/note"), b"first")
                with self.refused(zilla.ReadOnly, errno.EROFS):
                    files.unlink("/note")
            with self.refused(zilla.Exists, errno.EEXIST):
                home.rollback("monday")
            home.rollback("tuesday")
            with home.files() as files:
                self.assertEqual(files.read_bytes("/note"), b"second")
            copy = monday.clone_to("tank/copy", {"readonly": True})
            self.assertEqual((copy.info().origin, copy.get("readonly").value), ("tank/home@monday", "on"))
            self.assertEqual(monday.info().clones, ["tank/copy"])
            with self.refused(zilla.Exists, errno.EEXIST):
                monday.destroy()
            copy.destroy()
            monday.destroy()
            with self.refused(zilla.Exists, errno.EEXIST):
                home.destroy()
            self.assertEqual([s.name for s in home.snapshots()], ["tank/home@tuesday"])
            tuesday.destroy()
            pool.create_filesystem("tank/other")
            pool.snapshot("tank/home@now", "tank/other@now")
            txgs = {pool.dataset(n).snapshots()[0].info().createtxg for n in ("tank/home", "tank/other")}
            self.assertEqual(len(txgs), 1)
        self.judge()

    def test_info(self) -> None:
        begun = int(time.time())
        with self.pool() as pool:
            home = pool.create_filesystem("tank/home", {"compression": "lz4"})
            with home.files() as files:
                files.write_bytes("/zeroes and more", os.urandom(MIB) + b"a" * 3 * MIB)
            pool.sync()
            info = home.info()
            self.assertEqual(info.name, "tank/home")
            self.assertGreaterEqual(info.creation, begun - 1)
            self.assertGreater(info.used, MIB)
            self.assertGreater(info.logical_used, 4 * MIB)
            self.assertGreater(info.compressratio, 1.5)
            self.assertGreater(info.available, 32 * MIB)
            self.assertIsNone(info.origin)

    def test_a_volume(self) -> None:
        data = os.urandom(MIB)
        with self.pool() as pool:
            disk = pool.create_volume("tank/disk", 16 * MIB)
            with disk.volume() as volume:
                self.assertEqual(volume.size, 16 * MIB)
                volume.write(MIB, data, stable=True)
                volume.write(8 * MIB, data)
                volume.trim(8 * MIB, 512 << 10)
                volume.flush()
                self.assertEqual(volume.read(0, 4096), bytes(4096))
            snapshot = disk.snapshot("s")
            with disk.volume() as volume:
                volume.write(MIB, bytes(MIB))
            with self.assertRaises(ValueError):
                volume.read(0, 512)
        with self.again() as pool:
            [snapshot] = pool.dataset("tank/disk").snapshots()
            with snapshot.volume() as volume:
                self.assertEqual(volume.read(MIB, MIB), data)
                tail = volume.read(8 * MIB, MIB)
                self.assertEqual(tail, bytes(512 << 10) + data[512 << 10 :])
            with pool.dataset("tank/disk").volume() as volume:
                self.assertEqual(volume.read(MIB, MIB), bytes(MIB))
                with self.assertRaises(zilla.Error):
                    volume.read(16 * MIB - 512, 4096)
        self.judge()
