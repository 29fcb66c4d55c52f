from __future__ import annotations

import json
import os
from typing import Any, Iterable, Iterator, Optional, Union

from larder import _native

Key = Union[str, bytes]


class Store:
    """A version's files, read in this process. Created by :func:`larder.open`; immutable, and safe to read from many threads.

    Keys are bytes, or text, which is encoded in UTF-8. A damaged file raises :class:`larder.Error`; it is never reported as an absent key.
    """

    __slots__ = ("_version",)

    def __init__(self, version: "_native.Store") -> None:
        self._version = version

    def get(self, key: Key) -> Optional[bytes]:
        """Returns the value of a key; None if it is absent."""
        return self._version.get(key)

    def get_many(self, keys: Iterable[Key]) -> list[Optional[bytes]]:
        """Returns the values of several keys, in order. Much cheaper than single lookups."""
        return self._version.get_many(list(keys))

    def get_arrow(self, keys: Any) -> Any:
        """Returns the values of an Arrow array, or another iterable, of keys as an Arrow array of bytes (pyarrow); absent keys are null."""
        import pyarrow as pa

        listed = keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys)
        return pa.array(self._version.get_many(listed), type=pa.large_binary())

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, key: Key) -> bool:
        return key in self._version

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterates over all records, as keys and values, in the order of the files."""
        return iter(self._version)

    def verify(self) -> None:
        """Reads every byte and verifies every digest.

        Raises:
            larder.Error: the damage, and its location.
        """
        self._version.verify()

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest: the version's store, counts, sizes and digests, and the description of its build."""
        return json.loads(self._version.manifest_text)

    def __repr__(self) -> str:
        manifest = self.manifest
        return f"<larder.Store {manifest['store']}: {manifest['record_count']} records>"


def open(path: Union[str, "os.PathLike[str]"]) -> Store:
    """Opens a built version in a folder for reading in this process.

    Raises:
        larder.Error: it does not exist, or is damaged.
    """
    return Store(_native.Store(os.fspath(path)))
