import json
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import larder
from larder import _native, _options


def table(count):
    return pa.table(
        {
            "member": pa.array([f"m{number}" for number in range(count)]),
            "score": pa.array([number / 4 for number in range(count)]),
            "tags": pa.array([[f"t{number % 3}"] * (number % 4) for number in range(count)]),
        }
    )


def test_a_table_is_built_and_read_again(tmp_path):
    built = larder.build(table(10_000), store="pymk", key="member", out=tmp_path / "built", partitions=4)
    assert built.records == 10_000 and built.skipped_rows == 0
    store = larder.open(built.location)
    assert len(store) == 10_000 and repr(store) == "<larder.Store pymk: 10000 records>"
    assert json.loads(store.get("m7")) == {"score": 1.75, "tags": ["t1", "t1", "t1"]}
    assert store.get(b"m7") == store.get("m7")
    assert store.get("nobody") is None and "nobody" not in store and "m1" in store
    assert store.get_many(["m1", "nobody", b"m2"]) == [store.get("m1"), None, store.get("m2")]
    assert store.get_arrow(pa.array(["m1", "nobody"])).to_pylist() == [store.get("m1"), None]
    assert dict(store) == {key: store.get(key) for key, _ in store} and len(dict(store)) == 10_000
    store.verify()
    assert store.manifest["built"]["key"] == ["member"] and store.manifest["built"]["options"] == {"partitions": "4"}


def frames():
    rows = table(500)
    yield pytest.param(lambda: rows, id="pyarrow")
    yield pytest.param(lambda: rows.to_batches(max_chunksize=37), id="batches")
    yield pytest.param(lambda: pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches(37))), id="reader")
    yield pytest.param(lambda: pytest.importorskip("pandas").DataFrame(rows.to_pandas()), id="pandas")
    yield pytest.param(lambda: pytest.importorskip("polars").from_arrow(rows), id="polars")
    yield pytest.param(lambda: pytest.importorskip("duckdb").from_arrow(rows), id="duckdb")


@pytest.mark.parametrize("frame", list(frames()))
def test_frames_of_all_libraries_make_the_same_bytes(frame, tmp_path, segments):
    larder.build(frame(), store="s", key="member", value="score", out=tmp_path / "of-frame")
    pq.write_table(table(500), tmp_path / "rows.parquet")
    larder.build(tmp_path / "rows.parquet", store="s", key="member", value="score", out=tmp_path / "of-file")
    assert segments(tmp_path / "of-frame") == segments(tmp_path / "of-file") != {}


def test_options_are_those_of_the_command_line(tmp_path):
    rows = pa.table({"a": ["x", "x", "y"], "b": [1, 2, None], "c": [True, False, True]})
    out = tmp_path / "built"
    larder.build(rows, store="s", key=["a", "b"], values="msgpack", out=out, skip_nulls=True, compress="zstd")
    store = larder.open(out)
    assert len(store) == 2 and store.get("x:1") == b"\x81\xa1c\xc3"
    larder.build(rows, store="s", key="a", value="c", out=tmp_path / "all", on_duplicate="collect", collect_as="json")
    assert larder.open(tmp_path / "all").get("x") == b"[true,false]"
    larder.build(rows, store="s", key="a", value="c", out=tmp_path / "last", on_duplicate="last")
    assert larder.open(tmp_path / "last").get("x") == b"false"


@pytest.mark.parametrize(
    "given, error, message",
    [
        ({"keys": "a"}, TypeError, "unknown option 'keys'"),
        ({"value": "b", "values": "json"}, ValueError, "give one of them"),
        ({"values": "xml"}, ValueError, "json"),
        ({"compress": "rar"}, ValueError, "rar"),
        ({"memory": "1KiB"}, ValueError, "at least 64MiB"),
        ({"partitions": 0}, larder.Error, "between 1 and 16384"),
        ({"on_duplicate": "any"}, ValueError, "any"),
        ({"collect_as": "text", "value": "b"}, ValueError, "collect_as is of"),
        ({"value": "z"}, larder.Error, '"z"'),
        ({}, larder.Error, "two rows|more than once|duplicate|twice"),
    ],
)
def test_errors_are_reported_and_leave_no_files(given, error, message, tmp_path):
    rows = pa.table({"a": ["x", "x"], "b": [1, 2]})
    with pytest.raises(error, match=message):
        larder.build(rows, store="s", key="a", out=tmp_path / "built", **given)
    assert not (tmp_path / "built").exists()


def test_bad_arguments(tmp_path):
    rows = pa.table({"a": pa.array([], pa.string())})
    with pytest.raises(larder.Error, match="allow_empty"):
        larder.build(rows, store="s", key="a", value="a", out=tmp_path / "built")
    assert larder.build(rows, store="s", key="a", value="a", out=tmp_path / "built", allow_empty=True).records == 0
    with pytest.raises(larder.Error, match="not empty"):
        larder.build(rows, store="s", key="a", value="a", out=tmp_path / "built", allow_empty=True)
    with pytest.raises(ValueError, match="key names no column"):
        larder.build(rows, store="s", key=[], out=tmp_path / "other")
    with pytest.raises(ValueError, match="store"):
        larder.build(rows, store="a b", key="a", out=tmp_path / "other")
    with pytest.raises(TypeError, match="cannot read rows"):
        larder.build(7, store="s", key="a", out=tmp_path / "other")
    with pytest.raises(larder.Error, match="manifest"):
        larder.open(tmp_path / "other")
    store = larder.open(tmp_path / "built")
    with pytest.raises(TypeError, match="a key is bytes or str"):
        store.get(7)


