//! Joins are declared and dropped on every core: on all of them, or on none.
//!
//! In a cluster the map has the definitions: who declares one asks the controller, and every node does what the map says.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use larder_cluster::controller::Ask;
use larder_protocol::errors::Code;

use super::super::super::spaces::follow_spaces;
use super::super::joins;
use super::{Coordinator, gone};
use crate::Shared;
use crate::tables::{Gate, Paused, Refusal, Tables, refusal, stopping};

impl Coordinator {
    /// Declares a join on every core, or drops it.
    pub(super) async fn define(
        &mut self,
        name: String,
        definition: Option<String>,
    ) -> Result<Vec<u8>, Refusal> {
        // In a transaction the cores are paused already, and nothing can be prepared.
        if definition.is_none() && self.ticket.is_none() {
            prepare_drop(&self.core.tables, &name).await;
        }
        let paused = self.pause().await?;
        let defined = define(&self.core.tables, self.ticket, &name, definition).await;
        self.resume(paused).await?;
        defined?;
        Ok(self.encoded(|encoder| encoder.ok()))
    }
}

/// Has every core forget what was computed from a join's output, which is to be dropped.
async fn prepare_drop(tables: &Tables, name: &str) {
    let handle = tables.handle();
    let begin = |core: usize| {
        let name = name.to_owned();
        handle.start_on(core, None, move |tables| async move {
            tables.prepare_drop(&name).await;
        })
    };
    for done in (0..handle.cores()).map(begin).collect::<Vec<_>>() {
        // A core that is gone is noticed when the join is dropped.
        let _ = done.await;
    }
}

/// Declares a join (or, without a definition, drops it) on all cores, which are paused with the ticket.
async fn define(
    tables: &Rc<Tables>,
    ticket: Option<u64>,
    name: &str,
    definition: Option<String>,
) -> Result<(), Refusal> {
    let handle = tables.handle();
    for core in 0..handle.cores() {
        let (own_name, own) = (name.to_owned(), definition.clone());
        let done = handle.start_on(core, ticket, move |tables| async move {
            let mut gate = Gate::default();
            match own {
                Some(definition) => joins::create(&tables, &mut gate, &own_name, &definition),
                None => joins::drop_join(&tables, &mut gate, &own_name),
            }
        });
        let done = done.await.map_err(|_| gone())?;
        if done.is_ok() {
            continue;
        }
        // It is all or none: what only this core has stands against it.
        for undone in (0..core).filter(|_| definition.is_some()) {
            let name = name.to_owned();
            let dropped = handle.start_on(undone, ticket, move |tables| async move {
                joins::drop_join(&tables, &mut Gate::default(), &name)
            });
            let _ = dropped.await;
        }
        return done;
    }
    Ok(())
}

/// Declares a join, or drops it, for HTTP: on one core or on all.
///
/// # Errors
/// As for JOIN.CREATE and JOIN.DROP.
pub(crate) async fn define_everywhere(
    tables: Rc<Tables>,
    gate: &mut Gate,
    name: &str,
    definition: Option<String>,
) -> Result<(), Refusal> {
    if tables.shard().is_none() {
        if definition.is_none() {
            tables.prepare_drop(name).await;
        }
        return match definition {
            Some(definition) => joins::create(&tables, gate, name, &definition),
            None => joins::drop_join(&tables, gate, name),
        };
    }
    if definition.is_none() {
        prepare_drop(&tables, name).await;
    }
    if !tables.is_in_cluster() {
        // What the map has is not journaled here, and is declared before this node has any rows.
        tables.ensure_writes_taken()?;
    }
    let paused = Paused::all(tables.handle()).await.map_err(stopping)?;
    let defined = define(&tables, Some(paused.ticket), name, definition).await;
    paused.finish(&tables, gate).await?;
    defined
}

