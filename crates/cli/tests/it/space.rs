//! `larder space`: the commands for spaces.

use std::collections::{BTreeMap, BTreeSet};

use larder_client::Reply;

use crate::support::{Server, run, run_failing, run_ok, spawn_server, text};

#[test]
fn spaces_are_listed_with_their_attributes_and_objects() {
    let temp = tempfile::tempdir().unwrap();
    let server = spawn_server(temp.path());
    let list = || run_ok(["space", "list", "--server", &server.http]);
    assert_eq!(
        list(),
        "no spaces; declare one with FT.CREATE, as docs/guide/spaces.md shows\n"
    );
    let resp = server.resp();
    let command = |line: &str| {
        let parts: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        resp.command(&parts).unwrap();
    };
    command("FT.CREATE hotels PREFIX 1 hotel: SCHEMA city TAG price NUMERIC SORTABLE");
    command("HSET hotel:1 city Rome price 120");
    command("HSET hotel:2 city Rome price cheap");
    let listed = list();
    let line = listed.lines().nth(1).unwrap();
    assert!(
        line.starts_with("hotels  hotel:  city TAG, price NUMERIC        2"),
        "{listed}"
    );
    assert!(line.ends_with("1 fields do not fit"), "{listed}");
    let json = run_ok(["space", "list", "--json", "--server", &server.http]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let space = &json["spaces"][0];
    assert_eq!(space["name"], "hotels");
    assert_eq!(space["objects"], 2);
    assert_eq!(
        space["attributes"][1],
        serde_json::json!({
            "identifier": "price", "attribute": "price", "type": "NUMERIC",
        })
    );
    assert_eq!(space["definition"][0], "hotels");
}

/// A server with a folder for files, and commands that use them.
struct Fixture {
    temp: tempfile::TempDir,
    server: Server,
}

impl Fixture {
    fn new() -> Fixture {
        let temp = tempfile::tempdir().unwrap();
        let server = spawn_server(&temp.path().join("data"));
        Fixture { temp, server }
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.temp.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    fn path(&self, name: &str) -> String {
        self.temp.path().join(name).display().to_string()
    }

    fn arguments<'a>(&'a self, line: &'a [&'a str]) -> Vec<&'a str> {
        let head = ["space"].into_iter().chain(line.iter().copied());
        head.chain(["--server", &self.server.http]).collect()
    }

    #[track_caller]
    fn space(&self, line: &[&str]) -> String {
        run_ok(self.arguments(line))
    }

    #[track_caller]
    fn failing(&self, code: i32, line: &[&str]) -> String {
        run_failing(code, self.arguments(line))
    }

    #[track_caller]
    fn send(&self, words: &[&str]) -> Reply {
        let parts: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        self.server.resp().command(&parts).unwrap()
    }

    /// Creates a space from the arguments of FT.CREATE.
    fn create(&self, words: &str) {
        let words: Vec<&str> = ["FT.CREATE"].into_iter().chain(words.split(' ')).collect();
        self.send(&words);
    }

    fn text(&self, words: &[&str]) -> String {
        shown(&self.send(words))
    }
}

fn shown(reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => bytes.escape_ascii().to_string(),
        Reply::Integer(number) => number.to_string(),
        Reply::Array(items) => items.iter().map(shown).collect::<Vec<_>>().join(" "),
        Reply::Null => "-".to_owned(),
        other => format!("{other:?}"),
    }
}

const HOTELS: &str = "\
id;name;city;latitude;longitude;price;tags;opened
1;The Old Mill by the River;Rome;41.9;12.5;$1,120.00;bar|pool;2001-02-03
2;A House with a Garden;Rome;41.8;12.4;80;;1999-12-31
3;Rooms above the Harbour;Oslo;59.9;10.7;95.50;pool;
";

