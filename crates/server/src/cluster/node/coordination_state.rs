//! The state of the coordination service's keys, decoded once when they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::controller::{ControllerRequest, Report};
use larder_cluster::coordination::{Entry, KeyEvent, LeaseId, Mirror, Revision, leader};
use larder_cluster::map::{
    ClusterId, Epoch, Map, MapRegression, NodeName, Registration, RequestId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub const MAP: &str = "map";
pub const NODES: &str = "nodes/";
pub const REPORTS: &str = "reports/";
pub const ASKS: &str = "asks/";
pub const ANSWERS: &str = "answers/";
/// Problems that need an operator, according to the controller: a list of sentences.
pub const BLOCKED: &str = "blocked";
/// Marks of nodes that have a newer copy of the map than the service.
pub const NEWER: &str = "newer/";

/// Advice about a map that went back.
const ADVICE: &str = "restore the newest data of etcd, or run larder cluster recover; no node serves tables until then";

/// The keys at approximately one instant. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct CoordinationState {
    pub map: Option<RevisionedMap>,
    /// The reason why the map cannot be applied, if so.
    pub map_error: Option<Arc<str>>,
    /// The map is gone or has gone back: an incarnation that uses the previous map must end.
    pub is_set_back: bool,
    /// The newest map that this node applied, also in earlier processes.
    pub copy: Option<Arc<Map>>,
    /// This node was a member of the cluster before, so there was a map.
    was_member: bool,
    /// The map in etcd, whether it can be applied or not.
    found: Option<Result<RevisionedMap, Arc<str>>>,
    newer: BTreeMap<NodeName, NewerMapMark>,
    /// Nodes that have a lease.
    pub registered: Arc<BTreeMap<NodeName, Registration>>,
    /// The keys of the registrations, for comparisons and to identify the lease.
    pub registration_tokens: Arc<BTreeMap<NodeName, Token>>,
    pub reports: Arc<BTreeMap<NodeName, Report>>,
    /// Nodes that cannot serve, with the reason: each node's last report, also after its lease has ended.
    pub unable: Arc<BTreeMap<NodeName, String>>,
    /// In order of arrival.
    pub requests: Arc<Vec<OperatorRequest>>,
    pub answers: Arc<BTreeMap<RequestId, OperatorReply>>,
    pub leader: Option<Arc<Leader>>,
    pub blocked: Arc<Vec<String>>,
    blocked_at: Revision,
}

/// The mark of a node whose copy of the map is newer than etcd's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewerMapMark {
    pub cluster: ClusterId,
    pub epoch: Epoch,
}

/// The map, and the revision that wrote it.
#[derive(Debug, Clone)]
pub struct RevisionedMap {
    pub map: Arc<Map>,
    pub revision: Revision,
}

/// A key's revisions, as used in comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub created: Revision,
    pub modified: Revision,
    pub lease: Option<LeaseId>,
}

#[derive(Debug, Clone)]
pub struct OperatorRequest {
    pub id: RequestId,
    pub request: ControllerRequest,
    pub token: Token,
}

#[derive(Debug, Clone)]
pub struct OperatorReply {
    pub answer: Result<String, String>,
    pub modified: Revision,
}

/// The candidate that is the leader.
#[derive(Debug, PartialEq, Eq)]
pub struct Leader {
    pub name: String,
    pub key: String,
    pub created: Revision,
}

impl CoordinationState {
    /// The state before the first read, for a node with this copy of the map.
    pub fn with_copy(copy: Option<Map>, has_lived: bool) -> CoordinationState {
        CoordinationState {
            copy: copy.map(Arc::new),
            was_member: has_lived,
            ..CoordinationState::default()
        }
    }

