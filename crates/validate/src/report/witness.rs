//! Witnesses: the first failures, with the evidence that a person needs: the read, its result, the possible results,
//! and the relevant writes.

use std::fmt::Write as _;

use crate::Span;
use crate::record::Record;
use crate::report::Class;

/// One failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Witness {
    pub item: u64,
    pub action: u8,
    pub session: u32,
    pub read: Span,
    pub failure: Failure,
    pub saw: Observation,
    /// Other items that the same call read, and the counts that it returned; only for [`Failure::Apart`].
    pub beside: Vec<(u64, i64)>,
    /// The counts that were acceptable, if they are few.
    pub could: Option<Vec<i64>>,
    /// The writes that a stale read missed, or the last ones that were acknowledged before it; then those in flight.
    /// A few of each.
    pub writes: Vec<WitnessWrite>,
}

impl Witness {
    /// Creates a witness with the read's own data; the rest is unknown.
    pub(crate) fn of(read: &Record, failure: Failure, saw: Observation) -> Witness {
        Witness {
            item: read.item,
            action: read.action,
            session: read.session,
            read: read.span,
            failure,
            saw,
            beside: Vec::new(),
            could: None,
            writes: Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    Class(Class),
    /// Rejected only at the level `Atomic`.
    WentBack,
    /// Rejected only at the level `Joint`.
    Apart,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    Count(i64),
    /// The size of a list and, if it can be computed, the difference from its certain state at the read's start.
    List {
        count: u32,
        difference: Option<Difference>,
    },
    Content(u64),
}

/// The difference from the certain state of a list at the read's start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    pub missing: Vec<u64>,
    pub extra: Vec<u64>,
    /// Elements that were returned twice.
    pub duplicates: Vec<u64>,
}

/// A write in a witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WitnessWrite {
    pub action: u8,
    pub session: u32,
    /// Without an end if the outcome is unknown.
    pub span: Span,
    pub effect: Effect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Add(i32),
    Set(i32),
    Put(u64),
    Remove(u64),
    Write(u64),
}

/// Names for the numbers of a trace, defined by its writer.
pub trait Names {
    /// Returns a name such as "friends of member 17".
    fn item(&self, item: u64) -> String {
        format!("item {item}")
    }

    fn element(&self, _item: u64, element: u64) -> String {
        format!("element {element}")
    }

    fn action(&self, action: u8) -> String {
        format!("action {action}")
    }

    /// Returns the origin of displayed times, in the clock of the trace.
    fn origin(&self) -> u64 {
        0
    }
}

/// Shows the numbers themselves.
pub struct Plain;

impl Names for Plain {}

impl Witness {
    /// Returns a description in a few sentences, without a line end.
    pub fn describe(&self, names: &dyn Names) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(names, &mut text);
        text
    }

    fn write(&self, names: &dyn Names, out: &mut String) -> std::fmt::Result {
        let at = |instant: u64| seconds(i128::from(instant) - i128::from(names.origin()));
        write!(
            out,
            "{} (session {}) read {} from {} to {} and saw ",
            names.action(self.action),
            self.session,
            names.item(self.item),
            at(self.read.start),
            at(self.read.end)
        )?;
        match &self.saw {
            Observation::Count(value) => write!(out, "{value}")?,
            Observation::Content(value) => write!(out, "version {value}")?,
            Observation::List { count, difference } => {
                self.write_list(names, out, *count, difference)?
            }
        }
        for (item, count) in &self.beside {
            write!(out, ", and {count} as {}", names.item(*item))?;
        }
        out.push_str(": ");
        match self.failure {
            Failure::Class(Class::Stale { age_ns, behind }) => write!(
                out,
                "stale by {}, {behind} write{} behind",
                seconds(age_ns.into()),
                if behind == 1 { "" } else { "s" }
            )?,
            Failure::Class(Class::Fractured) => {
                out.push_str("each element is acceptable individually, but not all at one instant")
            }
            Failure::Class(Class::Future) => out.push_str("acceptable only after the read"),
            Failure::Class(Class::Phantom) => out.push_str("no write produced this value"),
            Failure::Class(Class::Never) => out.push_str("never acceptable"),
            Failure::Class(Class::Unclassified) => {
                out.push_str("not acceptable within the retained history")
            }
            Failure::WentBack => {
                out.push_str("acceptable individually, but an earlier read saw a later state")
            }
            Failure::Apart => {
                out.push_str("each acceptable individually, but not both at one instant")
            }
        }
        if let Some(values) = &self.could {
            let values: Vec<String> = values.iter().map(i64::to_string).collect();
            write!(out, "; acceptable: {}", values.join(", "))?;
        }
        for change in &self.writes {
            out.push_str("; ");
            match change.effect {
                Effect::Add(delta) => write!(out, "{delta:+}")?,
                Effect::Set(value) => write!(out, "set to {value}")?,
                Effect::Put(element) => {
                    write!(out, "{} put in", names.element(self.item, element))?
                }
                Effect::Remove(element) => {
                    write!(out, "{} taken out", names.element(self.item, element))?
                }
                Effect::Write(value) => write!(out, "version {value}")?,
            }
            write!(
                out,
                " by {} (session {}) from {}",
                names.action(change.action),
                change.session,
                at(change.span.start)
            )?;
            match change.span.end {
                u64::MAX => out.push_str(", outcome unknown"),
                end if end < self.read.start => write!(out, ", acknowledged at {}", at(end))?,
                end => write!(out, " to {}, while this was read", at(end))?,
            }
        }
        Ok(())
    }

    fn write_list(
        &self,
        names: &dyn Names,
        out: &mut String,
        count: u32,
        difference: &Option<Difference>,
    ) -> std::fmt::Result {
        write!(out, "{count} element{}", if count == 1 { "" } else { "s" })?;
        let Some(difference) = difference else {
            return out.write_str(", too many of them wrong to identify");
        };
        let named = |elements: &[u64]| {
            let named: Vec<String> = elements
                .iter()
                .map(|element| names.element(self.item, *element))
                .collect();
            named.join(", ")
        };
        if !difference.missing.is_empty() {
            write!(out, ", without {}", named(&difference.missing))?;
        }
        if !difference.extra.is_empty() {
            write!(out, ", with {}", named(&difference.extra))?;
        }
        if !difference.duplicates.is_empty() {
            write!(out, ", {} twice", named(&difference.duplicates))?;
        }
        Ok(())
    }
}

/// Formats a time with a suitable unit: `1.203000 s`, `4.2 ms`, `7 ns`.
pub fn seconds(nanos: i128) -> String {
    match nanos.unsigned_abs() {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.6} s", nanos as f64 / 1e9),
    }
}

/// Keeps the first witnesses by the start of the read. The result does not depend on the order of insertion.
pub(crate) fn keep_first(witnesses: &mut Vec<Witness>, count: usize) {
    witnesses.sort_by_cached_key(|witness| (order(witness), format!("{witness:?}")));
    witnesses.truncate(count);
}

pub(crate) fn order(witness: &Witness) -> (u64, u64, u64) {
    (witness.read.start, witness.read.end, witness.item)
}
