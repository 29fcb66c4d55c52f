//! Spaces with subspaces: the cores and nodes that a search contacts, and the explanation that it returns.

use super::{call, call_all, info_number, search_keys, server, wait_until_indexed};
use crate::resp::Client;
use crate::support::until;

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

/// Creates the space `things` with additional clauses.
fn declare(client: &mut Client, more: &str) {
    let line = format!(
        "FT.CREATE things PREFIX 1 thing: {more} SCHEMA color TAG level NUMERIC size NUMERIC SORTABLE note TEXT"
    );
    assert_eq!(call(client, &words(&line)), "+OK");
}

fn add(client: &mut Client, things: std::ops::Range<u64>) {
    for number in things {
        let color = ["red", "blue", "green"][number as usize % 3];
        let level = number % 3;
        let line = format!("HSET thing:{number} color {color} level {level} size {number}");
        assert_eq!(call(client, &words(&line)), ":3");
    }
}

#[test]
fn a_search_and_an_aggregation_contact_one_core_and_explain_the_choice() {
    let server = server(3);
    let client = &mut Client::connect(&server);
    declare(client, "SUBSPACES 2 level size REGIONS 16");
    add(client, 0..60);
    wait_until_indexed(client, "things");
    let first = "@level==0";
    let asked = "subspace level: 1 of 16 regions, at 1 of 3 cores, 1 of 1 nodes";
    until("the regions are filled", || {
        call(client, &["FT.EXPLAIN", "things", first]).contains(asked)
    });
    let explained = call(client, &["FT.EXPLAIN", "things", first]);
    assert!(
        explained.contains("@level") && explained.contains("index level, a range; about "),
        "{explained}"
    );
    let lines = call(client, &["FT.EXPLAINCLI", "things", first]);
    assert!(lines.contains(&format!("|{asked}|")), "{lines}");
    let aggregate = format!("{first} GROUPBY 1 @color REDUCE SUM 1 @size AS sum");
    for (kind, rest, looked_at) in [("SEARCH", first, 10), ("AGGREGATE", &aggregate, 20)] {
        let line = format!("FT.PROFILE things {kind} QUERY {rest}");
        let profile = call(client, &words(&line));
        assert!(profile.contains(asked), "{profile}");
        assert_eq!(profile.matches("|Shard|").count(), 1, "{profile}");
        assert!(
            profile.contains(&format!("|$5|Found|:{looked_at}|")),
            "{profile}"
        );
        assert!(
            profile.contains("|Regions|:1|$14|Regions in all|:16|$5|Cores|:1|$12|Cores in all|:3|"),
            "{profile}"
        );
    }
    let line = format!("FT.AGGREGATE things {aggregate}");
    assert_eq!(
        call(client, &words(&line)),
        "*2|:1|*4|$5|color|$3|red|$3|sum|$3|570"
    );
    // The query fixes no attribute, so that all cores are contacted.
    let profile = call(client, &words("FT.PROFILE things SEARCH QUERY *"));
    assert_eq!(profile.matches("|Shard|").count(), 3, "{profile}");
    assert!(
        profile.contains("all owners: 3 of 3 cores, 1 of 1 nodes"),
        "{profile}"
    );
}

/// If two subspaces each need one core, the search uses the one in which fewer objects are examined. The explanation
/// lists the cost of each.
#[test]
fn the_cheapest_route_is_used_and_all_routes_are_listed() {
    let server = server(3);
    let client = &mut Client::connect(&server);
    declare(client, "SUBSPACES 2 level:4 size:4 REGIONS 16");
    add(client, 0..60);
    wait_until_indexed(client, "things");
    let query = "@level==0 @size==7";
    until("the regions are filled", || {
        call(client, &["FT.EXPLAIN", "things", query]).contains("at 1 of 3 cores")
    });
    let explained = call(client, &["FT.EXPLAIN", "things", query]);
    let considered = explained
        .lines()
        .find_map(|it| it.strip_prefix("considered: "));
    let considered = considered.expect("it is reported");
    let ways: Vec<(&str, u64)> = considered
        .trim_end_matches('|')
        .split(", ")
        .map(|way| {
            let (name, us) = way
                .trim_end_matches(" us")
                .rsplit_once(' ')
                .expect("a cost");
            (name, us.parse().expect("a number"))
        })
        .collect();
    assert_eq!(ways.len(), 3, "{considered}");
    assert!(
        ways.windows(2).all(|two| two[0].1 <= two[1].1),
        "{considered}"
    );
    assert_eq!(ways[2].0, "all owners", "{considered}");
    assert!(
        explained.contains(&format!("subspace {}: ", ways[0].0)),
        "{explained}"
    );
    let profile = call(client, &["FT.PROFILE", "things", "SEARCH", "QUERY", query]);
    assert!(profile.contains("|Considered|"), "{profile}");
    // Without subspaces there are no alternatives.
    let created = "FT.CREATE plain PREFIX 1 thing: SCHEMA level NUMERIC";
    assert_eq!(call(client, &words(created)), "+OK");
    let explained = call(client, &["FT.EXPLAIN", "plain", "@level==0"]);
    assert!(!explained.contains("considered"), "{explained}");
}

