//! The oracle: tries every linear order of a small history. It uses only precedence and the effects of writes, and
//! shares nothing else with the checkers.

use std::collections::BTreeSet;
use std::fmt::Debug;

use larder_validate::Span;

/// Returns every state that a read may see: the state at the read in all linear orders of the writes and the read.
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

/// `placed` has a bit for each write that is already in the order.
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
    // The read may come now if all its predecessors have. The order can always be completed.
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

/// Returns whether there is a linear order of all calls. `apply` returns the state after a call, or `None` if the
/// call is impossible there. Calls without an end may be omitted.
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
