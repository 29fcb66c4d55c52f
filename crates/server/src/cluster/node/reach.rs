//! Tracks which nodes this one cannot reach, and why. Lasting failures are logged and included in this node's report, which all
//! nodes receive.
//!
//! Short failures are not reported: a lost connection is soon replaced, and a dead node is soon down in the map. A failure must
//! last longer than a lease, so that the death of a node is not reported by all others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

use larder_cluster::controller::Report;
use larder_cluster::map::{Map, NodeName, State};

/// Added to the lease duration.
const LASTING_MS: u64 = 1_000;

pub struct Reach {
    lasting_ms: u64,
    lost: Mutex<BTreeMap<NodeName, Lost>>,
}

struct Lost {
    since_ms: u64,
    /// The reported reason, once the failure has lasted long enough.
    told: Option<String>,
}

impl Reach {
    pub fn new(lease_ms: u64) -> Reach {
        Reach {
            lasting_ms: lease_ms + LASTING_MS,
            lost: Mutex::default(),
        }
    }

    /// Records that a node was reached, or the reason why not. Returns whether [`Reach::lasting`] has changed.
    pub fn met(&self, node: &NodeName, how: Result<(), &str>, now_ms: u64) -> bool {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match how {
            Err(why) => why,
            Ok(()) => {
                let was_told = all.remove(node).is_some_and(|lost| lost.told.is_some());
                if was_told {
                    tracing::info!(%node, "the node is reached again");
                }
                return was_told;
            }
        };
        let lost = all.entry(node.clone()).or_insert(Lost {
            since_ms: now_ms,
            told: None,
        });
        let lasts = now_ms.saturating_sub(lost.since_ms) >= self.lasting_ms;
        if !lasts || lost.told.as_deref() == Some(why) {
            return false;
        }
        tracing::warn!(%node, why, "another node cannot be reached from here, though it is in touch with etcd");
        lost.told = Some(why.to_owned());
        true
    }

    /// Discards all other nodes. Returns whether [`Reach::lasting`] has changed.
    pub fn keep(&self, nodes: impl Fn(&NodeName) -> bool) -> bool {
        let mut all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let told = |all: &BTreeMap<NodeName, Lost>| {
            all.values().filter(|lost| lost.told.is_some()).count()
        };
        let before = told(&all);
        all.retain(|node, _| nodes(node));
        told(&all) != before
    }

    /// The nodes that could not be reached for a long time, with the reason.
    pub fn lasting(&self) -> BTreeMap<NodeName, String> {
        let all = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        let told = all.iter().filter_map(|(node, lost)| {
            let why = lost.told.clone()?;
            Some((node.clone(), why))
        });
        told.collect()
    }
}

/// Returns the nodes that report that they cannot reach `node`, and the first one's reason. Ignores nodes that are down, in both
/// roles.
pub fn unreached<'a>(
    map: &'a Map,
    reports: &'a BTreeMap<NodeName, Report>,
    node: &NodeName,
) -> (Vec<&'a NodeName>, &'a str) {
    let is_there = |name: &NodeName| {
        map.member_named(name)
            .is_some_and(|member| member.state != State::Down)
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
pub fn told(map: &Map, reports: &BTreeMap<NodeName, Report>) -> Vec<String> {
    let named: BTreeSet<&NodeName> = reports
        .values()
        .flat_map(|report| report.unreached.keys())
        .collect();
    let told = named.into_iter().filter_map(|name| {
        let (by, why) = unreached(map, reports, name);
        (!by.is_empty()).then(|| sentence(name, &by, why))
    });
    told.collect()
}

pub fn sentence(node: &NodeName, by: &[&NodeName], why: &str) -> String {
    let by: Vec<&str> = by.iter().map(|name| name.as_str()).collect();
    let by = by.join(", ");
    format!("node {node} is in touch with etcd, and cannot be reached by {by}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lasts_is_told_once_and_taken_back() {
        let (reach, node) = (Reach::new(2_000), "b".parse().unwrap());
        assert!(!reach.met(&node, Err("refused"), 10_000));
        assert!(!reach.met(&node, Err("refused"), 12_999));
        assert!(reach.lasting().is_empty());
        assert!(reach.met(&node, Err("refused"), 13_000));
        assert!(!reach.met(&node, Err("refused"), 14_000), "nothing is new");
        assert!(reach.met(&node, Err("certificate"), 15_000));
        assert_eq!(reach.lasting().get(&node).unwrap(), "certificate");
        assert!(reach.met(&node, Ok(()), 16_000));
        assert!(reach.lasting().is_empty());
        assert!(!reach.met(&node, Err("refused"), 17_000), "it begins anew");
        assert!(reach.met(&node, Err("refused"), 20_000));
        assert!(reach.keep(|_| false) && reach.lasting().is_empty());
    }
}
