//! Changes of a space's subspaces: the reported progress, rejected changes, and the state after a restart. `random`
//! checks that search results do not change meanwhile.

use super::{call, call_all, info_number, server};
use crate::resp::Client;
use crate::support::until;

fn send(client: &mut Client, line: &str) -> String {
    call(client, &line.split(' ').collect::<Vec<_>>())
}

fn declare(client: &mut Client, things: u64, subspaces: &str) {
    let line = format!(
        "FT.CREATE things PREFIX 1 thing: {subspaces}SCHEMA color TAG level NUMERIC size NUMERIC"
    );
    assert_eq!(send(client, &line), "+OK");
    let puts = (0..things).map(|number| {
        let line = format!(
            "HSET thing:{number} color c{} level {} size {number}",
            number % 7,
            number % 3
        );
        line.split(' ').map(str::to_owned).collect()
    });
    let replies = call_all(client, &puts.collect::<Vec<_>>());
    assert!(replies.iter().all(|reply| reply == ":3"));
    super::wait_until_indexed(client, "things");
}

/// Returns the subspaces in FT.INFO, separated by spaces.
fn subspaces(client: &mut Client) -> String {
    let info = send(client, "FT.INFO things");
    let rest = info.split("|subspaces|").nth(1).expect("they are reported");
    let words = rest.split('|').take_while(|word| *word != "regions");
    let names = words.filter(|word| !word.starts_with(['*', '$']));
    names.collect::<Vec<_>>().join(" ")
}

fn switch(client: &mut Client) {
    until("the new subspaces are complete", || {
        let reply = send(client, "FT.ALTER things SUBSPACES SWITCH");
        assert!(reply == "+OK" || reply.starts_with("-TRYAGAIN "), "{reply}");
        reply == "+OK"
    });
}

/// Waits until the search uses this subspace.
fn wait_until_searched(client: &mut Client, query: &str, subspace: &str) {
    until("searches use the subspace", || {
        let explained = call(client, &["FT.EXPLAIN", "things", query]);
        explained.contains(&format!("subspace {subspace}: "))
    });
}

#[test]
fn complete_subspaces_take_over_and_unchanged_ones_are_not_refilled() {
    let mut server = server(3);
    let client = &mut Client::connect(&server);
    declare(client, 1500, "SUBSPACES 2 color level REGIONS 16 ");
    until("the subspaces are cut", || {
        info_number(client, "things", "cuts") >= Some(1.0)
    });
    let query = "@color:{c3}";
    wait_until_searched(client, query, "color");
    assert_eq!(
        send(client, "FT.ALTER things SUBSPACES 2 size:3 color"),
        "+OK"
    );
    // Meanwhile, searches use the subspace that stays, and do not use the new one before the switch.
    wait_until_searched(client, query, "color");
    let range = "@size:[100 150]";
    let explained = call(client, &["FT.EXPLAIN", "things", range]);
    assert!(!explained.contains("subspace size"), "{explained}");
    assert_eq!(subspaces(client), "color level");
    let info = send(client, "FT.INFO things");
    assert!(
        info.contains("|filling|*12|$9|subspaces|*2|$6|size:3|$5|color|$7|regions|:16|"),
        "{info}"
    );
    // Repeating the command is not an error, because a client that did not receive the reply may send it again.
    assert_eq!(
        send(client, "FT.ALTER things SUBSPACES 2 color:4 size:3"),
        "+OK"
    );
    until("all copies have arrived", || {
        info_number(client, "things", "regions filled") == Some(8.0)
    });
    assert_eq!(info_number(client, "things", "of"), Some(1500.0));
    // A restart keeps the change in progress.
    server.restart(|_| {});
    let client = &mut Client::connect(&server);
    assert_eq!(subspaces(client), "color level");
    wait_until_searched(client, query, "color");
    switch(client);
    assert_eq!(subspaces(client), "size:3 color");
    // The cuts were chosen from the values at the start of the change, so that a range is in few regions.
    wait_until_searched(client, range, "size");
    let found = super::search_keys(client, "things", range);
    assert_eq!(found.split(' ').count(), 51);
    assert!(!send(client, "FT.INFO things").contains("|filling|"));
    // Changes to no subspaces, and from none.
    assert_eq!(send(client, "FT.ALTER things SUBSPACES 0"), "+OK");
    switch(client);
    assert_eq!(subspaces(client), "");
    until("all copies are removed", || {
        info_number(client, "things", "copies").is_none()
    });
    assert_eq!(send(client, "FT.ALTER things SUBSPACES 1 level:2"), "+OK");
    assert_eq!(send(client, "FT.ALTER things SUBSPACES CANCEL"), "+OK");
    assert_eq!(
        send(client, "FT.ALTER things SUBSPACES 1 level,size REGIONS 64"),
        "+OK"
    );
    switch(client);
    wait_until_searched(client, "@level==2", "level,size");
    let dump = send(client, "FT.INFO things");
    assert!(
        dump.contains("|SUBSPACES|$1|1|$10|level,size|$7|REGIONS|$2|64|"),
        "{dump}"
    );
}

