//! Loads a population into a data store, in parallel, in pieces that can be loaded again.
//!
//! Each worker takes the next piece when it is ready. The loaded data does not depend on the number of workers. If one
//! fails, the others complete their pieces, and the error names the member from which loading can continue. Meanwhile,
//! a note in the data store marks it as incomplete (`notes`).

use std::ops::{ControlFlow, Range};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use tokio::runtime::LocalRuntime;

use crate::model::population::Population;
use crate::stores::contract::{Client, Failure, Store};
use crate::stores::notes::LoadNote;

/// The number of members in a piece.
const PIECE: u32 = 50;

/// The number of pieces that one worker loads concurrently.
const PIECES_CONCURRENT: usize = 4;

/// The maximum number of attempts. A piece with an unknown outcome is loaded again, which has the same result.
const TRIES: u32 = 5;

/// The progress of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The number of loaded members.
    pub loaded: u32,
    pub members: u32,
}

/// Empties the data store and loads the complete population. `on_progress` is called after each piece, and may stop the
/// load.
///
/// # Errors
///
/// The reason of the failure, and the member from which to continue.
pub fn load(
    store: &Arc<dyn Store>,
    population: &Arc<Population>,
    workers: usize,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), String> {
    let fail = |why: Failure| format!("cannot create the schema of {}: {why}", store.name());
    let loaded = LoadNote::new(&**store, population);
    runtime()?
        .block_on(async {
            // A concurrent run then notices the load before any data is deleted. Without a schema, there is no run.
            let _ = loaded.begin(&**store).await;
            store.create(population).await?;
            loaded.begin(&**store).await
        })
        .map_err(fail)?;
    load_members(0, loaded, store, population, workers, on_progress)
}

/// Loads the members from `first` into a data store that already has those before it.
///
/// # Errors
///
/// See [`load`]. Also if the data store holds another population, or if a run has changed it.
pub fn load_from(
    first: u32,
    store: &Arc<dyn Store>,
    population: &Arc<Population>,
    workers: usize,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), String> {
    let loaded = if store.skips_validation() {
        LoadNote::new(&**store, population)
    } else {
        LoadNote::resume(&**store, population)?
    };
    let fail = |why: Failure| format!("cannot continue loading {}: {why}", store.name());
    runtime()?.block_on(loaded.begin(&**store)).map_err(fail)?;
    load_members(first, loaded, store, population, workers, on_progress)
}

fn load_members(
    first: u32,
    loaded: LoadNote,
    store: &Arc<dyn Store>,
    population: &Arc<Population>,
    workers: usize,
    on_progress: &mut dyn FnMut(Progress) -> ControlFlow<()>,
) -> Result<(), String> {
    let shared = LoadState {
        population,
        next: AtomicU32::new(first),
        failed: AtomicBool::new(false),
        // The first member of the first piece that was not loaded.
        missing: Mutex::new(None),
    };
    let (sender, receiver) = channel();
    let mut so_far = first;
    thread::scope(|scope| {
        for _ in 0..workers {
            let (sender, shared) = (sender.clone(), &shared);
            scope.spawn(move || {
                let on_progress = |members: u32| {
                    let _ = sender.send(members);
                };
                if let Err(why) = run_loader(store, shared, &on_progress) {
                    shared.fail(shared.population.members, why);
                }
            });
        }
        drop(sender);
        for members in receiver {
            so_far += members;
            let flow = on_progress(Progress {
                loaded: so_far,
                members: population.members,
            });
            if flow.is_break() {
                shared.fail(population.members, "the load was interrupted".to_owned());
            }
        }
    });
    let missing = shared.missing.into_inner().expect("no panic while locked");
    if let Some((missing, why)) = missing
        && missing.min(shared.next.load(Ordering::Relaxed)) < population.members
    {
        let missing = missing.min(shared.next.into_inner());
        let can_continue = !store.is_volatile();
        let advice = format!("; bg load --from {missing} continues the load");
        return Err(format!(
            "loading {} stopped: {why}{}",
            store.name(),
            if can_continue { &advice } else { "" }
        ));
    }
    let finished = runtime()?.block_on(async {
        let client = store.connect(population.clone()).await?;
        client.finish_load().await?;
        loaded.end(&**store).await
    });
    finished.map_err(|why| format!("cannot complete the load of {}: {why}", store.name()))
}

struct LoadState<'a> {
    population: &'a Arc<Population>,
    next: AtomicU32,
    failed: AtomicBool,
    missing: Mutex<Option<(u32, String)>>,
}

impl LoadState<'_> {
    /// Returns the next piece that no worker has taken.
    fn take_piece(&self) -> Option<Range<u32>> {
        if self.failed.load(Ordering::Relaxed) {
            return None;
        }
        let members = self.population.members;
        let take = |next: u32| (next < members).then(|| members.min(next.saturating_add(PIECE)));
        let first = self
            .next
            .try_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        Some(first..take(first)?)
    }

    fn fail(&self, first: u32, why: String) {
        self.failed.store(true, Ordering::Relaxed);
        let mut missing = self.missing.lock().expect("no panic while locked");
        if missing.as_ref().is_none_or(|(known, _)| first < *known) {
            *missing = Some((first, why));
        }
    }
}

fn run_loader(
    store: &Arc<dyn Store>,
    shared: &LoadState,
    on_progress: &dyn Fn(u32),
) -> Result<(), String> {
    let runtime = runtime()?;
    runtime.block_on(async {
        let client = store
            .connect(shared.population.clone())
            .await
            .map_err(|why| why.to_string())?;
        let pieces = (0..PIECES_CONCURRENT).map(|_| load_pieces(&client, shared, on_progress));
        futures::future::join_all(pieces).await;
        Ok(())
    })
}

async fn load_pieces(client: &Rc<dyn Client>, shared: &LoadState<'_>, on_progress: &dyn Fn(u32)) {
    while let Some(piece) = shared.take_piece() {
        let mut tries = 0;
        let loaded = loop {
            tries += 1;
            match client.load(piece.clone()).await {
                Err(Failure::Unknown(_)) if tries < TRIES => {}
                loaded => break loaded,
            }
        };
        match loaded {
            Ok(()) => on_progress(piece.end - piece.start),
            Err(why) => return shared.fail(piece.start, why.to_string()),
        }
    }
}

/// Creates a runtime for calls before or after a run.
pub(crate) fn runtime() -> Result<LocalRuntime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(Default::default())
        .map_err(|why| format!("cannot create a runtime: {why}"))
}
