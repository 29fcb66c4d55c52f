//! Operator requests to the controller.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use super::pushes::PushProgress;
use super::{Decision, Inputs};
use crate::map::{
    Change, DefinitionKind, Departure, MemberState, NodeId, NodeName, RequestId, Settings, SpaceSet,
};

/// An operator request (the key `asks/<id>`). The controller answers it when it has executed or rejected it, and a push when the
/// push has ended. The caller may read the answer later. A request that was already executed and is still stored is answered, not
/// executed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum ControllerRequest {
    /// Assigns slots to a node that has registered.
    Join {
        node: NodeName,
    },
    /// Moves a node's slots to other nodes. The node remains a member.
    Drain {
        node: NodeName,
    },
    /// Announces that the node's process will stop: other nodes take over its slots first.
    Stop {
        node: NodeName,
    },
    /// Reverses `Drain` or `Remove`.
    Keep {
        node: NodeName,
    },
    /// Drains the node, and removes it from the map when its process has ended. If the node is down, `lose_rows` discards the
    /// rows that only it has.
    Remove {
        node: NodeName,
        lose_rows: bool,
    },
    Push {
        store: StoreName,
        source: String,
        digest: String,
        allow_missing_replicas: u32,
        #[serde(default)]
        options: BTreeMap<String, String>,
    },
    AbortPush {
        store: StoreName,
    },
    /// `None` rolls back to the previously live version.
    RollBack {
        store: StoreName,
        to: Option<VersionId>,
    },
    RemoveVersion {
        store: StoreName,
        version: VersionId,
    },
    RemoveStore {
        store: StoreName,
    },
    DefineTable {
        name: String,
        text: String,
    },
    DropTable {
        name: String,
    },
    DefineJoin {
        name: String,
        text: String,
        /// Replaces a join of the same name.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        replace: bool,
    },
    DropJoin {
        name: String,
    },
    /// Changes which space each name refers to.
    SetSpaces {
        sets: Vec<SpaceSet>,
    },
    Set {
        settings: Settings,
    },
}

/// The controller's response to a request.
enum RequestAction {
    Change(Change),
    Done(String),
    Reject(String),
    /// The request is in progress.
    Wait,
}

pub(super) fn decide(inputs: &Inputs<'_>) -> Option<Decision> {
    for (id, request) in inputs.requests {
        let answer = match plan_request(inputs, id, request) {
            RequestAction::Wait => continue,
            RequestAction::Change(change) => match inputs.rejection(&change) {
                None => {
                    return Some(Decision::Change {
                        change,
                        why: format!("operator request {id}"),
                        request: Some(id.clone()),
                    });
                }
                Some(why) => Err(why),
            },
            RequestAction::Done(words) => Ok(words),
            RequestAction::Reject(why) => Err(why),
        };
        return Some(Decision::Answer {
            request: id.clone(),
            answer,
        });
    }
    None
}

