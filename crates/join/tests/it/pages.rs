//! Pages of several joins, read completely and in parts.

use std::ops::ControlFlow;

use larder_join::{Engine, Limits, ReadOutcome};

fn read(engine: &mut Engine, lo: &str, hi: &str) -> Vec<String> {
    let mut rows = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut each = |key: &[u8], value: &[u8]| {
        rows.push(format!("{} {}", text(key), text(value)));
        ControlFlow::Continue(())
    };
    let limits = Limits::default();
    let read = engine.range(lo.as_bytes(), hi.as_bytes(), limits, 0, &mut each);
    assert_eq!(read, Ok(ReadOutcome::Done(())));
    rows
}

fn put(engine: &mut Engine, key: &str, value: &str) {
    let written = engine.put(key.as_bytes(), value.as_bytes(), 0);
    written.expect("put");
}

fn remove(engine: &mut Engine, key: &str) {
    engine.remove(key.as_bytes(), 0).expect("removed");
}

/// A profile of which the owner sees all rows, and others all but the last. Every join fills each page once, whichever
/// part is read first.
#[test]
fn parts_of_a_page_are_filled_once_in_any_order_of_reads() {
    let mut engine = Engine::new();
    for (name, definition) in [
        ("person", "page|<m>|1 = copy person|<m>"),
        ("friends", "page|<m>|2 = count friend|<m>|<f>"),
        ("invitations", "page|<m>|3 = count invite|<m>|<i>"),
    ] {
        engine.create(name, definition, 0).expect("created");
    }
    for member in ["a", "b"] {
        put(&mut engine, &format!("person|{member}"), "it");
        put(&mut engine, &format!("friend|{member}|x"), "");
        put(&mut engine, &format!("friend|{member}|y"), "");
        put(&mut engine, &format!("invite|{member}|z"), "");
    }
    let filled = |engine: &Engine| {
        ["person", "friends", "invitations"].map(|join| engine.info(join).expect("a join").filled)
    };
    let all = ["page|a|1 it", "page|a|2 2", "page|a|3 1"];
    assert_eq!(read(&mut engine, "page|a|", "page|a|3"), all[..2]);
    assert_eq!(
        filled(&engine),
        [1, 1, 0],
        "the last join has no rows in that part"
    );
    assert_eq!(read(&mut engine, "page|a|", "page|a}"), all);
    assert_eq!(read(&mut engine, "page|a|2", "page|a|3"), all[1..2]);
    assert_eq!(filled(&engine), [1, 1, 1]);
    assert_eq!(read(&mut engine, "page|b|", "page|b}").len(), 3);
    assert_eq!(read(&mut engine, "page|b|", "page|b|3").len(), 2);
    assert_eq!(filled(&engine), [2, 2, 2]);

    put(&mut engine, "friend|a|v", "");
    remove(&mut engine, "invite|a|z");
    remove(&mut engine, "person|a");
    assert_eq!(read(&mut engine, "page|a|", "page|a|3"), ["page|a|2 3"]);
    put(&mut engine, "person|a", "again");
    put(&mut engine, "invite|a|q", "");
    for friend in ["v", "x", "y"] {
        remove(&mut engine, &format!("friend|a|{friend}"));
    }
    let left = ["page|a|1 again", "page|a|3 1"];
    assert_eq!(read(&mut engine, "page|a|", "page|a}"), left);
    assert_eq!(read(&mut engine, "page|", "page}").len(), 5);
}

#[test]
fn the_first_parts_of_a_page_are_read_by_group() {
    let mut engine = Engine::new();
    for (name, definition) in [
        ("person", "page|<m:1>|1 = copy person|<m>"),
        ("friends", "page|<m:1>|2 = count friend|<m>|<f>"),
        ("invitations", "page|<m:1>|3 = count invite|<m>|<i>"),
    ] {
        engine.create(name, definition, 0).expect("created");
    }
    put(&mut engine, "person|a", "it");
    put(&mut engine, "friend|a|x", "");
    put(&mut engine, "invite|a|z", "");
    let all = ["page|a|1 it", "page|a|2 1", "page|a|3 1"];
    let by_groups = |engine: &mut Engine, hi: &str, wanted: &[&str]| {
        let before = engine.pages_read();
        assert_eq!(read(engine, "page|a|", hi), wanted);
        engine.pages_read() - before
    };
    // The first read is of a part in which one join has no rows. The first read fills; the next one finds the groups.
    by_groups(&mut engine, "page|a|3", &all[..2]);
    by_groups(&mut engine, "page|a|3", &all[..2]);
    assert_eq!(by_groups(&mut engine, "page|a|3", &all[..2]), 1);
    by_groups(&mut engine, "page|a}", &all);
    by_groups(&mut engine, "page|a}", &all);
    assert_eq!(by_groups(&mut engine, "page|a}", &all), 1);
    assert_eq!(by_groups(&mut engine, "page|a|2", &all[..1]), 1);
    assert_eq!(by_groups(&mut engine, "page|a|3|", &all), 0);
    assert_eq!(by_groups(&mut engine, "page|a|30", &all), 0);
    put(&mut engine, "friend|a|y", "");
    assert_eq!(
        by_groups(&mut engine, "page|a|3", &["page|a|1 it", "page|a|2 2"]),
        1
    );
    remove(&mut engine, "person|a");
    assert_eq!(by_groups(&mut engine, "page|a|3", &["page|a|2 2"]), 1);
}
