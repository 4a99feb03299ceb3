"""Exceptions, by errno.

Each is a `zilla.Error` and, where Python has a class of its own for the errno, that class too: so
`except FileNotFoundError` works as with `os`.
"""

from __future__ import annotations

import errno


class Error(OSError):
    """What the engine refused or could not do. `errno` and `strerror` say why."""


class NotFound(Error, FileNotFoundError):
    """ENOENT: there is no such pool, dataset, snapshot or file."""


class Exists(Error, FileExistsError):
    """EEXIST: there is one already, or something on a device; or snapshots or clones are in the way."""


class Busy(Error):
    """EBUSY: files or a volume are open."""


class IsADirectory(Error, IsADirectoryError):
    """EISDIR"""


class NotADirectory(Error, NotADirectoryError):
    """ENOTDIR"""


class NotEmpty(Error):
    """ENOTEMPTY: a directory has entries."""


class NotPermitted(Error, PermissionError):
    """EACCES or EPERM: a key is not loaded, or the file may not be changed."""


class ReadOnly(Error):
    """EROFS: a snapshot, or a pool or dataset that is only read."""


class NoSpace(Error):
    """ENOSPC or EDQUOT: the pool or a quota is full."""


class InvalidArgument(Error, ValueError):
    """EINVAL: a name, a property's value or a device will not do."""


class NotSupported(Error):
    """ENOTSUP: the pool or this package lacks it."""


class Damaged(Error):
    """EIO or a bad checksum: it cannot be read or written, and no redundancy helps."""


_OF: dict[int, type[Error]] = {
    errno.ENOENT: NotFound,
    errno.EEXIST: Exists,
    errno.EBUSY: Busy,
    errno.EISDIR: IsADirectory,
    errno.ENOTDIR: NotADirectory,
    errno.ENOTEMPTY: NotEmpty,
    errno.EACCES: NotPermitted,
    errno.EPERM: NotPermitted,
    errno.EROFS: ReadOnly,
    errno.ENOSPC: NoSpace,
    errno.EDQUOT: NoSpace,
    errno.EINVAL: InvalidArgument,
    errno.ENOTSUP: NotSupported,
    errno.EIO: Damaged,
    # OpenZFS's ECKSUM.
    errno.EBADE: Damaged,
}


def error_of(number: int, what: str) -> Error:
    """The exception of an errno."""
    return _OF.get(number, Error)(number, what)