fn plan_request(inputs: &Inputs<'_>, id: &RequestId, request: &ControllerRequest) -> RequestAction {
    match request {
        ControllerRequest::Join { node } => admit(inputs, node),
        ControllerRequest::Drain { node } => {
            set_departure(inputs, node, Some(Departure::Drain), false)
        }
        ControllerRequest::Stop { node } => stop(inputs, node),
        ControllerRequest::Keep { node } => set_departure(inputs, node, None, false),
        ControllerRequest::Remove { node, lose_rows } => {
            set_departure(inputs, node, Some(Departure::Remove), *lose_rows)
        }
        ControllerRequest::Push {
            store,
            source,
            digest,
            allow_missing_replicas,
            options,
        } => {
            let begin = Change::PushBegun {
                store: store.clone(),
                request: id.clone(),
                source: source.clone(),
                digest: digest.clone(),
                allow_missing_replicas: *allow_missing_replicas,
                options: options.clone(),
                at_ms: inputs.now_ms,
            };
            finished_push(inputs, id, store).unwrap_or(RequestAction::Change(begin))
        }
        ControllerRequest::AbortPush { store } => match inputs
            .map
            .stores()
            .get(store)
            .and_then(|it| it.push.as_ref())
        {
            None => RequestAction::Done(format!("no version of store {store} is being pushed")),
            Some(push) => RequestAction::Change(Change::PushFailed {
                store: store.clone(),
                version: push.version.version,
                why: "it was aborted".to_owned(),
            }),
        },
        ControllerRequest::RollBack { store, to } => {
            finished_push(inputs, id, store).unwrap_or_else(|| roll_back(inputs, id, store, *to))
        }
        ControllerRequest::RemoveVersion { store, version } => {
            let known = inputs
                .map
                .stores()
                .get(store)
                .and_then(|it| it.version(*version));
            let (store, version) = (store.clone(), *version);
            match known {
                None => {
                    RequestAction::Done(format!("version {version} of store {store} is not kept"))
                }
                Some(_) => RequestAction::Change(Change::VersionRemoved { store, version }),
            }
        }
        ControllerRequest::RemoveStore { store } => {
            if inputs.map.stores().contains_key(store) {
                RequestAction::Change(Change::StoreRemoved {
                    store: store.clone(),
                })
            } else {
                RequestAction::Done(format!("there is no store {store}"))
            }
        }
        ControllerRequest::DefineTable { name, text } => {
            define(inputs, DefinitionKind::Table, name, text, false)
        }
        ControllerRequest::DefineJoin {
            name,
            text,
            replace,
        } => define(inputs, DefinitionKind::Join, name, text, *replace),
        ControllerRequest::DropTable { name } => undefine(inputs, DefinitionKind::Table, name),
        ControllerRequest::DropJoin { name } => undefine(inputs, DefinitionKind::Join, name),
        ControllerRequest::SetSpaces { sets } => set_spaces(inputs, sets),
        ControllerRequest::Set { settings } if inputs.map.settings() == settings => {
            RequestAction::Done("the cluster already has these settings".to_owned())
        }
        ControllerRequest::Set { settings } => RequestAction::Change(Change::SettingsChanged {
            settings: settings.clone(),
        }),
    }
}

fn admit(inputs: &Inputs<'_>, name: &NodeName) -> RequestAction {
    match inputs.map.member_named(name) {
        None => RequestAction::Reject(format!("no node {name} has registered; start it first")),
        Some(member) if member.state == MemberState::Joining => {
            RequestAction::Change(Change::MembersAdmitted {
                nodes: vec![member.id],
                at_ms: inputs.now_ms,
            })
        }
        Some(_) => RequestAction::Done(format!("{name} is a member")),
    }
}

fn stop(inputs: &Inputs<'_>, name: &NodeName) -> RequestAction {
    match inputs.map.member_named(name) {
        Some(member) if member.state == MemberState::Up && !member.is_stopping => {
            RequestAction::Change(Change::MemberStopping { node: member.id })
        }
        _ => RequestAction::Done(format!(
            "{name} owns no slots, or its slots are already being moved"
        )),
    }
}

fn set_departure(
    inputs: &Inputs<'_>,
    name: &NodeName,
    leaving: Option<Departure>,
    lose_rows: bool,
) -> RequestAction {
    let Some(member) = inputs.map.member_named(name) else {
        return match leaving {
            Some(Departure::Remove) => RequestAction::Done(format!("{name} is no longer a member")),
            _ => RequestAction::Reject(format!("{name} is not a member")),
        };
    };
    let node = member.id;
    if member.leaving != leaving {
        return RequestAction::Change(Change::MemberLeaving { node, leaving });
    }
    if lose_rows {
        let runs = inputs.map.slots().runs().iter();
        let alone = runs
            .filter(|run| run.placement.owner == Some(node) && run.placement.in_sync.is_empty())
            .count()
            > 0;
        match member.state {
            MemberState::Down if alone => {
                return RequestAction::Change(Change::RowsDiscarded { node });
            }
            MemberState::Down => {}
            _ => {
                return RequestAction::Reject(format!(
                    "{name} is up; its rows are moved to other nodes, so none need be discarded: omit --lose-rows"
                ));
            }
        }
    }
    RequestAction::Done(match leaving {
        None => format!("{name} keeps its slots"),
        Some(_) => format!("the slots of {name} are being moved; see larder cluster status"),
    })
}

