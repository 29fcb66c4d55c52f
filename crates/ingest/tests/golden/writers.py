"""Writes one table with every installed writer, in every format and with every option that changes the bytes.

    mkdir out
    python -m venv new && new/bin/pip install pyarrow polars duckdb pandas fastparquet && new/bin/python writers.py out
    python -m venv old && old/bin/pip install 'pyarrow<19' 'polars<1.13' 'duckdb<1.2' 'pandas<2.3' && old/bin/python writers.py out
    python -m venv spark4 && spark4/bin/pip install 'pyspark>=4,<5' && spark4/bin/python writers.py out      # needs Java
    python -m venv spark3 && spark3/bin/pip install 'pyspark>=3.5,<4' && spark3/bin/python writers.py out
    tar -C out -c . | zstd -19 -o writers.tar.zst -f

A file is called WRITER-VERSION-OPTIONS.FORMAT. `tests/it/writers.rs` reads all files of the archive; the build does not run this script.
"""

import datetime
import decimal
import glob
import importlib
import itertools
import os
import shutil
import sys
import tempfile

OUT = sys.argv[1]
ROWS = [
    {
        "id": 1, "text": 'a "quoted", text\nof two lines', "number": 1.5, "single": 0.25, "flag": True,
        "day": datetime.date(2024, 2, 29), "at": datetime.datetime(2024, 2, 29, 12, 30, 15, 500000),
        "price": decimal.Decimal("12.50"), "bytes": b"\x00\xff", "list": [1, None, 3], "struct": {"a": 1, "b": "x"},
    },
    {
        "id": 2, "text": None, "number": None, "single": None, "flag": None, "day": None, "at": None, "price": None,
        "bytes": None, "list": None, "struct": None,
    },
    {
        "id": 3, "text": "C:\\dir\\", "number": -2.0, "single": 1e10, "flag": False,
        "day": datetime.date(1969, 12, 31), "at": datetime.datetime(1969, 12, 31, 23, 59, 59),
        "price": decimal.Decimal("-0.05"), "bytes": b"", "list": [], "struct": {"a": None, "b": "né, so long that no view holds it"},
    },
]
# The values that CSV can represent without types: integers, and texts that are not empty.
TEXTS = [
    (1, 'a "quoted", text\nof two lines'),
    (2, "né; x|y"),
    (3, "C:\\dir\\"),
    (4, 'ends with a backslash and a quote\\"'),
    (5, '"'),
    (6, "a,\\b"),
]


def version_of(module):
    try:
        return ".".join(importlib.import_module(module).__version__.split(".")[:2])
    except ImportError:
        return None


def path(writer, options, ending):
    return os.path.join(OUT, f"{writer}-{version_of(writer)}-{options}.{ending}")


def table():
    import pyarrow as pa

    types = {
        "id": pa.int64(), "text": pa.string(), "number": pa.float64(), "single": pa.float32(), "flag": pa.bool_(),
        "day": pa.date32(), "at": pa.timestamp("us"), "price": pa.decimal128(9, 2), "bytes": pa.binary(),
        "list": pa.list_(pa.int32()), "struct": pa.struct([("a", pa.int32()), ("b", pa.string())]),
    }
    return pa.table({name: pa.array([row[name] for row in ROWS], kind) for name, kind in types.items()})


def texts():
    import pyarrow as pa

    return pa.table({"id": [id for id, _ in TEXTS], "text": [text for _, text in TEXTS]})


