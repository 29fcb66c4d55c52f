"""The options of a build: the words and defaults of ``larder build``."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Mapping, Optional, Sequence, Union

from larder import _native

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
    profile: count and sample what the columns hold, for gates, for reports and to compare the next version with.
    min_records, max_shrink_percent, max_growth_percent: gates on how many records there are; the last two beside ``against``.
    max_nulls, max_empty, max_shift: gates on the columns, as a number for all or as ``{column: number}``: the most nulls and empty texts in percent of
        the rows, and the farthest shift of the values from ``against`` (a population stability index).
    against: the folder or URL of the version that gates compare with.
    on: the folder or URL of a version: what is built is a delta on it, and the rows are what is new or changed. Its partitions and compression are
        the base's.
    full: with ``on``: the rows are all that the new version is to have. What differs is found, and keys that are not among them are removed.
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
    "profile": True,
    "min_records": None,
    "max_shrink_percent": None,
    "max_growth_percent": None,
    "max_nulls": None,
    "max_empty": None,
    "max_shift": None,
    "against": None,
    "on": None,
    "full": False,
    "skip_nulls": False,
    "allow_empty": False,
    "memory": "1GiB",
    "threads": None,
    "temp": None,
}
# What the manifest says of its build as fields of their own, and what bears on the machine and not on the version.
#: Judged where a version is built; they do not change it.
GATES = {"min_records", "max_shrink_percent", "max_growth_percent", "max_nulls", "max_empty", "max_shift", "against"}
_NOT_TOLD = {"value", "values", "collect_as", "allow_empty", "memory", "threads", "temp", "profile", "on", "full"} | GATES
#: What the version that is built on decides.
_OF_THE_BASE = ("partitions", "compress", "filter")

Key = Union[str, Sequence[str]]


def options(store: str, key: Key, source: str, given: dict[str, Any], keys_only: bool = False) -> str:
    """The options as Rust takes them. ``keys_only``: there are no rows but keys to be removed.

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
    full = every.pop("full")
    if every["on"] is not None:
        for name in _OF_THE_BASE:
            if given.get(name) is not None:
                raise ValueError(f"{name} is decided by the version that is built on; leave it out, or build a whole version")
        every["on"] = {"place": place(every["on"]), "full": bool(full), "digest": None, "keys_only": keys_only}
    elif full:
        raise ValueError("full compares the rows with the version that is built on: name it by on")
    if every["temp"] is not None:
        every["temp"] = os.fspath(every["temp"])
    for name in ("max_nulls", "max_empty", "max_shift"):
        every[name] = limits(every[name], name)
    if every["against"] is not None:
        every["against"] = place(every["against"])
    told = {name.replace("_", "-"): str(value) for name, value in given.items() if name not in _NOT_TOLD}
    at = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return json.dumps({**every, "store": store, "key": columns, "at": at, "input": source, "given": told})


def check_deleted(given: Mapping[str, Any]) -> None:
    """Whether keys can be removed in a build with these options.

    Raises:
        ValueError: why not.
    """
    if given.get("on") is None:
        raise ValueError("deleted names keys to be removed from the version that is built on: name it by on")
    if given.get("full"):
        raise ValueError("full removes all keys that are not among the rows: leave deleted out, or full")


def of_base(text: str, out: str) -> tuple[str, int]:
    """Options with what the base decides, as the tasks take them, and its partitions.

    Raises:
        larder.Error: nothing can be built on it.
    """
    told = json.loads(text)
    told["on"]["digest"], told["partitions"] = _native.base(text, out)
    return json.dumps(told), told["partitions"]


def limits(given: Any, name: str) -> dict[str, float]:
    """Limits by column; ``*`` is every other one.

    Raises:
        ValueError: one is no number of zero or more.
    """
    by_column = {} if given is None else dict(given) if isinstance(given, Mapping) else {"*": given}
    for column, limit in by_column.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < float("inf"):
            raise ValueError(f"{name} of column {column!r} is {limit!r}; it is to be a number of zero or more")
    return by_column


def place(out: Union[str, "os.PathLike[str]"]) -> str:
    """A path, made absolute, or a URL as it is."""
    text = os.fspath(out)
    return text if "://" in text else os.path.abspath(text)
