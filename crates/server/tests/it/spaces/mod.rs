//! Spaces: searches find objects by their attributes, over any number of cores, across restarts and during changes.

mod acceptance;
mod flush;
mod layout;
mod random;
mod record;
mod regions;
mod transactions;
mod turns;
mod types;

use crate::resp::{Client, request};
use crate::support::{TestServer, until};

pub fn server(threads: usize) -> TestServer {
    TestServer::with(|config| config.server.threads = threads as u32)
}

/// Sends words as one request and returns the formatted reply.
pub fn call(client: &mut Client, words: &[&str]) -> String {
    client.send(&request(words));
    client.reply()
}

/// Sends the words of a line, separated by spaces, and checks the reply.
fn check(client: &mut Client, line: &str, expected: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(call(client, &words), expected, "{line}");
}

pub fn create_hotels(client: &mut Client) {
    check(
        client,
        "FT.CREATE hotels ON HASH PREFIX 1 hotel: SCHEMA city TAG SORTABLE stars NUMERIC price NUMERIC name TEXT",
        "+OK",
    );
}

pub fn add_hotels(client: &mut Client) {
    for line in [
        "HSET hotel:1 city Rome stars 4 price 120 name Aurora",
        "HSET hotel:2 city Rome stars 3 price 80 name Bella",
        "HSET hotel:3 city Paris stars 4 price 200 name Aurora",
        "HSET inn:4 city Rome stars 4 price 90 name Bella",
    ] {
        let reply = call(client, &line.split(' ').collect::<Vec<_>>());
        assert_eq!(reply, ":4", "{line}");
    }
}

/// Returns the keys that a query finds, in the order of the reply.
pub fn search_keys(client: &mut Client, space: &str, query: &str) -> String {
    let reply = call(
        client,
        &[
            "FT.SEARCH",
            space,
            query,
            "NOCONTENT",
            "LIMIT",
            "0",
            "10000",
        ],
    );
    assert!(reply.starts_with('*'), "{query}: {reply}");
    let elements = reply
        .split('|')
        .filter(|part| !part.starts_with(['*', '$', ':']));
    elements.collect::<Vec<_>>().join(" ")
}

/// Returns the first number with this name in FT.INFO.
pub fn info_number(client: &mut Client, space: &str, name: &str) -> Option<f64> {
    let info = call(client, &["FT.INFO", space]);
    let rest = info.split(&format!("|{name}|")).nth(1)?;
    let number = match rest.strip_prefix(':') {
        Some(rest) => rest,
        // The number is a bulk string.
        None => rest.split_once('|')?.1,
    };
    number.split('|').next()?.parse().ok()
}

/// Pipelines requests, in groups of 200, and returns their replies.
pub fn call_all(client: &mut Client, requests: &[Vec<String>]) -> Vec<String> {
    let mut replies = Vec::with_capacity(requests.len());
    for some in requests.chunks(200) {
        for words in some {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            client.send(&request(&words));
        }
        replies.extend(some.iter().map(|_| client.reply()));
    }
    replies
}

/// Waits until all existing objects are indexed.
pub fn wait_until_indexed(client: &mut Client, space: &str) {
    until("all objects are indexed", || {
        call(client, &["FT.INFO", space]).contains("|$8|indexing|:0|")
    });
}

#[test]
fn searches_reflect_created_changed_and_removed_objects() {
    for threads in [1, 3] {
        let server = server(threads);
        let (client, other) = (&mut Client::connect(&server), &mut Client::connect(&server));
        create_hotels(client);
        add_hotels(client);
        check(
            other,
            "FT.SEARCH hotels @city:{rome} RETURN 2 name price SORTBY price",
            "*5|:2|$7|hotel:2|*4|$4|name|$5|Bella|$5|price|$2|80|$7|hotel:1|*4|$4|name|$6|Aurora|$5|price|$3|120",
        );
        assert_eq!(
            search_keys(client, "hotels", "@stars:[4 5] @price:[(120 +inf]"),
            "hotel:3"
        );
        assert_eq!(search_keys(client, "hotels", "aurora"), "hotel:1 hotel:3");
        assert_eq!(
            search_keys(client, "hotels", "@city:{paris} | @price:[0 100]"),
            "hotel:2 hotel:3"
        );
        assert_eq!(search_keys(client, "hotels", "-@city:{rome}"), "hotel:3");
        check(client, "HSET hotel:2 city Paris", ":0");
        check(other, "DEL hotel:3", ":1");
        assert_eq!(search_keys(client, "hotels", "@city:{paris}"), "hotel:2");
        check(client, "FT.SEARCH hotels * LIMIT 0 0", "*1|:2");
        check(client, "FT._LIST", "*1|$6|hotels");
        check(client, "PEXPIRE hotel:1 20", ":1");
        until("one object expires", || {
            search_keys(other, "hotels", "*") == "hotel:2"
        });
        check(client, "FT.DROPINDEX hotels DD", "+OK");
        check(other, "EXISTS hotel:2 inn:4", ":1");
        check(other, "FT.SEARCH hotels *", "-ERR hotels: no such index");
        check(client, "FT.INFO hotels", "-Unknown index name");
    }
}

