import json
import os
import sys
from contextlib import contextmanager

import pytest

import larder
from larder import _shuffle

pyspark = pytest.importorskip("pyspark")
from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

from larder.spark import build_store  # noqa: E402


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    folder = tmp_path_factory.mktemp("spark")
    builder = SparkSession.builder.master("local[2,2]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "4").config("spark.local.dir", str(folder))
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def rows(spark, count=5000):
    numbers = spark.range(count)
    return numbers.select(
        f.concat(f.lit("m"), f.col("id")).alias("member"),
        (f.col("id") / 4).alias("score"),
        f.array_repeat(f.lit("t"), (f.col("id") % 4).cast("int")).alias("tags"),
    )


@pytest.fixture(scope="module")
def files(spark, tmp_path_factory):
    """The rows as files, which larder reads without Spark."""
    folder = tmp_path_factory.mktemp("files")
    rows(spark).coalesce(1).write.parquet(str(folder / "rows"))
    return str(folder / "rows" / "*.parquet")


@contextmanager
def setting(spark, name, value):
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    yield
    spark.conf.set(name, before)


def profile(location):
    return larder.open(location).manifest["built"]["profile"]


@pytest.mark.parametrize("partitions", [1, 4, 40])
@pytest.mark.parametrize("adaptive", ["true", "false"])
def test_a_version_is_the_same_as_one_that_one_process_builds(spark, files, tmp_path, segments, partitions, adaptive):
    with setting(spark, "spark.sql.adaptive.enabled", adaptive):
        df = rows(spark).orderBy(f.rand(7))
        built = build_store(df, store="pymk", key="member", out=tmp_path / "spark", partitions=partitions)
    assert built.records == 5000
    larder.build(files, store="pymk", key="member", out=tmp_path / "alone", partitions=partitions)
    assert segments(tmp_path / "spark") == segments(tmp_path / "alone") != {}
    assert larder.open(tmp_path / "alone").manifest["digest"] == built.digest
    assert profile(tmp_path / "spark") == profile(tmp_path / "alone")
    store = larder.open(built.location)
    store.verify()
    assert json.loads(store.get("m7")) == {"score": 1.75, "tags": ["t", "t", "t"]}
    assert sorted(os.listdir(tmp_path / "spark")) == sorted(os.listdir(tmp_path / "alone"))


def test_rows_longer_than_a_bundle_have_a_bundle_each(spark, tmp_path, segments):
    numbers = spark.range(60)
    text = f.when(f.col("id") % 20 == 7, f.repeat(f.lit("x"), 3_000_000)).otherwise(f.concat(f.lit("x"), f.col("id")))
    df = numbers.select(f.concat(f.lit("m"), f.col("id")).alias("member"), text.alias("text"))
    words = {"store": "s", "key": "member", "value": "text", "partitions": 2, "memory": "64MiB"}
    build_store(df, out=tmp_path / "spark", **words)
    larder.build(df.toPandas(), out=tmp_path / "alone", **words)
    assert segments(tmp_path / "spark") == segments(tmp_path / "alone") != {}


def test_bundles_bound_the_bytes_that_spark_passes_to_python(spark):
    for rows_at_once, size in [("10000", 1677), ("1000000", 1024), ("100", 167772), ("10", 256 << 10), ("0", 256 << 10)]:
        with setting(spark, "spark.sql.execution.arrow.maxRecordsPerBatch", rows_at_once):
            assert _shuffle.bundle_bytes(spark) == size


@pytest.mark.parametrize(("partitions", "tasks"), [(1, 1), (1, 200), (30, 30), (50, 200)])
def test_every_partition_has_a_task_of_its_own(spark, partitions, tasks):
    targets = _shuffle.targets(partitions, tasks)
    df = spark.createDataFrame([(number,) for number in targets], "target int").repartition(tasks, "target")
    placed = df.select("target", f.spark_partition_id().alias("task"), f.hash("target").alias("hash")).collect()
    assert sorted(row["task"] for row in placed) == list(range(partitions))
    assert all(_shuffle.spark_hash(row["target"]) == row["hash"] for row in placed)


def test_small_partitions_share_tasks_where_spark_may_coalesce_them(spark, tmp_path):
    context = spark.sparkContext

    def tasks_of_stages(adaptive):
        context.setJobGroup(f"adaptive {adaptive}", "")
        with setting(spark, "spark.sql.adaptive.enabled", adaptive), setting(spark, "spark.sql.shuffle.partitions", "64"):
            build_store(rows(spark), store="s", key="member", out=tmp_path / adaptive, partitions=60, profile=False)
        tracker = context.statusTracker()
        stages = [stage for job in tracker.getJobIdsForGroup(f"adaptive {adaptive}") for stage in tracker.getJobInfo(job).stageIds]
        return [tracker.getStageInfo(stage).numTasks for stage in stages if tracker.getStageInfo(stage)]

    assert max(tasks_of_stages("false")) == 60
    assert max(tasks_of_stages("true")) < 10
    context.setLocalProperty("spark.jobGroup.id", None)


def test_gates_judge_a_build_on_spark(spark, files, tmp_path):
    words = {"store": "s", "key": "member"}
    larder.build(files, out=tmp_path / "monday", **words)
    holes = rows(spark).withColumn("score", f.when(f.col("score") > 100, f.col("score")))
    gates = {"max_nulls": {"score": 1}, "max_shrink_percent": 10, "against": tmp_path / "monday"}
    with pytest.raises(larder.Error, match='"score" is null'):
        build_store(holes, out=tmp_path / "built", **words, **gates)
    with pytest.raises(larder.Error, match="fewer"):
        build_store(rows(spark, 100), out=tmp_path / "built", **words, **gates)
    assert not (tmp_path / "built" / "manifest.json").exists()
    with pytest.raises(larder.Error, match="no version at"):
        build_store(rows(spark), out=tmp_path / "built", **words, **{**gates, "against": tmp_path / "nothing"})
    assert build_store(rows(spark), out=tmp_path / "built", **words, **gates).records == 5000


def test_partitions_without_rows_exist(spark, tmp_path):
    built = build_store(rows(spark, 3), store="few", key="member", value="score", out=tmp_path / "built", partitions=32)
    store = larder.open(built.location)
    store.verify()
    assert dict(store) == {b"m0": b"0.0", b"m1": b"0.25", b"m2": b"0.5"}


def test_a_task_that_dies_once_is_tried_again_and_leaves_one_good_file(spark, tmp_path, segments):
    marker = tmp_path / "died"

    def dies_once(batches):
        for number, batch in enumerate(batches):
            yield batch
            if not marker.exists():
                marker.write_text("")
                os._exit(1)

    df = rows(spark)
    shaken = df.mapInArrow(dies_once, df.schema)
    build_store(shaken, store="s", key="member", out=tmp_path / "shaken", partitions=4)
    assert marker.exists()
    build_store(df, store="s", key="member", out=tmp_path / "quiet", partitions=4)
    assert segments(tmp_path / "shaken") == segments(tmp_path / "quiet")
    assert len(os.listdir(tmp_path / "shaken")) == 5


def test_a_failed_build_leaves_no_version_and_can_be_restarted(spark, tmp_path):
    df = rows(spark, 100)
    twice = df.union(df.limit(1))
    with pytest.raises(PySparkException, match="m0"):
        build_store(twice, store="s", key="member", out=tmp_path / "built", partitions=2)
    with pytest.raises(larder.Error):
        larder.open(tmp_path / "built")
    assert build_store(df, store="s", key="member", out=tmp_path / "built", partitions=2).records == 100
    with pytest.raises(larder.Error, match="there is a version"):
        build_store(df, store="s", key="member", out=tmp_path / "built", partitions=2)


def test_errors_are_reported(spark, tmp_path):
    df = rows(spark, 10)
    with pytest.raises(ValueError, match="are unordered"):
        build_store(df, store="s", key="member", out=tmp_path / "built", on_duplicate="last")
    with pytest.raises(PySparkException, match='"nobody"'):
        build_store(df, store="s", key="nobody", out=tmp_path / "built")
    with pytest.raises(larder.Error, match="no rows"):
        build_store(df.limit(0), store="s", key="member", out=tmp_path / "built")
    with pytest.raises(TypeError, match="unknown option"):
        build_store(df, store="s", key="member", out=tmp_path / "built", on_doubles="last")
    assert not (tmp_path / "built").exists()