/// Returns the result of this request's push or rollback, or `RequestAction::Wait` while it is in progress.
fn finished_push(inputs: &Inputs<'_>, id: &RequestId, name: &StoreName) -> Option<RequestAction> {
    let store = inputs.map.stores().get(name)?;
    if store.push.as_ref().is_some_and(|push| push.ask == *id) {
        return Some(RequestAction::Wait);
    }
    let ended = store.ended.iter().find(|it| it.ask == *id)?;
    let version = ended.version;
    Some(match &ended.failed {
        None => RequestAction::Done(format!("version {version} of store {name} is live")),
        Some(why) => RequestAction::Reject(format!(
            "version {version} of store {name} is not live: {why}"
        )),
    })
}

fn roll_back(
    inputs: &Inputs<'_>,
    id: &RequestId,
    name: &StoreName,
    to: Option<VersionId>,
) -> RequestAction {
    let Some(store) = inputs.map.stores().get(name) else {
        return RequestAction::Reject(format!("there is no store {name}"));
    };
    let Some(to) = to.or_else(|| store.kept.first().map(|it| it.version)) else {
        return RequestAction::Reject(format!(
            "store {name} keeps no version besides the live one"
        ));
    };
    let progress = PushProgress::collect(inputs, name, store, to);
    if let Some(slot) = progress.find_uncovered_slot(inputs, &progress.ready) {
        return RequestAction::Reject(format!(
            "no node that has slot {slot} has version {to} of store {name}"
        ));
    }
    let lacking: Vec<NodeId> = progress.missing_nodes();
    RequestAction::Change(Change::RolledBack {
        store: name.clone(),
        request: id.clone(),
        to,
        missing: lacking,
    })
}

fn set_spaces(inputs: &Inputs<'_>, sets: &[SpaceSet]) -> RequestAction {
    let spaces = inputs.map.spaces();
    let is_applied = |set: &SpaceSet| spaces.get(&set.name) == set.record.as_ref();
    if sets.iter().all(is_applied) {
        RequestAction::Done("the spaces are already defined like this".to_owned())
    } else {
        RequestAction::Change(Change::SpacesSet {
            sets: sets.to_vec(),
        })
    }
}

fn define(
    inputs: &Inputs<'_>,
    kind: DefinitionKind,
    name: &str,
    text: &str,
    replace: bool,
) -> RequestAction {
    let known = match kind {
        DefinitionKind::Table => inputs.map.tables().get(name),
        DefinitionKind::Join => inputs.map.joins().get(name),
    };
    match known {
        Some(known) if known.text.trim() == text.trim() => {
            RequestAction::Done(format!("{name} is defined"))
        }
        _ => RequestAction::Change(Change::DefinitionSet {
            kind,
            name: name.to_owned(),
            text: text.to_owned(),
            replace,
        }),
    }
}

fn undefine(inputs: &Inputs<'_>, kind: DefinitionKind, name: &str) -> RequestAction {
    let is_known = match kind {
        DefinitionKind::Table => inputs.map.tables().contains_key(name),
        DefinitionKind::Join => inputs.map.joins().contains_key(name),
    };
    if is_known {
        RequestAction::Change(Change::DefinitionDropped {
            kind,
            name: name.to_owned(),
        })
    } else {
        RequestAction::Done(format!("{name} is not defined"))
    }
}
