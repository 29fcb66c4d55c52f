"""Builds by several executors into HDFS and S3, and failures during them."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import larder

pyspark = pytest.importorskip("pyspark")
from py4j.protocol import Py4JJavaError  # noqa: E402
from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

from larder.spark import build_store  # noqa: E402

ROWS = 20_000


@pytest.fixture(scope="module")
def spark(spark_cluster):
    return spark_cluster


@pytest.fixture(scope="module")
def alone(tmp_path_factory, spark):
    """Returns the same rows, built by one process, for any number of partitions."""
    folder = tmp_path_factory.mktemp("alone")
    rows(spark).coalesce(1).write.parquet(str(folder / "rows"))

    def build(partitions):
        out = folder / str(partitions)
        if not out.exists():
            larder.build(folder / "rows" / "*.parquet", store="s", key="member", out=out, partitions=partitions)
        return out

    return build


def rows(spark, count=ROWS):
    numbers = spark.range(0, count, 1, 4)
    return numbers.select(
        f.concat(f.lit("m"), f.col("id")).alias("member"),
        (f.col("id") / 4).alias("score"),
        f.expr("repeat('text', cast(id % 5 as int))").alias("text"),
    )


@pytest.mark.parametrize("partitions", [1, 16])
def test_a_version_in_hdfs_is_the_one_that_one_process_builds(spark, hdfs, alone, segments, tmp_path, partitions):
    out = f"{hdfs.url}/built/{partitions}"
    built = build_store(rows(spark).orderBy(f.rand(3)), store="s", key="member", out=out, partitions=partitions)
    assert built.records == ROWS
    assert len(hdfs.list(f"/built/{partitions}")) == partitions + 1, "segments and the manifest, nothing else"
    got = hdfs.get(f"/built/{partitions}", tmp_path / "got")
    assert segments(got) == segments(alone(partitions)) != {}
    larder.open(got).verify()


@pytest.mark.parametrize("partitions", [1, 100])
def test_a_version_in_s3_is_the_one_that_one_process_builds(spark, s3, alone, segments, tmp_path, partitions):
    out = f"s3://versions/{partitions}"
    assert build_store(rows(spark), store="s", key="member", out=out, partitions=partitions).records == ROWS
    assert len(s3.list(f"{partitions}/")) == partitions + 1
    got = s3.get(f"{partitions}/", tmp_path / "got")
    assert segments(got) == segments(alone(partitions)) != {}
    larder.open(got).verify()


def test_a_version_built_by_spark_on_s3_goes_live_by_a_push(spark, served_s3, s3, start_server):
    assert s3 is served_s3
    out = "s3://versions/pushed"
    build_store(rows(spark), store="pushed", key="member", value="score", out=out, partitions=8)
    resp, http = start_server()
    larder.push(out, store="pushed", server=http)
    client = pytest.importorskip("redis").Redis(*resp.split(":"), decode_responses=True)
    assert client.mget("pushed:m7", f"pushed:m{ROWS - 1}", f"pushed:m{ROWS}") == ["1.75", str((ROWS - 1) / 4), None]


def executors():
    """Returns the process ids of the Spark application's executors."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            mine = f"PYSPARK_PYTHON={sys.executable}".encode() in (folder / "environ").read_bytes()
        except OSError:
            continue
        if mine and b"CoarseGrainedExecutorBackend" in command and descends(int(folder.name)):
            found.append(int(folder.name))
    return found


def descends(process):
    while process > 1:
        if process == os.getpid():
            return True
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return False


def test_an_executor_that_is_killed_while_it_writes_is_replaced(spark, s3, alone, segments, tmp_path):
    killed = []
    lock = threading.Lock()

    def kill_at_the_third(method, path):
        with lock:
            puts = [path for method, path in s3.requests if method == "PUT" and "/killed/" in path]
            if method == "PUT" and len(puts) == 3 and not killed:
                killed.append(executors()[0])
                os.kill(killed[0], signal.SIGKILL)

    s3.on(kill_at_the_third)
    build_store(rows(spark), store="s", key="member", out="s3://versions/killed", partitions=16)
    assert killed
    got = s3.get("killed/", tmp_path / "got")
    assert segments(got) == segments(alone(16)) != {}


