//! What a join will do, in words: the plan, and what a read of a range would fill.

use std::fmt::Write;

use crate::base::key_range::KeyRange;
use crate::base::pattern::Binding;
use crate::engine::Engine;
use crate::error::{Error, text};
use crate::evaluate::view::fillable;
use crate::join::Join;
use crate::language::grammar::Mode;
use crate::tables::catalog::mode_name;

impl Engine {
    /// The plan of a join, and for a range of its output, which parts a read would fill and what it would scan first.
    ///
    /// # Errors
    /// No join has this name.
    pub fn explain(&self, name: &str, range: Option<(&[u8], &[u8])>) -> Result<String, Error> {
        let join = self.joins.named(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        let mut out = String::new();
        describe(join, &mut out);
        if let Some((lo, hi)) = range {
            self.describe_range(join, &KeyRange::new(lo, hi), &mut out);
        }
        Ok(out)
    }

    fn describe_range(&self, join: &Join, range: &KeyRange, out: &mut String) {
        let _ = writeln!(out, "range {} to {}", text(&range.lo), text(&range.hi));
        let definition = &join.definition;
        let mut binding = Binding::default();
        let Some(constraint) =
            definition
                .shape
                .output
                .constrain(range, &definition.slots, &mut binding)
        else {
            out.push_str("  no row of this join can be there\n");
            return;
        };
        for (number, slot) in definition.slots.iter().enumerate() {
            if binding.is_bound(number as u8) {
                let _ = writeln!(
                    out,
                    "  <{}> is {}",
                    slot.name,
                    text(binding.get(number as u8))
                );
            }
        }
        let first = join
            .source(0)
            .pattern
            .range(&binding, constraint.bounds.as_ref());
        let _ = writeln!(
            out,
            "  scans first {} to {}",
            text(&first.lo),
            text(&first.hi)
        );
        if definition.mode == Mode::Pull {
            out.push_str("  computed at each read; nothing is filled\n");
            return;
        }
        for number in join.status.overlapping(&range.lo, &range.hi) {
            let filled = &join.fills.get(number).range;
            let _ = writeln!(
                out,
                "  is filled {} to {}",
                text(&filled.lo),
                text(&filled.hi)
            );
        }
        let gaps = fillable(join, range).map_or(Vec::new(), |range| join.status.gaps(&range));
        for gap in gaps {
            let _ = writeln!(out, "  would fill {} to {}", text(&gap.lo), text(&gap.hi));
        }
    }
}

fn describe(join: &Join, out: &mut String) {
    let definition = &join.definition;
    let _ = writeln!(out, "join {}: {}", join.name, definition.text);
    let keeps = match definition.mode {
        Mode::Push => "filled on demand, then kept fresh by every write".to_string(),
        Mode::Pull => "computed at each read; nothing is kept".to_string(),
        Mode::Snapshot { millis } => format!("filled on demand, read for {} s as it was", millis as f64 / 1000.0),
        Mode::Auto => "filled on demand; each source range is copied when written or when read, whichever costs less".to_string(),
    };
    let _ = writeln!(out, "mode {}: {keeps}", mode_name(definition.mode));
    for (level, &source) in join.order.iter().enumerate() {
        let source = &definition.sources[source];
        let when = match (definition.is_maintained(), level == join.last_level()) {
            (false, _) => "",
            (true, true) => "; its changes are applied at once",
            (true, false) => "; its changes are applied when the range is read",
        };
        let _ = writeln!(
            out,
            "{}. {} {}{when}",
            level + 1,
            source.operator.name(),
            source.pattern.text
        );
    }
    let rows = if definition.shape.copies_rows() {
        "one for each combination of source rows; values are shared"
    } else if definition.shape.one_to_one || !definition.shape.operator.is_copy() {
        "one for each group of source rows; gone when the group is empty"
    } else {
        "one for several source rows: the last source key's value"
    };
    let _ = writeln!(out, "rows: {rows}");
}
