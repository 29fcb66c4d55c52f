//! Operator requests to the controller.

use std::collections::BTreeMap;

use larder_types::{StoreName, VersionId};
use serde::{Deserialize, Serialize};

use super::pushes::Standing;
use super::{Decision, World};
use crate::map::{AskId, Change, Leaving, NodeId, NodeName, Settings, SpaceSet, State, What};

/// An operator request (the key `asks/<id>`). The controller answers it when it has executed or rejected it, and a push when the
/// push has ended. The caller may read the answer later. A request that was already executed and is still stored is answered, not
/// executed again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
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
enum Fate {
    Change(Change),
    Done(String),
    Refused(String),
    /// The request is in progress.
    Wait,
}

pub(super) fn decide(world: &World<'_>) -> Option<Decision> {
    for (id, ask) in world.asks {
        let answer = match fate(world, id, ask) {
            Fate::Wait => continue,
            Fate::Change(change) => match world.refusal(&change) {
                None => {
                    return Some(Decision::Change {
                        change,
                        why: format!("wish {id}"),
                        ask: Some(id.clone()),
                    });
                }
                Some(why) => Err(why),
            },
            Fate::Done(words) => Ok(words),
            Fate::Refused(why) => Err(why),
        };
        return Some(Decision::Answer {
            ask: id.clone(),
            answer,
        });
    }
    None
}

fn fate(world: &World<'_>, id: &AskId, ask: &Ask) -> Fate {
    match ask {
        Ask::Join { node } => join(world, node),
        Ask::Drain { node } => leave(world, node, Some(Leaving::Drain), false),
        Ask::Stop { node } => stop(world, node),
        Ask::Keep { node } => leave(world, node, None, false),
        Ask::Remove { node, lose_rows } => leave(world, node, Some(Leaving::Remove), *lose_rows),
        Ask::Push {
            store,
            source,
            digest,
            allow_missing_replicas,
            options,
        } => {
            let begin = Change::PushBegun {
                store: store.clone(),
                ask: id.clone(),
                source: source.clone(),
                digest: digest.clone(),
                allow_missing_replicas: *allow_missing_replicas,
                options: options.clone(),
                at_ms: world.now_ms,
            };
            ended(world, id, store).unwrap_or(Fate::Change(begin))
        }
        Ask::AbortPush { store } => match world
            .map
            .stores()
            .get(store)
            .and_then(|it| it.push.as_ref())
        {
            None => Fate::Done(format!("no version of store {store} is being pushed")),
            Some(push) => Fate::Change(Change::PushFailed {
                store: store.clone(),
                version: push.version.version,
                why: "it was aborted".to_owned(),
            }),
        },
        Ask::RollBack { store, to } => {
            ended(world, id, store).unwrap_or_else(|| roll_back(world, id, store, *to))
        }
        Ask::RemoveVersion { store, version } => {
            let known = world
                .map
                .stores()
                .get(store)
                .and_then(|it| it.version(*version));
            let (store, version) = (store.clone(), *version);
            match known {
                None => Fate::Done(format!("version {version} of store {store} is not kept")),
                Some(_) => Fate::Change(Change::VersionRemoved { store, version }),
            }
        }
        Ask::RemoveStore { store } => {
            if world.map.stores().contains_key(store) {
                Fate::Change(Change::StoreRemoved {
                    store: store.clone(),
                })
            } else {
                Fate::Done(format!("there is no store {store}"))
            }
        }
        Ask::DefineTable { name, text } => define(world, What::Table, name, text, false),
        Ask::DefineJoin {
            name,
            text,
            replace,
        } => define(world, What::Join, name, text, *replace),
        Ask::DropTable { name } => undefine(world, What::Table, name),
        Ask::DropJoin { name } => undefine(world, What::Join, name),
        Ask::SetSpaces { sets } => set_spaces(world, sets),
        Ask::Set { settings } if world.map.settings() == settings => {
            Fate::Done("the settings are these".to_owned())
        }
        Ask::Set { settings } => Fate::Change(Change::SettingsChanged {
            settings: settings.clone(),
        }),
    }
}

fn join(world: &World<'_>, name: &NodeName) -> Fate {
    match world.map.member_named(name) {
        None => Fate::Refused(format!("no node {name} has registered; start it first")),
        Some(member) if member.state == State::Joining => Fate::Change(Change::MembersAdmitted {
            nodes: vec![member.id],
            at_ms: world.now_ms,
        }),
        Some(_) => Fate::Done(format!("{name} is a member")),
    }
}

