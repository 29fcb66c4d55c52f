//! A single-threaded simulation of nodes that own the objects of one space and hold regions of its subspaces, in an order drawn
//! from a seed. `larder_validate::objects` judges what clients write, read and find, under losses, delays and failures, with any
//! map and any subspaces on each node.
//!
//! ```text
//!   a client's write ─► the owner: engine, index, `copies` ─► changes ─► conversation ─► holders
//!                        └─ answered when committed and acknowledged by all notified holders
//!   a client's search ─► by regions: each holder returns its objects, or reports that it lacks some
//!                        └─ else by owners, each for its slots under one map
//! ```
//!
//! The simulation runs the server's own code: engines and exchanges of `larder_join`, and all of this folder. `node` contains the
//! glue, as in `tables/spaces.rs`, `tables/conversations` and `tables/replicated`. Replication has its own simulation
//! (`crates/cluster`), so here a write is committed at some later moment, and when an owner goes down, any prefix of its
//! uncommitted writes may have been kept. `world` contains the nodes, the map and their events, `clients` the requests.
//!
//! Conversations follow invariants 1 to 5 of `tables/conversations`. A conversation that ends loses all messages in flight. The
//! reader trusts its rows until its lease ends or it notices the end; the owner waits that long. Within a conversation, no
//! message is repeated or reordered: connections ensure this, and messages of earlier conversations are discarded.
//!
//! Deliberate bugs verify that the simulation finds them.

mod clients;
mod node;
mod world;

use std::cell::Cell;

use larder_sim::{check_found, for_each_seed};
use larder_validate::objects::{SearchMode, judge};

use world::{Coverage, Simulation};

/// A deliberate bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlantedBug {
    /// A write is answered before all notified holders have it.
    AnswersBeforeHolders,
    /// After a conversation has ended, a holder keeps the copies of that owner's objects.
    KeepsStaleCopies,
    /// An owner does not wait until a reader certainly no longer trusts its rows.
    StopsWaitingEarly,
    /// A message that was withheld until a commit is sent in the current conversation instead of its own.
    SendsHeldMessages,
    /// A holder ignores changes of owners when it receives a map.
    IgnoresOwners,
    /// A holder answers for regions that it holds incompletely.
    AnswersUnready,
    /// A holder does not check again, after it computed the answer, that it is still subscribed.
    SkipsRecheck,
    /// Objects that arrived with a slot are not indexed.
    SkipsMovedObjects,
    /// The parts of a search by owners may use different maps.
    MixesMaps,
    /// An owner whose space no longer has subspaces notifies no reader of changes.
    SkipsStaleSubscribers,
}

/// `rarity`: one in this many possible faults happens, so that regions are complete for longer periods.
fn run(seed: u64, planted: Option<PlantedBug>, rarity: u64) -> Coverage {
    let mut world = Simulation::new(seed, planted);
    world.rarity = rarity;
    world.run(STEPS);
    world.settle();
    let events = world.events();
    let judged = judge(&events, SearchMode::InRegions);
    assert!(
        judged.refused.is_empty(),
        "seed {seed}: {}",
        judged.describe_rejected(&events, 1).join("\n")
    );
    let mut coverage = world.coverage();
    coverage.undecided = judged.undecided();
    coverage
}

const STEPS: u32 = 1_500;
const RARITY: u64 = 8;

#[test]
fn region_searches_are_explained_under_failures_and_moves() {
    let all = Cell::new(Coverage::default());
    for_each_seed(60, 6_000, |seed| {
        let coverage = run(seed, None, 1);
        all.set(all.get().merge(&coverage));
    });
    let coverage = all.get();
    eprintln!("{coverage:?}");
    // Checks that the relevant events have happened, also if a single seed is run.
    let is_complete_run = coverage.runs >= 60;
    let enough =
        coverage.by_regions > 1_000 && coverage.by_owners > 500 && coverage.not_ready > 100;
    let faults = coverage.cut > 100 && coverage.down > 50 && coverage.moved > 50;
    let changes = coverage.switched > 20
        && coverage.cancelled > 5
        && coverage.recut > 20
        && coverage.reordered > 5;
    assert!(
        !is_complete_run || enough && faults && changes,
        "{coverage:?}"
    );
    assert!(
        coverage.undecided * 100 < coverage.answered.max(100),
        "{coverage:?}"
    );
}

#[test]
fn region_searches_are_explained_under_rare_failures() {
    let all = Cell::new(Coverage::default());
    for_each_seed(60, 6_000, |seed| {
        let coverage = run(seed, None, RARITY);
        all.set(all.get().merge(&coverage));
    });
    let coverage = all.get();
    eprintln!("{coverage:?}");
    assert!(
        coverage.runs < 60 || coverage.by_regions > 3_000,
        "{coverage:?}"
    );
}

/// Searches for a seed from `from` on that finds the bug. Rare cases are searched where they are known to occur.
fn check_bug_is_found(planted: PlantedBug, from: u64, rarity: u64) {
    check_found(from, 300, |seed, is_planted| {
        run(seed, is_planted.then_some(planted), rarity);
    });
}

macro_rules! planted {
    ($($name:ident: $bug:ident from $from:expr, one in $rarity:expr;)*) => {
        $(#[test]
        fn $name() {
            check_bug_is_found(PlantedBug::$bug, $from, $rarity);
        })*
    };
}

planted! {
    a_write_answered_before_holders_have_it_is_found: AnswersBeforeHolders from 0, one in 1;
    copies_that_outlive_their_conversation_are_found: KeepsStaleCopies from 0, one in 1;
    an_owner_that_does_not_wait_for_a_lost_reader_is_found: StopsWaitingEarly from 1240, one in 1;
    messages_of_an_ended_conversation_in_the_next_are_found: SendsHeldMessages from 3530, one in RARITY;
    a_holder_that_ignores_new_owners_is_found: IgnoresOwners from 135, one in 1;
    a_holder_that_answers_without_all_copies_is_found: AnswersUnready from 0, one in 1;
    a_holder_that_does_not_recheck_is_found: SkipsRecheck from 0, one in RARITY;
    unindexed_objects_of_a_moved_slot_are_found: SkipsMovedObjects from 0, one in 1;
    parts_of_different_maps_are_found: MixesMaps from 0, one in 1;
    an_owner_without_subspaces_that_notifies_no_reader_is_found: SkipsStaleSubscribers from 800, one in RARITY;
}
