//! Derives from the map what this node's stores must contain, and which other nodes have it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use larder_cluster::controller::Report;
use larder_cluster::map::{self, Epoch, Map, Member, NodeId, NodeName, Store};
use larder_protocol::http::Gates;
use larder_remote::{Certificates, Location};
use larder_types::StoreName;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use super::partitions::{Peer, VersionRequest};
use crate::Shared;
use crate::cluster::View;
use crate::error::Error;
use crate::stores::gates;

/// The option of a push that contains its gates, as JSON.
pub const GATES: &str = "gates";
/// Maximum number of other nodes to query when the source fails.
const PEERS_MAX: usize = 64;

/// The reason why a version is required.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRole {
    Live,
    /// It is being pushed.
    Pushed,
    /// It was live, and is available for a rollback.
    Kept,
}

/// A version, and the slots whose partitions this node must have.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedVersion {
    pub store: StoreName,
    pub role: VersionRole,
    pub map_version: map::Version,
    /// The gates of a pushed version.
    pub gates: Option<Gates>,
    /// First and last slot of each range.
    pub slots: Vec<(u16, u16)>,
}

/// Returns all requirements of the map: live versions first, then pushed ones.
pub fn wanted_versions(view: &View) -> Vec<WantedVersion> {
    let slots = slots_of(view, view.me, true);
    let mut versions: Vec<WantedVersion> = Vec::new();
    for (name, store) in view.map.stores() {
        let each = |kind, map_version: &map::Version| WantedVersion {
            store: name.clone(),
            role: kind,
            map_version: map_version.clone(),
            gates: (kind == VersionRole::Pushed).then(|| gates_of(store)),
            slots: slots.clone(),
        };
        let live = store.live.iter().map(|it| each(VersionRole::Live, it));
        let pushed = store
            .push
            .iter()
            .map(|it| each(VersionRole::Pushed, &it.version));
        let kept = store.kept.iter().map(|it| each(VersionRole::Kept, it));
        versions.extend(live.chain(pushed).chain(kept));
    }
    versions.sort_by_key(|it| it.role as u8);
    versions
}

/// Returns the epoch of this node's most recent fill; 0 if there is none. The controller accepts a fill as complete only if the
/// report has that epoch or a later one, even if the node had everything before: a fill may end and start again between two views
/// of the map.
pub fn last_fill_epoch(map: &Map, me: NodeId) -> Epoch {
    let runs = map.slots().runs().iter();
    let began = runs.filter_map(|run| Some(run.placement.filling(me)?.began));
    began.max().unwrap_or_default()
}

fn gates_of(store: &Store) -> Gates {
    let text = store.push.as_ref().and_then(|push| push.options.get(GATES));
    let gates = text.and_then(|text| serde_json::from_str(text).ok());
    gates.unwrap_or_default()
}

/// Returns the slots that a node holds, optionally with those that it is being filled with.
fn slots_of(view: &View, node: NodeId, include_filling: bool) -> Vec<(u16, u16)> {
    let Some(held) = view.lookup.slots_of(node) else {
        return Vec::new();
    };
    let filling = held.filling.iter().filter(|_| include_filling);
    let all = held.owned.iter().chain(&held.in_sync).chain(filling);
    all.map(|range| (range.from, range.to)).collect()
}

impl WantedVersion {
    pub fn to_request(&self, shared: &Shared, peers: Vec<Peer>) -> VersionRequest {
        VersionRequest {
            store: self.store.clone(),
            version: self.map_version.version,
            digest: self.map_version.digest.clone(),
            source: self.map_version.source.clone(),
            slots: self.slots.clone(),
            gates: self
                .gates
                .clone()
                .map(|requested| gates::merge_with_config(shared, &self.store, Some(requested))),
            peers,
        }
    }
}

