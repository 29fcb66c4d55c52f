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

/// Whether one linear order of all calls exists. `apply` gives the state after a call, or none if the call cannot come there. Calls without an end
/// may be left out.
pub fn has_order<State: Clone, Call>(
    initial: &State,
    calls: &[(Span, Call)],
    apply: &dyn Fn(&State, &Call) -> Option<State>,
) -> bool {
    order_from(initial, calls, apply, 0)
}

fn order_from<State: Clone, Call>(
    state: &State,
    calls: &[(Span, Call)],
    apply: &dyn Fn(&State, &Call) -> Option<State>,
    placed: u32,
) -> bool {
    let waiting = |index: &usize| placed & 1 << index == 0;
    let mut rest = (0..calls.len()).filter(waiting);
    if rest.clone().all(|index| calls[index].0.end() == u64::MAX) {
        return true;
    }
    rest.clone().any(|index| {
        let (span, call) = &calls[index];
        let first = !rest.clone().any(|other| calls[other].0.precedes(*span));
        first
            && apply(state, call)
                .is_some_and(|next| order_from(&next, calls, apply, placed | 1 << index))
    }) || rest.next().is_none()
}