/// How long the own node is waited for that a definition is in the map.
const KNOWN_MAX: Duration = Duration::from_secs(10);
/// A definition that could not be taken from the map is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Declares a join in the cluster, or drops it; returns when this node has done so.
///
/// # Errors
/// It is wrong, there is one of that name or none, or the controller does not answer.
pub(crate) async fn define_in_cluster(
    shared: &Shared,
    tables: &Rc<Tables>,
    name: &str,
    definition: Option<&str>,
) -> Result<(), Refusal> {
    let Some(membership) = &shared.membership else {
        return Err(gone());
    };
    let ask = match definition {
        Some(text) => {
            joins::check_name(name)?;
            let admitted = tables.read(|engine, _| engine.admits(name, text));
            admitted.map_err(|error| (Code::BadRequest, error.to_string()))?;
            Ask::DefineJoin {
                name: name.to_owned(),
                text: text.to_owned(),
            }
        }
        None => {
            tables
                .read(|engine, _| engine.info(name))
                .map_err(refusal)?;
            let name = name.to_owned();
            Ask::DropJoin { name }
        }
    };
    membership
        .ask(ask)
        .await
        .map_err(|why| (Code::ClusterDown, why))?;
    let is_known = || {
        let is_there = tables.read(|engine, _| engine.info(name).is_ok());
        is_there == definition.is_some()
    };
    let begun = Instant::now();
    while !is_known() || !tables.has_definitions() {
        if begun.elapsed() > KNOWN_MAX {
            let message =
                "the cluster has it, and this node does not follow: JOIN.LIST tells when it does";
            return Err((Code::ClusterDown, message.to_owned()));
        }
        tables.wait_for_news().await;
    }
    Ok(())
}

/// Has all cores declare and drop what the map says, for ever: one core does it for all.
pub(crate) async fn follow_definitions(tables: Rc<Tables>) {
    // What this node has declared, by the map's numbers.
    let mut known: BTreeMap<String, u64> = BTreeMap::new();
    loop {
        let Some(view) = tables.view() else {
            tables.wait_for_news().await;
            continue;
        };
        follow_spaces(&tables, &view.map).await;
        let wanted = view.map.joins();
        let have = tables.read(|engine, _| engine.list());
        let is_wanted = |name: &str, text: &str| {
            let definition = wanted.get(name);
            definition.is_some_and(|it| {
                known
                    .get(name)
                    .map_or(it.text.trim() == text.trim(), |number| it.number == *number)
            })
        };
        let drops: Vec<String> = (have.iter())
            .filter(|join| !is_wanted(&join.name, &join.definition))
            .map(|join| join.name.clone())
            .collect();
        let mut creates: Vec<(u64, &String, &String)> = (wanted.iter())
            .filter(|(name, _)| drops.contains(name) || have.iter().all(|join| join.name != **name))
            .map(|(name, definition)| (definition.number, name, &definition.text))
            .collect();
        creates.sort_unstable();
        let mut failed = None;
        for name in drops {
            known.remove(&name);
            let mut gate = Gate::default();
            let dropped = define_everywhere(tables.clone(), &mut gate, &name, None).await;
            failed = dropped.err().or(failed);
        }
        for (number, name, text) in creates {
            let text = Some(text.clone());
            let mut gate = Gate::default();
            match define_everywhere(tables.clone(), &mut gate, name, text).await {
                Ok(()) => drop(known.insert(name.clone(), number)),
                Err(refusal) => failed = Some(refusal),
            }
        }
        let note = |tables: Rc<Tables>| async move { tables.note_definitions() };
        // An error means that the server is stopping.
        let _ = tables.handle().run_on_all(None, note).await;
        match failed {
            None => {
                known.extend(wanted.iter().map(|(name, it)| (name.clone(), it.number)));
                let epoch = view.map.epoch();
                while tables.view().is_some_and(|view| view.map.epoch() == epoch) {
                    tables.wait_for_news().await;
                }
            }
            Some((_, why)) => {
                // Before this node takes part it cannot, and nothing is wrong.
                match tables.view().is_some_and(|view| view.is_up()) {
                    true => tracing::warn!(
                        why,
                        "a join of the cluster's map cannot be declared or dropped here; it is tried again"
                    ),
                    false => tracing::debug!(why, "a join of the cluster's map waits"),
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}
