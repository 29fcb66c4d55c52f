"""Stores built on Spark: each task writes the segments of its partitions, and no node is a bottleneck.

    from larder.spark import build_store

    build_store(df, store="pymk", key="member", out="s3://bucket/built/monday", partitions=64)
    build_store(changes, deleted=gone, on="s3://bucket/built/monday", store="pymk", key="member", out="s3://bucket/built/tuesday")

    df ── rows as (partition, key, value) ── shuffle by partition ──► one task a partition ──► its segment, at `out`
                                                                                                   │
                                          the driver: segments of empty partitions, the manifest ◄─┘

What a task leaves is a pure function of its partition's rows: a task that is tried again, or runs twice at once, leaves the same bytes under the
same name. The manifest is written last; before that there is no version, and a build that failed can be begun again at the same place.

A delta's task compares its rows with the base's segments of its partitions, and reads no others. If the base is another one than when the build began,
the tasks refuse it.
"""

from __future__ import annotations

from typing import Any, Iterator

from larder import _native
from larder._build import Built, Path, built, reader
from larder._options import GATES, OPTIONS, Key, check_deleted, of_base, options, place

__all__ = ["build_store"]

_ROWS = "partition int, key binary, value binary"
_TASK_MEMORY = "256MiB"


def build_store(df: Any, *, store: str, key: Key, out: Path, deleted: Any = None, **given: Any) -> Built:
    given.setdefault("memory", _TASK_MEMORY)
    given.setdefault("threads", 1)
    if given.get("on_duplicate", "error") != "error":
        raise ValueError(
            "rows of a Spark data frame have no order, so none of a key is the first or the last: make keys unique before, as with dropDuplicates or collect_list"
        )
    for name in sorted(GATES):
        if given.get(name) is not None:
            raise ValueError(f"{name} judges a profile, and builds on Spark make none: give it to larder.push, or build without Spark")
    if deleted is not None:
        check_deleted(given)
    elif df is None:
        raise ValueError("there is nothing to build of: give a data frame, or deleted keys")
    text = options(store, key, "a Spark data frame", given, df is None)
    target = place(out)
    _native.check_out(text, target)
    partitions = given.get("partitions", 8)
    if given.get("on") is not None:
        text, partitions = of_base(text, target)
    columns = [key] if isinstance(key, str) else list(key)
    rows = None
    if df is not None:
        if given.get("value") is not None:
            # Only what is read is moved.
            df = df.select(*dict.fromkeys([*columns, given["value"]]))
        rows = df.mapInArrow(_Assemble(text, False), _ROWS)
    if deleted is not None:
        removed = deleted.select(*columns).mapInArrow(_Assemble(text, True), _ROWS)
        rows = removed if rows is None else rows.union(removed)
    if hasattr(rows, "repartitionById"):
        rows = rows.repartitionById(partitions, rows["partition"])
    else:
        rows = rows.repartition(partitions, "partition")
    parts = rows.mapInArrow(_Write(text, target), "part string").collect()
    manifest = _native.finish([row["part"] for row in parts], text, target)
    return built(target, manifest, None)


build_store.__doc__ = f"""Builds a version of a store from a Spark data frame, on Spark's executors.

Executors need this package, pyarrow 14 or later, and access to ``out``. A task takes ``memory`` (256 MiB unless it is said), and some 170 MiB for Python
and pyarrow, beside the JVM's: see ``spark.executor.memoryOverhead``.

Args:
    df: a data frame of PySpark 3.5 or later. With ``deleted`` it may be None.
    out: a URL, or a path that all executors share; ``on`` as well.
    deleted: with ``on``: a data frame of keys to be removed; other columns than those of ``key`` do not count.{OPTIONS}

Raises:
    ValueError, TypeError: an argument is not what it should be.
    larder.Error: there is a version at ``out`` already, or the place refuses.
    pyspark.errors.PySparkException: a task failed, with larder's reason in it.
"""


class _Assemble:
    """Rows of a task's batches as partition, key and value."""

    def __init__(self, options: str, is_removed: bool) -> None:
        self._options = options
        self._is_removed = is_removed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = _some(batches)
        if rows is None:
            return
        import pyarrow as pa

        stream = _native.assemble(rows, self._options, self._is_removed)
        yield from pa.RecordBatchReader.from_stream(stream)


class _Write:
    """The segments of a task's rows."""

    def __init__(self, options: str, out: str) -> None:
        self._options = options
        self._out = out

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = _some(batches)
        if rows is None:
            return
        import pyarrow as pa

        parts = _native.write_parts(rows, self._options, self._out)
        yield pa.RecordBatch.from_arrays([pa.array(parts, type=pa.string())], names=["part"])


def _some(batches: Iterator[Any]) -> Any:
    """A reader of a task's batches; none if it has no rows."""
    full = (batch for batch in batches if batch.num_rows > 0)
    first = next(full, None)
    if first is None:
        return None

    def every() -> Iterator[Any]:
        yield first
        yield from full

    return reader(every())
