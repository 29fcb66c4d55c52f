//! Describes a definition and its plan as text.

use std::fmt::Write;

use crate::language::definition::Definition;
use crate::language::grammar::JoinMode;

/// Appends a description of a join: its mode, the order in which it reads its sources, and its rows.
pub fn describe(name: &str, definition: &Definition, order: &[usize], out: &mut String) {
    let _ = writeln!(out, "join {name}: {}", definition.text);
    let keeps = match definition.mode {
        JoinMode::Push => "filled on demand, then maintained by every write".to_string(),
        JoinMode::Pull => "computed by each read; nothing is stored".to_string(),
        JoinMode::Snapshot { millis } => format!("filled on demand, not updated for {} s", millis as f64 / 1000.0),
        JoinMode::Auto => "filled on demand; each source range is copied when written or when read, whichever costs less".to_string(),
    };
    let _ = writeln!(out, "mode {}: {keeps}", definition.mode.name());
    for (level, &source) in order.iter().enumerate() {
        let source = &definition.sources[source];
        let when = match (definition.is_maintained(), level + 1 == order.len()) {
            (false, _) => "",
            (true, true) => "; its changes are applied immediately",
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
        "one for each group of source rows; removed when the group is empty"
    } else {
        "one for several source rows: the last source key's value"
    };
    let _ = writeln!(out, "rows: {rows}");
}
