//! PostgreSQL arrays as JSON arrays, in the format of `to_json`, for rows from loads, from the stream, and in writes.

use super::cluster::Cluster;
use super::random::Dice;
use super::server;
use crate::resp::Client;

on_one_and_on_several_cores! {
    arrays_match_to_json,
    an_array_alone_is_a_json_array,
}

const SCHEMA: &str = "CREATE TYPE mood AS ENUM ('sad', 'very glad', 'NULL');
    CREATE DOMAIN small AS int CHECK (VALUE < 1000);
    CREATE DOMAIN list AS int[];
    CREATE DOMAIN label AS text;
    CREATE TABLE things (id label PRIMARY KEY, a int[], b boolean[], c text[], d numeric[], e float8[], f jsonb[], g mood[], h bytea[], i small[], j list, k small, l box[]);
    ALTER TABLE things REPLICA IDENTITY FULL;
    CREATE PUBLICATION larder FOR ALL TABLES";
const COLUMNS: [&str; 12] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];

/// Elements of each type, as SQL literals.
const ELEMENTS: [&[&str]; 10] = [
    &["0", "-1", "2147483647", "NULL"],
    &["true", "false", "NULL"],
    &[
        "''",
        "'a'",
        "'NULL'",
        "'null'",
        "'a,b'",
        "'{a}'",
        "'a \"quoted\" b'",
        "'back\\slash'",
        "' spaces '",
        "E'new\\nline'",
        "'é'",
        "'it''s'",
        "E'\\x01'",
        "'1'",
        "NULL",
    ],
    &[
        "0",
        "1.50",
        "-12345678901234567890.000000000001",
        "'NaN'",
        "'Infinity'",
        "NULL",
    ],
    &[
        "0.1::float8 + 0.2",
        "1e300",
        "'-Infinity'",
        "'NaN'",
        "-0.0",
        "NULL",
    ],
    &[
        "'{\"k\": [1, \"a,b\"]}'",
        "'\"text\"'",
        "'5'",
        "'true'",
        "'[]'",
        "NULL",
    ],
    &["'sad'", "'very glad'", "'NULL'", "NULL"],
    &["'\\x00ff'", "'\\x'", "NULL"],
    &["7", "999", "NULL"],
    &["1", "2", "NULL"],
];
const TYPES: [&str; 10] = [
    "int", "boolean", "text", "numeric", "float8", "jsonb", "mood", "bytea", "small", "int",
];

fn element(dice: &mut Dice, column: usize) -> &'static str {
    let elements = ELEMENTS[column];
    elements[dice.roll(elements.len() as u64) as usize]
}

fn list(dice: &mut Dice, column: usize, len: u64) -> String {
    let elements: Vec<&str> = (0..len).map(|_| element(dice, column)).collect();
    format!("ARRAY[{}]::{}[]", elements.join(","), TYPES[column])
}

/// Returns an array as SQL: null, empty, with one or two dimensions, or with another lower bound.
fn array(dice: &mut Dice, column: usize) -> String {
    match dice.roll(8) {
        0 => "NULL".to_owned(),
        1 => "'{}'".to_owned(),
        // JSON cannot distinguish a two-dimensional array from an array of JSON arrays.
        2 | 3 if TYPES[column] != "jsonb" => {
            let (rows, len) = (1 + dice.roll(3), 1 + dice.roll(3));
            let rows: Vec<String> = (0..rows).map(|_| list(dice, column, len)).collect();
            format!("ARRAY[{}]", rows.join(","))
        }
        4 => {
            let element = element(dice, column);
            format!(
                "array_fill(({element})::{}, ARRAY[2], ARRAY[{}])",
                TYPES[column],
                dice.roll(5)
            )
        }
        _ => {
            let len = 1 + dice.roll(4);
            list(dice, column, len)
        }
    }
}

