import json
import os
import sys

import pyarrow.parquet as pq
import pytest

import larder

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


def test_a_version_is_the_same_as_one_that_one_process_builds(spark, tmp_path, segments):
    df = rows(spark)
    built = build_store(df.orderBy(f.rand(7)), store="pymk", key="member", out=tmp_path / "spark", partitions=16)
    assert built.records == 5000
    df.coalesce(1).write.parquet(str(tmp_path / "rows"))
    larder.build(tmp_path / "rows" / "*.parquet", store="pymk", key="member", out=tmp_path / "alone", partitions=16)
    assert segments(tmp_path / "spark") == segments(tmp_path / "alone") != {}
    assert larder.open(tmp_path / "alone").manifest["digest"] == built.digest
    store = larder.open(built.location)
    store.verify()
    assert json.loads(store.get("m7")) == {"score": 1.75, "tags": ["t", "t", "t"]}
    assert sorted(os.listdir(tmp_path / "spark")) == sorted(os.listdir(tmp_path / "alone"))


def test_partitions_without_rows_are_there(spark, tmp_path):
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


def test_a_build_that_failed_leaves_no_version_and_can_be_begun_again(spark, tmp_path):
    df = rows(spark, 100)
    twice = df.union(df.limit(1))
    with pytest.raises(PySparkException, match="m0"):
        build_store(twice, store="s", key="member", out=tmp_path / "built", partitions=2)
    with pytest.raises(larder.Error):
        larder.open(tmp_path / "built")
    assert build_store(df, store="s", key="member", out=tmp_path / "built", partitions=2).records == 100
    with pytest.raises(larder.Error, match="there is a version"):
        build_store(df, store="s", key="member", out=tmp_path / "built", partitions=2)


def test_what_is_wrong_is_said(spark, tmp_path):
    df = rows(spark, 10)
    with pytest.raises(ValueError, match="no order"):
        build_store(df, store="s", key="member", out=tmp_path / "built", on_duplicate="last")
    with pytest.raises(PySparkException, match='"nobody"'):
        build_store(df, store="s", key="nobody", out=tmp_path / "built")
    with pytest.raises(larder.Error, match="no rows"):
        build_store(df.limit(0), store="s", key="member", out=tmp_path / "built")
    with pytest.raises(TypeError, match="no option"):
        build_store(df, store="s", key="member", out=tmp_path / "built", on_doubles="last")
    assert not (tmp_path / "built").exists()
