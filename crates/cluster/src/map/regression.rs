//! Checks whether a map may follow the copy that a node has stored.
//!
//! The map is stored in the coordination service, and as a copy in the data folder of each node that applied it. The service's
//! map is authoritative as long as it does not go back. It goes back if the service's data is lost, if an old backup of it is
//! restored, or if a node is configured with another service. A node must not apply such a map, because its slots and definitions
//! are not those under which rows were acknowledged.

use std::fmt;

use super::{ClusterId, Epoch, Map};

/// The reason why the map of the coordination service does not follow a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapRegression {
    /// The service has no map.
    Lost { copy: Epoch },
    /// The map belongs to another cluster.
    OtherCluster { copy: ClusterId, found: ClusterId },
    /// The map is older than the copy.
    Older { copy: Epoch, found: Epoch },
    /// The map was recovered without this copy, from an older one (`from`), and continued at the epoch `at`.
    Excluded { copy: Epoch, from: Epoch, at: Epoch },
}

impl Map {
    /// Compares the map of the service with this copy.
    ///
    /// # Errors
    /// `found` is neither this map nor a later one of the same cluster.
    pub fn check_follows(&self, found: Option<&Map>) -> Result<(), MapRegression> {
        let copy = self.epoch();
        let Some(found) = found else {
            return Err(MapRegression::Lost { copy });
        };
        if found.id() != self.id() {
            return Err(MapRegression::OtherCluster {
                copy: self.id(),
                found: found.id(),
            });
        }
        if found.epoch() < copy {
            let found = found.epoch();
            return Err(MapRegression::Older { copy, found });
        }
        if let Some((from, at)) = found.recovered
            && copy > from
            && copy < at
        {
            return Err(MapRegression::Excluded { copy, from, at });
        }
        Ok(())
    }
}

impl fmt::Display for MapRegression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MapRegression::Lost { copy } => write!(
                f,
                "etcd has no map of the cluster, and this node followed one up to epoch {copy}: etcd's data was lost"
            ),
            MapRegression::OtherCluster { copy, found } => write!(
                f,
                "etcd has the map of another cluster (id {found:016x}, this node's cluster has id {copy:016x}): \
                 etcd's data was lost, or cluster.etcd or cluster.name names another cluster",
                found = found.0,
                copy = copy.0
            ),
            MapRegression::Older { copy, found } => write!(
                f,
                "etcd has the cluster's map of epoch {found}, and this node followed it up to epoch {copy}: \
                 an old copy of etcd's data was restored"
            ),
            MapRegression::Excluded { copy, from, at } => write!(
                f,
                "the cluster's map was recovered from a copy of epoch {from}, and this node followed it up to epoch {copy}: it may have acknowledged writes \
                 that the cluster lacks since (epoch {at}). To give these up, empty this node's data folder: it is then filled by the others"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Change, ChangeId, Settings};

    #[test]
    fn a_map_follows_a_copy_of_the_same_cluster_that_is_not_newer() {
        let first = Map::new("c", Settings::default()).with_id(ClusterId(7));
        let settings = Settings {
            replicas: 2,
            ..Settings::default()
        };
        let change = Change::SettingsChanged { settings };
        let second = first.apply(&change, &ChangeId::default()).unwrap();
        assert_eq!(first.check_follows(Some(&second)), Ok(()));
        assert_eq!(second.check_follows(Some(&second)), Ok(()));
        let (copy, found) = (Epoch(1), Epoch(0));
        assert_eq!(
            second.check_follows(Some(&first)),
            Err(MapRegression::Older { copy, found })
        );
        assert_eq!(
            second.check_follows(None),
            Err(MapRegression::Lost { copy })
        );
        let other = second.clone().with_id(ClusterId(8));
        let why = second.check_follows(Some(&other)).unwrap_err();
        assert!(matches!(why, MapRegression::OtherCluster { .. }), "{why}");
    }

    #[test]
    fn a_map_that_was_recovered_without_a_newer_copy_does_not_follow_that_copy() {
        let first = Map::new("c", Settings::default()).with_id(ClusterId(7));
        let change = |map: &Map, replicas: u8| {
            let settings = Settings {
                replicas,
                ..Settings::default()
            };
            let change = Change::SettingsChanged { settings };
            map.apply(&change, &ChangeId::default()).unwrap()
        };
        let second = change(&first, 2);
        let recovery = Change::MapRecovered {
            epoch: Epoch(1_000),
            holders: Vec::new(),
            at_ms: 0,
        };
        let recovered = first.apply(&recovery, &ChangeId::default()).unwrap();
        // Changes after the recovery do not hide it.
        let recovered = change(&recovered, 3);
        let (copy, from, at) = (Epoch(1), Epoch(0), Epoch(1_000));
        let why = second.check_follows(Some(&recovered));
        assert_eq!(why, Err(MapRegression::Excluded { copy, from, at }));
        assert_eq!(first.check_follows(Some(&recovered)), Ok(()));
        assert_eq!(
            recovered.check_follows(Some(&change(&recovered, 2))),
            Ok(())
        );
    }
}