#[test]
fn a_file_is_loaded_into_a_created_space_and_a_second_load_changes_nothing() {
    let fixture = Fixture::new();
    let file = fixture.file("hotels.csv", HOTELS);
    let load = [
        "load", &file, "--space", "hotels", "--prefix", "hotel:", "--create",
    ];
    let output = fixture.space(&load);
    assert!(
        output.starts_with(
            "FT.CREATE hotels PREFIX 1 hotel: SCHEMA name TEXT city TAG price NUMERIC tags TAG SEPARATOR '|' opened TIMESTAMP location GEO\nloaded 3 objects into hotels, in "
        ),
        "{output}"
    );
    let find = |query: &str| fixture.text(&["FT.SEARCH", "hotels", query, "NOCONTENT"]);
    let all = || {
        assert_eq!(find("@price:[1000 2000] @city:{rome}"), "1 hotel:1");
        assert_eq!(find("@tags:{pool}"), "2 hotel:1 hotel:3");
        assert_eq!(find("@location:[12.4 41.8 1 km]"), "1 hotel:2");
        assert_eq!(find("garden"), "1 hotel:2");
        assert_eq!(find("@opened:[2000-01-01 +inf]"), "1 hotel:1");
        fixture.text(&["HGETALL", "hotel:2"])
    };
    let before = all();
    assert_eq!(
        before,
        "id 2 name A House with a Garden city Rome latitude 41.8 longitude 12.4 price 80 opened 1999-12-31 location 12.4,41.8"
    );
    // The second load replaces a changed object by the file's values, and keeps fields that the file does not have.
    fixture.send(&["HSET", "hotel:2", "price", "1", "tags", "gym", "more", "x"]);
    let output = fixture.space(&load);
    assert!(
        output.starts_with("loaded 3 objects into hotels, in "),
        "{output}"
    );
    assert_eq!(fixture.text(&["HDEL", "hotel:2", "more"]), "1");
    let after: BTreeSet<_> = all().split(' ').map(str::to_owned).collect();
    assert_eq!(after, before.split(' ').map(str::to_owned).collect());
}

#[test]
fn a_json_list_in_a_csv_column_is_proposed_and_loaded_as_tags() {
    let fixture = Fixture::new();
    let rows = r#"id,tags,years
1,"[""bar"", ""heated pool""]","[2001, 2002]"
2,[],
3,"[""gym""]",[1999]
"#;
    let file = fixture.file("hotels.csv", rows);
    let load = ["load", &file, "--space", "h", "--prefix", "h:", "--create"];
    let output = fixture.space(&load);
    let created = "FT.CREATE h PREFIX 1 h: SCHEMA tags TAG years TAG\nloaded 3 objects";
    assert!(output.starts_with(created), "{output}");
    let find = |query: &str| fixture.text(&["FT.SEARCH", "h", query, "NOCONTENT"]);
    assert_eq!(find("@tags:{heated pool}"), "1 h:1");
    assert_eq!(find("@tags:{bar|gym} @years:{1999}"), "1 h:3");
}