/// Returns the nodes that report that they have the version, starting after this node, so that not all nodes query the same one.
pub fn find_peers(
    shared: &Shared,
    view: &View,
    reports: Option<&BTreeMap<NodeName, Report>>,
    wanted_version: &WantedVersion,
) -> Vec<Peer> {
    let Some(store) = view.map.stores().get(&wanted_version.store) else {
        return Vec::new();
    };
    let members = view.map.members();
    let begin = members.partition_point(|it| it.id <= view.me);
    let around = members[begin..].iter().chain(&members[..begin]);
    let has = |member: &&Member| {
        let report = reports.and_then(|reports| reports.get(member.name()));
        let is_ready = report.is_some_and(|report| {
            report.has_version(
                &wanted_version.store,
                store,
                wanted_version.map_version.version,
            )
        });
        is_ready && member.id != view.me && view.map.is_up(member.id)
    };
    let overlaps = |slots: &[(u16, u16)]| {
        let mut mine = wanted_version.slots.iter();
        mine.any(|(from, to)| {
            slots
                .iter()
                .any(|(first, last)| from <= last && to >= first)
        })
    };
    let peers = around.filter(has).filter_map(|member| {
        let (http, version) = (
            http_root(shared, member)?,
            wanted_version.map_version.version,
        );
        Some(Peer {
            root: format!(
                "{http}/v1/stores/{}/versions/{version}/files/",
                wanted_version.store
            ),
            slots: slots_of(view, member.id, false),
        })
    });
    let peers = peers.filter(|peer| overlaps(&peer.slots) || wanted_version.slots.is_empty());
    peers.take(PEERS_MAX).collect()
}

/// The URL of another node's HTTP server, which has the same password and uses TLS if this one does. `None` if it has no HTTP
/// server.
pub fn http_root(shared: &Shared, member: &Member) -> Option<String> {
    let http = &member.registration.http;
    let password = &shared.config.server.password;
    let user = if password.is_empty() {
        String::new()
    } else {
        format!(
            "larder:{}@",
            utf8_percent_encode(password, NON_ALPHANUMERIC)
        )
    };
    let scheme = if shared.config.server.tls_cert.is_empty() {
        "http"
    } else {
        "https"
    };
    (!http.is_empty()).then(|| format!("{scheme}://{user}{http}"))
}

/// Converts a URL of another node's HTTP server.
///
/// # Errors
/// [`Error::BadRequest`], [`Error::Io`] if a certificate cannot be read.
pub fn locate_peer(shared: &Shared, url: &str) -> Result<Location, Error> {
    let wrong = |error: larder_remote::Error| Error::BadRequest(error.to_string());
    let place = Location::parse(url).map_err(wrong)?;
    let (server, cluster) = (&shared.config.server, &shared.config.cluster);
    if server.tls_cert.is_empty() {
        return Ok(place);
    }
    let read = |path: &str| {
        if path.is_empty() {
            Ok(Vec::new())
        } else {
            std::fs::read(path).map_err(Error::io("read", Path::new(path)))
        }
    };
    let authorities = read(&cluster.tls_ca)?;
    let own = if server.tls_client_ca.is_empty() {
        None
    } else {
        Some([read(&server.tls_cert)?, read(&server.tls_key)?].concat())
    };
    let certificates = Certificates::from_pem(&authorities, own.as_deref()).map_err(wrong)?;
    Ok(place.with_certificates(Arc::new(certificates)))
}

#[cfg(test)]
mod tests {
    use larder_cluster::map::{Change, ChangeId, Settings, SlotRange};

    use super::*;
    use crate::cluster::registration;

    #[test]
    fn a_fill_that_restarts_between_two_map_reads_is_detected() {
        let mut map = Map::new("test", Settings::default());
        let change = |map: &mut Map, change: Change| {
            *map = map.apply(&change, &ChangeId::default()).expect("allowed");
            map.epoch()
        };
        for name in ["a", "b"] {
            let added = Change::MemberAdded {
                registration: registration(name, 1),
                at_ms: 0,
            };
            change(&mut map, added);
        }
        let (a, b) = (NodeId(1), NodeId(2));
        let nodes = vec![a, b];
        change(&mut map, Change::MembersAdmitted { nodes, at_ms: 0 });
        let all = SlotRange::new(0, larder_types::SLOTS - 1);
        for nodes in [vec![a], vec![a, b]] {
            let placed = Change::PlacementReplaced {
                goals: vec![(all, nodes)],
                outputs: Vec::new(),
                from: 0,
            };
            change(&mut map, placed);
        }
        assert_eq!(last_fill_epoch(&map, b), Epoch(0));

        let slots = vec![(SlotRange::new(0, 94), b)];
        let first = change(
            &mut map,
            Change::FillsBegun {
                slots: slots.clone(),
            },
        );
        assert_eq!(last_fill_epoch(&map, b), first);
        change(
            &mut map,
            Change::FillsEnded {
                slots: slots.clone(),
            },
        );
        let again = change(&mut map, Change::FillsBegun { slots });
        assert_eq!(last_fill_epoch(&map, b), again);
        assert_eq!(last_fill_epoch(&map, a), Epoch(0));
    }
}