fn row(dice: &mut Dice, id: &str) -> String {
    let arrays: Vec<String> = (0..TYPES.len()).map(|column| array(dice, column)).collect();
    format!(
        "('{id}', {}, {}, ARRAY[box(point(1,2), point(3,4)), NULL])",
        arrays.join(", "),
        dice.roll(9)
    )
}

fn arrays_match_to_json() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("arrays");
    sql.run(SCHEMA);
    let shown: Vec<String> = COLUMNS.iter().map(|name| format!("'{name}'")).collect();
    let server = server(
        &sql.url(),
        &format!(
            "[tables.thing]\npattern = 'thing|<id>'\ntable = 'things'\nwrite = 'through'\nvalue = [{}]\n",
            shown.join(", ")
        ),
    );
    let members: Vec<String> = COLUMNS
        .iter()
        .map(|name| format!("'\"{name}\":' || coalesce(to_json({name})::text, 'null')"))
        .collect();
    let oracle = |id: &str| {
        format!(
            "SELECT '{{' || {} || '}}' FROM things WHERE id = '{id}'",
            members.join(" || ',' || ")
        )
    };
    let mut client = Client::connect(&server);
    let mut dice = Dice(0x5eed);
    let rounds = if std::env::var("LARDER_SLOW_TESTS").is_ok() {
        500
    } else {
        30
    };
    for round in 0..rounds {
        let id = format!("r{round}");
        let key = format!("thing|{id}");
        if round % 2 == 0 {
            // Makes larder load the row's absence before the row exists.
            client.check(&format!("GET {key}"), "$-1");
        }
        sql.run(&format!(
            "INSERT INTO things VALUES {}",
            row(&mut dice, &id)
        ));
        client.catch_up(&mut sql);
        let expected = sql.one(&oracle(&id));
        let shown = format!("${}|{expected}", expected.len());
        client.check(&format!("GET {key}"), &shown);
        // Updates one column of a row that arrived by the stream or by a load.
        let column = dice.roll(10) as usize;
        let changed = array(&mut dice, column);
        let name = COLUMNS[column];
        sql.run(&format!(
            "UPDATE things SET {name} = {changed} WHERE id = '{id}'"
        ));
        client.catch_up(&mut sql);
        let expected = sql.one(&oracle(&id));
        let shown = format!("${}|{expected}", expected.len());
        client.check(&format!("GET {key}"), &shown);
        // A value that was read can be written back.
        let copy = format!("thing|copy{round}");
        assert_eq!(
            client.call_words(&["SET", &copy, &expected]),
            "+OK",
            "{expected}"
        );
        client.check(&format!("GET {copy}"), &shown);
        assert_eq!(sql.one(&oracle(&format!("copy{round}"))), expected);
    }
}

fn an_array_alone_is_a_json_array() {
    let Some(cluster) = Cluster::shared() else {
        return;
    };
    let mut sql = cluster.database("array_alone");
    sql.run(
        "CREATE TABLE things (id int PRIMARY KEY, tags text[]);
         INSERT INTO things VALUES (1, '{a,\"b c\",NULL}'), (2, NULL);
         CREATE PUBLICATION larder FOR ALL TABLES",
    );
    let server = server(
        &sql.url(),
        "[tables.thing]\npattern = 'thing|<id>'\ntable = 'things'\nwrite = 'through'\nvalue = 'tags'\n",
    );
    let mut client = Client::connect(&server);
    client.check("GET thing|1", "$16|[\"a\",\"b c\",null]");
    client.check("GET thing|2", "$0|");
    assert_eq!(client.call_words(&["SET", "thing|3", "[\"x\"]"]), "+OK");
    assert_eq!(sql.one("SELECT tags FROM things WHERE id = 3"), "{x}");
    assert_eq!(client.call_words(&["SET", "thing|3", ""]), "+OK");
    assert_eq!(sql.one("SELECT tags FROM things WHERE id = 3"), "null");
    assert_eq!(
        client.call_words(&["SET", "thing|3", "x"]),
        "-ERR the value of tags must be a JSON array"
    );
}
