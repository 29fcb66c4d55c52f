//! Joins are declared and dropped on every core: on all of them, or on none.

use std::rc::Rc;

use super::super::joins;
use super::{Coordinator, gone};
use crate::tables::{Gate, Paused, Refusal, Tables, stopping};

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
    tables.ensure_writes_taken()?;
    let paused = Paused::all(tables.handle()).await.map_err(stopping)?;
    let defined = define(&tables, Some(paused.ticket), name, definition).await;
    paused.finish(&tables, gate).await?;
    defined
}
