//! The column types that a build reads, and the representation of their values: the table behind
//! `docs/reference/columns.md`. `larder-ingest` implements it, and its tests check every example.

use std::fmt::Write;

/// A column type.
pub struct Column {
    pub name: &'static str,
    /// The type's name in each format; empty if the format has no such type.
    pub parquet: &'static str,
    pub arrow: &'static str,
    pub avro: &'static str,
    pub examples: &'static [Example],
    /// The MessagePack type.
    pub message_pack: &'static str,
    pub note: &'static str,
}

/// A value and its representations.
pub struct Example {
    /// As a key, and as the value of `--value COLUMN`; `None` if it has no such form.
    pub text: Option<&'static str>,
    /// In a JSON value.
    pub json: &'static str,
}

const fn example(text: &'static str, json: &'static str) -> Example {
    Example {
        text: Some(text),
        json,
    }
}

const fn nested(json: &'static str) -> Example {
    Example { text: None, json }
}

/// All column types. The bytes in the example of `bytes` are 00 and FF, which have no text.
pub const COLUMNS: &[Column] = &[
    Column {
        name: "text",
        parquet: "STRING, ENUM, JSON",
        arrow: "Utf8, LargeUtf8, Utf8View",
        avro: "string, enum",
        examples: &[example("né\"x", "\"né\\\"x\"")],
        message_pack: "str",
        note: "",
    },
    Column {
        name: "boolean",
        parquet: "BOOLEAN",
        arrow: "Boolean, extension arrow.bool8",
        avro: "boolean",
        examples: &[example("true", "true"), example("false", "false")],
        message_pack: "bool",
        note: "",
    },
    Column {
        name: "whole number",
        parquet: "INT32, INT64, INT(8 to 64)",
        arrow: "Int8 to Int64, UInt8 to UInt64",
        avro: "int, long",
        examples: &[
            example("-128", "-128"),
            example("18446744073709551615", "18446744073709551615"),
        ],
        message_pack: "int",
        note: "JSON readers that use doubles, such as JavaScript, are exact only up to 2^53",
    },
    Column {
        name: "floating-point number",
        parquet: "FLOAT, DOUBLE, FLOAT16",
        arrow: "Float16, Float32, Float64",
        avro: "float, double",
        examples: &[
            example("1.5", "1.5"),
            example("0.1", "0.1"),
            example("1e+300", "1e+300"),
            example("-0.0", "-0.0"),
            example("NaN", "\"NaN\""),
            example("Infinity", "\"Infinity\""),
            example("-Infinity", "\"-Infinity\""),
        ],
        message_pack: "float",
        note: "The shortest digits that identify the number at its width. JSON has no numbers for NaN and the infinities: they \
               are strings, as in protobuf's JSON mapping",
    },
    Column {
        name: "decimal",
        parquet: "DECIMAL",
        arrow: "Decimal32 to Decimal256",
        avro: "decimal; big-decimal is rejected",
        examples: &[example("12.50", "\"12.50\""), example("-0.05", "\"-0.05\"")],
        message_pack: "str",
        note: "With all digits of the scale. It is a string so that no reader converts it to a double. big-decimal has no fixed \
               scale: each value has its own",
    },
    Column {
        name: "date",
        parquet: "DATE",
        arrow: "Date32, Date64",
        avro: "date",
        examples: &[example("2024-02-29", "\"2024-02-29\"")],
        message_pack: "str",
        note: "A Date64 that is not a complete day is rejected. Here and below, years after 9999 and before 0 have a sign",
    },
    Column {
        name: "timestamp with a zone",
        parquet: "TIMESTAMP(isAdjustedToUTC)",
        arrow: "Timestamp with a zone",
        avro: "timestamp-millis, timestamp-micros, timestamp-nanos",
        examples: &[
            example("2024-02-29T12:30:15Z", "\"2024-02-29T12:30:15Z\""),
            example("2024-02-29T12:30:15.5Z", "\"2024-02-29T12:30:15.5Z\""),
        ],
        message_pack: "str",
        note: "Converted to UTC, without trailing zeros: an instant has the same text whatever the column's zone and unit",
    },
    Column {
        name: "timestamp without a zone",
        parquet: "TIMESTAMP(not isAdjustedToUTC), INT96",
        arrow: "Timestamp",
        avro: "local-timestamp-millis, -micros, -nanos",
        examples: &[
            example("2024-02-29T12:30:15", "\"2024-02-29T12:30:15\""),
            example("2024-02-29T12:30:15.5", "\"2024-02-29T12:30:15.5\""),
        ],
        message_pack: "str",
        note: "",
    },
    Column {
        name: "time of day",
        parquet: "TIME",
        arrow: "Time32, Time64",
        avro: "time-millis, time-micros",
        examples: &[example("12:30:15.25", "\"12:30:15.25\"")],
        message_pack: "str",
        note: "A time outside the day, including 24:00:00, is rejected",
    },
    Column {
        name: "duration",
        parquet: "",
        arrow: "Duration",
        avro: "",
        examples: &[
            example("-PT90.5S", "\"-PT90.5S\""),
            example("PT9223372036854775807S", "\"PT9223372036854775807S\""),
        ],
        message_pack: "str",
        note: "",
    },
    Column {
        name: "interval",
        parquet: "rejected: the Parquet reader loses months or days",
        arrow: "Interval",
        avro: "duration",
        examples: &[
            example("P1Y2M3DT4H5M6.5S", "\"P1Y2M3DT4H5M6.5S\""),
            example("PT0S", "\"PT0S\""),
        ],
        message_pack: "str",
        note: "Months, days and time are separate, each with its own sign, as in PostgreSQL's iso_8601 format",
    },
    Column {
        name: "UUID",
        parquet: "UUID",
        arrow: "extension arrow.uuid",
        avro: "uuid, of a string or of 16 bytes",
        examples: &[example(
            "00112233-4455-6677-8899-aabbccddeeff",
            "\"00112233-4455-6677-8899-aabbccddeeff\"",
        )],
        message_pack: "str",
        note: "",
    },
    Column {
        name: "bytes",
        parquet: "BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, BSON, GEOMETRY, GEOGRAPHY",
        arrow: "Binary, LargeBinary, BinaryView, FixedSizeBinary",
        avro: "bytes, fixed",
        examples: &[nested("\"AP8=\"")],
        message_pack: "bin",
        note: "Unchanged as a key, as `--value` and in MessagePack; base64 in JSON, and as keys of a map",
    },
    Column {
        name: "null",
        parquet: "absent, UNKNOWN",
        arrow: "null, Null",
        avro: "null",
        examples: &[nested("null")],
        message_pack: "nil",
        note: "Rejected as a key or as `--value`; `--skip-nulls` skips the row",
    },
    Column {
        name: "list",
        parquet: "LIST, repeated",
        arrow: "List, LargeList, FixedSizeList, ListView, LargeListView",
        avro: "array",
        examples: &[nested("[1,null]")],
        message_pack: "array",
        note: "Rejected as a key; JSON as `--value`",
    },
    Column {
        name: "struct",
        parquet: "group",
        arrow: "Struct",
        avro: "record",
        examples: &[nested("{\"a\":1,\"b\":\"x\"}")],
        message_pack: "map",
        note: "Like a list. Two fields with the same name are rejected",
    },
    Column {
        name: "map",
        parquet: "MAP",
        arrow: "Map",
        avro: "map",
        examples: &[nested("{\"k\":1,\"l\":2}")],
        message_pack: "map",
        note: "Like a list. Its keys are converted to text as in the column \"key\"; nested keys, null and duplicate keys are rejected",
    },
    Column {
        name: "union",
        parquet: "",
        arrow: "Union",
        avro: "union",
        examples: &[example("7", "7")],
        message_pack: "as the value",
        note: "The value without the name of its type",
    },
    Column {
        name: "encoded",
        parquet: "dictionary pages",
        arrow: "Dictionary, RunEndEncoded",
        avro: "",
        examples: &[example("red", "\"red\"")],
        message_pack: "as the value",
        note: "Like the encoded values",
    },
];

