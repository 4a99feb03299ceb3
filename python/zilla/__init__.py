"""Pools, datasets, snapshots and files of OpenZFS's format, in this process.

No kernel module, no daemon, no root: the engine is in this package.

    import zilla

    zilla.image("tank.img", 256 << 20)
    with zilla.Pool.create("tank", "tank.img") as pool:
        home = pool.create_filesystem("tank/home", {"compression": "zstd"})
        with home.files() as files:
            with files.open("/note", "w") as note:
                note.write("hello")
        home.snapshot("monday")

Calls may come from several threads, and each leaves the others running. What the engine refuses is a
`zilla.Error`, which is an `OSError` with its errno. A process that was forked from one that has used the
package cannot use it.
"""

from __future__ import annotations

import os as _os

from ._errors import (
    Busy,
    Damaged,
    Error,
    Exists,
    InvalidArgument,
    IsADirectory,
    NoSpace,
    NotADirectory,
    NotEmpty,
    NotFound,
    NotPermitted,
    NotSupported,
    ReadOnly,
)
from ._io import File
from ._zilla import Dataset, Files, Found, Info, Pool, Property, ScrubResult, Snapshot, Vdev, Volume, find

__all__ = [
    "Busy",
    "Damaged",
    "Dataset",
    "Error",
    "Exists",
    "File",
    "Files",
    "Found",
    "Info",
    "InvalidArgument",
    "IsADirectory",
    "NoSpace",
    "NotADirectory",
    "NotEmpty",
    "NotFound",
    "NotPermitted",
    "NotSupported",
    "Pool",
    "Property",
    "ReadOnly",
    "ScrubResult",
    "Snapshot",
    "Vdev",
    "Volume",
    "find",
    "image",
]


def image(path: str | _os.PathLike[str], size: int) -> None:
    """Makes an image file of so many bytes for a pool. It takes no space yet, and must not be there."""
    with open(path, "xb") as file:
        file.truncate(size)