#[test]
fn copies_in_regions_count_as_memory() {
    const THINGS: u64 = 300;
    const NOTE_BYTES: f64 = 2000.0;
    let server = server(3);
    let client = &mut Client::connect(&server);
    declare(client, "");
    let note = "x".repeat(NOTE_BYTES as usize);
    for number in 0..THINGS {
        let line = format!("HSET thing:{number} level {number} extra {note}");
        assert_eq!(call(client, &words(&line)), ":2");
    }
    wait_until_indexed(client, "things");
    let memory = |client: &mut Client| {
        info_number(client, "things", "memory_bytes").expect("it is reported")
    };
    let plain = memory(client);
    let begin = "FT.ALTER things SUBSPACES 2 level:4 size:4 REGIONS 16";
    assert_eq!(call(client, &words(begin)), "+OK");
    until("the regions are filled", || {
        call(client, &words("FT.ALTER things SUBSPACES SWITCH")) == "+OK"
    });
    let both = memory(client) - plain;
    let of_copies = 2.0 * THINGS as f64 * NOTE_BYTES;
    assert!(
        (of_copies..1.5 * of_copies).contains(&both),
        "{both} of {of_copies}"
    );
    assert_eq!(call(client, &words("FT.ALTER things SUBSPACES 0")), "+OK");
    let switch = "FT.ALTER things SUBSPACES SWITCH";
    until("the switch succeeds", || {
        call(client, &words(switch)) == "+OK"
    });
    until("the copies are removed", || {
        memory(client) < plain + of_copies / 10.0
    });
}

/// Sets the size of each object.
fn set_sizes(client: &mut Client, count: u64, size: impl Fn(u64) -> u64) {
    let requests = (0..count).map(|number| {
        let (key, size) = (format!("thing:{number}"), size(number).to_string());
        ["HSET".to_owned(), key, "size".to_owned(), size].to_vec()
    });
    let replies = call_all(client, &requests.collect::<Vec<_>>());
    assert!(replies.iter().all(|reply| reply.starts_with(':')));
}

#[test]
fn subspaces_are_cut_from_object_values_and_recut_after_drift() {
    let server = server(3);
    let client = &mut Client::connect(&server);
    declare(client, "SUBSPACES 1 size REGIONS 16");
    set_sizes(client, 1600, |number| number);
    let balance = |client: &mut Client| {
        let figure = |client: &mut Client, name| {
            info_number(client, "things", name).expect("it is reported")
        };
        let cuts = figure(client, "cuts");
        (cuts, figure(client, "fullest") / figure(client, "mean"))
    };
    until("the subspaces are cut", || {
        let (cuts, times_mean) = balance(client);
        cuts >= 1.0 && times_mean <= 2.0
    });
    // The range is now one run of cells.
    let range = "@size:[100 150]";
    until("the regions are filled", || {
        let explained = call(client, &["FT.EXPLAIN", "things", range]);
        explained.contains("subspace size: 1 of 16") || explained.contains("subspace size: 2 of 16")
    });
    assert_eq!(search_keys(client, "things", range).split(' ').count(), 51);
    let before = info_number(client, "things", "cuts");
    set_sizes(
        client,
        1600,
        |number| if number % 5 < 2 { 7 } else { 9000 + number },
    );
    assert_eq!(search_keys(client, "things", range), "");
    assert_eq!(
        search_keys(client, "things", "@size==7").split(' ').count(),
        640
    );
    until("the subspace is recut", || {
        assert_eq!(
            search_keys(client, "things", "@size:[5 9]")
                .split(' ')
                .count(),
            640
        );
        let (cuts, times_mean) = balance(client);
        Some(cuts) > before && times_mean <= 2.0
    });
    until("the regions are filled", || {
        let explained = call(client, &["FT.EXPLAIN", "things", "@size:[9000 9050]"]);
        explained.contains("subspace size: ")
    });
    let some = search_keys(client, "things", "@size:[9000 9050]");
    assert_eq!(some.split(' ').count(), 30);
    // The cuts stay the same without writes, and a restart keeps them.
    let before = info_number(client, "things", "cuts");
    let mut server = server;
    server.restart(|_| {});
    let client = &mut Client::connect(&server);
    assert_eq!(info_number(client, "things", "cuts"), before);
    assert_eq!(
        search_keys(client, "things", "@size==7").split(' ').count(),
        640
    );
}