def test_concurrent_attempts_of_a_task_leave_one_good_file(spark, s3, alone, segments, tmp_path):
    """Spark never runs a task twice concurrently on one machine. The test therefore kills the executor when it has sent its file, which then arrives
    together with that of the next attempt."""
    held = threading.Lock()
    seen = []
    both = threading.Event()

    def hold_until_there_are_two(method, path):
        if method != "PUT" or not path.startswith("/versions/twice/p00003.segment"):
            return None
        with held:
            seen.append(path)
            is_first = len(seen) == 1
        if not is_first:
            both.set()
            return None
        for executor in executors():
            os.kill(executor, signal.SIGKILL)
        # Without a second attempt the build must fail, not hang.
        return None if both.wait(60) else 403

    s3.on(hold_until_there_are_two)
    build_store(rows(spark), store="s", key="member", out="s3://versions/twice", partitions=8)
    s3.on(None)
    assert len(seen) >= 2
    got = s3.get("twice/", tmp_path / "got")
    assert segments(got) == segments(alone(8)) != {}


def test_executors_that_lose_the_source_fail_the_build_and_a_retry_finishes(spark, hdfs, tmp_path):
    source = f"{hdfs.url}/source"
    rows(spark).write.parquet(source)
    hdfs.send("stop-datanode 0")
    hdfs.send("stop-datanode 0")
    df = spark.read.schema("member string, score double, text string").parquet(source)
    with pytest.raises((PySparkException, Py4JJavaError), match="source/part-"):
        build_store(df, store="s", key="member", out=tmp_path / "built", partitions=4)
    assert not (tmp_path / "built" / "manifest.json").exists()
    hdfs.send("start-datanodes")
    assert build_store(df, store="s", key="member", out=tmp_path / "built", partitions=4).records == ROWS
    larder.open(tmp_path / "built").verify()


def test_read_only_hdfs_fails_the_build_and_a_retry_finishes(spark, hdfs):
    df = rows(spark, 2000)
    hdfs.send("safe-mode on")
    with pytest.raises(PySparkException, match="safe mode"):
        build_store(df, store="s", key="member", out=f"{hdfs.url}/safe", partitions=2)
    hdfs.send("safe-mode off")
    assert hdfs.list("/").count("/safe/manifest.json") == 0
    assert build_store(df, store="s", key="member", out=f"{hdfs.url}/safe", partitions=2).records == 2000
    assert len(hdfs.list("/safe")) == 3


DRIVER = """
import sys
from pyspark.sql import SparkSession
from larder.spark import build_store
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
df = spark.range(1000).selectExpr("concat('m', id) as member", "id as score")
print(build_store(df, store="s", key="member", out=sys.argv[1], partitions=4).records)
"""


def test_a_driver_that_is_killed_before_the_manifest_leaves_no_version_and_a_retry_finishes(spark, s3, tmp_path):
    words = [sys.executable, "-c", DRIVER, "s3://versions/driver"]
    environment = {**os.environ, "SPARK_LOCAL_DIRS": str(tmp_path)}
    running = []

    def kill(method, path):
        if method == "PUT" and path.startswith("/versions/driver/manifest.json"):
            os.killpg(running[0].pid, signal.SIGKILL)
            return "cut"
        return None

    s3.on(kill)
    running.append(subprocess.Popen(words, env=environment, start_new_session=True, stderr=subprocess.DEVNULL))
    assert running[0].wait() == -signal.SIGKILL
    s3.on(None)
    left = s3.list("driver/")
    assert len(left) == 4 and not any("manifest" in name for name in left)
    df = spark.range(1000).selectExpr("concat('m', id) as member", "id as score")
    assert build_store(df, store="s", key="member", out="s3://versions/driver", partitions=4).records == 1000
    larder.open(s3.get("driver/", tmp_path / "got")).verify()