#[test]
fn invalid_rows_are_reported_with_their_line_and_write_nothing() {
    let fixture = Fixture::new();
    let file = fixture.file("bad.csv", "id,price\n1,80\n2,cheap\n3,90\n,7\n");
    let load = |more: &[&'static str]| {
        let mut line = vec![
            "load",
            &*file,
            "--space",
            "h",
            "--create",
            "--type",
            "price:numeric",
        ];
        line.extend(more);
        line.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let line = load(&[]);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let why = fixture.failing(1, &line);
    assert!(
        why.contains("bad.csv, line 3: column \"price\" has \"cheap\", and the space wants a number there (price NUMERIC)"),
        "{why}"
    );
    assert_eq!(fixture.text(&["FT._LIST"]), "", "it was not declared");
    let line = load(&["--on-error", "skip", "--json"]);
    let line: Vec<&str> = line.iter().map(String::as_str).collect();
    let stdout: serde_json::Value = serde_json::from_str(&fixture.space(&line)).unwrap();
    assert_eq!(stdout["objects"], 2);
    assert_eq!(stdout["skipped"], 2);
    let errors = stdout["errors"].as_array().unwrap();
    assert!(
        errors[0].as_str().unwrap().contains("bad.csv, line 3: "),
        "{stdout}"
    );
    assert!(
        errors[1]
            .as_str()
            .unwrap()
            .ends_with("bad.csv, line 5: key column \"id\" is empty; every object needs a key"),
        "{stdout}"
    );
    // An error from the server is reported with its row.
    fixture.send(&["SET", "h:3", "a string"]);
    let why = fixture.failing(
        1,
        &[
            "load",
            &fixture.file("good.csv", "id,price\n1,8\n3,9\n"),
            "--space",
            "h",
        ],
    );
    assert!(why.contains("good.csv, line 3: WRONGTYPE"), "{why}");
    for (line, why) in [
        (
            vec!["load", &*file, "--space", "none"],
            "there is no space none; with --create",
        ),
        (
            vec!["load", &*file, "--space", "h", "--key", "street"],
            "there is no column \"street\" for the key; the columns are id, price",
        ),
        (
            vec!["load", &*file, "--space", "h", "--prefix", "x:"],
            "the key x:1 is not of space h, whose keys begin with h:",
        ),
        (
            vec!["load", &*file, "--space", "h", "--key", "{id"],
            "is no template",
        ),
    ] {
        let output = run(fixture.arguments(&line));
        assert!(!output.status.success());
        let stdout = text(&output.stderr);
        assert!(stdout.contains(why), "{stdout}");
    }
}

#[test]
fn a_dump_restores_every_byte_and_every_expiry() {
    let fixture = Fixture::new();
    fixture.create("hotels PREFIX 1 hotel: SUBSPACES 1 city SCHEMA city TAG CASESENSITIVE price NUMERIC SORTABLE");
    for number in 0..1_500 {
        let (key, price) = (format!("hotel:{number}"), (number % 97).to_string());
        fixture.send(&[
            "HSET",
            &key,
            "city",
            "Ro\"me, \n2",
            "price",
            &price,
            "empty",
            "",
        ]);
    }
    let resp = fixture.server.resp();
    resp.command(&[
        b"HSET",
        b"hotel:1",
        b"city",
        b"\xff\xfe",
        b"__key",
        b"odd",
        b"price",
        b"",
    ])
    .unwrap();
    resp.command(&[b"HSET", b"hotel:\xff", b"city", b"Oslo"])
        .unwrap();
    // Field names that are not valid text, the name of the key column with an invalid key, and a name in the encoding
    // of such names.
    resp.command(&[
        b"HSET",
        b"hotel:2",
        b"\xfe",
        b"one",
        b"\xff",
        b"two",
        b"__key",
        b"hotel:9\xff",
        b"base64:eA==",
        b"\xfd",
    ])
    .unwrap();
    fixture.send(&["PEXPIREAT", "hotel:7", "4102444800000"]);
    let fields = |key: &[u8]| {
        let reply = resp.command(&[b"HGETALL", key]).unwrap();
        let Reply::Array(items) = reply else {
            panic!("{reply:?}")
        };
        let pairs = items
            .chunks(2)
            .map(|pair| (shown(&pair[0]), shown(&pair[1])));
        pairs.collect::<BTreeMap<_, _>>()
    };
    let keys: [&[u8]; 5] = [
        b"hotel:1",
        b"hotel:2",
        b"hotel:7",
        b"hotel:\xff",
        b"hotel:1499",
    ];
    let before = keys.map(fields);
    for name in ["hotels.parquet", "hotels.csv", "hotels.jsonl"] {
        let file = fixture.path(name);
        let output = fixture.space(&["dump", "--space", "hotels", "-o", &file]);
        assert!(
            output.starts_with("dumped 1,501 objects of hotels to "),
            "{output}"
        );
        assert!(!std::path::Path::new(&format!("{file}.part")).exists());
        fixture.send(&["FT.DROPINDEX", "hotels", "DD"]);
        assert_eq!(fixture.text(&["DBSIZE"]), "0");
        let output = fixture.space(&["load", &file, "--space", "hotels", "--create"]);
        assert!(
            output.contains("SUBSPACES 1 city SCHEMA city TAG CASESENSITIVE"),
            "{output}"
        );
        assert_eq!(fixture.text(&["DBSIZE"]), "1501", "{name}");
        assert_eq!(keys.map(fields), before, "{name}");
        assert_eq!(fixture.text(&["PEXPIRETIME", "hotel:7"]), "4102444800000");
        let found = fixture.text(&["FT.SEARCH", "hotels", "@price:[96 96]", "LIMIT", "0", "0"]);
        assert_eq!(found, "15", "{name}");
    }
    let why = fixture.failing(
        3,
        &["dump", "--space", "none", "-o", &fixture.path("x.csv")],
    );
    assert!(why.contains("there is no space none"), "{why}");
    fixture.failing(
        2,
        &["dump", "--space", "hotels", "-o", &fixture.path("x.txt")],
    );
}

#[test]
fn a_dump_right_after_a_space_is_declared_has_all_objects() {
    let fixture = Fixture::new();
    let resp = fixture.server.resp();
    const COUNT: usize = 20_000;
    for begin in (0..COUNT).step_by(1000) {
        let keys: Vec<String> = (begin..begin + 1000)
            .map(|number| format!("hotel:{number}"))
            .collect();
        let puts: Vec<[&[u8]; 4]> = keys
            .iter()
            .map(|key| [b"HSET", key.as_bytes(), b"city", b"Rome"])
            .collect();
        let puts: Vec<&[&[u8]]> = puts.iter().map(|words| &words[..]).collect();
        resp.pipeline(&puts).unwrap();
    }
    let file = fixture.path("hotels.jsonl");
    fixture.create("hotels PREFIX 1 hotel: SCHEMA city TAG");
    fixture.space(&["dump", "--space", "hotels", "-o", &file]);
    let dumped = std::fs::read_to_string(&file).unwrap();
    assert_eq!(dumped.lines().count(), COUNT);
}

#[test]
fn documents_are_dumped_and_loaded_back_and_made_of_rows() {
    let fixture = Fixture::new();
    fixture.create("docs ON JSON PREFIX 1 doc: SCHEMA $.price AS price NUMERIC");
    fixture.send(&[
        "JSON.SET",
        "doc:1",
        "$",
        r#"{"price":7,"rooms":[{"beds":2}],"note":null}"#,
    ]);
    let rows = fixture.file("rows.csv", "id,price,name\n2,$8.50,b\n3,,c\n");
    fixture.space(&["load", &rows, "--space", "docs"]);
    assert_eq!(
        fixture.text(&["JSON.GET", "doc:2"]),
        r#"{\"id\":\"2\",\"price\":8.50,\"name\":\"b\"}"#.replace("8.50", "8.5")
    );
    let file = fixture.path("docs.jsonl");
    fixture.space(&["dump", "--space", "docs", "-o", &file]);
    let before = fixture.text(&["JSON.GET", "doc:1"]);
    fixture.send(&["FT.DROPINDEX", "docs", "DD"]);
    fixture.space(&["load", &file, "--space", "docs", "--create"]);
    assert_eq!(fixture.text(&["JSON.GET", "doc:1"]), before);
    let found = fixture.text(&["FT.SEARCH", "docs", "@price:[8 9]", "NOCONTENT"]);
    assert_eq!(found, "1 doc:2");
}

#[test]
fn the_last_row_of_a_key_wins_and_many_rows_load_completely() {
    let fixture = Fixture::new();
    let mut rows = String::from("id,number,none\n");
    for number in 0..6_000 {
        rows += &format!("{},{number},\n", number % 3_000);
    }
    let file = fixture.file("many.csv", &rows);
    fixture.space(&["load", &file, "--space", "many", "--create"]);
    let find = |query: &str| fixture.text(&["FT.SEARCH", "many", query, "LIMIT", "0", "0"]);
    assert_eq!(find("*"), "3000");
    assert_eq!(find("@number:[3000 +inf]"), "3000");
}

/// Published lists of classified French accommodation, and of homes in Dublin.
#[test]
fn real_hotels_are_loaded_found_dumped_and_loaded_back() {
    let french = larder_testing::external_data("hotels/france-hebergements-classes-2017.csv.zst");
    let dublin =
        larder_testing::external_data("hotels/airbnb-dublin-2021-09-listings-detailed.csv.zst");
    let (Some(french), Some(dublin)) = (french, dublin) else {
        return;
    };
    let fixture = Fixture::new();
    let load = |file: &str, space: &str, more: &[&str]| {
        let prefix = format!("{space}:");
        let line = [
            "load", file, "--space", space, "--prefix", &prefix, "--create",
        ];
        fixture.space(&[&line[..], more].concat())
    };
    let output = load(
        french.to_str().unwrap(),
        "french",
        &["--key", "{#}", "--geo", "coordonnees=lat,lon"],
    );
    assert!(output.contains("loaded 18,421 objects"), "{output}");
    let output = load(dublin.to_str().unwrap(), "dublin", &[]);
    assert!(output.contains("loaded 7,256 objects"), "{output}");
    let count = |space: &str, query: &str| {
        let found = fixture.text(&["FT.SEARCH", space, query, "LIMIT", "0", "0"]);
        found.parse::<usize>().unwrap()
    };
    // The expected number is that of the file's lines with this town. No earlier field contains a semicolon.
    let packed = std::fs::File::open(&french).unwrap();
    let lines = String::from_utf8(zstd::decode_all(packed).unwrap()).unwrap();
    let towns = lines
        .lines()
        .skip(1)
        .filter_map(|line| line.split(';').nth(9));
    let towns: Vec<String> = towns.map(str::to_lowercase).collect();
    for town in ["lourdes", "nice", "toulouse"] {
        let expected = towns.iter().filter(|it| *it == town).count();
        let query = format!("@COMMUNE:{{{town}}}");
        assert_eq!(count("french", &query), expected, "{town}");
    }
    let near = count("french", "@coordonnees:[2.35 48.85 10 km]");
    assert!((1_000..3_000).contains(&near), "{near}");
    let (all, rooms) = (
        count("dublin", "@price:[50 100]"),
        count("dublin", "@price:[50 100] @room_type:{Private room}"),
    );
    assert!(rooms > 500 && rooms < all, "{rooms} of {all}");
    let file = fixture.path("french.parquet");
    fixture.space(&["dump", "--space", "french", "-o", &file]);
    fixture.send(&["FT.DROPINDEX", "french", "DD"]);
    let output = fixture.space(&["load", &file, "--space", "french", "--create"]);
    assert!(output.contains("loaded 18,421 objects"), "{output}");
    let lourdes = towns.iter().filter(|it| *it == "lourdes").count();
    assert_eq!(count("french", "@COMMUNE:{lourdes}"), lourdes);
    assert_eq!(count("french", "@coordonnees:[2.35 48.85 10 km]"), near);
}
