//! The oracle: every linear order of a small history, tried one by one. It knows precedence and how
//! a write changes the state, and nothing else of what the checkers know.

use std::collections::BTreeSet;
use std::fmt::Debug;

use larder_validate::Span;

/// Everything a read may see: the states at the read in all linear orders of the writes and the read.
pub fn states<State: Clone + Ord + Debug, Effect>(
    initial: &State,
    writes: &[(Span, Effect)],
    read: Span,
    apply: &dyn Fn(&mut State, &Effect),
) -> BTreeSet<State> {
    let mut seen = BTreeSet::new();
    place(initial, writes, read, apply, 0, &mut seen);
    seen
}

/// `placed` has a bit for each write that is in the order so far.
fn place<State: Clone + Ord + Debug, Effect>(
    state: &State,
    writes: &[(Span, Effect)],
    read: Span,
    apply: &dyn Fn(&mut State, &Effect),
    placed: u32,
    seen: &mut BTreeSet<State>,
) {
    let missing = |before: Span| {
        writes
            .iter()
            .enumerate()
            .any(|(index, (span, _))| placed & 1 << index == 0 && span.precedes(before))
    };
    // The read may come now if all that precedes it came. The rest of the order always exists.
    if !missing(read) {
        seen.insert(state.clone());
    }
    for (index, (span, effect)) in writes.iter().enumerate() {
        if placed & 1 << index == 0 && !read.precedes(*span) && !missing(*span) {
            let mut next = state.clone();
            apply(&mut next, effect);
            place(&next, writes, read, apply, placed | 1 << index, seen);
        }
    }
}
