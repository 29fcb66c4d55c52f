"""The parameters of Spark's shuffle, which brings all rows of a partition to one task: the size of bundles, and the shuffle keys."""

from __future__ import annotations

from itertools import count
from typing import Any, Optional

#: Maximum size of a batch from the JVM to Python. Larger batches need more memory, and more time to allocate it.
_ARROW_BATCH_BYTES = 16 << 20
_BUNDLE_BYTES_MIN = 1 << 10
_BUNDLE_BYTES_MAX = 256 << 10


def bundle_bytes(session: Any) -> int:
    """Returns the size of a bundle, which is one row of the shuffle. Before Spark 4, a Spark setting determines the number of rows in a batch from
    the JVM to Python, whatever their size. Bundles are small enough to bound the size of such a batch."""
    rows = _number(session, "spark.sql.execution.arrow.maxRecordsPerBatch")
    if rows is None or rows <= 0:
        return _BUNDLE_BYTES_MAX
    return min(max(_ARROW_BATCH_BYTES // rows, _BUNDLE_BYTES_MIN), _BUNDLE_BYTES_MAX)


def shuffle_tasks(session: Any, partitions: int) -> Optional[int]:
    """Returns the number of tasks of a shuffle that Spark may coalesce, according to the size of their rows. None if Spark does not coalesce, or if
    there would be fewer tasks than partitions."""
    for name in ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled"):
        if _setting(session, name) != "true":
            return None
    initial = _number(session, "spark.sql.adaptive.coalescePartitions.initialPartitionNum")
    tasks = initial or _number(session, "spark.sql.shuffle.partitions")
    return None if tasks is None or tasks < partitions else tasks


def targets(partitions: int, tasks: int) -> list[int]:
    """Returns a shuffle key per partition, such that Spark's shuffle sends each partition to a different task."""
    found: dict[int, int] = {}
    for number in count():
        task = spark_hash(number) % tasks
        if task < partitions:
            found.setdefault(task, number)
            if len(found) == partitions:
                return [found[partition] for partition in range(partitions)]
    raise AssertionError("numbers do not end")


def spark_hash(number: int) -> int:
    """Returns the hash of an int with which Spark partitions a shuffle: 32-bit Murmur3 (A. Appleby) with the seed 42."""

    def rotated(bits: int, by: int) -> int:
        return (bits << by | bits >> (32 - by)) & _MASK

    bits = rotated(number * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    bits = (rotated(42 ^ bits, 13) * 5 + 0xE6546B64) & _MASK
    bits ^= 4
    bits = (bits ^ bits >> 16) * 0x85EBCA6B & _MASK
    bits = (bits ^ bits >> 13) * 0xC2B2AE35 & _MASK
    bits ^= bits >> 16
    return bits - (1 << 32) if bits >> 31 else bits


_MASK = 0xFFFFFFFF


def _number(session: Any, name: str) -> Optional[int]:
    """Returns a setting; None if it is not a number."""
    given = _setting(session, name) or ""
    return int(given) if given.lstrip("-").isdigit() else None


def _setting(session: Any, name: str) -> Optional[str]:
    """Returns a setting or Spark's default for it; None if there is neither."""
    try:
        return session.conf.get(name)
    except Exception:  # The class differs between Spark releases, and between local and remote sessions.
        return None
