"""Builds stores on Spark: each task writes the segments of its partitions, so that no node is a bottleneck.

    from larder.spark import build_store

    build_store(df, store="pymk", key="member", out="s3://bucket/built/monday", partitions=64)
    build_store(changes, deleted=gone, on="s3://bucket/built/monday", store="pymk", key="member", out="s3://bucket/built/tuesday")

    df ── bundles of rows, each of one partition ── shuffle by partition ──► a task of one or more partitions ──► their segments, at `out`
                                                                                                                         │
                                                       the driver: segments of empty partitions, the profile, the manifest ◄─┘

Spark shuffles bundles, not rows, so that the cost per shuffled row is shared by many rows. One task receives all rows of a partition. If Spark
coalesces the tasks of a shuffle (adaptive execution), a task receives several small partitions, and each large partition has a task of its own.

The output of a task is a pure function of its partitions' rows: a task that is retried, or runs concurrently with itself, writes the same bytes under
the same name. The manifest is written last; before that there is no version, and a failed build can be repeated at the same location.

A task of a delta compares its rows with the base's segments of its partitions, and reads no others. If the base was replaced after the build started,
the tasks fail.
"""

from __future__ import annotations

from math import isqrt
from typing import Any, Iterator, NamedTuple, Optional

from larder import _native
from larder._build import Built, Path, batch_reader, to_built
from larder._options import OPTIONS, Key, check_deleted, apply_base, options, place
from larder._shuffle import bundle_bytes, shuffle_tasks, targets

__all__ = ["build_store"]

_BUNDLES = "target int, bundle binary"
# A row describes a segment, or contains a task's collected profile data: some hundred kilobytes, up to 10 MB for wide rows.
_SEGMENTS = "task int, part string, collected binary"
#: Maximum number of collected profiles that the driver merges; for more, tasks merge them first.
_DRIVER_MERGES_MAX = 16
_TASK_MEMORY = "256MiB"


def build_store(df: Any, *, store: str, key: Key, out: Path, deleted: Any = None, **given: Any) -> Built:
    given.setdefault("memory", _TASK_MEMORY)
    given.setdefault("threads", 1)
    if given.get("on_duplicate", "error") != "error":
        raise ValueError(
            "rows of a Spark data frame are unordered, so no row of a key is the first or the last: make keys unique first, for example with dropDuplicates or collect_list"
        )
    if deleted is not None:
        check_deleted(given)
    elif df is None:
        raise ValueError("the build has no input: pass a data frame, or deleted keys")
    text = options(store, key, "a Spark data frame", given, df is None)
    target = place(out)
    _native.check_out(text, target)
    partitions = given.get("partitions", 8)
    if given.get("on") is not None:
        text, partitions = apply_base(text, target)
    session = (deleted if df is None else df).sparkSession
    tasks = shuffle_tasks(session, partitions)
    bundle_options = _BundleOptions(text, targets(partitions, tasks or partitions), bundle_bytes(session))
    columns = [key] if isinstance(key, str) else list(key)
    bundles = None
    if df is not None:
        if given.get("value") is not None:
            # Shuffle only the required columns.
            df = df.select(*dict.fromkeys([*columns, given["value"]]))
        bundles = df.mapInArrow(_Assemble(bundle_options, False), _BUNDLES)
    if deleted is not None:
        removed = deleted.select(*columns).mapInArrow(_Assemble(bundle_options, True), _BUNDLES)
        bundles = removed if bundles is None else bundles.union(removed)
    # Spark coalesces tasks only if their number is not specified.
    bundles = bundles.repartition("target") if tasks else bundles.repartition(partitions, "target")
    segments = bundles.mapInArrow(_Write(text, target), _SEGMENTS)
    has_profile = given.get("profile", True) and (given.get("on") is None or given.get("full"))
    if has_profile and partitions > _DRIVER_MERGES_MAX:
        segments = segments.repartition("task") if tasks else segments.repartition(isqrt(partitions), "task")
        segments = segments.mapInArrow(_Merge(text), _SEGMENTS)
    rows = segments.collect()
    parts = [row["part"] for row in rows if row["part"] is not None]
    collected = [bytes(row["collected"]) for row in rows if row["collected"] is not None]
    manifest = _native.finish(parts, collected, text, target)
    return to_built(target, manifest, None)


build_store.__doc__ = f"""Builds a version of a store from a Spark data frame, on Spark's executors.

Executors need this package, pyarrow 14 or later, and access to ``out``. A task uses ``memory`` (256 MiB by default), and about 310 MiB for Python
and pyarrow, in addition to the JVM's memory: see ``spark.executor.memoryOverhead``.

Args:
    df: a data frame of PySpark 3.5 or later. With ``deleted`` it may be None.
    out: a URL, or a path that all executors share; the same applies to ``on``.
    deleted: with ``on``: a data frame of keys to remove; columns other than those of ``key`` are ignored.{OPTIONS}

Raises:
    ValueError, TypeError: an argument is invalid.
    larder.Error: ``out`` already has a version, or reading or writing failed.
    pyspark.errors.PySparkException: a task failed; the message has larder's reason.
"""


class _BundleOptions(NamedTuple):
    """The parameters for converting rows to bundles."""

    options: str
    targets: list[int]
    bundle_bytes: int


class _Assemble:
    """Converts a task's rows to bundles, each with the target of its partition."""

    def __init__(self, bundle_options: _BundleOptions, is_removed: bool) -> None:
        self._bundle_options = bundle_options
        self._is_removed = is_removed

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = _nonempty_reader(batches)
        if rows is None:
            return
        import pyarrow as pa

        bundle_options = self._bundle_options
        stream = _native.assemble(rows, bundle_options.options, self._is_removed, bundle_options.targets, bundle_options.bundle_bytes)
        yield from pa.RecordBatchReader.from_stream(stream)


class _Write:
    """Writes the segments of a task's rows."""

    def __init__(self, options: str, out: str) -> None:
        self._options = options
        self._out = out

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        rows = _nonempty_reader(batches)
        if rows is None:
            return
        parts, collected = _native.write_parts(rows, self._options, self._out)
        yield _segment_rows(parts, collected)


class _Merge:
    """Combines the output of several tasks, and merges their collected profile data."""

    def __init__(self, options: str) -> None:
        self._options = options

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        parts: list[str] = []
        merged = None
        for batch in batches:
            rows = batch.to_pydict()
            parts += [part for part in rows["part"] if part is not None]
            collected = [it for it in (merged, *rows["collected"]) if it is not None]
            merged = _native.merge_collected(collected, self._options) if collected else None
        if parts or merged is not None:
            yield _segment_rows(parts, merged)


def _segment_rows(parts: list[str], collected: Optional[bytes]) -> Any:
    import pyarrow as pa
    from pyspark import TaskContext

    profiles = [] if collected is None else [collected]
    columns = {
        "task": pa.array([TaskContext.get().partitionId()] * (len(parts) + len(profiles)), type=pa.int32()),
        "part": pa.array([*parts, *[None] * len(profiles)], type=pa.string()),
        "collected": pa.array([*[None] * len(parts), *profiles], type=pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


def _nonempty_reader(batches: Iterator[Any]) -> Any:
    """Returns a reader of a task's batches; None if there are no rows."""
    full = (batch for batch in batches if batch.num_rows > 0)
    first = next(full, None)
    if first is None:
        return None

    def all_batches() -> Iterator[Any]:
        yield first
        yield from full

    return batch_reader(all_batches())
