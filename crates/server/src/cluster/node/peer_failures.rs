//! Tracks which nodes this one cannot reach, and why. Lasting failures are logged and included in this node's report, which all
//! nodes receive.
//!
//! Short failures are not reported: a lost connection is soon replaced, and a dead node is soon down in the map. A failure must
//! last longer than a lease, so that the death of a node is not reported by all others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use larder_cluster::controller::Report;
use larder_cluster::map::{Map, MemberState, NodeName};

/// Added to the lease duration.
const LASTING_MS: u64 = 1_000;

pub struct PeerFailures {
    lasting_ms: u64,
    failures: Mutex<BTreeMap<NodeName, PeerFailure>>,
}

struct PeerFailure {
    since_ms: u64,
    /// The reported reason, once the failure has lasted long enough.
    reported: Option<String>,
}

impl PeerFailures {
    pub fn new(lease_ms: u64) -> PeerFailures {
        PeerFailures {
            lasting_ms: lease_ms + LASTING_MS,
            failures: Mutex::default(),
        }
    }

    /// Records that a node was reached, or the reason why not. Returns whether [`PeerFailures::lasting_failures`] has changed.
    pub fn record(&self, node: &NodeName, how: Result<(), &str>, now_ms: u64) -> bool {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match how {
            Err(why) => why,
            Ok(()) => {
                let was_told = all.remove(node).is_some_and(|lost| lost.reported.is_some());
                if was_told {
                    tracing::info!(%node, "the node can be reached again");
                }
                return was_told;
            }
        };
        let lost = all.entry(node.clone()).or_insert(PeerFailure {
            since_ms: now_ms,
            reported: None,
        });
        let lasts = now_ms.saturating_sub(lost.since_ms) >= self.lasting_ms;
        if !lasts || lost.reported.as_deref() == Some(why) {
            return false;
        }
        tracing::warn!(%node, why, "this node cannot reach another node that is connected to etcd");
        lost.reported = Some(why.to_owned());
        true
    }

    /// Discards all other nodes. Returns whether [`PeerFailures::lasting_failures`] has changed.
    pub fn retain(&self, nodes: impl Fn(&NodeName) -> bool) -> bool {
        let mut all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let count_reported = |all: &BTreeMap<NodeName, PeerFailure>| {
            all.values().filter(|lost| lost.reported.is_some()).count()
        };
        let before = count_reported(&all);
        all.retain(|node, _| nodes(node));
        count_reported(&all) != before
    }

    /// The nodes that could not be reached for a long time, with the reason.
    pub fn lasting_failures(&self) -> BTreeMap<NodeName, String> {
        let all = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let lasting = all.iter().filter_map(|(node, lost)| {
            let why = lost.reported.clone()?;
            Some((node.clone(), why))
        });
        lasting.collect()
    }
}

/// Returns the nodes that report that they cannot reach `node`, and the first one's reason. Ignores nodes that are down, in both
/// roles.
pub fn find_reporters<'a>(
    map: &'a Map,
    reports: &'a BTreeMap<NodeName, Report>,
    node: &NodeName,
) -> (Vec<&'a NodeName>, &'a str) {
    let is_there = |name: &NodeName| {
        map.member_named(name)
            .is_some_and(|member| member.state != MemberState::Down)
    };
    let mut by = Vec::new();
    let mut first = "";
    if !is_there(node) {
        return (by, first);
    }
    for member in map.members() {
        let report = reports.get(member.name());
        let report = report.filter(|it| it.incarnation == member.registration.incarnation);
        if let Some(why) = report.and_then(|it| it.unreached.get(node))
            && is_there(member.name())
        {
            first = if by.is_empty() { why } else { first };
            by.push(member.name());
        }
    }
    by.sort_unstable();
    (by, first)
}

/// One sentence for each node that others cannot reach.
pub fn describe_failures(map: &Map, reports: &BTreeMap<NodeName, Report>) -> Vec<String> {
    let named: BTreeSet<&NodeName> = reports
        .values()
        .flat_map(|report| report.unreached.keys())
        .collect();
    let sentences = named.into_iter().filter_map(|name| {
        let (by, why) = find_reporters(map, reports, name);
        (!by.is_empty()).then(|| describe_failure(name, &by, why))
    });
    sentences.collect()
}

pub fn describe_failure(node: &NodeName, by: &[&NodeName], why: &str) -> String {
    let by: Vec<&str> = by.iter().map(|name| name.as_str()).collect();
    let by = by.join(", ");
    format!("node {node} is connected to etcd, and cannot be reached by {by}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lasting_failure_is_reported_once_and_withdrawn() {
        let (reach, node) = (PeerFailures::new(2_000), "b".parse().unwrap());
        assert!(!reach.record(&node, Err("refused"), 10_000));
        assert!(!reach.record(&node, Err("refused"), 12_999));
        assert!(reach.lasting_failures().is_empty());
        assert!(reach.record(&node, Err("refused"), 13_000));
        assert!(
            !reach.record(&node, Err("refused"), 14_000),
            "the reason is unchanged"
        );
        assert!(reach.record(&node, Err("certificate"), 15_000));
        assert_eq!(reach.lasting_failures().get(&node).unwrap(), "certificate");
        assert!(reach.record(&node, Ok(()), 16_000));
        assert!(reach.lasting_failures().is_empty());
        assert!(
            !reach.record(&node, Err("refused"), 17_000),
            "the time starts again"
        );
        assert!(reach.record(&node, Err("refused"), 20_000));
        assert!(reach.retain(|_| false) && reach.lasting_failures().is_empty());
    }
}
