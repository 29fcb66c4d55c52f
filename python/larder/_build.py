from __future__ import annotations

import json
import os
from typing import Any, Iterable, NamedTuple, Union

from larder import _native
from larder._options import OPTIONS, Key, check_deleted, options, place

Path = Union[str, "os.PathLike[str]"]


class Built(NamedTuple):
    """A built version."""

    #: The argument of ``larder.push`` and ``larder.open``.
    location: str
    records: int
    size_bytes: int
    #: The digest of the data: two versions with the same digest have the same bytes.
    digest: str
    #: Rows that ``skip_nulls`` skipped; unknown for a build on Spark.
    skipped_rows: Union[int, None]


def to_built(location: str, manifest: str, skipped_rows: Union[int, None]) -> Built:
    fields = json.loads(manifest)
    return Built(location, fields["record_count"], fields["size_bytes"], fields["digest"], skipped_rows)


def build(frame: Any, *, store: str, key: Key, out: Path, deleted: Any = None, **given: Any) -> Built:
    if deleted is not None:
        check_deleted(given)
    elif frame is None:
        raise ValueError("the build has no input: pass a frame, or deleted keys")
    text = options(store, key, input_name(deleted if frame is None else frame), given, frame is None)
    manifest, skipped = _native.build(native_source(frame), native_source(deleted), text, place(out))
    return to_built(place(out), manifest, skipped)


build.__doc__ = f"""Builds a version of a store from a data frame, record batches, or files.

    larder.build(frame, store="pymk", key="member", out="built/pymk")
    larder.build("day/*.parquet", store="prices", key=["country", "sku"], value="price", out="s3://bucket/prices")
    larder.build(changes, deleted=gone, on="built/monday", store="pymk", key="member", out="built/tuesday")

Args:
    frame: an object with the Arrow C stream interface (a frame of pandas 2.2 or later, Polars or DuckDB, a table or reader of pyarrow), an
        iterable of record batches, or paths and URLs of files as for ``larder build``. With ``deleted`` it may be None.
    deleted: with ``on``: the keys to remove, in any form of ``frame``; columns other than those of ``key`` are ignored.
    out: a folder that is empty or does not exist, or a URL.{OPTIONS}

Raises:
    ValueError, TypeError: an argument is invalid.
    larder.Error: a row is invalid, or reading or writing failed; nothing is left behind.
"""


def native_source(frame: Any) -> Any:
    """Returns the frame in a form that the native code accepts."""
    return None if frame is None else input_paths(frame) or arrow_stream(frame)


def input_name(frame: Any) -> str:
    """Returns the name of the input for the manifest."""
    paths = input_paths(frame)
    if paths is None:
        return f"a {type(frame).__name__}"
    return paths[0] if len(paths) == 1 else f"{len(paths)} inputs"


def input_paths(frame: Any) -> Union[list[str], None]:
    """Returns the paths, if the frame consists of paths."""
    if isinstance(frame, (str, os.PathLike)):
        return [os.fspath(frame)]
    if isinstance(frame, (list, tuple)) and frame and all(isinstance(it, (str, os.PathLike)) for it in frame):
        return [os.fspath(it) for it in frame]
    return None


def arrow_stream(frame: Any) -> Any:
    """Returns an object with ``__arrow_c_stream__``."""
    if hasattr(frame, "__arrow_c_stream__"):
        return frame
    if hasattr(frame, "fetch_record_batch"):
        # A DuckDB relation.
        return frame.fetch_record_batch()
    if isinstance(frame, Iterable):
        return batch_reader(iter(frame))
    what = type(frame).__name__
    raise TypeError(f"cannot read rows from a {what}: pass a data frame, record batches, or paths")


def batch_reader(batches: Any) -> Any:
    """Returns a reader of an iterator's record batches; the first batch defines the columns."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        raise _native.Error("the input has no record batches, so its columns are unknown")

    def all_batches() -> Any:
        yield first
        yield from batches

    return pa.RecordBatchReader.from_batches(first.schema, all_batches())