#[test]
fn existing_objects_are_indexed_in_the_background_and_after_a_restart() {
    let mut server = server(2);
    {
        let client = &mut Client::connect(&server);
        add_hotels(client);
        for number in 10..2010 {
            let (key, price) = (format!("hotel:{number}"), (number % 100).to_string());
            call(client, &["HSET", &key, "city", "Oslo", "price", &price]);
        }
        create_hotels(client);
        check(client, "FT.ALIASADD inns hotels", "+OK");
        wait_until_indexed(client, "hotels");
        check(client, "FT.SEARCH inns * LIMIT 0 0", "*1|:2003");
        assert_eq!(
            search_keys(client, "inns", "@price:[5 6]")
                .split(' ')
                .count(),
            40
        );
        check(
            client,
            "FT.ALTER hotels SCHEMA ADD stars AS level TAG",
            "+OK",
        );
        wait_until_indexed(client, "hotels");
        assert_eq!(
            search_keys(client, "hotels", "@level:{4}"),
            "hotel:1 hotel:3"
        );
    }
    for threads in [1, 3] {
        server.restart_with(|config| config.server.threads = threads);
        let client = &mut Client::connect(&server);
        // Immediately after the start, a search reflects every write that was acknowledged before it.
        check(client, "FT.SEARCH inns * LIMIT 0 0", "*1|:2003");
        assert_eq!(
            search_keys(client, "hotels", "@level:{4}"),
            "hotel:1 hotel:3"
        );
        check(
            client,
            "FT.CREATE hotels SCHEMA city TAG",
            "-ERR Index already exists",
        );
    }
    let client = &mut Client::connect(&server);
    check(client, "FT.DROPINDEX inns", "+OK");
    server.restart(|_| {});
    let client = &mut Client::connect(&server);
    check(client, "FT._LIST", "*0");
    check(client, "HGET hotel:1 city", "$4|Rome");
}

#[test]
fn aggregated_rows_are_read_in_parts() {
    for threads in [1, 2] {
        let server = server(threads);
        let client = &mut Client::connect(&server);
        create_hotels(client);
        add_hotels(client);
        check(
            client,
            "FT.AGGREGATE hotels * GROUPBY 1 @city REDUCE COUNT 0 AS n REDUCE MAX 1 @price AS most SORTBY 2 @n DESC",
            "*3|:2|*6|$4|city|$4|Rome|$1|n|$1|2|$4|most|$3|120|*6|$4|city|$5|Paris|$1|n|$1|1|$4|most|$3|200",
        );
        let first = "FT.AGGREGATE hotels * LOAD 1 @__key WITHCURSOR COUNT 2";
        let reply = call(client, &first.split(' ').collect::<Vec<_>>());
        let (rows, cursor) = reply.rsplit_once("|:").expect("a cursor");
        assert_eq!(
            rows,
            "*2|*3|:2|*2|$5|__key|$7|hotel:1|*2|$5|__key|$7|hotel:2"
        );
        check(
            client,
            &format!("FT.CURSOR READ hotels {cursor}"),
            "*2|*2|:1|*2|$5|__key|$7|hotel:3|:0",
        );
        let gone = format!("-ERR Cursor not found, id: {cursor}");
        check(client, &format!("FT.CURSOR READ hotels {cursor}"), &gone);
        let grouped = "FT.AGGREGATE hotels * GROUPBY 1 @name SORTBY 1 @name WITHCURSOR COUNT 1";
        let reply = call(client, &grouped.split(' ').collect::<Vec<_>>());
        let (_, cursor) = reply.rsplit_once("|:").expect("a cursor");
        check(client, &format!("FT.CURSOR DEL hotels {cursor}"), "+OK");
        let gone = "-ERR Cursor does not exist";
        check(client, &format!("FT.CURSOR DEL hotels {cursor}"), gone);
    }
}