def test_a_damaged_file_is_not_reported_as_an_absent_key(tmp_path):
    larder.build(table(1000), store="s", key="member", out=tmp_path / "built", partitions=1)
    file = next((tmp_path / "built").glob("*.segment"))
    before = file.read_bytes()
    file.write_bytes(before[:5000] + bytes([before[5000] ^ 1]) + before[5001:])
    with pytest.raises(larder.Error):
        larder.open(tmp_path / "built").verify()
    damaged = larder.open(tmp_path / "built")
    refused = 0
    for number in range(1000):
        try:
            assert damaged.get(f"m{number}") is not None
        except larder.Error:
            refused += 1
    assert 0 < refused < 1000


def test_an_error_of_the_frame_is_reported(tmp_path):
    rows = table(10)

    def broken():
        yield rows.to_batches()[0]
        raise RuntimeError("the source is gone")

    with pytest.raises(larder.Error, match="the source is gone"):
        larder.build(broken(), store="s", key="member", out=tmp_path / "built")
    assert not (tmp_path / "built").exists()


def test_two_concurrent_writers_of_the_same_parts_leave_one_good_file(tmp_path, segments):
    rows = table(20_000)
    given = {"partitions": 2, "memory": "64MiB", "threads": 1}
    text = _options.options("s", "member", "a test", given)

    def write(out):
        stream = _native.assemble(rows, text, False, [0, 1], 1 << 16)
        return _native.write_parts(pa.RecordBatchReader.from_stream(stream), text, str(out))

    alone = write(tmp_path / "alone")
    with ThreadPoolExecutor(4) as threads:
        for made in threads.map(write, [tmp_path / "together"] * 8):
            assert made == alone
    parts, collected = alone
    assert segments(tmp_path / "together") == segments(tmp_path / "alone")
    _native.finish(parts, [collected], text, str(tmp_path / "together"))
    assert sorted(path.name for path in (tmp_path / "together").iterdir()) == [
        "manifest.json",
        "p00000.segment",
        "p00001.segment",
    ]
    larder.open(tmp_path / "together").verify()
    with pytest.raises(larder.Error, match="number of segments"):
        other = _options.options("s", "member", "a test", {**given, "partitions": 1})
        _native.finish(parts, [collected], other, str(tmp_path / "other"))


def test_a_version_is_built_to_an_object_store(tmp_path, monkeypatch):
    moto = pytest.importorskip("moto.server")
    import boto3

    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        access = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
        for name, value in {**access, "AWS_ENDPOINT": endpoint, "AWS_ALLOW_HTTP": "true"}.items():
            monkeypatch.setenv(name, value)
        bucket = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
        bucket.create_bucket(Bucket="versions")
        built = larder.build(table(100), store="s", key="member", out="s3://versions/s/1", partitions=2)
        assert built.location == "s3://versions/s/1"
        listed = bucket.list_objects_v2(Bucket="versions", Prefix="s/1/")["Contents"]
        names = [item["Key"] for item in listed]
        assert names == ["s/1/manifest.json", "s/1/p00000.segment", "s/1/p00001.segment"]
        for name in names:
            bucket.download_file("versions", name, str(tmp_path / name.rsplit("/", 1)[1]))
        assert len(larder.open(tmp_path)) == 100
        larder.open(tmp_path).verify()
    finally:
        server.stop()


def test_gates_reject_versions_outside_the_limits(tmp_path):
    def prices(add, nulls=0):
        values = [None] * nulls + [float(number * 7919 % 2000 + add) for number in range(nulls, 2000)]
        return pa.table({"sku": [f"s{number}" for number in range(2000)], "price": values})

    common = {"store": "prices", "key": "sku"}
    larder.build(prices(0), out=tmp_path / "first", **common)
    profile = larder.open(tmp_path / "first").manifest["built"]["profile"]
    assert profile["rows"] == 2000 and profile["columns"][0]["name"] == "price" and profile["columns"][0]["distinct"] == 2000
    gates = {"max_nulls": {"price": 1}, "max_shift": 0.25, "max_growth_percent": 0, "against": tmp_path / "first"}
    larder.build(prices(0, nulls=20), out=tmp_path / "passed", **gates, **common)
    for frame, message in [
        (prices(900), 'column "price" has shifted by'),
        (prices(0, nulls=21), 'column "price" is null in 21 of 2000 rows'),
    ]:
        with pytest.raises(larder.Error, match=message):
            larder.build(frame, out=tmp_path / "refused", **gates, **common)
        assert not (tmp_path / "refused").exists()
    with pytest.raises(larder.Error, match="min_records requires 2001"):
        larder.build(prices(0), out=tmp_path / "refused", min_records=2001, **common)
    with pytest.raises(larder.Error, match="needs a profile"):
        larder.build(prices(0), out=tmp_path / "refused", profile=False, max_nulls=5, **common)
    for wrong in ["5", -1, {"price": None}, True]:
        with pytest.raises(ValueError, match="max_nulls of column"):
            larder.build(prices(0), out=tmp_path / "refused", max_nulls=wrong, **common)