#[test]
fn complete_indexes_take_over_and_copies_are_not_refilled() {
    for threads in [1, 3] {
        let mut server = server(threads);
        let client = &mut Client::connect(&server);
        declare(client, 1500, "SUBSPACES 1 color REGIONS 16 INDEX 1 color ");
        let range = "@size:[100 150]";
        let explained = |client: &mut Client| call(client, &["FT.EXPLAIN", "things", range]);
        if threads > 1 {
            until("the subspaces are cut", || {
                info_number(client, "things", "cuts") >= Some(1.0)
            });
            wait_until_searched(client, "@color:{c3}", "color");
        }
        let reply = explained(client);
        assert!(reply.contains("all objects"), "{reply}");
        let cuts = info_number(client, "things", "cuts");
        assert_eq!(
            send(client, "FT.ALTER things INDEX 2 size level,size"),
            "+OK"
        );
        // The copies did not move.
        if threads > 1 {
            wait_until_searched(client, "@color:{c3}", "color");
        }
        let found = super::search_keys(client, "things", range);
        assert_eq!(found.split(' ').count(), 51, "{found}");
        assert_eq!(send(client, "HSET thing:120 size 5000"), ":0");
        super::wait_until_indexed(client, "things");
        let reply = explained(client);
        assert!(reply.contains("index size, a range"), "{reply}");
        let found = super::search_keys(client, "things", range);
        assert_eq!(found.split(' ').count(), 50, "{found}");
        assert_eq!(info_number(client, "things", "cuts"), cuts);
        let dump = send(client, "FT.INFO things");
        assert!(
            dump.contains("|INDEX|$1|2|$4|size|$10|level,size|"),
            "{dump}"
        );
        // A restart keeps the declared indexes.
        assert_eq!(send(client, "FT.ALTER things INDEX DEFAULT"), "+OK");
        server.restart(|_| {});
        let client = &mut Client::connect(&server);
        super::wait_until_indexed(client, "things");
        let reply = call(client, &["FT.EXPLAIN", "things", "@level==2"]);
        assert!(reply.contains("index level, a range"), "{reply}");
        assert!(!send(client, "FT.INFO things").contains("|INDEX|"));
    }
}

#[test]
fn rejected_layout_changes_explain_the_reason_and_the_remedy() {
    for threads in [1, 2] {
        let server = server(threads);
        let client = &mut Client::connect(&server);
        declare(client, 20, "SUBSPACES 1 color ");
        let mut refuses = |line: &str, why: &str| {
            let reply = send(client, &format!("FT.ALTER things {line}"));
            assert!(
                reply.starts_with('-') && reply.contains(why),
                "{line}: {reply}"
            );
        };
        refuses(
            "SUBSPACES 1 town",
            "\"town\" is not an attribute of the schema",
        );
        refuses("SUBSPACES 1 color:99", "is not a number of bits");
        refuses("SUBSPACES 2 color", "2 arguments should follow, and 1 do");
        refuses("SUBSPACES 2 size size:8", "occurs twice");
        refuses("SUBSPACES 1 size REGIONS 7", "7 is not a power of two");
        refuses("SUBSPACES 1 size INDEX 1 size", "Unknown argument `INDEX`");
        refuses("SUBSPACES now", "\"now\" is neither the number of lists");
        refuses("SUBSPACES SWITCH now", "nothing may follow SWITCH");
        refuses("SUBSPACES 1 color:8", "already has these subspaces: color");
        refuses(
            "SUBSPACES SWITCH",
            "no subspaces of things are being filled",
        );
        refuses(
            "SUBSPACES CANCEL",
            "no subspaces of things are being filled",
        );
        refuses("SHAPE round", "must be followed by SCHEMA");
        refuses("INDEX 1 town", "\"town\" is not an attribute of the schema");
        refuses("INDEX 2 size", "2 arguments should follow, and 1 do");
        refuses("INDEX DEFAULT", "the space already has these indexes");
        refuses("INDEX 1 size REGIONS 8", "Unknown argument `REGIONS`");
        assert_eq!(send(client, "FT.ALTER things SUBSPACES 1 size"), "+OK");
        let mut refuses = |line: &str, why: &str| {
            let reply = send(client, &format!("FT.ALTER things {line}"));
            assert!(
                reply.starts_with('-') && reply.contains(why),
                "{line}: {reply}"
            );
        };
        refuses(
            "SUBSPACES 1 level",
            "are already being changed to size: complete the change with FT.ALTER things SUBSPACES SWITCH",
        );
        refuses("SCHEMA DROP size", "a subspace uses it");
        refuses("SCHEMA DROP color", "a subspace uses it");
        assert_eq!(
            send(client, "FT.ALTER nothing SUBSPACES 1 level"),
            "-Unknown index name"
        );
        // The schema can change while a change of subspaces is in progress.
        assert_eq!(send(client, "FT.ALTER things SCHEMA ADD note TEXT"), "+OK");
        switch(client);
        assert_eq!(subspaces(client), "size");
        assert_eq!(send(client, "FT.ALTER things SCHEMA DROP color"), "+OK");
    }
}