def pyarrow():
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet as pq

    whole = table()
    parquet = {
        **{codec: {"compression": codec} for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]},
        "plain": {"use_dictionary": False},
        "page2": {"data_page_version": "2.0", "compression": "zstd"},
        "format1": {"version": "1.0"},
        "int96": {"use_deprecated_int96_timestamps": True},
        "old-lists": {"use_compliant_nested_type": False},
        "decimal-integers": {"store_decimal_as_integer": True},
        "rows1": {"row_group_size": 1, "write_page_index": True},
        "checksums": {"write_page_checksum": True, "write_statistics": False, "store_schema": False},
        "delta": {
            "use_dictionary": False,
            "column_encoding": {
                "id": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY", "number": "BYTE_STREAM_SPLIT",
            },
        },
        "spark-flavor": {"flavor": "spark", "use_dictionary": False},
    }
    for name, options in parquet.items():
        pq.write_table(whole, path("pyarrow", name, "parquet"), **options)
    with pq.ParquetWriter(path("pyarrow", "empty-groups", "parquet"), whole.schema) as writer:
        for rows in [whole.slice(0, 0), whole.slice(0, 1), whole.slice(0, 0), whole.slice(1), whole.slice(0, 0)]:
            writer.write_table(rows)
    encoded = whole.set_column(1, "text", whole["text"].dictionary_encode())
    large = whole.cast(pa.schema([
        (field.name, {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(field.type, field.type)) for field in whole.schema
    ]))
    shapes = {"plain": whole, "dictionary": encoded, "large": large}
    if hasattr(pa, "string_view"):
        views = whole.set_column(1, "text", whole["text"].cast(pa.string_view()))
        shapes["views"] = views.set_column(8, "bytes", pa.array([row["bytes"] for row in ROWS], pa.binary_view()))
    for (name, shape), codec in itertools.product(shapes.items(), [None, "lz4", "zstd"]):
        options = pa.ipc.IpcWriteOptions(compression=codec)
        for ending, new in [("arrow", pa.ipc.new_file), ("arrows", pa.ipc.new_stream)]:
            with new(path("pyarrow", f"{name}-{codec or 'none'}", ending), shape.schema, options=options) as writer:
                writer.write_table(shape, max_chunksize=2)
    pa.feather.write_feather(whole, path("pyarrow", "default", "feather"))
    pa.csv.write_csv(texts(), path("pyarrow", "default", "csv"))
    quoted = pa.csv.WriteOptions(quoting_style="all_valid", delimiter=";")
    pa.csv.write_csv(texts(), path("pyarrow", "quoted", "csv"), quoted)
    for codec, ending in [("gzip", "csv.gz"), ("zstd", "csv.zst")]:
        with pa.CompressedOutputStream(path("pyarrow", codec, ending), codec) as out:
            pa.csv.write_csv(texts(), out)


def polars():
    import polars as pl

    frame = pl.from_arrow(table())
    for codec in ["uncompressed", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        frame.write_parquet(path("polars", codec, "parquet"), compression=codec)
    frame.write_parquet(path("polars", "rows1", "parquet"), row_group_size=1, data_page_size=1, statistics="full")
    encoded = frame.with_columns(pl.col("text").cast(pl.Categorical))
    levels = {level: getattr(pl.CompatLevel, level)() for level in ["oldest", "newest"] if hasattr(pl, "CompatLevel")}
    for (level, compat), codec in itertools.product(levels.items(), ["uncompressed", "lz4", "zstd"]):
        frame.write_ipc(path("polars", f"{level}-{codec}", "arrow"), compression=codec, compat_level=compat)
        frame.write_ipc_stream(path("polars", f"{level}-{codec}", "arrows"), compression=codec, compat_level=compat)
    encoded.write_ipc(path("polars", "categorical", "arrow"))
    encoded.write_ipc_stream(path("polars", "categorical", "arrows"))
    encoded.write_parquet(path("polars", "categorical", "parquet"))
    frame.select("id", "text", "number", "flag", "bytes", "list").write_avro(path("polars", "flat", "avro"))
    frame.select("id", "text", "number", "flag", "list", "struct").write_ndjson(path("polars", "default", "jsonl"))
    rows = pl.from_arrow(texts())
    for style in ["necessary", "always", "non_numeric"]:
        rows.write_csv(path("polars", style, "csv"), quote_style=style, separator="," if style == "always" else "|")


def duckdb():
    import duckdb

    whole, rows = table(), texts()
    codecs = ["uncompressed", "snappy", "gzip", "zstd", "lz4_raw", "brotli"]
    settings = {codec: f"COMPRESSION {codec}" for codec in codecs} | {"rows1": "ROW_GROUP_SIZE 1", "v2": "PARQUET_VERSION v2"}
    for name, setting in settings.items():
        try:
            duckdb.sql(f"COPY (SELECT * FROM whole) TO '{path('duckdb', name, 'parquet')}' (FORMAT parquet, {setting})")
        except duckdb.Error as error:
            print(name, error)
    duckdb.sql(f"COPY (SELECT id, text, number, flag, list, struct FROM whole) TO '{path('duckdb', 'default', 'jsonl')}' (FORMAT json)")
    for name, setting in {"default": "HEADER", "quoted": "HEADER, FORCE_QUOTE *", "escape": "HEADER, ESCAPE '\\'"}.items():
        duckdb.sql(f"COPY (SELECT * FROM rows) TO '{path('duckdb', name, 'csv')}' (FORMAT csv, {setting})")
    duckdb.sql(f"COPY (SELECT * FROM rows) TO '{path('duckdb', 'zstd', 'csv.zst')}' (FORMAT csv, HEADER, COMPRESSION zstd)")


def pandas():
    import pandas as pd

    frame = pd.DataFrame(ROWS)
    frame.to_parquet(path("pandas", "pyarrow", "parquet"), engine="pyarrow")
    frame.to_feather(path("pandas", "default", "feather"))
    frame[["id", "text", "number", "flag", "list", "struct"]].to_json(path("pandas", "default", "jsonl"), orient="records", lines=True)
    rows = pd.DataFrame(TEXTS, columns=["id", "text"])
    rows.to_csv(path("pandas", "default", "csv"), index=False)
    rows.to_csv(path("pandas", "quoted", "csv"), index=False, quoting=1, lineterminator="\r\n", encoding="utf-8-sig")
    rows.to_csv(path("pandas", "escape", "csv"), index=False, doublequote=False, escapechar="\\", quoting=1)
    rows.to_csv(path("pandas", "gzip", "csv.gz"), index=False)
    if version_of("fastparquet"):
        flat = frame[["id", "text", "number", "single", "bytes"]]
        for codec in ["UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"]:
            flat.to_parquet(path("pandas", f"fastparquet-{codec.lower()}", "parquet"), engine="fastparquet", compression=codec, index=False)


def pyspark():
    from pyspark.sql import SparkSession
    from pyspark.sql import types as t

    session = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.sql.session.timeZone", "UTC").getOrCreate()
    schema = t.StructType([
        t.StructField("id", t.LongType()), t.StructField("text", t.StringType()), t.StructField("number", t.DoubleType()),
        t.StructField("single", t.FloatType()), t.StructField("flag", t.BooleanType()), t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampNTZType()), t.StructField("price", t.DecimalType(9, 2)), t.StructField("bytes", t.BinaryType()),
        t.StructField("list", t.ArrayType(t.IntegerType())),
        t.StructField("struct", t.StructType([t.StructField("a", t.IntegerType()), t.StructField("b", t.StringType())])),
    ])
    frame = session.createDataFrame([tuple(row.values()) for row in ROWS], schema).coalesce(1)
    rows = session.createDataFrame(TEXTS, "id long, text string").coalesce(1)

    def write(frame, kind, name, ending, **options):
        folder = tempfile.mkdtemp()
        frame.write.mode("overwrite").options(**options).format(kind).save(folder)
        [part] = glob.glob(os.path.join(folder, "part-*"))
        shutil.copyfile(part, path("pyspark", name, ending))
        shutil.rmtree(folder)

    for codec in ["uncompressed", "snappy", "gzip", "zstd", "lz4_raw"]:
        write(frame, "parquet", codec, "parquet", compression=codec)
    session.conf.set("spark.sql.parquet.writeLegacyFormat", "true")
    write(frame, "parquet", "legacy", "parquet")
    session.conf.set("spark.sql.parquet.writeLegacyFormat", "false")
    write(frame, "parquet", "page2", "parquet", **{"parquet.writer.version": "v2", "parquet.enable.dictionary": "false"})
    flat = frame.select("id", "text", "number", "flag", "list", "struct")
    write(flat, "json", "default", "jsonl", ignoreNullFields="false")
    write(rows, "csv", "escape", "csv", header="true")
    write(rows, "csv", "doubled", "csv", header="true", escape='"', quoteAll="true")
    write(rows, "csv", "escape-gzip", "csv.gz", header="true", compression="gzip")
    session.stop()


for writer in [pyarrow, polars, duckdb, pandas, pyspark]:
    if version_of(writer.__name__) and (writer is not pandas or version_of("pyspark") is None):
        print(writer.__name__, version_of(writer.__name__))
        writer()