    /// Applies events that `mirror`, which has been read, already contains. Returns whether there is a different map to apply.
    pub fn apply_events(&mut self, events: &[KeyEvent], mirror: &Mirror) -> bool {
        for event in events {
            let (key, entry) = (event.key.as_str(), event.entry.as_ref());
            if key == MAP {
                self.found = entry.map(read_map);
            } else if let Some(name) = key.strip_prefix(NEWER) {
                let Ok(name) = name.parse::<NodeName>() else {
                    continue;
                };
                match entry.and_then(read) {
                    Some(mark) => self.newer.insert(name, mark),
                    None => self.newer.remove(&name),
                };
            } else if key == BLOCKED {
                self.blocked_at = entry.map_or(Revision(0), |entry| entry.modified);
                self.blocked = Arc::new(entry.and_then(read).unwrap_or_default());
            } else if let Some(name) = key.strip_prefix(NODES) {
                self.apply_registration(name, entry);
            } else if let Some(name) = key.strip_prefix(REPORTS) {
                let Ok(name) = name.parse::<NodeName>() else {
                    continue;
                };
                self.apply_report(name, entry.and_then(read));
            } else if let Some(id) = key.strip_prefix(ASKS) {
                self.apply_request(RequestId(id.to_owned()), entry);
            } else if let Some(id) = key.strip_prefix(ANSWERS) {
                let id = RequestId(id.to_owned());
                let answers = Arc::make_mut(&mut self.answers);
                let read = entry.and_then(|entry| Some((read(entry)?, entry.modified)));
                match read {
                    Some((answer, modified)) => {
                        answers.insert(id, OperatorReply { answer, modified })
                    }
                    None => answers.remove(&id),
                };
            }
        }
        let leads = leader(mirror).map(|entry| Leader {
            name: String::from_utf8_lossy(&entry.value).into_owned(),
            key: entry.key.clone(),
            created: entry.created,
        });
        if self.leader.as_deref() != leads.as_ref() {
            self.leader = leads.map(Arc::new);
        }
        self.validate_map()
    }

    /// Decides whether etcd's map can be applied. Returns whether it can, and differs from the previous one.
    fn validate_map(&mut self) -> bool {
        self.is_set_back = false;
        let found = match &self.found {
            Some(Err(why)) => {
                self.map_error = Some(why.clone());
                return false;
            }
            Some(Ok(found)) => Some(found.clone()),
            None => None,
        };
        if let Some(why) = self.find_setback(found.as_ref().map(|it| &*it.map)) {
            self.map_error = Some(why.into());
            self.is_set_back = true;
            return false;
        }
        self.map_error = None;
        let version = |it: &RevisionedMap| (it.revision, it.map.epoch());
        let is_new = found.as_ref().map(version) != self.map.as_ref().map(version);
        if let Some(found) = found.filter(|_| is_new) {
            self.copy = Some(found.map.clone());
            self.map = Some(found);
        }
        is_new
    }

    /// Returns the reason why `found` does not follow the map that this or another node has applied.
    fn find_setback(&self, found: Option<&Map>) -> Option<String> {
        match self.copy_setback(found) {
            // The other nodes serve, and the message contains the advice.
            Some(excluded @ MapRegression::Excluded { .. }) => return Some(excluded.to_string()),
            Some(setback) => return Some(format!("{setback}; {ADVICE}")),
            None => {}
        }
        if self.copy.is_none() && self.was_member && found.is_none() {
            return Some(format!(
                "etcd has no map of the cluster, of which this node was a member: etcd's data was lost; {ADVICE}"
            ));
        }
        let is_newer = |mark: &NewerMapMark| match found {
            Some(map) => mark.cluster == map.id() && mark.epoch > map.epoch(),
            None => true,
        };
        let (node, mark) = self.newer.iter().find(|(_, mark)| is_newer(mark))?;
        Some(format!(
            "node {node} applied the cluster's map up to epoch {}, and etcd has an older map or none; {ADVICE}",
            mark.epoch
        ))
    }

    fn copy_setback(&self, found: Option<&Map>) -> Option<MapRegression> {
        self.copy.as_ref()?.check_follows(found).err()
    }

