//! Declares, alters and drops spaces and their aliases.
//!
//! On a single node, the first core decides on a change and logs it, and then all cores apply it. In a cluster, the map
//! contains the definitions: a change is sent to the controller, and every node follows the map.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use larder_cluster::controller::Ask;
use larder_cluster::map::{Map, SpaceSet};
use larder_protocol::commands::{Command, Id, OwnedCommand};
use larder_protocol::errors::Code;
use larder_protocol::resp::Proto;
use larder_space::schema::Definition;
use larder_types::key_hash;

use super::super::core::Core;
use super::super::tables::{anywhere, ask_nodes, wait_for_change};
use super::aggregate::keys_behind;
use super::reach::{Asker, Reach, again};
use super::{layout, text};
use crate::spaces::{Catalog, Change, Set, change};
use crate::tables::{Gate, Refusal, Tables, read_catalog, stopping};

/// Maximum time to wait until this node has the new definition from the map.
const KNOWN_MAX: Duration = Duration::from_secs(10);
/// Maximum number of attempts at a change that conflicts with concurrent changes.
const TRIES_MAX: usize = 8;
/// The controller's error for such a conflict.
const CHANGED: &str = "has changed meanwhile";
/// Number of objects that FT.DROPINDEX DD removes per round.
const REMOVED_AT_ONCE: usize = 256;

pub(super) async fn define(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    if layout::is_asked(command) {
        layout::alter(asker, command).await?;
        return told(asker).await;
    }
    let change = change_of(command)?;
    if let (Change::Drop(name), Some(option)) = (&change, command.request.get(2)) {
        if !option.eq_ignore_ascii_case(b"DD") || command.len() > 3 {
            return Err((
                Code::Syntax,
                "syntax error: the option of FT.DROPINDEX is DD".to_owned(),
            ));
        }
        remove_objects(asker, name).await?;
    }
    make(asker, change).await?;
    told(asker).await
}

/// Returns the reply of a successful change.
async fn told(asker: &Asker) -> Result<Vec<u8>, Refusal> {
    if asker.reach == Reach::Nodes {
        // Waits for the other nodes, so that a client that connects to one of them next finds the change there.
        // Unreachable nodes receive it later.
        let list = OwnedCommand::of(Id::FtList, std::iter::empty());
        let batch = list.command().into();
        let _ = ask_nodes(&asker.core, &asker.client, Proto::Resp2, batch).await;
    }
    Ok(asker.encoded(|encoder| encoder.ok()))
}

/// Makes a change.
///
/// # Errors
/// The change is not possible.
pub(super) async fn make(asker: &Asker, change: Change) -> Result<(), Refusal> {
    match asker.reach {
        Reach::Alone => {
            let handle = &asker.core.shared.tables;
            let decided = handle.run_on(0, move |tables| async move {
                change_here(&tables, &change).await
            });
            decided.await.map_err(stopping)?
        }
        Reach::Nodes => change_in_cluster(&asker.core, &change).await,
        Reach::Part { .. } => {
            let message = "spaces are declared by the node that is asked for it";
            Err((Code::BadRequest, message.to_owned()))
        }
    }
}