#[test]
fn full_scans_are_rejected_if_configured() {
    let server = TestServer::with(|config| config.spaces.refuse_full_scans = true);
    let client = &mut Client::connect(&server);
    create_hotels(client);
    add_hotels(client);
    check(client, "FT.SEARCH hotels * LIMIT 0 0", "*1|:3");
    assert_eq!(
        search_keys(client, "hotels", "@city:{rome}"),
        "hotel:1 hotel:2"
    );
    for line in [
        "FT.SEARCH hotels -@city:{rome}",
        "FT.AGGREGATE hotels * GROUPBY 1 @city",
        "FT.PROFILE hotels SEARCH QUERY -@city:{rome}",
    ] {
        let reply = call(client, &line.split(' ').collect::<Vec<_>>());
        assert!(
            reply.starts_with("-ERR this query scans all objects"),
            "{line}: {reply}"
        );
    }
    let explained = call(client, &["FT.EXPLAIN", "hotels", "-@city:{rome}"]);
    assert!(explained.contains("all objects"), "{explained}");
    let line = "FT.AGGREGATE hotels * LOAD 1 @city WITHCURSOR COUNT 2";
    let reply = call(client, &line.split(' ').collect::<Vec<_>>());
    assert!(reply.starts_with('*'), "{reply}");
    check(client, "FT.DROPINDEX hotels DD", "+OK");
}

#[test]
fn invalid_requests_explain_the_reason_and_the_position() {
    let server = server(1);
    let client = &mut Client::connect(&server);
    create_hotels(client);
    let mut refuses = |line: &str, why: &str| {
        let reply = call(client, &line.split(' ').collect::<Vec<_>>());
        assert!(
            reply.starts_with('-') && reply.contains(why),
            "{line}: {reply}"
        );
    };
    refuses("FT.SEARCH hotels @town:{rome}", "Unknown field");
    refuses("FT.SEARCH hotels @price:[5", "Syntax error at offset");
    refuses(
        "FT.SEARCH hotels * WITHWINGS",
        "Unknown argument `WITHWINGS`",
    );
    refuses("FT.CREATE bars SCHEMA", "argument");
    refuses("FT.AGGREGATE hotels * GROUPBY 1 @city REDUCE FOO 0", "FOO");
    refuses("FT.TAGVALS hotels price", "Not a tag field");
    refuses("FT.CURSOR PART hotels 1 0 x *", "Unknown subcommand");
    refuses("FT.CURSOR SAMPLE hotels 1", "Unknown subcommand");
    refuses("FT.CURSOR READ hotels 17", "Cursor not found, id: 17");
    refuses("FT.ALTER bars SCHEMA ADD x TAG", "Unknown index name");
    refuses("FT.DROPINDEX hotels NOW", "DD");
    refuses("FT.EXPLAIN bars *", "bars: no such index");
    let explained = call(client, &["FT.EXPLAIN", "hotels", "*"]);
    let plan = "all owners: 1 of 1 cores, 1 of 1 nodes\ncore 0: ";
    assert!(
        explained.contains(&format!("|<WILDCARD>\n\n{plan}")),
        "{explained}"
    );
    check(client, "MULTI", "+OK");
    let queued = call(client, &["FT.TAGVALS", "hotels", "city"]);
    assert_eq!(queued, "-ERR FT.TAGVALS isn't allowed in a transaction");
}

#[test]
fn a_cursor_survives_a_failed_read_and_is_removed_with_its_space() {
    let server = server(2);
    let client = &mut Client::connect(&server);
    create_hotels(client);
    add_hotels(client);
    let open = |client: &mut Client| {
        let reply = call(
            client,
            &[
                "FT.AGGREGATE",
                "hotels",
                "*",
                "LOAD",
                "1",
                "@rooms",
                "APPLY",
                "@rooms+1",
                "AS",
                "more",
                "WITHCURSOR",
                "COUNT",
                "1",
            ],
        );
        let (_, cursor) = reply.rsplit_once(':').expect("it has a cursor");
        cursor.to_owned()
    };
    for key in ["hotel:1", "hotel:2", "hotel:3"] {
        check(client, &format!("HSET {key} rooms 7"), ":1");
    }
    let cursor = open(client);
    let read = format!("FT.CURSOR READ hotels {cursor}");
    let words: Vec<&str> = read.split(' ').collect();
    check(client, "HSET hotel:2 rooms abc", ":0");
    for _ in 0..2 {
        let reply = call(client, &words);
        assert!(
            reply.starts_with('-') && !reply.contains("not found"),
            "{reply}"
        );
    }
    check(client, "HSET hotel:2 rooms 8", ":0");
    let reply = call(client, &words);
    assert!(reply.contains("|$4|more|$1|9"), "{reply}");
    // Cursors do not carry over to a new space with the same name.
    check(client, "FT.DROPINDEX hotels", "+OK");
    create_hotels(client);
    let reply = call(client, &words);
    assert!(reply.contains("Cursor not found"), "{reply}");
}