    /// Returns the mark that this node must leave in etcd, so that nodes with older copies stop too. Only for a map of its own
    /// cluster: a node that was configured with the wrong etcd must not stop another cluster.
    pub fn plan_mark(&self) -> Option<NewerMapMark> {
        let found = match &self.found {
            Some(found) => Some(&*found.as_ref().ok()?.map),
            None => None,
        };
        let copy = self.copy.as_ref()?;
        match self.copy_setback(found)? {
            MapRegression::OtherCluster { .. } | MapRegression::Excluded { .. } => None,
            MapRegression::Lost { .. } | MapRegression::Older { .. } => Some(NewerMapMark {
                cluster: copy.id(),
                epoch: copy.epoch(),
            }),
        }
    }

    /// Returns the mark that a node has left.
    pub fn mark_of(&self, node: &NodeName) -> Option<NewerMapMark> {
        self.newer.get(node).copied()
    }

    /// Returns the registration under this name, if any.
    pub fn registration(&self, name: &NodeName) -> Option<(&Registration, Token)> {
        Some((
            self.registered.get(name)?,
            *self.registration_tokens.get(name)?,
        ))
    }

    /// The revision of the last write of [`BLOCKED`].
    pub fn blocked_at(&self) -> Revision {
        self.blocked_at
    }

    fn apply_report(&mut self, name: NodeName, report: Option<Report>) {
        let reports = Arc::make_mut(&mut self.reports);
        let Some(report) = report else {
            reports.remove(&name);
            return;
        };
        if self.unable.get(&name) != report.unable.as_ref() {
            let unable = Arc::make_mut(&mut self.unable);
            match &report.unable {
                Some(why) => unable.insert(name.clone(), why.clone()),
                None => unable.remove(&name),
            };
        }
        reports.insert(name, report);
    }

    fn apply_registration(&mut self, name: &str, entry: Option<&Entry>) {
        let Ok(name) = name.parse::<NodeName>() else {
            return;
        };
        let read = entry.and_then(|entry| Some((read::<Registration>(entry)?, Token::of(entry))));
        let registered = Arc::make_mut(&mut self.registered);
        let registrations = Arc::make_mut(&mut self.registration_tokens);
        match read.filter(|(registration, _)| registration.name == name) {
            Some((registration, token)) => {
                registered.insert(name.clone(), registration);
                registrations.insert(name, token);
            }
            None => {
                registered.remove(&name);
                registrations.remove(&name);
            }
        }
    }

    fn apply_request(&mut self, id: RequestId, entry: Option<&Entry>) {
        let requests = Arc::make_mut(&mut self.requests);
        requests.retain(|request| request.id != id);
        if let Some((request, entry)) = entry.and_then(|entry| Some((read(entry)?, entry))) {
            let token = Token::of(entry);
            requests.push(OperatorRequest { id, request, token });
            requests.sort_by_key(|request| request.token.created);
        }
    }
}

impl Token {
    fn of(entry: &Entry) -> Token {
        Token {
            created: entry.created,
            modified: entry.modified,
            lease: entry.lease,
        }
    }
}

pub(super) fn read_map(entry: &Entry) -> Result<RevisionedMap, Arc<str>> {
    let map = Map::from_text(&String::from_utf8_lossy(&entry.value));
    let map = map.map_err(|error| Arc::from(error.to_string()))?;
    Ok(RevisionedMap {
        map: Arc::new(map),
        revision: entry.modified,
    })
}

/// The mark of a node whose copy of the map is newer than etcd's; `None` if it cannot be decoded. That is logged, because another
/// program may have written it.
pub fn read_mark(entry: &Entry) -> Option<(ClusterId, Epoch)> {
    read(entry).map(|mark: NewerMapMark| (mark.cluster, mark.epoch))
}

fn read<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value)
        .inspect_err(|error| {
            tracing::warn!(key = entry.key, %error, "a key of the cluster in etcd cannot be decoded; another version of larder may be running");
        })
        .ok()
}
