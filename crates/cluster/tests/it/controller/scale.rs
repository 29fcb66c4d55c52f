//! A thousand nodes: the size of the map, and the number of changes when a node joins or dies.

use std::collections::BTreeMap;

use larder_cluster::controller::{Decision, Inputs, Report, SyncedReplica, decide};
use larder_cluster::map::{ChangeId, Lookup, Map, NodeId, NodeName, Registration, Settings};

use crate::maps::{hand_over_change, registration};

/// Reports in which every node has completed its work: all fills are in sync.
fn reports(map: &Map) -> BTreeMap<NodeName, Report> {
    let mut reports: BTreeMap<NodeName, Report> = BTreeMap::new();
    for run in map.slots().runs() {
        for filling in &run.placement.filling {
            let owner = map
                .member(run.placement.owner.expect("it has one"))
                .expect("a member");
            let report = reports.entry(owner.name().clone()).or_default();
            report.incarnation = owner.registration.incarnation;
            report.synced.push(SyncedReplica {
                slots: run.slots,
                term: run.placement.term,
                node: filling.node,
                began: filling.began,
            });
        }
    }
    reports
}

/// Runs the controller until there is nothing to do. Returns the number of changes.
fn settle(map: &mut Map, registered: &BTreeMap<NodeName, Registration>, now_ms: u64) -> u32 {
    for changes in 0..3_000 {
        let reports = reports(map);
        let world = Inputs {
            map,
            now_ms,
            registered,
            reports: &reports,
            requests: &[],
        };
        match decide(&world) {
            Decision::Change { change, .. } => {
                *map = map.apply(&change, &ChangeId::default()).expect("it fits")
            }
            Decision::Wait { blocked, .. } => {
                assert_eq!(blocked, [""; 0]);
                let Some(change) = hand_over_change(map, |_| true) else {
                    return changes;
                };
                *map = map.apply(&change, &ChangeId::default()).expect("it fits");
            }
            answer => panic!("{answer:?}"),
        }
    }
    panic!("it does not come to rest");
}

#[test]
fn a_cluster_of_a_thousand_nodes_takes_few_changes() {
    let count = 1000;
    let settings = Settings {
        replicas: 3,
        start_nodes: count,
        fill_slots_at_once: 2_048,
        ..Settings::default()
    };
    let all =
        (1..=count + 1).map(|number| registration(number, &format!("zone-{}", number % 5), 1));
    let mut registered: BTreeMap<NodeName, Registration> =
        all.map(|it| (it.name.clone(), it)).collect();
    let last = registered.pop_last().expect("one more");
    let mut map = Map::new("large", settings.clone());
    let start = settle(&mut map, &registered, 1_000);
    let bytes = map.to_text().len();
    let entries = Lookup::new(&map).served_ranges().len();
    println!(
        "{count} nodes: {start} changes to start, a map of {bytes} bytes, {entries} entries of CLUSTER SLOTS"
    );
    assert!(
        start <= count + 2,
        "each node is added, all are admitted and placed at once"
    );

    registered.insert(last.0.clone(), last.1);
    let join = settle(&mut map, &registered, 2_000);
    registered.remove(&last.0);
    let death = settle(&mut map, &registered, 3_000);
    let replaced = settle(&mut map, &registered, 3_000 + settings.replace_after_ms);
    println!(
        "a join takes {join} changes, a death {death}, and its replacement {replaced}; the map has {} bytes",
        map.to_text().len()
    );
    assert!(
        join <= 60 && death == 1 && replaced <= 60,
        "{join} {death} {replaced}"
    );
    assert!(
        map.slots()
            .runs()
            .iter()
            .all(|run| run.placement.is_settled() && run.placement.owner != Some(NodeId(count + 1)))
    );
    assert!(map.to_text().len() < 1_000_000);
}
