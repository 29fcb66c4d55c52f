"""The options of a build: the words and defaults of ``larder build``."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Optional, Sequence, Union

OPTIONS = """
    store: the store that this is a version of: letters, digits, ``_``, ``-`` and ``.``.
    key: the column, or columns, that make the key: their texts with ``:`` between them.
    value: the column whose bytes are the value.
    values: ``"json"`` (the default) or ``"msgpack"``: the value is made of all columns but the key.
    partitions: how many segments the version is cut into, 1 to 16,384.
    compress: ``"none"``, ``"lz4"``, ``"zstd"`` or ``"zstd:LEVEL"``.
    filter: whether reads of absent keys are answered without the disk.
    on_duplicate: rows that share a key: ``"error"``, ``"first"``, ``"last"`` or ``"collect"`` (an array of all values).
    collect_as: how ``"collect"`` writes the values of one column: ``"text"``, ``"json"`` or ``"bytes"``.
    skip_nulls: leave out rows whose key, or one value column, is null. Else they are refused.
    allow_empty: build a version also when there are no rows.
    memory: a bound for parsing and sorting, such as ``"1GiB"``; what does not fit goes to disk.
    threads: one per core, unless it is said.
    temp: where temporary files go; the system's place unless it is said."""

_DEFAULTS: dict[str, Any] = {
    "value": None,
    "values": None,
    "partitions": 8,
    "compress": "none",
    "filter": True,
    "on_duplicate": "error",
    "collect_as": None,
    "skip_nulls": False,
    "allow_empty": False,
    "memory": "1GiB",
    "threads": None,
    "temp": None,
}
# What the manifest says of its build as fields of their own, and what bears on the machine and not on the version.
_NOT_TOLD = {"value", "values", "collect_as", "allow_empty", "memory", "threads", "temp"}

Key = Union[str, Sequence[str]]


def options(store: str, key: Key, source: str, given: dict[str, Any]) -> str:
    """The options as Rust takes them.

    Raises:
        TypeError: for an option that there is not.
    """
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        known = ", ".join(_DEFAULTS)
        raise TypeError(f"there is no option {unknown[0]!r}; there are {known}")
    columns = [key] if isinstance(key, str) else list(key)
    if not columns:
        raise ValueError("no key column is named; name one or more")
    every = {**_DEFAULTS, **given}
    if every["temp"] is not None:
        every["temp"] = os.fspath(every["temp"])
    told = {name.replace("_", "-"): str(value) for name, value in given.items() if name not in _NOT_TOLD}
    at = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return json.dumps({**every, "store": store, "key": columns, "at": at, "input": source, "given": told})


def place(out: Union[str, "os.PathLike[str]"]) -> str:
    """A path, made absolute, or a URL as it is."""
    text = os.fspath(out)
    return text if "://" in text else os.path.abspath(text)
