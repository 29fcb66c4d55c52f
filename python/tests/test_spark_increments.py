"""Deltas built on Spark: the result equals that of `larder build --on`; each task reads only what it compares with."""

import os
import shutil
import subprocess

import pytest

import larder

pyspark = pytest.importorskip("pyspark")
from py4j.protocol import Py4JJavaError  # noqa: E402
from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

from larder.spark import build_store  # noqa: E402

COUNT = 4000


@pytest.fixture(scope="module")
def spark(spark_cluster):
    return spark_cluster


@pytest.fixture(scope="module")
def days(spark, tmp_path_factory):
    """Monday's rows; Tuesday's changes and removals; and all of Tuesday's rows, as data frames and as files."""
    folder = tmp_path_factory.mktemp("days")
    numbers = spark.range(COUNT)
    row = [f.concat(f.lit("m"), f.col("id")).alias("member")]
    is_changed, is_gone = f.col("id") % 20 == 3, f.col("id") % 50 == 7
    monday = numbers.select(*row, (f.col("id") / 4).alias("score"))
    changed = numbers.where(is_changed & ~is_gone).select(*row, (f.col("id") / 2).alias("score"))
    added = spark.range(COUNT, COUNT + 40).select(*row, f.lit(7.0).alias("score"))
    # Includes a row that equals the base's.
    same = numbers.where("id = 100").select(*row, (f.col("id") / 4).alias("score"))
    gone = numbers.where(is_gone).select(*row)
    kept = numbers.where(~is_changed & ~is_gone).select(*row, (f.col("id") / 4).alias("score"))
    frames = {
        "monday": monday,
        "changes": changed.union(added).union(same),
        "gone": gone,
        "tuesday": kept.union(changed).union(added),
    }
    for name, frame in frames.items():
        frame.coalesce(1).write.parquet(str(folder / name))
    read = {name: spark.read.parquet(str(folder / name)) for name in frames}
    return read, {name: str(folder / name / "*.parquet") for name in frames}


TUESDAY = COUNT + 40 - COUNT // 50


@pytest.fixture
def by_command(program):
    def build(*words):
        words = [program, "build", *map(str, words), "--store", "s", "--key", "member"]
        subprocess.run(words, check=True, capture_output=True)

    return build


@pytest.fixture
def monday(days, tmp_path):
    larder.build(days[1]["monday"], store="s", key="member", out=tmp_path / "monday", partitions=8)
    return tmp_path / "monday"


def test_a_delta_is_the_one_that_the_command_builds(spark, days, monday, tmp_path, segments, by_command):
    frames, files = days
    built = build_store(
        frames["changes"].orderBy(f.rand(5)), deleted=frames["gone"], on=monday, store="s", key="member", out=tmp_path / "tuesday"
    )
    assert built.records == TUESDAY
    store = larder.open(built.location)
    store.verify()
    assert (store.get("m3"), store.get("m7"), store.get("m8")) == (b'{"score":1.5}', None, b'{"score":2.0}')
    by_command(files["changes"], "--deleted", files["gone"], "--on", monday, "--out", tmp_path / "command")
    assert segments(tmp_path / "tuesday") == segments(tmp_path / "command") != {}
    assert larder.open(tmp_path / "command").manifest["digest"] == built.digest

    alone = larder.build(
        files["changes"], deleted=files["gone"], on=monday, store="s", key="member", out=tmp_path / "alone"
    )
    assert alone.digest == built.digest and segments(tmp_path / "alone") == segments(tmp_path / "tuesday")
    frame = larder.build(
        frames["changes"].toPandas(), deleted=frames["gone"].toPandas(), on=monday, store="s", key="member", out=tmp_path / "frame"
    )
    assert frame.digest == built.digest


def test_the_difference_of_two_days_is_the_one_that_the_command_finds(spark, days, monday, tmp_path, segments, by_command):
    frames, files = days
    built = build_store(frames["tuesday"], on=monday, full=True, store="s", key="member", out=tmp_path / "full")
    assert built.records == TUESDAY
    larder.open(built.location).verify()
    by_command(files["tuesday"], "--full", "--on", monday, "--out", tmp_path / "command")
    assert segments(tmp_path / "full") == segments(tmp_path / "command") != {}
    assert larder.open(tmp_path / "command").manifest["digest"] == built.digest


def test_partitions_without_rows_lose_the_keys_that_a_full_input_lacks(spark, days, monday, tmp_path):
    few = days[0]["monday"].where("member = 'm5'")
    built = build_store(few, on=monday, full=True, store="s", key="member", out=tmp_path / "few")
    assert built.records == 1
    assert dict(larder.open(built.location)) == {b"m5": b'{"score":1.25}'}


