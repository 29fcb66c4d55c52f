"""The options of a build: the names and defaults of ``larder build``."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Mapping, Optional, Sequence, Union

from larder import _native

OPTIONS = """
    store: the store of the version: letters, digits, ``_``, ``-`` and ``.``.
    key: the column or columns that form the key: their texts, joined by ``:``.
    value: the column whose bytes are the value.
    values: ``"json"`` (the default) or ``"msgpack"``: the value consists of all columns except the key.
    partitions: the number of partitions of the version, 1 to 16,384.
    compress: ``"none"``, ``"lz4"``, ``"zstd"`` or ``"zstd:LEVEL"``.
    filter: whether to write filters, with which reads of most absent keys need no disk read.
    on_duplicate: the policy for rows that share a key: ``"error"``, ``"first"``, ``"last"`` or ``"collect"`` (an array of all values).
    collect_as: the encoding of the values of one column in ``"collect"``: ``"text"``, ``"json"`` or ``"bytes"``.
    profile: whether to collect statistics of the columns, for gates, reports and the comparison with later versions.
    min_records, max_shrink_percent, max_growth_percent: gates on the number of records; the last two require ``against``.
    max_nulls, max_empty, max_shift: gates on the columns, as a number for all or as ``{column: number}``: the maximum of nulls and of empty texts in
        percent of the rows, and the maximum shift of the values from ``against`` (a population stability index).
    against: the folder or URL of the version with which gates compare.
    on: the folder or URL of a base version: the result is a delta on it, and the rows are new or changed records. The delta has the partitions and
        the compression of the base.
    full: with ``on``: the rows are the complete new version. They are compared with the base, and keys without a row are removed.
    skip_nulls: whether to skip rows whose key, or single value column, is null. Otherwise such rows are errors.
    allow_empty: whether to build a version without rows.
    memory: the memory limit for parsing and sorting, such as ``"1GiB"``; rows that do not fit are spilled to disk.
    threads: the number of threads; by default one per core.
    temp: the folder for temporary files; by default the system's."""

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
#: Evaluated during the build; they do not change the version.
GATES = {"min_records", "max_shrink_percent", "max_growth_percent", "max_nulls", "max_empty", "max_shift", "against"}
#: Not among the options in the manifest: it has separate fields for some, and the others do not affect the version.
_NOT_RECORDED = {"value", "values", "collect_as", "allow_empty", "memory", "threads", "temp", "profile", "on", "full"} | GATES
#: Options that the base determines.
_BASE_OPTIONS = ("partitions", "compress", "filter")

Key = Union[str, Sequence[str]]


def options(store: str, key: Key, source: str, given: dict[str, Any], keys_only: bool = False) -> str:
    """Returns the options in the form for Rust. ``keys_only`` means that there are only keys to remove.

    Raises:
        TypeError: for an unknown option.
    """
    unknown = sorted(set(given) - set(_DEFAULTS))
    if unknown:
        known = ", ".join(_DEFAULTS)
        raise TypeError(f"unknown option {unknown[0]!r}; the options are {known}")
    columns = [key] if isinstance(key, str) else list(key)
    if not columns:
        raise ValueError("key names no column; name one or more")
    merged = {**_DEFAULTS, **given}
    full = merged.pop("full")
    if merged["on"] is not None:
        for name in _BASE_OPTIONS:
            if given.get(name) is not None:
                raise ValueError(f"{name} is determined by the base version; omit the option, or build a complete version")
        merged["on"] = {"place": place(merged["on"]), "full": bool(full), "digest": None, "keys_only": keys_only}
    elif full:
        raise ValueError("full compares the rows with a base version: name it with on")
    if merged["temp"] is not None:
        merged["temp"] = os.fspath(merged["temp"])
    for name in ("max_nulls", "max_empty", "max_shift"):
        merged[name] = limits(merged[name], name)
    if merged["against"] is not None:
        merged["against"] = place(merged["against"])
    recorded = {name.replace("_", "-"): str(value) for name, value in given.items() if name not in _NOT_RECORDED}
    at = int(os.environ.get("SOURCE_DATE_EPOCH", time.time()))
    return json.dumps({**merged, "store": store, "key": columns, "at": at, "input": source, "given": recorded})


def check_deleted(given: Mapping[str, Any]) -> None:
    """Checks that keys can be removed in a build with these options.

    Raises:
        ValueError: the reason why not.
    """
    if given.get("on") is None:
        raise ValueError("deleted removes keys of a base version: name it with on")
    if given.get("full"):
        raise ValueError("full removes all keys that are not among the rows: omit deleted, or full")


def apply_base(text: str, out: str) -> tuple[str, int]:
    """Returns the options for the tasks, with those that the base determines, and the number of partitions.

    Raises:
        larder.Error: the version cannot be a base.
    """
    options_of_build = json.loads(text)
    options_of_build["on"]["digest"], options_of_build["partitions"] = _native.base(text, out)
    return json.dumps(options_of_build), options_of_build["partitions"]


def limits(given: Any, name: str) -> dict[str, float]:
    """Returns the limits by column; ``*`` applies to all others.

    Raises:
        ValueError: a limit is not a nonnegative number.
    """
    by_column = {} if given is None else dict(given) if isinstance(given, Mapping) else {"*": given}
    for column, limit in by_column.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < float("inf"):
            raise ValueError(f"{name} of column {column!r} is {limit!r}; it must be a number of zero or more")
    return by_column


def place(out: Union[str, "os.PathLike[str]"]) -> str:
    """Returns an absolute path, or a URL unchanged."""
    text = os.fspath(out)
    return text if "://" in text else os.path.abspath(text)
