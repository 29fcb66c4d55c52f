//! The types of columns that a build reads, and what becomes of a value of each: the table behind
//! `docs/reference/columns.md`. `larder-ingest` does it, and its tests hold every example here against it.

use std::fmt::Write;

/// A kind of column.
pub struct Column {
    pub name: &'static str,
    /// What the formats call it; empty where a format has nothing of the kind.
    pub parquet: &'static str,
    pub arrow: &'static str,
    pub avro: &'static str,
    pub examples: &'static [Example],
    /// Its type in MessagePack.
    pub message_pack: &'static str,
    pub note: &'static str,
}

/// A value in its spellings.
pub struct Example {
    /// As a key, and as the value of `--value COLUMN`; `None` where there is none.
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

/// The bytes of the example of bytes are 00 and FF: they have no text here.
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
        note: "Readers of JSON that have doubles only, such as JavaScript, are exact up to 2^53",
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
        note: "The fewest digits that are this number in its own size. JSON has no number for the last three: there they are \
               strings, as in protobuf's JSON",
    },
    Column {
        name: "decimal",
        parquet: "DECIMAL",
        arrow: "Decimal32 to Decimal256",
        avro: "decimal; big-decimal is refused",
        examples: &[example("12.50", "\"12.50\""), example("-0.05", "\"-0.05\"")],
        message_pack: "str",
        note: "All digits of the scale are shown. A string, so that no reader makes a double of it. Values of big-decimal have each a \
               scale of their own",
    },
    Column {
        name: "date",
        parquet: "DATE",
        arrow: "Date32, Date64",
        avro: "date",
        examples: &[example("2024-02-29", "\"2024-02-29\"")],
        message_pack: "str",
        note: "A Date64 within a day is refused. Years past 9999 and before 0 have a sign, here and below",
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
        note: "In UTC, whatever the zone. No more digits than are needed: one instant has one text, whatever the column's unit",
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
        note: "A time that is not within a day is refused, and so is 24:00:00",
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
        parquet: "refused: its reader loses months or days",
        arrow: "Interval",
        avro: "duration",
        examples: &[
            example("P1Y2M3DT4H5M6.5S", "\"P1Y2M3DT4H5M6.5S\""),
            example("PT0S", "\"PT0S\""),
        ],
        message_pack: "str",
        note: "Months, days and time stay apart, each with its own sign, as PostgreSQL's iso_8601",
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
        note: "As a key, as `--value` and in MessagePack the bytes as they are; in JSON, and as keys of a map, base64",
    },
    Column {
        name: "null",
        parquet: "absent, UNKNOWN",
        arrow: "null, Null",
        avro: "null",
        examples: &[nested("null")],
        message_pack: "nil",
        note: "As a key or as `--value` it is refused, or left out with `--skip-nulls`",
    },
    Column {
        name: "list",
        parquet: "LIST, repeated",
        arrow: "List, LargeList, FixedSizeList, ListView, LargeListView",
        avro: "array",
        examples: &[nested("[1,null]")],
        message_pack: "array",
        note: "Refused as a key; JSON as `--value`",
    },
    Column {
        name: "struct",
        parquet: "group",
        arrow: "Struct",
        avro: "record",
        examples: &[nested("{\"a\":1,\"b\":\"x\"}")],
        message_pack: "map",
        note: "As a list. Two fields of one name are refused",
    },
    Column {
        name: "map",
        parquet: "MAP",
        arrow: "Map",
        avro: "map",
        examples: &[nested("{\"k\":1,\"l\":2}")],
        message_pack: "map",
        note: "As a list. Its keys become text as in the column of keys; nested ones, null, and a key twice are refused",
    },
    Column {
        name: "union",
        parquet: "",
        arrow: "Union",
        avro: "union",
        examples: &[example("7", "7")],
        message_pack: "as the value",
        note: "The value, without the name of its type",
    },
    Column {
        name: "encoded",
        parquet: "dictionary pages",
        arrow: "Dictionary, RunEndEncoded",
        avro: "",
        examples: &[example("red", "\"red\"")],
        message_pack: "as the value",
        note: "As the values that are encoded",
    },
];

/// The page of the reference.
pub fn reference_markdown() -> String {
    let mut text = String::from(
        "# Columns\n\n\
         What becomes of a column of Parquet, Arrow IPC or Avro: as a key, or as the value of `--value COLUMN`; in a JSON value; \
         and its type in MessagePack.\nOf two columns that hold the same values in other encodings, units or sizes, the texts are the same.\n\n\
         A column is refused, with its name and if it is read at all, where the table says so, and where what is stored says nothing \
         by itself: Parquet's Variant, and\n`arrow.duration-nanos` and others of the types that some writers add to Avro. Any other \
         annotation that is not in the table (a logical type of Avro or\nParquet, an extension type of Arrow) is passed over, as Avro's \
         specification demands: the column is of the type that stands beneath it, and `my-money` on a\n`long` is a whole number. An Avro \
         file with a record that holds itself is refused as a whole.\n\n\
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
        "\nIn **CSV** everything is text, unless `--schema` gives a column a type for JSON and MessagePack values: `int` (64 bits), `float`, \
         `bool`\n(`true`, `false`, `t`, `f`, `1`, `0`) or `json`. An empty cell of such a column is null. Keys and `--value` are the cell's text.\n\n\
         In **JSON lines** a value keeps its spelling, so numbers keep all their digits; a key is a string's text, a number as it is written, or a \
         boolean.\nA line that names a field twice is refused. In MessagePack so are whole numbers beyond 64 bits, a name twice in an inner object, \
         and nesting deeper than 128.\n\n\
         Columns that stand in **folders' names** (`day=2024-01-02/part-0.parquet`) are text; `__HIVE_DEFAULT_PARTITION__` is null, and `%3A` is a \
         colon. Such a column\ntakes the place of one of that name in the file.\n\n\
         A key of **several columns** is their texts with `:` between them. In every part but the last, `%` stands as `%25` and `:` as `%3A`, so that \
         different parts\nnever make one key; the last part stays as it is. `de`, `a:b` and `10:30` make `de:a%3Ab:10:30`.\n\n\
         Big-endian Arrow files are refused.\n",
    );
    text
}
