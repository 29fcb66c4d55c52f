//! What the keys of the coordination service say, read once when they change.

use std::collections::BTreeMap;
use std::sync::Arc;

use larder_cluster::controller::{Ask, Report};
use larder_cluster::coordination::{Entry, Event, LeaseId, Mirror, Revision, leader};
use larder_cluster::map::{AskId, Map, NodeName, Registration};
use serde::de::DeserializeOwned;

pub const MAP: &str = "map";
pub const NODES: &str = "nodes/";
pub const REPORTS: &str = "reports/";
pub const ASKS: &str = "asks/";
pub const ANSWERS: &str = "answers/";
/// What only a person can mend, as the controller last saw it: a list of sentences.
pub const BLOCKED: &str = "blocked";

/// The keys at about one moment. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Known {
    pub map: Option<KnownMap>,
    /// Why the map cannot be acted on, if it cannot.
    pub map_trouble: Option<Arc<str>>,
    /// Nodes that have a lease.
    pub registered: Arc<BTreeMap<NodeName, Registration>>,
    /// Which keys they are, for compares and to find out whose lease it is.
    pub registrations: Arc<BTreeMap<NodeName, Token>>,
    pub reports: Arc<BTreeMap<NodeName, Report>>,
    /// Nodes that cannot serve, and why: what each reported last, also after its lease has ended.
    pub unable: Arc<BTreeMap<NodeName, String>>,
    /// In the order in which they came.
    pub asks: Arc<Vec<Asked>>,
    pub answers: Arc<BTreeMap<AskId, Answered>>,
    pub leader: Option<Arc<Leader>>,
    pub blocked: Arc<Vec<String>>,
    blocked_at: Revision,
}

/// The map, and the revision that wrote it.
#[derive(Debug, Clone)]
pub struct KnownMap {
    pub map: Arc<Map>,
    pub revision: Revision,
}

/// A key as compares name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token {
    pub created: Revision,
    pub modified: Revision,
    pub lease: Option<LeaseId>,
}

#[derive(Debug, Clone)]
pub struct Asked {
    pub id: AskId,
    pub ask: Ask,
    pub token: Token,
}

#[derive(Debug, Clone)]
pub struct Answered {
    pub answer: Result<String, String>,
    pub modified: Revision,
}

/// The candidate that leads.
#[derive(Debug, PartialEq, Eq)]
pub struct Leader {
    pub name: String,
    pub key: String,
    pub created: Revision,
}

impl Known {
    /// Takes what changed; `mirror` has it already. Gives whether the map is another.
    pub fn take(&mut self, events: &[Event], mirror: &Mirror) -> bool {
        let mut is_map_new = false;
        for event in events {
            let (key, entry) = (event.key.as_str(), event.entry.as_ref());
            if key == MAP {
                is_map_new |= self.take_map(entry);
            } else if key == BLOCKED {
                self.blocked_at = entry.map_or(Revision(0), |entry| entry.modified);
                self.blocked = Arc::new(entry.and_then(read).unwrap_or_default());
            } else if let Some(name) = key.strip_prefix(NODES) {
                self.take_registration(name, entry);
            } else if let Some(name) = key.strip_prefix(REPORTS) {
                let Ok(name) = name.parse::<NodeName>() else {
                    continue;
                };
                self.take_report(name, entry.and_then(read));
            } else if let Some(id) = key.strip_prefix(ASKS) {
                self.take_ask(AskId(id.to_owned()), entry);
            } else if let Some(id) = key.strip_prefix(ANSWERS) {
                let id = AskId(id.to_owned());
                let answers = Arc::make_mut(&mut self.answers);
                let read = entry.and_then(|entry| Some((read(entry)?, entry.modified)));
                match read {
                    Some((answer, modified)) => answers.insert(id, Answered { answer, modified }),
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
        is_map_new
    }

    /// Whether somebody has registered under this name, and as what.
    pub fn registration(&self, name: &NodeName) -> Option<(&Registration, Token)> {
        Some((self.registered.get(name)?, *self.registrations.get(name)?))
    }

    /// When [`BLOCKED`] was written last.
    pub fn blocked_at(&self) -> Revision {
        self.blocked_at
    }

    fn take_report(&mut self, name: NodeName, report: Option<Report>) {
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

    fn take_map(&mut self, entry: Option<&Entry>) -> bool {
        let Some(entry) = entry else {
            // Somebody has removed it. What was known goes on: a person has to look at this.
            self.map_trouble = Some("the cluster's map was removed from etcd".into());
            return false;
        };
        match Map::from_text(&String::from_utf8_lossy(&entry.value)) {
            Ok(map) => {
                self.map_trouble = None;
                self.map = Some(KnownMap {
                    map: Arc::new(map),
                    revision: entry.modified,
                });
                true
            }
            Err(error) => {
                self.map_trouble = Some(error.to_string().into());
                false
            }
        }
    }

    fn take_registration(&mut self, name: &str, entry: Option<&Entry>) {
        let Ok(name) = name.parse::<NodeName>() else {
            return;
        };
        let read = entry.and_then(|entry| Some((read::<Registration>(entry)?, Token::of(entry))));
        let registered = Arc::make_mut(&mut self.registered);
        let registrations = Arc::make_mut(&mut self.registrations);
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

    fn take_ask(&mut self, id: AskId, entry: Option<&Entry>) {
        let asks = Arc::make_mut(&mut self.asks);
        asks.retain(|asked| asked.id != id);
        if let Some((ask, entry)) = entry.and_then(|entry| Some((read(entry)?, entry))) {
            let token = Token::of(entry);
            asks.push(Asked { id, ask, token });
            asks.sort_by_key(|asked| asked.token.created);
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

/// What a key holds; `None`, and a word in the log, if another program has written it.
fn read<T: DeserializeOwned>(entry: &Entry) -> Option<T> {
    serde_json::from_slice(&entry.value)
        .inspect_err(|error| {
            tracing::warn!(key = entry.key, %error, "a key of the cluster in etcd cannot be read; is another version of larder running?");
        })
        .ok()
}
