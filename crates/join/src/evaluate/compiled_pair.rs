//! A compiled form of the two innermost levels of an evaluation without nodes. Reads of `pull` timelines use it.
//!
//! `evaluate` would split each row of a checked source into slots and build the range to scan below it. If all slots
//! have widths, the same bytes of every row always go to the same places of that range, and are copied there. Most
//! ranges turn out to be empty after one lookup of the group that they lie in.

use crate::base::key_range::KeyRange;
use crate::base::pattern::{Binding, Element};
use crate::base::rows::Cursor;
use crate::engine::Engine;
use crate::join::Join;
use crate::join::combine::{apply_combination, is_possible, key_matches};
use crate::join::run::{RowSink, Run};

/// The offsets from which and to which bytes are copied.
pub struct CompiledPair {
    /// The form of an outer row's key: its length, and literal text at some offsets.
    key_len: usize,
    texts: Vec<(usize, Box<[u8]>)>,
    /// Copies from an offset in the outer key to an offset in both ends of the inner range.
    copies: Vec<ByteCopy>,
    /// The slots that the outer row binds, with their offsets in its key.
    fresh: Vec<(u8, usize, usize)>,
    lo: Vec<u8>,
    hi: Vec<u8>,
    /// Length of the prefix that all keys of the inner range share.
    prefix_len: usize,
}

struct ByteCopy {
    from: usize,
    to: usize,
    len: usize,
}

impl Engine {
    /// Compiles a level and the last level below it, if both are simple enough.
    pub(crate) fn compile_pair(
        &self,
        join: &Join,
        run: &Run,
        level: usize,
        binding: &Binding,
    ) -> Option<CompiledPair> {
        let (outer, inner) = (join.source(level), join.source(level + 1));
        let is_value_last = join.order[level + 1] == join.definition.value;
        if !is_value_last
            || !self.is_plain(join.tables[level])
            || !self.is_plain(join.tables[level + 1])
            || !outer.conditions.is_empty()
        {
            return None;
        }
        let key_len = outer.pattern.key_len?;
        let slots = &join.definition.slots;
        let known = outer.pattern.elements_bound(binding.bound);
        let mut texts = Vec::new();
        let mut fresh: Vec<(u8, usize, usize)> = Vec::new();
        let mut at = 0;
        for (number, element) in outer.pattern.elements.iter().enumerate() {
            let len = match element {
                Element::Text(text) => text.len(),
                Element::Slot(id) => slots[*id as usize].width?,
            };
            match element {
                _ if number < known => {}
                Element::Text(text) => texts.push((at, text.clone())),
                Element::Slot(id)
                    if binding.is_bound(*id) || fresh.iter().any(|(s, ..)| s == id) =>
                {
                    return None;
                }
                Element::Slot(id) => fresh.push((*id, at, len)),
            }
            at += len;
        }
        // The slots of these two sources must suffice to keep the output inside the range.
        let mut all = binding.clone();
        for (slot, _, len) in &fresh {
            all.bind(*slot, &vec![0; *len]);
        }
        if join.definition.shape.output.elements_bound(all.bound) > run.elements
            || !is_possible(join, run, &all)
        {
            return None;
        }
        let mut moves = Vec::new();
        let mut to = 0;
        let elements = inner.pattern.elements_bound(all.bound);
        for element in &inner.pattern.elements[..elements] {
            match element {
                Element::Text(text) => to += text.len(),
                Element::Slot(id) => {
                    let len = slots[*id as usize].width?;
                    moves.extend(fresh.iter().find(|(s, ..)| s == id).map(|(_, from, _)| {
                        ByteCopy {
                            from: *from,
                            to,
                            len,
                        }
                    }));
                    to += len;
                }
            }
        }
        // The ends of the range may differ only after the copied bytes.
        if !matches!(
            inner.pattern.elements[..elements].last(),
            Some(Element::Text(_))
        ) {
            return None;
        }
        let (mut lo, mut hi) = (Vec::new(), Vec::new());
        inner
            .pattern
            .write_range(&all, run.bounds.as_ref(), &mut lo, &mut hi);
        if hi.len() < to {
            return None;
        }
        Some(CompiledPair {
            key_len,
            texts,
            copies: moves,
            fresh,
            lo,
            hi,
            prefix_len: to,
        })
    }

    /// Evaluates the two levels, as far as the budget allows. Returns the number of rows visited.
    pub(crate) fn evaluate_pair(
        &self,
        join: &mut Join,
        run: &mut Run,
        binding: &mut Binding,
        range: &KeyRange,
        pairs: CompiledPair,
    ) -> usize {
        let CompiledPair {
            key_len,
            texts,
            copies: moves,
            fresh,
            mut lo,
            mut hi,
            prefix_len,
        } = pairs;
        let level = join.last_level();
        let outer = &self.tables[join.tables[level - 1]].rows;
        let inner = &self.tables[join.tables[level]].rows;
        let is_grouped = inner.is_split_after(prefix_len);
        // The same for all rows, if all rows with the prefix are in one group.
        let suffix_hi: Option<Box<[u8]>> = hi.strip_prefix(&lo[..prefix_len]).map(Box::from);
        let mut cursor = outer.cursor(&range.lo, &range.hi, false);
        let mut taken = 0;
        while taken < self.budget.left()
            && let Some((key, _)) = cursor.next()
        {
            taken += 1;
            if key.len() != key_len || !texts.iter().all(|(at, text)| key[*at..].starts_with(text))
            {
                continue;
            }
            for ByteCopy { from, to, len } in &moves {
                let (to, from) = (&mut lo[*to..to + len], &key[*from..from + len]);
                match (to.first_chunk_mut::<4>(), from.first_chunk::<4>()) {
                    (Some(to), Some(from)) if *len == 4 => *to = *from,
                    _ => to.copy_from_slice(from),
                }
            }
            let rows = if is_grouped {
                let Some(group) = inner.group_from(&lo) else {
                    continue;
                };
                let suffix = &lo[prefix_len..];
                inner.cursor_in(group, suffix, suffix_hi.as_deref(), false)
            } else {
                if !inner.may_have(&lo[..prefix_len]) {
                    continue;
                }
                for ByteCopy { from, to, len } in &moves {
                    hi[*to..to + len].copy_from_slice(&key[*from..from + len]);
                }
                Some(inner.cursor(&lo, &hi, false))
            };
            let mark = binding.mark();
            for (slot, at, len) in &fresh {
                binding.bind(*slot, &key[*at..at + len]);
            }
            if let Some(rows) = rows {
                taken += evaluate_inner(join, run, binding, rows, self.budget.left() - taken);
            }
            binding.reset(mark);
        }
        taken
    }
}

/// Processes at most `rows_max` rows of the last level for one outer row, whose slots are bound. Returns their number.
fn evaluate_inner(
    join: &mut Join,
    run: &mut Run,
    binding: &mut Binding,
    mut rows: Cursor<'_>,
    rows_max: usize,
) -> usize {
    let level = join.last_level();
    let is_copied = run.fill.is_none() && matches!(run.sink, RowSink::Copies(_));
    let mut taken = 0;
    while taken < rows_max
        && let Some((key, value)) = rows.next()
    {
        taken += 1;
        let mark = binding.mark();
        let source = join.source(level);
        if key_matches(join, level, key, binding)
            && (source.conditions.is_empty() || source.admits(value))
        {
            if is_copied {
                run.take_copy(join, binding, value);
            } else {
                let (key, value) = (Box::<[u8]>::from(key), rows.value());
                apply_combination(join, run, binding, &key, Some(&value), 1);
            }
        }
        binding.reset(mark);
    }
    taken
}
