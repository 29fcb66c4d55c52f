//! Checks the invariants listed in the documentation of `map`.

use std::collections::BTreeSet;
use std::fmt;

use larder_types::SLOTS;

use super::slots::{Placement, Run};
use super::{Map, MemberState, NodeId, Store};

/// A violated invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvariantViolation {
    /// Its number in the documentation of `map`.
    pub invariant: u8,
    pub what: String,
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {} is broken: {}", self.invariant, self.what)
    }
}

impl std::error::Error for InvariantViolation {}

fn ensure(
    holds: bool,
    invariant: u8,
    what: impl FnOnce() -> String,
) -> Result<(), InvariantViolation> {
    if holds {
        Ok(())
    } else {
        Err(InvariantViolation {
            invariant,
            what: what(),
        })
    }
}

impl Map {
    /// Checks all invariants.
    ///
    /// # Errors
    ///
    /// The first violated invariant. The map was then not written by [`Map::apply`].
    pub fn check(&self) -> Result<(), InvariantViolation> {
        self.check_members()?;
        let mut next = 0;
        for run in self.slots.runs() {
            let slots = run.slots;
            ensure(slots.from == next && slots.to >= slots.from, 1, || {
                format!("{slots} are out of order: slot {next} is next")
            })?;
            next = slots.to.saturating_add(1);
            self.check_run(run)?;
        }
        ensure(next == SLOTS, 1, || {
            format!("the last run ends before slot {next}")
        })?;
        let neighbours = self.slots.runs().windows(2);
        for pair in neighbours {
            ensure(pair[0].placement != pair[1].placement, 1, || {
                format!(
                    "the adjacent runs {} and {} are equal",
                    pair[0].slots, pair[1].slots
                )
            })?;
        }
        for (name, store) in &self.stores {
            self.check_store(store, &name.to_string())?;
        }
        self.check_definitions()?;
        self.check_settings()?;
        self.check_outputs()
    }

    fn check_members(&self) -> Result<(), InvariantViolation> {
        let sorted = self.members.windows(2).all(|pair| pair[0].id < pair[1].id);
        ensure(sorted, 7, || "members are not sorted by number".into())?;
        let mut names = BTreeSet::new();
        for member in &self.members {
            let name = member.name();
            ensure(names.insert(name), 7, || {
                format!("two members are named {name}")
            })?;
            ensure(member.id.0 > 0 && member.id < self.next_node, 7, || {
                format!("{name} has the number {}", member.id)
            })?;
            let registration = &member.registration;
            ensure(registration.weight > 0 && registration.cores > 0, 7, || {
                format!("{name} has no weight or no cores")
            })?;
        }
        Ok(())
    }

    fn check_run(&self, run: &Run) -> Result<(), InvariantViolation> {
        let Run { slots, placement } = run;
        let Placement {
            term,
            owner,
            in_sync,
            filling,
            ..
        } = placement;
        let goal = placement.stored_goal().unwrap_or_default();

        let mut seen = BTreeSet::new();
        for node in placement.holders().chain(filling.iter().map(|it| it.node)) {
            ensure(seen.insert(node), 2, || {
                format!("{slots}: {node} is named twice")
            })?;
        }
        for &node in seen.iter().chain(goal) {
            let is_base = |id| {
                self.member(id)
                    .is_some_and(|it| it.registration.roles.is_base())
            };
            ensure(is_base(node), 2, || {
                format!("{slots}: {node} is not a base member")
            })?;
        }
        let sorted = in_sync.is_sorted() && filling.is_sorted_by_key(|it| it.node);
        ensure(sorted, 2, || format!("{slots}: replicas are not sorted"))?;

        let empty = in_sync.is_empty() && filling.is_empty() && goal.is_empty();
        ensure(owner.is_some() || empty, 3, || {
            format!("{slots} have replicas or a goal, but no owner")
        })?;

        let newest = filling.iter().map(|it| it.began.0).chain([term.0]).max();
        ensure(newest <= Some(self.epoch.0), 4, || {
            format!(
                "{slots} have a term or a filling above epoch {}",
                self.epoch
            )
        })?;

        let mut in_goal = BTreeSet::new();
        let differ = goal.iter().all(|node| in_goal.insert(node));
        let is_stored = placement.stored_goal().is_some();
        let is_current = goal.iter().copied().eq(placement.holders());
        ensure(
            differ && goal.len() <= 16 && !(is_stored && is_current),
            5,
            || format!("{slots} have the invalid goal {goal:?}"),
        )?;

        if let Some(owner) = *owner {
            let up = |node: NodeId| {
                self.member(node)
                    .is_some_and(|it| it.state != MemberState::Down)
            };
            let is_consistent = if up(owner) {
                seen.iter().all(|&node| up(node))
            } else {
                filling.is_empty() && in_sync.iter().all(|&node| !up(node))
            };
            ensure(is_consistent, 6, || {
                format!(
                    "{slots}: owner {owner} is {}up, but one of its replicas is in the other state",
                    if up(owner) { "" } else { "not " }
                )
            })?;
        }
        Ok(())
    }

    fn check_store(&self, store: &Store, name: &str) -> Result<(), InvariantViolation> {
        let pushed = store.push.iter().map(|push| &push.version);
        let mut seen = BTreeSet::new();
        for version in store.live.iter().chain(&store.kept).chain(pushed) {
            let number = version.version;
            ensure(
                number < store.next && number.0 > 0 && seen.insert(number),
                8,
                || {
                    format!(
                        "store {name}: version {number} is listed twice, or was not assigned yet"
                    )
                },
            )?;
        }
        let members = store
            .lacking
            .iter()
            .all(|&node| self.member(node).is_some());
        ensure(members && store.lacking.is_sorted(), 8, || {
            format!(
                "store {name}: the nodes {:?}, which lack a version, are unsorted or not members",
                store.lacking
            )
        })
    }

    fn check_definitions(&self) -> Result<(), InvariantViolation> {
        let mut numbers = BTreeSet::new();
        for (name, definition) in self.tables.iter().chain(&self.joins) {
            let number = definition.number;
            ensure(
                number < self.next_definition && numbers.insert(number),
                9,
                || format!("{name} has the number {number}"),
            )?;
        }
        Ok(())
    }

    fn check_settings(&self) -> Result<(), InvariantViolation> {
        let what = self.settings.out_of_bounds();
        ensure(what.is_none(), 10, || what.unwrap_or_default())
    }

    fn check_outputs(&self) -> Result<(), InvariantViolation> {
        let mut next = 0;
        for (slots, node) in self.outputs() {
            ensure(
                slots.from == next && slots.to >= slots.from && slots.to < SLOTS,
                11,
                || format!("outputs of {slots} are out of order: slot {next} is next"),
            )?;
            next = slots.to + 1;
            let computes = self
                .member(node)
                .is_some_and(|it| it.registration.roles.is_compute());
            ensure(computes, 11, || {
                format!("outputs of {slots}: {node} is not a compute member")
            })?;
        }
        ensure(next == SLOTS || next == 0, 11, || {
            format!("outputs end before slot {next}")
        })
    }
}
