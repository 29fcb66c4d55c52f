//! Maps for tests.

use larder_cluster::map::{
    Change, ChangeId, DiskId, Incarnation, Map, NodeId, Registration, Roles, Settings, SlotRange,
};

pub fn registration(number: u32, zone: &str, weight: u32) -> Registration {
    let ip = format!("10.0.{}.{}", number / 256, number % 256);
    Registration {
        name: format!("node-{number:04}").parse().expect("a name"),
        incarnation: Incarnation(1),
        disk: DiskId(u64::from(number)),
        resp: format!("{ip}:7379"),
        http: format!("{ip}:7070"),
        peer: format!("{ip}:7390"),
        hostname: None,
        cores: 8,
        zone: zone.into(),
        weight,
        roles: Roles::Both,
    }
}

#[track_caller]
pub fn apply(map: &Map, change: Change) -> Map {
    let id = ChangeId(format!("change-{}", map.epoch()));
    let next = map.apply(&change, &id).expect("a change that fits");
    assert_eq!(next.check(), Ok(()));
    next
}

#[track_caller]
pub fn refused(map: &Map, change: Change) -> String {
    let refused = map.apply(&change, &ChangeId("x".into()));
    refused.expect_err("a change that does not fit").to_string()
}

/// A map with `count` members that are up, numbered from 1, in three zones. No slots are placed yet.
pub fn members(count: u32, replicas: u8) -> Map {
    let settings = Settings {
        replicas,
        ..Settings::default()
    };
    let mut map = Map::new("test", settings);
    for number in 1..=count {
        let registration = registration(number, &format!("zone-{}", number % 3), 1);
        map = apply(
            &map,
            Change::MemberAdded {
                registration,
                at_ms: 1,
            },
        );
    }
    let nodes = (1..=count).map(NodeId).collect();
    apply(&map, Change::MembersAdmitted { nodes, at_ms: 2 })
}

/// Three members with all slots: each owns a third, and the next node is its replica.
pub fn three() -> Map {
    let goals = vec![
        (SlotRange::new(0, 5460), vec![NodeId(1), NodeId(2)]),
        (SlotRange::new(5461, 10922), vec![NodeId(2), NodeId(3)]),
        (SlotRange::new(10923, 16383), vec![NodeId(3), NodeId(1)]),
    ];
    let taken = Change::PlacementReplaced {
        goals,
        outputs: Vec::new(),
        from: 7,
    };
    apply(&members(3, 2), taken)
}

/// The hand-overs that owners make on their own, for owners that satisfy `gives`. `None` if there are none.
pub fn hand_over_change(map: &Map, gives: impl Fn(NodeId) -> bool) -> Option<Change> {
    let runs = map.slots().runs().iter();
    let given = runs.filter(|run| run.placement.owner.is_some_and(&gives));
    let slots: Vec<_> = given
        .filter_map(|run| Some((run.slots, run.placement.next_owner()?)))
        .collect();
    (!slots.is_empty()).then_some(Change::OwnersMoved { slots })
}