fn stop(world: &World<'_>, name: &NodeName) -> Fate {
    match world.map.member_named(name) {
        Some(member) if member.state == State::Up && !member.is_stopping => {
            Fate::Change(Change::MemberStopping { node: member.id })
        }
        _ => Fate::Done(format!("{name} owns nothing, or gives it away")),
    }
}

fn leave(world: &World<'_>, name: &NodeName, leaving: Option<Leaving>, lose_rows: bool) -> Fate {
    let Some(member) = world.map.member_named(name) else {
        return match leaving {
            Some(Leaving::Remove) => Fate::Done(format!("{name} is no member any more")),
            _ => Fate::Refused(format!("{name} is no member")),
        };
    };
    let node = member.id;
    if member.leaving != leaving {
        return Fate::Change(Change::MemberLeaving { node, leaving });
    }
    if lose_rows {
        let runs = world.map.slots().runs().iter();
        let alone = runs
            .filter(|run| run.placed.owner == Some(node) && run.placed.in_sync.is_empty())
            .count()
            > 0;
        match member.state {
            State::Down if alone => return Fate::Change(Change::RowsGivenUp { node }),
            State::Down => {}
            _ => {
                return Fate::Refused(format!(
                    "{name} is up; its rows move elsewhere, and none need be given up"
                ));
            }
        }
    }
    Fate::Done(match leaving {
        None => format!("{name} stays"),
        Some(_) => format!("{name} gives its slots away; look at larder cluster status"),
    })
}

/// Returns the result of this request's push or rollback, or `Fate::Wait` while it is in progress.
fn ended(world: &World<'_>, id: &AskId, name: &StoreName) -> Option<Fate> {
    let store = world.map.stores().get(name)?;
    if store.push.as_ref().is_some_and(|push| push.ask == *id) {
        return Some(Fate::Wait);
    }
    let ended = store.ended.iter().find(|it| it.ask == *id)?;
    let version = ended.version;
    Some(match &ended.failed {
        None => Fate::Done(format!("version {version} of store {name} is live")),
        Some(why) => Fate::Refused(format!(
            "version {version} of store {name} is not live: {why}"
        )),
    })
}

fn roll_back(world: &World<'_>, id: &AskId, name: &StoreName, to: Option<VersionId>) -> Fate {
    let Some(store) = world.map.stores().get(name) else {
        return Fate::Refused(format!("there is no store {name}"));
    };
    let Some(to) = to.or_else(|| store.kept.first().map(|it| it.version)) else {
        return Fate::Refused(format!(
            "no version of store {name} is kept beside the live one"
        ));
    };
    let standing = Standing::of(world, name, store, to);
    if let Some(slot) = standing.uncovered(world, &standing.ready) {
        return Fate::Refused(format!(
            "no node that has slot {slot} has version {to} of store {name}"
        ));
    }
    let lacking: Vec<NodeId> = standing.lacking();
    Fate::Change(Change::RolledBack {
        store: name.clone(),
        ask: id.clone(),
        to,
        lacking,
    })
}

fn set_spaces(world: &World<'_>, sets: &[SpaceSet]) -> Fate {
    let spaces = world.map.spaces();
    let is_so = |set: &SpaceSet| spaces.get(&set.name) == set.record.as_ref();
    if sets.iter().all(is_so) {
        Fate::Done("they are defined so".to_owned())
    } else {
        Fate::Change(Change::SpacesSet {
            sets: sets.to_vec(),
        })
    }
}

fn define(world: &World<'_>, what: What, name: &str, text: &str, replace: bool) -> Fate {
    let known = match what {
        What::Table => world.map.tables().get(name),
        What::Join => world.map.joins().get(name),
    };
    match known {
        Some(known) if known.text.trim() == text.trim() => Fate::Done(format!("{name} is defined")),
        _ => Fate::Change(Change::Defined {
            what,
            name: name.to_owned(),
            text: text.to_owned(),
            replace,
        }),
    }
}

fn undefine(world: &World<'_>, what: What, name: &str) -> Fate {
    let is_known = match what {
        What::Table => world.map.tables().contains_key(name),
        What::Join => world.map.joins().contains_key(name),
    };
    if is_known {
        Fate::Change(Change::Undefined {
            what,
            name: name.to_owned(),
        })
    } else {
        Fate::Done(format!("{name} is not defined"))
    }
}
