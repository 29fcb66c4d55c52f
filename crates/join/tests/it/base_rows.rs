//! Base rows whose ownership a shard gains and loses.

use std::ops::ControlFlow;

use larder_join::{BeforeImage, Engine, Limits, LogEntry};

fn read(engine: &mut Engine, lo: &str, hi: &str, now: u64) -> Vec<String> {
    let mut rows = Vec::new();
    let (lo, hi) = (lo.as_bytes(), hi.as_bytes());
    let outcome = engine.range(lo, hi, Limits::default(), now, &mut |key, value| {
        rows.push(String::from_utf8([key, b"=", value].concat()).unwrap());
        ControlFlow::Continue(())
    });
    outcome.unwrap().done().unwrap();
    rows
}

fn rows(engine: &Engine, lo: &str, hi: &str) -> Vec<(String, Option<u64>)> {
    let mut rows = Vec::new();
    engine.read_base_rows(lo.as_bytes(), hi.as_bytes(), &mut |key, value, at| {
        let text = [key, b"=", value].concat();
        rows.push((String::from_utf8(text).unwrap(), at));
        ControlFlow::Continue(())
    });
    rows
}

#[test]
fn adopted_rows_update_joins_and_are_not_logged() {
    let mut engine = Engine::new();
    engine.record_changes(true);
    engine.enable_before_images(true);
    engine
        .create("feed", "feed|<user>|<id> = copy post|<user>|<id>", 1)
        .unwrap();
    engine.take_changes();
    engine.put(b"post|ann|1", b"a", 1).unwrap();
    assert_eq!(
        read(&mut engine, "feed|ann|", "feed|ann}", 1),
        ["feed|ann|1=a"]
    );
    assert_eq!(engine.take_changes().len(), 1);
    engine.adopt(b"post|ann|2", b"b", Some(50)).unwrap();
    assert_eq!(
        read(&mut engine, "feed|ann|", "feed|ann}", 2),
        ["feed|ann|1=a", "feed|ann|2=b"]
    );
    assert!(engine.take_changes().is_empty());
    assert_eq!(
        rows(&engine, "post|", "post}"),
        [
            ("post|ann|1=a".to_owned(), None),
            ("post|ann|2=b".to_owned(), Some(50))
        ]
    );
    assert!(engine.remove_unowned(b"post|ann|1") && !engine.remove_unowned(b"post|ann|9"));
    assert_eq!(
        read(&mut engine, "feed|ann|", "feed|ann}", 3),
        ["feed|ann|2=b"]
    );
    assert!(engine.take_changes().is_empty());
    // The row expires as usual, and the removal is logged.
    assert!(read(&mut engine, "feed|ann|", "feed|ann}", 50).is_empty());
    let changes = engine.take_changes();
    let removed = LogEntry::Remove {
        key: b"post|ann|2".to_vec(),
    };
    assert!(changes.contains(&removed), "{changes:?}");
    assert_eq!(engine.next_expiry(), None);
}

#[test]
fn rows_adopted_after_their_expiry_stay_until_they_are_read() {
    let mut engine = Engine::new();
    engine.record_changes(true);
    engine.adopt(b"t|a|1", b"x", Some(5)).unwrap();
    assert_eq!(engine.base_row(b"t|a|1"), Some((&b"x"[..], Some(5))));
    engine.begin(10);
    assert_eq!(engine.base_row(b"t|a|1"), None);
    assert!(!engine.take_changes().is_empty());
}

#[test]
fn before_images_are_recorded_for_changed_rows() {
    let mut engine = Engine::new();
    engine.record_changes(true);
    engine.put(b"t|a|1", b"x", 1).unwrap();
    engine.expire(b"t|a|1", Some(9), 1).unwrap();
    assert!(engine.take_before_images().is_empty(), "recording is off");
    engine.enable_before_images(true);
    engine.put(b"t|a|1", b"y", 2).unwrap();
    engine.remove(b"t|a|1", 2).unwrap();
    engine.put(b"t|a|2", b"z", 2).unwrap();
    let images = engine.take_before_images();
    let first = BeforeImage {
        key: b"t|a|1"[..].into(),
        value: Some(b"x"[..].into()),
        expires_at: Some(9),
    };
    assert_eq!(images.first(), Some(&first));
    let of_two: Vec<_> = images.iter().filter(|it| *it.key == *b"t|a|2").collect();
    assert_eq!(of_two.len(), 1);
    assert_eq!(of_two[0].value, None);
    engine.expire(b"t|a|2", Some(5), 3).unwrap();
    engine.begin(5);
    let images = engine.take_before_images();
    assert_eq!(images[0].value.as_deref(), Some(&b"z"[..]));
    assert_eq!(
        (images[0].expires_at, images[1].expires_at),
        (None, Some(5))
    );
}
