"""Creates the files of this folder, and prints how other readers show them: the texts in tests/it/columns.rs.

    python -m venv venv && venv/bin/pip install pyarrow==26.0.1 duckdb==2.0.0 fastavro==1.13.1 flatbuffers==25.12.19
    venv/bin/python make.py

The build does not run this script: the files are kept, so that what was once readable stays readable.
"""

import datetime
import decimal
import uuid

import duckdb
import fastavro
import flatbuffers
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
NOON = datetime.datetime(2024, 2, 29, 12, 30, 15, 500000)
UTC = datetime.timezone.utc


def parquet_of_duckdb():
    duckdb.sql("SET TimeZone = 'UTC'")
    duckdb.sql(
        """CREATE TABLE t AS SELECT
            'né"x' AS text, true AS yes, (-128)::TINYINT AS tiny, 18446744073709551615::UBIGINT AS most,
            0.1::FLOAT AS single, 1e300::DOUBLE AS double, 'NaN'::DOUBLE AS nan, '-inf'::DOUBLE AS low,
            12.50::DECIMAL(9, 2) AS price, (-0.05)::DECIMAL(38, 2) AS loss, DATE '2024-02-29' AS day,
            TIMESTAMP '2024-02-29 12:30:15.5' AS at, TIMESTAMP_S '2024-02-29 12:30:15' AS at_s,
            TIMESTAMP_MS '2024-02-29 12:30:15.5' AS at_ms, TIMESTAMP_NS '2024-02-29 12:30:15.500000001' AS at_ns,
            TIMESTAMPTZ '2024-02-29 13:30:15.5+01' AS at_utc, TIME '12:30:15.25' AS clock,
            '\\x00\\xFF'::BLOB AS bytes, '%s'::UUID AS id, [1, NULL, 3] AS list,
            {'a': 1, 'b': 'x'} AS struct, MAP {'k': 1, 'l': 2} AS map, NULL::INTEGER AS nothing,
            ['%s'::UUID] AS ids"""
        % (ID, ID)
    )
    duckdb.sql("COPY t TO 'duckdb.parquet' (FORMAT parquet)")
    columns = duckdb.sql("DESCRIBE t").fetchall()
    print("duckdb.parquet")
    for name, *_ in columns:
        print("   ", name, duckdb.sql(f"SELECT CAST(\"{name}\" AS VARCHAR) FROM 'duckdb.parquet'").fetchall()[0])
    duckdb.sql("COPY (SELECT 1 AS id, INTERVAL '1 month 2 days' AS span) TO 'interval.parquet' (FORMAT parquet)")


def arrow_of_pyarrow():
    nanos = [1_709_209_815_500_000_000]
    fields = {
        "large": pa.array(["x"], pa.large_string()),
        "view": pa.array(["a view that is longer than twelve bytes"], pa.string_view()),
        "bytes_view": pa.array([b"\x00\xff"], pa.binary_view()),
        "fixed": pa.array([b"\x00\xff"], pa.binary(2)),
        "half": pa.array([1.5], pa.float16()),
        "u64": pa.array([2**64 - 1], pa.uint64()),
        "d32": pa.array([decimal.Decimal("1.5")], pa.decimal32(5, 1)),
        "d256": pa.array([decimal.Decimal("-123456789012345678901234567890123456789012345.67")], pa.decimal256(60, 2)),
        "date64": pa.array([datetime.date(2024, 2, 29)], pa.date64()),
        "s": pa.array([NOON.replace(microsecond=0)], pa.timestamp("s")),
        "ms": pa.array([NOON], pa.timestamp("ms")),
        "us": pa.array([NOON], pa.timestamp("us")),
        "ns": pa.array(nanos, pa.timestamp("ns")),
        "zoned": pa.array([NOON.replace(tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
        "time32": pa.array([datetime.time(12, 30, 15)], pa.time32("s")),
        "time64": pa.array([datetime.time(12, 30, 15, 250000)], pa.time64("us")),
        "duration": pa.array([datetime.timedelta(seconds=-90, microseconds=-500000)], pa.duration("us")),
        "far": pa.array([2**63 - 1], pa.duration("s")),
        "interval": pa.array([pa.MonthDayNano([14, 3, 14_706_500_000_000])], pa.month_day_nano_interval()),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([5], pa.int64())),
        "no_run": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array([None], pa.int64())),
        "dictionary": pa.array(["red"]).dictionary_encode(),
        "fixed_list": pa.array([[1, 2]], pa.list_(pa.int8(), 2)),
        "list_view": pa.array([[1, None]], pa.list_view(pa.int8())),
        "large_list": pa.array([["a"]], pa.large_list(pa.string())),
        "map": pa.array([[(b"\x00", 1)]], pa.map_(pa.binary(), pa.int32())),
        "union": pa.UnionArray.from_sparse(pa.array([1], pa.int8()), [pa.array(["x"]), pa.array([7])]),
        "id": pa.array([ID.bytes], pa.uuid()),
        "ids": pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array([ID.bytes], pa.uuid())),
        "flag": pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1], pa.int8())),
        "nothing": pa.nulls(1),
    }
    table = pa.table(fields)
    with pa.ipc.new_file("pyarrow.arrow", table.schema) as writer:
        writer.write_table(table)
    print("pyarrow.arrow")
    with pa.ipc.open_file("pyarrow.arrow") as file:
        for name, column in zip(table.column_names, file.read_all().columns):
            print("   ", name, column.type, repr(column.to_pylist()[0]) if name != "far" else column[0].value)
    with pa.ipc.new_file("empty.arrow", table.schema):
        pass
    with pa.ipc.new_stream("empty.arrows", table.schema):
        pass
    pyarrow.parquet.write_table(pa.table({"id": fields["id"], "n": pa.array([1])}), "pyarrow_uuid.parquet")


