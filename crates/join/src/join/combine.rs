//! Combines source rows: checks whether a source row matches, whether its output can be in the range, and applies
//! complete combinations.

use crate::base::key_range::successor;
use crate::base::pattern::Binding;
use crate::base::rows::Value;
use crate::join::Join;
use crate::join::run::{RowSink, Run};
use crate::operators::Combination;

/// Returns whether a source row matches the pattern, the binding and all conditions. Binds its slots.
pub fn row_matches(
    join: &Join,
    level: usize,
    key: &[u8],
    value: &Value,
    binding: &mut Binding,
) -> bool {
    let source = join.source(level);
    key_matches(join, level, key, binding)
        && (source.conditions.is_empty() || source.admits(value.as_bytes()))
}

pub fn key_matches(join: &Join, level: usize, key: &[u8], binding: &mut Binding) -> bool {
    let source = join.source(level);
    let mark = binding.mark();
    if !source.pattern.matches(key, &join.definition.slots, binding) {
        return false;
    }
    let inside = source
        .conditions
        .iter()
        .all(|c| c.slot.is_none_or(|slot| c.holds(binding.get(slot))));
    if !inside {
        binding.reset(mark);
    }
    inside
}

/// Returns whether output rows with this binding can be in the range.
pub fn is_possible(join: &Join, run: &Run, binding: &Binding) -> bool {
    let output = &join.definition.shape.output;
    let elements = output.elements_bound(binding.bound);
    if elements <= run.elements && (run.is_prefix || elements < output.elements.len()) {
        return true;
    }
    let mut prefix = Vec::with_capacity(32);
    output.write_prefix(binding, &mut prefix);
    if elements == output.elements.len() {
        return run.range.contains(&prefix);
    }
    *prefix < *run.range.hi && successor(&prefix) > run.range.lo.to_vec()
}

/// Applies a complete combination of source rows to the output: adds it, or takes it back if `sign` is negative.
pub fn apply_combination(
    join: &mut Join,
    run: &mut Run,
    binding: &Binding,
    source_key: &[u8],
    value: Option<&Value>,
    sign: i32,
) {
    let definition = &join.definition;
    if !run.write_key(join, binding) {
        return;
    }
    let (old, new) = if sign > 0 {
        (None, value)
    } else {
        (value, None)
    };
    let combination = Combination {
        key: &run.key,
        source_key,
        binding,
        fill: run.fill.unwrap_or(u32::MAX),
    };
    if run.fill.is_some() {
        if !is_recomputed_later(join, run.fill, combination.key) {
            join.output.apply(
                &join.definition.shape,
                combination,
                old,
                new,
                &mut run.effects,
            );
        }
        return;
    }
    match &mut run.sink {
        RowSink::Copies(rows) => {
            if let Some(value) = new {
                rows.push(combination.key, value.as_bytes());
            }
        }
        RowSink::Output(output) => {
            output.apply(&definition.shape, combination, old, new, &mut run.effects)
        }
    }
}

/// Returns whether a group will be computed again, so that changes to it need not be applied.
pub fn is_recomputed_later(join: &Join, fill: Option<u32>, group: &[u8]) -> bool {
    let Some(fill) = fill else { return false };
    join.fills
        .get(fill)
        .unsettled()
        .is_some_and(|u| u.drained.contains(group))
}
