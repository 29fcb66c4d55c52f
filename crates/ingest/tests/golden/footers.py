"""Creates dremio.parquet and no_row_count.parquet: small files with the footers of two old writers.

    python3 footers.py

The build does not run this script: the files are kept, so that what was once readable stays readable.
"""

import struct


class I32(int):
    kind = 5


class I64(int):
    kind = 6


class Bytes(bytes):
    kind = 8


class List(list):
    kind = 9


class Struct(dict):
    """Fields by number, in ascending order."""

    kind = 12


def varint(number):
    out = b""
    while number >= 0x80:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def thrift(value):
    """A value in Thrift's compact protocol."""
    if isinstance(value, (I32, I64)):
        return varint(value << 1)
    if isinstance(value, Bytes):
        return varint(len(value)) + value
    if isinstance(value, List):
        return bytes([len(value) << 4 | value[0].kind]) + b"".join(map(thrift, value))
    out, last = b"", 0
    for number, field in value.items():
        out += bytes([(number - last) << 4 | field.kind]) + thrift(field)
        last = number
    return out + b"\0"


def page(raw, packed, values, repetition):
    """The header of a data page of plain values."""
    data = Struct({1: I32(values), 2: I32(0), 3: I32(3), 4: I32(repetition)})
    return Struct({1: I32(0), 2: I32(len(raw)), 3: I32(len(packed)), 5: data})


def levels(numbers):
    """Runs of levels, after their size."""
    out, at = b"", 0
    while at < len(numbers):
        end = at
        while end < len(numbers) and numbers[end] == numbers[at]:
            end += 1
        out += varint((end - at) << 1) + bytes([numbers[at]])
        at = end
    return struct.pack("<I", len(out)) + out


def finished(body, footer):
    footer = thrift(footer)
    return body + footer + struct.pack("<I", len(footer)) + b"PAR1"


def dremio():
    """39 rows of one number. The dictionary offset is 0, and there is no dictionary. Dremio's private fields have numbers that the
    format assigned later: a column's metadata have page headers as field 15, the column has a number as field 8."""
    raw = levels([1] * 39) + struct.pack("<I", 1552) * 39
    # Snappy: ten literal bytes, then copies from four bytes before.
    packed = varint(len(raw)) + bytes([9 << 2]) + raw[:10]
    left = len(raw) - 10
    while left > 0:
        size = min(64, left)
        packed += bytes([(size - 1) << 2 | 2]) + struct.pack("<H", 4)
        left -= size
    header = page(raw, packed, 39, 4)
    size, unpacked = len(thrift(header)) + len(packed), len(thrift(header)) + len(raw)
    number = Bytes(struct.pack("<i", 1552))
    metadata = Struct(
        {
            1: I32(1),
            2: List([I32(0), I32(4), I32(3)]),
            3: List([Bytes(b"l_partkey")]),
            4: I32(1),
            5: I64(39),
            6: I64(unpacked),
            7: I64(size),
            9: I64(4),
            11: I64(0),
            12: Struct({1: number, 2: number, 3: I64(0), 5: number, 6: number}),
            13: List([Struct({1: I32(0), 2: I32(0), 3: I32(1)})]),
            15: List([Struct({1: header, 2: I32(4 + len(thrift(header)))})]),
        }
    )
    column = Struct({2: I64(4), 3: metadata, 8: I32(23)})
    schema = [Struct({4: Bytes(b"root"), 5: I32(1)}), Struct({1: I32(1), 3: I32(1), 4: Bytes(b"l_partkey")})]
    footer = Struct(
        {
            1: I32(1),
            2: List(schema),
            3: I64(39),
            4: List([Struct({1: List([column]), 2: I64(unpacked), 3: I64(39)})]),
            6: Bytes(b"parquet-mr version 1.12.0-201812210311360288-a86293f"),
        }
    )
    return finished(b"PAR1" + thrift(header) + packed, footer)


def no_row_count():
    """Six rows of a number and a repeated group without an annotation. The footer has a row count of 0, and its row group
    one of 6."""
    repeated, of_group, of_kind = [0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 2, 2, 2, 2, 2], [0, 0, 1, 2, 3, 3, 2, 3]
    numbers = [5555555555, 1111111111, 1111111111, 2222222222, 3333333333]
    kinds = [b"home", b"home", b"mobile"]
    ids = b"".join(struct.pack("<i", row) for row in range(1, 7))
    numbers = levels(repeated) + levels(of_group) + b"".join(struct.pack("<q", number) for number in numbers)
    kinds = levels(repeated) + levels(of_kind) + b"".join(struct.pack("<I", len(kind)) + kind for kind in kinds)
    phone = [b"phoneNumbers", b"phone"]
    body, columns = b"PAR1", []
    for kind, path, values, raw in [(1, [b"id"], 6, ids), (2, [*phone, b"number"], 8, numbers), (6, [*phone, b"kind"], 8, kinds)]:
        data = thrift(page(raw, raw, values, 3)) + raw
        metadata = Struct(
            {
                1: I32(kind),
                2: List([I32(0), I32(3)]),
                3: List([Bytes(name) for name in path]),
                4: I32(0),
                5: I64(values),
                6: I64(len(data)),
                7: I64(len(data)),
                9: I64(len(body)),
            }
        )
        body += data
        columns.append(Struct({2: I64(len(body)), 3: metadata}))
        body += thrift(metadata)
    schema = [
        Struct({4: Bytes(b"user"), 5: I32(2)}),
        Struct({1: I32(1), 3: I32(0), 4: Bytes(b"id")}),
        Struct({3: I32(1), 4: Bytes(b"phoneNumbers"), 5: I32(1)}),
        Struct({3: I32(2), 4: Bytes(b"phone"), 5: I32(2)}),
        Struct({1: I32(2), 3: I32(0), 4: Bytes(b"number")}),
        Struct({1: I32(6), 3: I32(1), 4: Bytes(b"kind"), 6: I32(0)}),
    ]
    footer = Struct(
        {
            1: I32(1),
            2: List(schema),
            3: I64(0),
            4: List([Struct({1: List(columns), 2: I64(205), 3: I64(6)})]),
            6: Bytes(b"parquet-rs version 0.3.0"),
        }
    )
    return finished(body, footer)


for name, contents in [("dremio", dremio()), ("no_row_count", no_row_count())]:
    with open(f"{name}.parquet", "wb") as file:
        file.write(contents)