/// Drops all spaces and their aliases.
///
/// # Errors
/// A space cannot be dropped; others may already have been dropped.
pub(in crate::resp) async fn drop_all(asker: &Asker) -> Result<(), Refusal> {
    let catalog = asker.core.shared.tables.spaces.load_full();
    for (name, _) in catalog.spaces() {
        match make(asker, Change::Drop(name.to_owned())).await {
            // Another client has dropped it.
            Ok(()) | Err((Code::NoSuchSpace, _)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    told(asker).await.map(drop)
}

fn change_of(command: Command<'_>) -> Result<Change, Refusal> {
    let name = |at: usize| text(command.arg(at)).map(str::to_owned);
    Ok(match command.id() {
        Id::FtCreate => {
            let arguments: Vec<&[u8]> = command.args().skip(1).collect();
            let parsed = Definition::parse_create(&arguments);
            let parsed = parsed.and_then(|definition| {
                definition.ensure_effective(None)?;
                Ok(definition)
            });
            Change::Create(Box::new(
                parsed.map_err(|refused| super::refusal(refused, 1))?,
            ))
        }
        Id::FtAlter => {
            let arguments = command.args().skip(2).map(<[u8]>::to_vec);
            Change::Alter(name(1)?, arguments.collect())
        }
        Id::FtDropIndex => Change::Drop(name(1)?),
        Id::FtAliasAdd => Change::AddAlias {
            alias: name(1)?,
            space: name(2)?,
        },
        Id::FtAliasUpdate => Change::UpdateAlias {
            alias: name(1)?,
            space: name(2)?,
        },
        Id::FtAliasDel => Change::RemoveAlias(name(1)?),
        _ => {
            let message = format!("{} declares nothing", command.name());
            return Err((Code::BadRequest, message));
        }
    })
}

/// Returns a number that no space or change of a space has had before.
pub(super) fn new_number(tables: &Tables, by: &str) -> u64 {
    let (now, ticket) = (tables.now(), tables.handle().next_ticket());
    key_hash(format!("{by} {now} {ticket}").as_bytes())
}

/// Decides on a change and logs it, on the first core of a server outside a cluster.
async fn change_here(tables: &Rc<Tables>, change: &Change) -> Result<(), Refusal> {
    tables.ensure_writes_taken()?;
    let (handle, mut gate) = (tables.handle().clone(), Gate::default());
    let catalog = handle.spaces.load_full();
    let sets = change.decide(&catalog, new_number(tables, ""))?;
    tables.log_spaces(&sets, &mut gate)?;
    handle.spaces.store(Arc::new(catalog.with(&sets)));
    follow_everywhere(tables).await?;
    let opened = poll_fn(|cx| tables.poll_gate(&mut gate, cx)).await;
    opened.map_err(|error| (Code::Io, error.to_string()))
}

async fn follow_everywhere(tables: &Rc<Tables>) -> Result<(), Refusal> {
    let follow = |tables: Rc<Tables>| async move {
        tables.follow_spaces();
        // A small number of objects is indexed immediately.
        tables.index_some();
    };
    let followed = tables.handle().run_on_all(None, follow).await;
    followed.map(drop).map_err(stopping)
}

fn catalog_of(spaces: &BTreeMap<String, String>) -> Catalog {
    let decoded = spaces
        .iter()
        .map(|(name, record)| (name.as_str(), BASE64.decode(record).unwrap_or_default()));
    let records: Vec<(&str, Vec<u8>)> = decoded.collect();
    let mut catalog = read_catalog(records.iter().map(|(name, record)| (*name, &record[..])));
    catalog.in_map = spaces.clone();
    catalog
}

/// Changes the map, and returns once this node has applied the change.
async fn change_in_cluster(core: &Rc<Core>, change: &Change) -> Result<(), Refusal> {
    let down = |why: &str| (Code::ClusterDown, why.to_owned());
    let tables = &core.tables;
    let Some(membership) = &core.shared.membership else {
        return Err(down("this node is no member of a cluster"));
    };
    let created = new_number(tables, &core.shared.config.cluster.node);
    let mut tries = 0;
    let sets = loop {
        let view = tables.view();
        let view = view.ok_or_else(|| down("this node has not heard of the cluster's map yet"))?;
        let before = view.map.spaces();
        let sets = change.decide(&catalog_of(before), created)?;
        let asked = sets.iter().map(|set| SpaceSet {
            name: set.name.clone(),
            before: before.get(&set.name).cloned(),
            record: set.record.as_ref().map(|record| BASE64.encode(record)),
        });
        let ask = Ask::SetSpaces {
            sets: asked.collect(),
        };
        tries += 1;
        match membership.ask(ask).await {
            Ok(_) => break sets,
            Err(why) if why.contains(CHANGED) && tries < TRIES_MAX => {
                wait_for_change(core, view.map.epoch().0).await;
            }
            Err(why) => return Err((Code::ClusterDown, why)),
        }
    };
    let begun = Instant::now();
    while !is_known(tables, &sets) || !tables.has_definitions() {
        if begun.elapsed() > KNOWN_MAX {
            return Err(down(
                "the cluster has it, and this node does not follow: FT._LIST tells when it does",
            ));
        }
        tables.wait_for_news().await;
    }
    Ok(())
}

fn is_known(tables: &Tables, sets: &[Set]) -> bool {
    let catalog = tables.handle().spaces.load();
    sets.iter()
        .all(|set| catalog.record(&set.name) == set.record.as_deref())
}

/// Applies the map's spaces to all cores. Runs on one core.
pub(crate) async fn follow_spaces(tables: &Rc<Tables>, map: &Map) {
    let handle = tables.handle();
    if handle.spaces.load().in_map == *map.spaces() {
        return;
    }
    handle.spaces.store(Arc::new(catalog_of(map.spaces())));
    // An error means that the server is stopping.
    let _ = follow_everywhere(tables).await;
}

/// Removes all objects of a space that exist at the start, including those that its index does not contain yet.
async fn remove_objects(asker: &Asker, name: &str) -> Result<(), Refusal> {
    let catalog = asker.core.shared.tables.spaces.load_full();
    let declared = catalog.space(name).ok_or_else(change::unknown_name)?;
    loop {
        let found = again(&asker.core, asker.reach, async || {
            keys_behind(asker, declared, &[b"*"], None, REMOVED_AT_ONCE).await
        });
        let (keys, _) = found.await?;
        if keys.is_empty() {
            return Ok(());
        }
        let del = OwnedCommand::of(Id::Del, keys.iter().map(Vec::as_slice));
        let reply = anywhere(&asker.core, &asker.client, del).await?;
        if reply.first() == Some(&b'-') {
            let text = String::from_utf8_lossy(&reply[1..]).trim_end().to_owned();
            return Err((Code::Io, format!("objects could not be removed: {text}")));
        }
    }
}
