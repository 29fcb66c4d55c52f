//! Describes a join's plan, and what a read of a range would fill.

use std::fmt::Write;

use crate::base::key_range::KeyRange;
use crate::base::pattern::Binding;
use crate::engine::Engine;
use crate::error::{Error, text};
use crate::evaluate::view::plan_fill;
use crate::join::Join;
use crate::language::describe::describe;
use crate::language::grammar::JoinMode;

impl Engine {
    /// Returns the plan of a join. For a range of its output, also the parts that a read would fill and the first scan.
    ///
    /// # Errors
    /// No join has this name.
    pub fn explain(&self, name: &str, range: Option<(&[u8], &[u8])>) -> Result<String, Error> {
        let join = self.joins.find_by_name(name);
        let join = join.ok_or_else(|| Error::UnknownJoin {
            name: name.to_string(),
        })?;
        let mut out = String::new();
        describe(&join.name, &join.definition, &join.order, &mut out);
        if let Some((lo, hi)) = range {
            self.describe_range(join, &KeyRange::new(lo, hi), &mut out);
        }
        Ok(out)
    }

    fn describe_range(&self, join: &Join, range: &KeyRange, out: &mut String) {
        let _ = writeln!(out, "range {} to {}", text(&range.lo), text(&range.hi));
        let definition = &join.definition;
        let mut binding = Binding::default();
        let output = &definition.shape.output;
        let constraint = output.constrain(range, &definition.slots, &mut binding);
        let Some(constraint) = constraint.filter(|_| !range.is_empty()) else {
            out.push_str("  the join has no rows in this range\n");
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
        if definition.mode == JoinMode::Pull {
            out.push_str("  computed by each read; nothing is stored\n");
            return;
        }
        for number in join.fills.status().overlapping(&range.lo, &range.hi) {
            let filled = &join.fills.get(number).range;
            let _ = writeln!(
                out,
                "  is filled {} to {}",
                text(&filled.lo),
                text(&filled.hi)
            );
        }
        let gaps =
            plan_fill(join, range).map_or(Vec::new(), |range| join.fills.status().gaps(&range));
        for gap in gaps {
            let _ = writeln!(out, "  would fill {} to {}", text(&gap.lo), text(&gap.hi));
        }
    }
}
