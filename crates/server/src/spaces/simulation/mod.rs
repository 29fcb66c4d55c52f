//! Nodes that own objects of one space and hold regions of its subspaces, on one thread, in orders that a seed gives: what clients write, read and find is judged
//! (`larder_validate::objects`), whatever is lost, late or gone, and whatever map and whatever subspaces each node goes by.
//!
//! ```text
//!   a client's write ─► the owner: engine, index, `copies` ─► told ─► conversation ─► holders
//!                        └─ committed, and all told have it: answered
//!   a client's search ─► by regions: each holder says what it has, or that it lacks something
//!                        └─ else by owners, each for the slots that it has by one map
//! ```
//!
//! What is simulated is the server's own code: engines and exchanges of `larder_join`, and all of this folder. The glue between them is `node`, as `tables/spaces.rs`,
//! `tables/conversations` and `tables/replicated` have it; replication itself is simulated by itself (`crates/cluster`), so that here a write is committed at some later moment,
//! and of what was not when its owner went down any part may have been kept. `world` has the nodes, the map and what happens to them; `clients` what is asked of them.
//!
//! Conversations are as invariants 1 to 5 of `tables/conversations` have them: one is lost with all that is on its way; the reader trusts what it was told until
//! its lease ends or it notices; the owner waits that long. Nothing is repeated or comes in another order within one: that connections see to, and what comes of an earlier one is thrown away.
//!
//! Mistakes are planted, to see that they are found.

mod clients;
mod node;
mod world;

use std::cell::Cell;

use larder_sim::{check_found, for_each_seed};
use larder_validate::objects::{Searches, judge};

use world::{Seen, World};

/// What is done wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    /// A write is answered before all who are told have it.
    AnswersUntold,
    /// An owner whose conversation has ended is not waited for: what is held of its objects stays.
    KeepsWhatIsNotTold,
    /// An owner does not wait until a reader surely trusts it no more.
    GivesUpEarly,
    /// What is to be said when something is committed is said in the conversation that there is then.
    SaysWhatWasKept,
    /// A holder does not look at who owns what when it hears of a map.
    IgnoresOwners,
    /// A holder answers for regions that it does not have whole.
    AnswersUnready,
    /// A holder does not look again whether it was told all, when it has the answer.
    LooksOnce,
    /// Objects that came with a slot are not looked at.
    MissesMoved,
    /// Parts of a search by owners may be of different maps.
    MixesMaps,
    /// An owner whose space has no subspaces any more tells nobody of changes.
    TellsNoFormer,
}

/// `rarity`: of what may go wrong one in so many does, so that regions are whole for longer.
fn run(seed: u64, planted: Option<Planted>, rarity: u64) -> Seen {
    let mut world = World::new(seed, planted);
    world.rarity = rarity;
    world.run(STEPS);
    world.settle();
    let events = world.events();
    let judged = judge(&events, Searches::InRegions);
    assert!(
        judged.refused.is_empty(),
        "seed {seed}: {}",
        judged.tell(&events, 1).join("\n")
    );
    let mut seen = world.seen();
    seen.undecided = judged.undecided();
    seen
}

const STEPS: u32 = 1_500;
const RARE: u64 = 8;

#[test]
fn what_is_found_in_regions_is_explained_whatever_is_lost_or_moves() {
    let all = Cell::new(Seen::default());
    for_each_seed(60, 6_000, |seed| {
        let seen = run(seed, None, 1);
        all.set(all.get().and(&seen));
    });
    let seen = all.get();
    eprintln!("{seen:?}");
    // What it is about has happened, also when it is one seed alone.
    let is_whole = seen.runs >= 60;
    let enough = seen.by_regions > 1_000 && seen.by_owners > 500 && seen.not_ready > 100;
    let faults = seen.cut > 100 && seen.down > 50 && seen.moved > 50;
    let changes =
        seen.switched > 20 && seen.cancelled > 5 && seen.cut_anew > 20 && seen.reordered > 5;
    assert!(!is_whole || enough && faults && changes, "{seen:?}");
    assert!(seen.undecided * 100 < seen.answered.max(100), "{seen:?}");
}

#[test]
fn what_is_found_in_regions_is_explained_where_little_goes_wrong() {
    let all = Cell::new(Seen::default());
    for_each_seed(60, 6_000, |seed| {
        let seen = run(seed, None, RARE);
        all.set(all.get().and(&seen));
    });
    let seen = all.get();
    eprintln!("{seen:?}");
    assert!(seen.runs < 60 || seen.by_regions > 3_000, "{seen:?}");
}

/// By some seed from this one on: what is rare is looked for where it is known to be.
fn is_found(planted: Planted, from: u64, rarity: u64) {
    check_found(300, |seed, is_planted| {
        run(from + seed, is_planted.then_some(planted), rarity);
    });
}

macro_rules! planted {
    ($($name:ident: $mistake:ident from $from:expr, one in $rarity:expr;)*) => {
        $(#[test]
        fn $name() {
            is_found(Planted::$mistake, $from, $rarity);
        })*
    };
}

planted! {
    a_write_answered_before_holders_have_it_is_found: AnswersUntold from 0, one in 1;
    copies_that_outlive_their_conversation_are_found: KeepsWhatIsNotTold from 0, one in 1;
    an_owner_that_does_not_wait_for_a_lost_reader_is_found: GivesUpEarly from 1240, one in 1;
    words_of_an_ended_conversation_in_the_next_are_found: SaysWhatWasKept from 3530, one in RARE;
    a_holder_that_ignores_new_owners_is_found: IgnoresOwners from 135, one in 1;
    a_holder_that_answers_without_all_copies_is_found: AnswersUnready from 0, one in 1;
    a_holder_that_does_not_look_again_is_found: LooksOnce from 0, one in RARE;
    objects_that_came_with_a_slot_and_are_not_indexed_are_found: MissesMoved from 0, one in 1;
    parts_of_different_maps_are_found: MixesMaps from 0, one in 1;
    an_owner_without_subspaces_that_tells_nobody_is_found: TellsNoFormer from 800, one in RARE;
}