def test_a_delta_on_a_delta_in_an_object_store_reads_its_base(spark, s3, days, tmp_path, segments):
    frames, files = days
    larder.build(files["monday"], store="s", key="member", out="s3://versions/days/monday", partitions=8)
    build_store(frames["changes"], on="s3://versions/days/monday", store="s", key="member", out="s3://versions/days/tuesday")
    one = frames["gone"].where("member = 'm7'")
    before = len(s3.requests)
    built = build_store(None, deleted=one, on="s3://versions/days/tuesday", store="s", key="member", out="s3://versions/days/wednesday")
    assert built.records == COUNT + 40 - 1
    read = {path.split("?")[0] for method, path in s3.requests[before:] if method == "GET" and ".segment" in path}
    assert len(read) == 4, f"both layers of the key's partition, and of one that tells the driver the size of blocks: {read}"
    for day in ("monday", "tuesday", "wednesday"):
        s3.get(f"days/{day}/", tmp_path / day)
    store = larder.open(tmp_path / "wednesday")
    store.verify()
    assert store.get("m7") is None and store.get("m3") == b'{"score":1.5}'


def test_a_task_of_a_delta_that_dies_once_is_tried_again(spark, days, monday, tmp_path, segments):
    marker = tmp_path / "died"

    def dies_once(batches):
        for batch in batches:
            yield batch
            if not marker.exists():
                marker.write_text("")
                os._exit(1)

    changes = days[0]["changes"]
    build_store(changes.mapInArrow(dies_once, changes.schema), on=monday, store="s", key="member", out=tmp_path / "shaken")
    assert marker.exists()
    build_store(changes, on=monday, store="s", key="member", out=tmp_path / "quiet")
    assert segments(tmp_path / "shaken") == segments(tmp_path / "quiet") != {}


def test_a_base_that_is_removed_or_replaced_fails_the_build(spark, days, monday, tmp_path):
    changes = days[0]["changes"]
    other = tmp_path / "other"
    larder.build(days[1]["tuesday"], store="s", key="member", out=other, partitions=8)

    def then(change):
        """Returns the rows; reading them makes the change, so that the writing tasks see it and the driver did not."""

        def each(batches):
            for batch in batches:
                change()
                yield batch

        return changes.mapInArrow(each, changes.schema)

    kept = str(tmp_path / "kept")
    base = str(monday)

    def gone():
        if os.path.exists(base):
            os.rename(base, kept)

    def another():
        if not os.path.exists(kept):
            os.rename(base, kept)
            shutil.copytree(str(other), base)

    for change, says in [(gone, "no version at"), (another, "was replaced")]:
        out = tmp_path / change.__name__
        with pytest.raises((PySparkException, Py4JJavaError), match=says):
            build_store(then(change), on=monday, store="s", key="member", out=out)
        assert not (out / "manifest.json").exists()
        shutil.rmtree(base, ignore_errors=True)
        os.rename(kept, base)
        assert build_store(changes, on=monday, store="s", key="member", out=out).records == COUNT + 40


def test_errors_of_a_delta_are_reported(spark, days, monday, tmp_path):
    frames = days[0]
    words = {"store": "s", "key": "member", "out": tmp_path / "built"}
    with pytest.raises(larder.Error, match="no version at"):
        build_store(frames["changes"], on=tmp_path / "nothing", **words)
    with pytest.raises(larder.Error, match="one of store s"):
        build_store(frames["changes"], on=monday, **{**words, "store": "t"})
    with pytest.raises(ValueError, match="partitions is determined by the base"):
        build_store(frames["changes"], on=monday, partitions=4, **words)
    with pytest.raises(ValueError, match="name it with on"):
        build_store(frames["changes"], deleted=frames["gone"], **words)
    with pytest.raises(ValueError, match="omit deleted"):
        build_store(frames["changes"], deleted=frames["gone"], on=monday, full=True, **words)
    with pytest.raises(ValueError, match="name it with on"):
        build_store(frames["changes"], full=True, **words)
    with pytest.raises(ValueError, match="the build has no input"):
        build_store(None, **words)
    with pytest.raises(PySparkException, match="two rows have the key"):
        build_store(frames["changes"], deleted=frames["changes"], on=monday, **words)
    shutil.copytree(monday, tmp_path / "damaged")
    for segment in (tmp_path / "damaged").glob("*.segment"):
        segment.write_bytes(segment.read_bytes()[:-100])
    with pytest.raises(PySparkException, match="damaged"):
        build_store(frames["changes"], on=tmp_path / "damaged", **words)
    assert not (tmp_path / "built" / "manifest.json").exists()
