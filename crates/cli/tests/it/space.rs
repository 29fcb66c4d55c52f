//! `larder space`: spaces from the command line.

use crate::support::{run_ok, spawn_server};

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
            "identifier": "price", "attribute": "price", "type": "NUMERIC", "flags": ["SORTABLE", "UNF"],
        })
    );
}
