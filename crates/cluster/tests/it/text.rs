//! The text form of the map: stable, strict, and small enough for etcd.

use larder_cluster::map::{Change, Map, NodeId, SlotRange, TextError};

use crate::maps::{apply, members, three};

#[test]
fn the_text_of_a_map_matches_the_recorded_one() {
    let map = three();
    let text = map.to_text();
    let expected = concat!(
        r#"{"format":1,"cluster":"test","epoch":5,"last_change":"change-4","#,
        r#""settings":{"replicas":2,"acknowledge":"replicas","lease_ms":4000,"replace_after_ms":300000,"start_nodes":1,"#,
        r#""admit_new_nodes":true,"spare_percent":5,"fill_slots_at_once":128,"versions_kept":2,"push_silence_ms":1800000},"#,
        r#""next_node":4,"members":["#,
        r#"{"id":1,"registration":{"name":"node-0001","incarnation":1,"disk":1,"resp":"10.0.0.1:7379","http":"10.0.0.1:7070","#,
        r#""peer":"10.0.0.1:7390","cores":8,"zone":"zone-1","weight":1,"roles":"both"},"state":"up","since_ms":2},"#,
        r#"{"id":2,"registration":{"name":"node-0002","incarnation":1,"disk":2,"resp":"10.0.0.2:7379","http":"10.0.0.2:7070","#,
        r#""peer":"10.0.0.2:7390","cores":8,"zone":"zone-2","weight":1,"roles":"both"},"state":"up","since_ms":2},"#,
        r#"{"id":3,"registration":{"name":"node-0003","incarnation":1,"disk":3,"resp":"10.0.0.3:7379","http":"10.0.0.3:7070","#,
        r#""peer":"10.0.0.3:7390","cores":8,"zone":"zone-0","weight":1,"roles":"both"},"state":"up","since_ms":2}],"#,
        r#""slots":[[0,5460,5,1,[2]],[5461,10922,5,2,[3]],[10923,16383,5,3,[1]]],"placed_from":7,"next_definition":1}"#,
    );
    assert_eq!(text, expected);
    assert_eq!(Map::from_text(&text), Ok(map));
}

#[test]
fn fills_and_goals_survive_the_text_form() {
    let map = apply(
        &three(),
        Change::PlacementReplaced {
            goals: vec![(SlotRange::new(10, 20), vec![NodeId(3), NodeId(2)])],
            outputs: vec![(SlotRange::ALL, NodeId(2))],
            from: 8,
        },
    );
    let slots = vec![(SlotRange::new(10, 19), NodeId(3))];
    let map = apply(&map, Change::FillsBegun { slots });
    let text = map.to_text();
    assert!(
        text.contains("[10,19,5,1,[2],[[3,7]],[3,2]],[20,20,5,1,[2],[],[3,2]]"),
        "{text}"
    );
    assert_eq!(Map::from_text(&text), Ok(map));
}

#[test]
fn an_unknown_field_or_format_is_rejected() {
    let text = three().to_text();
    let with = |old: &str, new: &str| Map::from_text(&text.replacen(old, new, 1)).expect_err(new);

    let other = with(r#""format":1"#, r#""format":2,"more":0"#);
    assert_eq!(other, TextError::Format { found: 2 });
    for (old, new) in [
        (r#""epoch":5"#, r#""epoch":5,"colour":1"#),
        (r#""weight":1"#, r#""weight":1,"colour":1"#),
        (r#""replicas":2"#, r#""replicas":2,"colour":1"#),
    ] {
        let error = with(old, new).to_string();
        assert!(error.contains("unknown field `colour`"), "{error}");
    }
    let error = with("[0,5460,5,1,[2]]", "[0,5460,5,1,[2],[],[1,3],9]").to_string();
    assert!(error.contains("5 to 7 elements"), "{error}");
    let error = with("[0,5460,5,1,[2]]", "[0,5460,5,1]").to_string();
    assert!(error.contains("5 to 7 elements"), "{error}");
}

#[test]
fn a_text_that_violates_an_invariant_is_rejected_with_its_number() {
    let text = three().to_text();
    let stores =
        r#""placed_from":7,"stores":{"s":{"next":2,"live":{"version":2,"source":"","digest":""}}}"#;
    let outputs = r#""placed_from":7,"outputs":[[0,16000,1]]"#;
    for (invariant, old, new) in [
        (1, "[0,5460,", "[0,5459,"),
        (1, "[5461,10922,5,2,[3]]", "[5461,10922,5,1,[2]]"),
        (1, "[10923,16383,", "[10923,16380,"),
        (2, "5,1,[2]", "5,1,[1]"),
        (2, "5,1,[2]", "5,1,[9]"),
        (2, "5,1,[2]", "5,1,[3,2]"),
        (2, r#""roles":"both""#, r#""roles":"compute""#),
        (3, "5,1,[2]", "5,null,[2]"),
        (4, "5,1,[2]", "6,1,[2]"),
        (4, "5,1,[2]", "5,1,[2],[[3,6]]"),
        (5, "5,1,[2]", "5,1,[2],[],[1,2]"),
        (5, "5,1,[2]", "5,1,[2],[],[3,3]"),
        (6, r#""state":"up""#, r#""state":"down""#),
        (7, r#""next_node":4"#, r#""next_node":3"#),
        (7, r#""name":"node-0002""#, r#""name":"node-0001""#),
        (8, r#""placed_from":7"#, stores),
        (
            9,
            r#""next_definition":1"#,
            r#""next_definition":1,"joins":{"a":{"text":"","number":1}}"#,
        ),
        (10, r#""replicas":2"#, r#""replicas":0"#),
        (11, r#""placed_from":7"#, outputs),
    ] {
        assert!(text.contains(old), "{old}");
        match Map::from_text(&text.replacen(old, new, 1)) {
            Err(TextError::Broken(broken)) => {
                assert_eq!(broken.invariant, invariant, "{new}: {broken}")
            }
            other => panic!("{new}: {other:?}"),
        }
    }
}

/// etcd accepts requests of at most 1.5 MiB. The largest map of a thousand nodes and three replicas has a run for every slot; a
/// map with runs of 16 slots has a fifth of that size.
#[test]
fn a_map_of_a_thousand_members_fits_into_one_request_of_etcd() {
    let mut map = members(1000, 3);
    let goals = |length: u16| -> Vec<(SlotRange, Vec<NodeId>)> {
        let runs = 16_384 / u32::from(length);
        let runs = (0..runs).map(|at| {
            let from = at as u16 * length;
            let node = |step: u32| NodeId(1 + (at * 7 + step * 331) % 1000);
            (
                SlotRange::new(from, from + length - 1),
                vec![node(0), node(1), node(2)],
            )
        });
        runs.collect()
    };
    let mut bytes = Vec::new();
    for length in [16, 1] {
        map = apply(
            &members(1000, 3),
            Change::PlacementReplaced {
                goals: goals(length),
                outputs: Vec::new(),
                from: 1,
            },
        );
        bytes.push(map.to_text().len());
    }
    println!(
        "1,000 members, 3 replicas: {} bytes in runs of 16, {} bytes in runs of 1",
        bytes[0], bytes[1]
    );
    assert_eq!(map.slots().runs().len(), 16_384);
    assert!(bytes[0] < 300_000, "{bytes:?}");
    assert!(bytes[1] < 1_000_000, "{bytes:?}");
    assert_eq!(Map::from_text(&map.to_text()), Ok(map));
}
