from __future__ import annotations

import json
import os
from typing import Any, Iterable, Iterator, Optional, Union

from larder import _native

Key = Union[str, bytes]


class Store:
    """A version's files, read in this process. Made by :func:`larder.open`; it never changes, and many threads may read it.

    Keys are bytes, or text, which stands for its UTF-8. A damaged file raises :class:`larder.Error`: it is never taken for an absent key.
    """

    __slots__ = ("_version",)

    def __init__(self, version: "_native.Store") -> None:
        self._version = version

    def get(self, key: Key) -> Optional[bytes]:
        """The value of a key; none if there is no such key."""
        return self._version.get(key)

    def get_many(self, keys: Iterable[Key]) -> list[Optional[bytes]]:
        """The values of keys, in their order. It costs much less for each than one by one."""
        return self._version.get_many(list(keys))

    def get_arrow(self, keys: Any) -> Any:
        """The values of an Arrow array of keys, or of any keys, as an Arrow array of bytes (pyarrow), null where there is none."""
        import pyarrow as pa

        listed = keys.to_pylist() if hasattr(keys, "to_pylist") else list(keys)
        return pa.array(self._version.get_many(listed), type=pa.large_binary())

    def __len__(self) -> int:
        return len(self._version)

    def __contains__(self, key: Key) -> bool:
        return key in self._version

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """All records, as keys and values, in the order of their files."""
        return iter(self._version)

    def verify(self) -> None:
        """Reads every byte, and compares every digest.

        Raises:
            larder.Error: what is damaged, and where.
        """
        self._version.verify()

    @property
    def manifest(self) -> dict[str, Any]:
        """What the version says of itself: its store, counts, sizes, digests, and how it was built."""
        return json.loads(self._version.manifest_text)

    def __repr__(self) -> str:
        told = self.manifest
        return f"<larder.Store {told['store']}: {told['record_count']} records>"


def open(path: Union[str, "os.PathLike[str]"]) -> Store:
    """Opens a built version in a folder, to be read in this process.

    Raises:
        larder.Error: it is not there, or damaged.
    """
    return Store(_native.Store(os.fspath(path)))
