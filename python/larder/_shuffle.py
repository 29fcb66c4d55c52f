"""How Spark's shuffle brings the rows of a partition to one task: how large bundles are, and what the tasks are told apart by."""

from __future__ import annotations

from itertools import count
from typing import Any, Optional

#: What the JVM hands to Python at once is so large at most. Larger batches take more memory, and more time to be given it.
_ARROW_BATCH_BYTES = 16 << 20
_BUNDLE_BYTES_MIN = 1 << 10
_BUNDLE_BYTES_MAX = 256 << 10


def bundle_bytes(session: Any) -> int:
    """So many bytes of rows are a row of the shuffle. The JVM collects so many rows into one batch for Python as a setting of Spark's says, whatever
    their size before Spark 4: bundles are as small as it takes to bound that batch."""
    rows = _number(session, "spark.sql.execution.arrow.maxRecordsPerBatch")
    if rows is None or rows <= 0:
        return _BUNDLE_BYTES_MAX
    return min(max(_ARROW_BATCH_BYTES // rows, _BUNDLE_BYTES_MIN), _BUNDLE_BYTES_MAX)


def shuffle_tasks(session: Any, partitions: int) -> Optional[int]:
    """Into how many tasks a shuffle is cut that Spark may then make fewer of, by the size of their rows; none, if it would not, or if
    partitions would have to share a task."""
    for name in ("spark.sql.adaptive.enabled", "spark.sql.adaptive.coalescePartitions.enabled"):
        if _setting(session, name) != "true":
            return None
    initial = _number(session, "spark.sql.adaptive.coalescePartitions.initialPartitionNum")
    tasks = initial or _number(session, "spark.sql.shuffle.partitions")
    return None if tasks is None or tasks < partitions else tasks


def targets(partitions: int, tasks: int) -> list[int]:
    """By partition, a number that Spark's shuffle into so many tasks sends to a task of the partition's own."""
    found: dict[int, int] = {}
    for number in count():
        task = spark_hash(number) % tasks
        if task < partitions:
            found.setdefault(task, number)
            if len(found) == partitions:
                return [found[partition] for partition in range(partitions)]
    raise AssertionError("numbers do not end")


def spark_hash(number: int) -> int:
    """Spark's hash of an int by which a shuffle is cut: Murmur3 of 32 bits (A. Appleby) with the seed 42."""

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
    """A setting; none, if it is not set to a number."""
    given = _setting(session, name) or ""
    return int(given) if given.lstrip("-").isdigit() else None


def _setting(session: Any, name: str) -> Optional[str]:
    """A setting, or Spark's own default for it; none, if it has none."""
    try:
        return session.conf.get(name)
    except Exception:  # Of a class that differs between Spark's releases, and between a session of its own and a remote one.
        return None