def avro_of_fastavro():
    schema = {
        "type": "record",
        "name": "row",
        "fields": [
            {"name": "text", "type": "string"},
            {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
            {"name": "fixed_id", "type": {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}},
            {"name": "clock", "type": {"type": "int", "logicalType": "time-millis"}},
            {"name": "ms", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "us", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "local", "type": {"type": "long", "logicalType": "local-timestamp-millis"}},
            {"name": "color", "type": {"type": "enum", "name": "c", "symbols": ["red", "blue"]}},
            {"name": "bytes", "type": "bytes"},
            {"name": "list", "type": {"type": "array", "items": "int"}},
            {"name": "map", "type": {"type": "map", "values": "long"}},
            {"name": "either", "type": ["null", "string", "long"]},
            {"name": "maybe", "type": ["null", "int"]},
            {"name": "ids", "type": {"type": "array", "items": {"type": "string", "logicalType": "uuid"}}},
        ],
    }
    row = {
        "text": "x", "id": ID, "fixed_id": ID.bytes, "price": decimal.Decimal("12.50"), "day": NOON.date(),
        "clock": datetime.time(12, 30, 15, 250000), "ms": NOON.replace(tzinfo=UTC), "us": NOON.replace(tzinfo=UTC),
        "local": NOON, "color": "blue", "bytes": b"\x00\xff", "list": [1, 2], "map": {"k": 1}, "either": 7,
        "maybe": None, "ids": [ID],
    }
    with open("fastavro.avro", "wb") as file:
        fastavro.writer(file, schema, [row])
    with open("strings.avro", "wb") as file:
        fastavro.writer(file, "string", ["a", "b"])
    print("fastavro.avro")
    with open("fastavro.avro", "rb") as file:
        for name, value in next(fastavro.reader(file)).items():
            print("   ", name, repr(value))


def message(builder, header_type, header, body_bytes):
    builder.StartObject(5)
    builder.PrependInt64Slot(3, body_bytes, 0)
    builder.PrependUOffsetTRelativeSlot(2, header, 0)
    builder.PrependInt16Slot(0, 4, 0)
    builder.PrependUint8Slot(1, header_type, 0)
    builder.Finish(builder.EndObject())
    metadata = bytes(builder.Output())
    metadata += b"\0" * (-len(metadata) % 8)
    return b"\xff\xff\xff\xff" + len(metadata).to_bytes(4, "little") + metadata


def big_endian_stream():
    """One column "n" of 32-bit integers, 1 and 2, as a big-endian machine writes it."""
    builder = flatbuffers.Builder(256)
    name = builder.CreateString("n")
    builder.StartObject(2)
    builder.PrependInt32Slot(0, 32, 0)
    builder.PrependBoolSlot(1, True, False)
    number = builder.EndObject()
    builder.StartVector(4, 0, 4)
    children = builder.EndVector()
    builder.StartObject(7)
    builder.PrependUOffsetTRelativeSlot(0, name, 0)
    builder.PrependUint8Slot(2, 2, 0)
    builder.PrependUOffsetTRelativeSlot(3, number, 0)
    builder.PrependUOffsetTRelativeSlot(5, children, 0)
    field = builder.EndObject()
    builder.StartVector(4, 1, 4)
    builder.PrependUOffsetTRelative(field)
    fields = builder.EndVector()
    builder.StartObject(4)
    builder.PrependInt16Slot(0, 1, 0)
    builder.PrependUOffsetTRelativeSlot(1, fields, 0)
    stream = message(builder, 1, builder.EndObject(), 0)

    builder = flatbuffers.Builder(256)
    builder.StartVector(16, 2, 8)
    for length, offset in [(8, 0), (0, 0)]:
        builder.Prep(8, 16)
        builder.PrependInt64(length)
        builder.PrependInt64(offset)
    buffers = builder.EndVector()
    builder.StartVector(16, 1, 8)
    builder.Prep(8, 16)
    builder.PrependInt64(0)
    builder.PrependInt64(2)
    nodes = builder.EndVector()
    builder.StartObject(3)
    builder.PrependInt64Slot(0, 2, 0)
    builder.PrependUOffsetTRelativeSlot(1, nodes, 0)
    builder.PrependUOffsetTRelativeSlot(2, buffers, 0)
    stream += message(builder, 3, builder.EndObject(), 8)
    stream += (1).to_bytes(4, "big") + (2).to_bytes(4, "big")
    stream += b"\xff\xff\xff\xff\0\0\0\0"
    with open("big_endian.arrows", "wb") as file:
        file.write(stream)
    with pa.ipc.open_stream("big_endian.arrows") as reader:
        print("big_endian.arrows", reader.read_all().to_pydict())


def long_value():
    """A text of 8 MiB that 200,000 rows share."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * 200_000, pa.int32()), pa.array(["x" * (8 << 20)]))
    pyarrow.parquet.write_table(
        pa.table({"id": pa.array(range(200_000), pa.int32()), "v": text}),
        "long_value.parquet",
        compression="zstd",
        use_dictionary=["v"],
        column_encoding={"id": "DELTA_BINARY_PACKED"},
        dictionary_pagesize_limit=16 << 20,
        write_statistics=False,
        store_schema=False,
    )


parquet_of_duckdb()
arrow_of_pyarrow()
avro_of_fastavro()
big_endian_stream()
long_value()
