"""A folder of images for each test, and OpenZFS's zdb as the judge of what it leaves."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest

import zilla

MIB = 1 << 20
# OpenZFS's tools are looked for where they are installed: ours have the same names.
ZDB = "/usr/sbin/zdb"


class World(unittest.TestCase):
    """A test with a folder for images."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="zilla-python.")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def image(self, name: str = "a.img", size: int = 128 * MIB) -> str:
        path = os.path.join(self.folder, name)
        zilla.image(path, size)
        return path

    def pool(self) -> zilla.Pool:
        """A pool in one image."""
        return zilla.Pool.create("tank", self.image())

    def again(self, **how) -> zilla.Pool:
        """The pool that was exported."""
        return zilla.Pool.open("tank", self.folder, **how)

    def judge(self) -> None:
        """OpenZFS finds every block of the exported pool, each once."""
        if not os.path.exists(ZDB):
            self.assertNotIn("CI", os.environ, "OpenZFS's zdb is not installed")
            return
        done = subprocess.run(
            [ZDB, "-e", "-p", self.folder, "-bcc", "tank"], capture_output=True, text=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertIn("No leaks", done.stdout)

    def refused(self, kind: type[zilla.Error], number: int):
        """Expects an exception of a class and errno."""
        return _Refused(self, kind, number)


class _Refused:
    def __init__(self, test: unittest.TestCase, kind: type[zilla.Error], number: int) -> None:
        self.inner = test.assertRaises(kind)
        self.test, self.number = test, number

    def __enter__(self) -> None:
        self.inner.__enter__()

    def __exit__(self, *error) -> bool:
        caught = self.inner.__exit__(*error)
        self.test.assertEqual(self.inner.exception.errno, self.number)
        self.test.assertTrue(self.inner.exception.strerror)
        return caught
