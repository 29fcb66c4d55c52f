"""larder for Python: builds stores from data frames, reads them in process, and pushes them to servers.

    import larder

    larder.build(frame, store="pymk", key="member", out="built/pymk")   # pandas, Polars, DuckDB, pyarrow, files
    larder.push("built/pymk", store="pymk")                             # a server pulls it and makes it live

    with_ids = larder.open("built/pymk")                                # the same files, in this process
    with_ids.get("42")

``larder.spark.build_store`` builds on a Spark cluster; ``larder.aio.Client`` is an asyncio client.
"""

from __future__ import annotations

from larder._native import Error, __version__
from larder._build import Built, build
from larder._push import PushError, push
from larder._store import Store, open

__all__ = ["Built", "Error", "PushError", "Store", "__version__", "build", "open", "push"]
