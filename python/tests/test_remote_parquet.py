"""Parquet data sets in an object store, in the layout of Spark and Hive."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import larder


@pytest.fixture
def s3(each_s3):
    return each_s3


@pytest.fixture
def table(tmp_path, s3):
    """A partitioned table: 2,000 rows per day with an unused column of 2 MB, and the remains of a failed job."""
    noise = random.Random(7)
    for day in (1, 2):
        rows = pa.table(
            {
                "unread": [noise.randbytes(1000) for _ in range(2000)],
                "member": [f"m{n}" for n in range(2000)],
                "score": [n / 4 for n in range(2000)],
            }
        )
        path = tmp_path / "part.parquet"
        pq.write_table(rows, path, row_group_size=500)
        s3.put(path, f"table/day={day}/part-0.parquet")
    (tmp_path / "_SUCCESS").write_text("")
    s3.put(tmp_path / "_SUCCESS", "table/_SUCCESS")
    s3.put(path, "table/_temporary/day=3/part-1.parquet")
    return "s3://versions/table"


def build(source, out):
    return larder.build(source, store="s", key=["member", "day"], value="score", out=out, partitions=2)


def test_only_the_columns_that_are_read_are_fetched(table, s3, tmp_path):
    before = s3.sent()
    built = build(table, tmp_path / "built")
    fetched = s3.sent() - before
    assert built.records == 4000
    store = larder.open(tmp_path / "built")
    assert store.get("m7:1") == store.get("m7:2") == b"1.75"
    assert 0 < fetched < 1_000_000, "of 4 MB"


def test_interrupted_responses_are_requested_again(table, s3, tmp_path):
    seen = []

    def first_of_each_kind(method, path):
        fault = {0: "short", 1: 500, 2: "cut"}.get(len(seen))
        if method == "GET" and "part-0" in path and fault:
            seen.append(path)
            return fault
        return None

    s3.on(first_of_each_kind)
    assert build(table, tmp_path / "built").records == 4000
    assert len(seen) == 3


def test_a_source_that_fails_midway_leaves_no_version(table, s3, tmp_path):
    s3.on(lambda method, path: 404 if method == "GET" and "day%3D2" in path.replace("=", "%3D") else None)
    with pytest.raises(larder.Error, match="day=2/part-0.parquet"):
        build(table, tmp_path / "built")
    assert not (tmp_path / "built" / "manifest.json").exists()
    s3.on(None)
    assert build(table, tmp_path / "built").records == 4000


def test_a_file_that_is_not_parquet_is_reported(s3, tmp_path):
    for name, content, says in [
        ("short", b"PAR1", "cut off"),
        ("text", b"member,score\n" * 100, "cut off"),
        ("footer", b"PAR1" + b"x" * 100 + b"\xff\xff\xff\x00PAR1", "footer|read"),
    ]:
        (tmp_path / name).write_bytes(content)
        s3.put(tmp_path / name, f"wrong/{name}.parquet")
        with pytest.raises(larder.Error, match=says):
            build(f"s3://versions/wrong/{name}.parquet", tmp_path / "built")