/// The reference page.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Columns\n\n\
         This table shows how a build converts each column type of Parquet, Arrow IPC and Avro: to a key or the value of \
         `--value COLUMN`, to JSON, and\nto MessagePack. Equal values have the same text, whatever the column's encoding, unit or width.\n\n\
         A build rejects a column, and names it, if the table lists it as rejected, or if its stored form has no meaning without the annotation: \
         Parquet's Variant, and types\nthat some writers add to Avro, such as `arrow.duration-nanos`. Columns that the build does not read \
         are never rejected. As Avro's specification requires,\nthe build ignores any other annotation that is not in the table (a logical type of \
         Avro or Parquet, an extension type of Arrow), and uses the underlying\ntype: `my-money` on a `long` is a whole number. An Avro file \
         with a recursive record is rejected entirely.\n\n\
         | column | Parquet | Arrow | Avro | key, `--value` | JSON | MessagePack | |\n|---|---|---|---|---|---|---|---|\n",
    );
    for column in COLUMNS {
        let join = |parts: Vec<String>| parts.join("<br>");
        let code = |text: &str| format!("`{text}`");
        let texts = column.examples.iter().filter_map(|e| e.text.map(code));
        let json = column.examples.iter().map(|e| code(e.json));
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            column.name,
            column.parquet,
            column.arrow,
            column.avro,
            join(texts.collect()),
            join(json.collect()),
            column.message_pack,
            column.note
        )
        .expect("memory takes what is written to it");
    }
    text.push_str(
        "\n**CSV.** All values are text, unless `--schema` declares a column's type for JSON and MessagePack values: `int` (64 bits), `float`, \
         `bool`\n(`true`, `false`, `t`, `f`, `1`, `0`) or `json`. An empty cell of such a column is null. Keys and `--value` are the cell's text.\n\n\
         **JSON lines.** A value keeps its spelling, so numbers keep all their digits. A key is a string's text, a number as it is written, or a \
         boolean.\nA line with a duplicate field is rejected. With MessagePack, whole numbers beyond 64 bits, duplicate names in an inner object, \
         and nesting\ndeeper than 128 are rejected as well.\n\n\
         **Columns in folder names** (`day=2024-01-02/part-0.parquet`) are text; `__HIVE_DEFAULT_PARTITION__` is null, and `%3A` is a \
         colon. Such a column\nreplaces a column of the same name in the file.\n\n\
         **Keys of several columns** are the columns' texts, joined with `:`. In every part except the last, `%` is written as `%25` and `:` as \
         `%3A`, so that\ndifferent parts never form the same key. `de`, `a:b` and `10:30` form the key `de:a%3Ab:10:30`.\n\n\
         Big-endian Arrow files are rejected.\n",
    );
    text
}
