//! Searches and aggregations with the largest possible arguments. A core does a bounded amount of work for them per
//! turn and serves other clients in between.
//!
//! The tests compare the counter of work in `INFO search`, not time.

use super::{call, call_all, check, server};
use crate::resp::{Client, request};

const OBJECTS: usize = 1500;
/// The bound from `crates/space/tests/it/index/bounded_steps.rs`.
const WORK_MAX: u64 = 100_000;

fn fill(client: &mut Client, objects: usize) {
    check(
        client,
        "FT.CREATE s PREFIX 1 o: SCHEMA n NUMERIC s NUMERIC t TAG x TEXT",
        "+OK",
    );
    let put = |at: usize| {
        let words = [
            "HSET",
            &format!("o:{at}"),
            "n",
            &at.to_string(),
            "s",
            &(at % 10).to_string(),
            "t",
            &format!("t{at}"),
            "x",
            &format!("word{at} and more text of object {at}"),
        ];
        words.map(str::to_owned).to_vec()
    };
    let requests: Vec<Vec<String>> = (0..objects).map(put).collect();
    call_all(client, &requests);
}

fn work_max(client: &mut Client) -> u64 {
    client.info_number("search", "search_turn_work_max")
}

#[test]
fn each_turn_of_a_large_search_does_bounded_work_and_others_are_served() {
    let server = server(1);
    let (client, other) = (&mut Client::connect(&server), &mut Client::connect(&server));
    fill(client, OBJECTS);
    let excluded: Vec<String> = (0..8000).map(|at| format!("-@n:[{at} {at}]")).collect();
    let one_attribute = format!("@s:[4 4] {}", excluded[..400].join(" "));
    let most = excluded.join(" ");
    let tags: Vec<String> = (0..16_000).map(|at| format!("t{at}")).collect();
    let tags = format!("@t:{{{}}}", tags.join("|"));
    let mut reduced = vec!["FT.AGGREGATE", "s", "*", "GROUPBY", "1", "@n"];
    let names: Vec<String> = (0..500).map(|at| format!("r{at}")).collect();
    for name in &names {
        reduced.extend(["REDUCE", "SUM", "1", "@s", "AS", name]);
    }
    let commands: Vec<Vec<&str>> = vec![
        vec!["FT.SEARCH", "s", &one_attribute],
        vec!["FT.EXPLAIN", "s", &one_attribute],
        vec![
            "FT.SEARCH",
            "s",
            &most,
            "LIMIT",
            "0",
            "1000000",
            "TIMEOUT",
            "0",
        ],
        vec!["FT.EXPLAIN", "s", &most],
        vec!["FT.EXPLAINCLI", "s", &most],
        vec![
            "FT.PROFILE",
            "s",
            "SEARCH",
            "QUERY",
            &one_attribute,
            "NOCONTENT",
        ],
        vec!["FT.SEARCH", "s", &tags, "LIMIT", "0", "1000000"],
        vec![
            "FT.SEARCH",
            "s",
            "*",
            "SORTBY",
            "x",
            "DESC",
            "LIMIT",
            "0",
            "1000000",
        ],
        vec![
            "FT.AGGREGATE",
            "s",
            "*",
            "LOAD",
            "*",
            "SORTBY",
            "2",
            "@n",
            "DESC",
            "MAX",
            "1000000",
        ],
        vec![
            "FT.AGGREGATE",
            "s",
            "*",
            "GROUPBY",
            "1",
            "@x",
            "REDUCE",
            "TOLIST",
            "1",
            "@t",
            "AS",
            "l",
        ],
        vec![
            "FT.AGGREGATE",
            "s",
            "*",
            "GROUPBY",
            "0",
            "REDUCE",
            "TOLIST",
            "1",
            "@x",
            "AS",
            "l",
        ],
        vec![
            "FT.AGGREGATE",
            "s",
            "*",
            "GROUPBY",
            "1",
            "@x",
            "WITHCURSOR",
            "COUNT",
            "1000",
        ],
        reduced,
        vec!["FT.TAGVALS", "s", "t"],
    ];
    for words in &commands {
        let shown = words[..words.len().min(4)].join(" ");
        let shown: String = shown.chars().take(60).collect();
        client.send(&request(words));
        assert_eq!(call(other, &["PING"]), "+PONG", "{shown}");
        let reply = client.reply();
        assert!(!reply.starts_with('-'), "{shown}: {reply}");
        let work = work_max(other);
        assert!(0 < work && work <= WORK_MAX, "{shown}: {work}");
    }
}

#[test]
fn a_search_that_exceeds_its_time_limit_returns_an_error() {
    let server = server(1);
    let client = &mut Client::connect(&server);
    fill(client, OBJECTS);
    let conditions: Vec<String> = (0..16_000)
        .map(|at| format!("-@n:[{} +inf]", at + 1500))
        .collect();
    let query = conditions.join(" ");
    // Each object needs as many checks as the query has conditions.
    let reply = call(client, &["FT.SEARCH", "s", &query, "TIMEOUT", "1"]);
    assert!(reply.contains("Timeout limit was reached"), "{reply}");
    let reply = call(
        client,
        &[
            "FT.AGGREGATE",
            "s",
            &query,
            "GROUPBY",
            "1",
            "@s",
            "TIMEOUT",
            "1",
        ],
    );
    assert!(reply.contains("Timeout limit was reached"), "{reply}");
    let reply = call(
        client,
        &["FT.SEARCH", "s", &query, "LIMIT", "0", "0", "TIMEOUT", "0"],
    );
    assert_eq!(reply, format!("*1|:{OBJECTS}"));
}

#[test]
fn a_cursor_returns_its_rows_in_parts_of_any_size() {
    let server = server(2);
    let client = &mut Client::connect(&server);
    fill(client, OBJECTS);
    let words = "FT.AGGREGATE s * GROUPBY 1 @n SORTBY 1 @n MAX 100000 WITHCURSOR COUNT 7";
    let mut reply = call(client, &words.split(' ').collect::<Vec<_>>());
    let mut rows = reply.matches("|n|").count();
    let cursor = |reply: &str| reply.rsplit(':').next().map(str::to_owned);
    for count in ["1", "1000", "100000"] {
        let id = cursor(&reply).expect("a cursor");
        reply = call(client, &["FT.CURSOR", "READ", "s", &id, "COUNT", count]);
        assert!(!reply.starts_with('-'), "{reply}");
        rows += reply.matches("|n|").count();
    }
    assert_eq!((rows, cursor(&reply).as_deref()), (OBJECTS, Some("0")));
}

#[test]
fn searches_end_when_their_clients_disconnect() {
    const CLIENTS: u64 = 8;
    let server = server(1);
    let other = &mut Client::connect(&server);
    fill(other, 10_000);
    // Together, the searches take far longer than the second after which the server checks for a disconnected client.
    let sum = vec!["@n*@s"; 60].join("+");
    let mut words = vec!["FT.AGGREGATE", "s", "*"];
    for _ in 0..60 {
        words.extend(["APPLY", &sum, "AS", "a"]);
    }
    words.extend(["TIMEOUT", "0"]);
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|_| {
            let mut client = Client::connect(&server);
            client.send(&request(&words));
            client
        })
        .collect();
    assert_eq!(call(other, &["PING"]), "+PONG");
    drop(clients);
    let begun = std::time::Instant::now();
    while other.info_number("search", "search_abandoned") < CLIENTS {
        let is_hanging = begun.elapsed().as_secs() > 120;
        assert!(!is_hanging, "the searches were not given up");
    }
}
