//! The placement of slots, as runs of adjacent slots with equal placement.
//!
//! In JSON, a run is an array, because a large map has thousands of runs:
//!
//! | index | content | |
//! |---|---|---|
//! | 0, 1 | first and last slot | |
//! | 2 | term | |
//! | 3 | owner | `null`: none yet |
//! | 4 | in-sync replicas | sorted |
//! | 5 | replicas being filled, each `[node, epoch]` | may be omitted if all following elements are |
//! | 6 | target nodes, the owner first | omitted if they equal the current ones |

use larder_types::SLOTS;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ids::{Epoch, NodeId, SlotRange, Term};

/// Adjacent slots with the same owner, replicas, term and goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub slots: SlotRange,
    pub placement: Placement,
}

/// The current and the target placement of a slot.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    pub term: Term,
    /// The node that orders the slot's writes. It remains the owner while it is down if no other node is in sync.
    pub owner: Option<NodeId>,
    /// Nodes other than the owner that have every acknowledged write. Sorted.
    pub in_sync: Vec<NodeId>,
    /// Nodes that are receiving the rows. Sorted by node.
    pub filling: Vec<ReplicaFill>,
    /// The target nodes, the owner first, the others sorted. `None` if they equal the current holders.
    goal: Option<Vec<NodeId>>,
}

/// A replica that is not in sync yet. The epoch distinguishes this fill from earlier fills of the same node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "(NodeId, Epoch)", into = "(NodeId, Epoch)")]
pub struct ReplicaFill {
    pub node: NodeId,
    /// The epoch of the map in which the fill began.
    pub began: Epoch,
}

impl From<(NodeId, Epoch)> for ReplicaFill {
    fn from((node, began): (NodeId, Epoch)) -> ReplicaFill {
        ReplicaFill { node, began }
    }
}

impl From<ReplicaFill> for (NodeId, Epoch) {
    fn from(it: ReplicaFill) -> (NodeId, Epoch) {
        (it.node, it.began)
    }
}

impl Placement {
    /// The nodes that have every acknowledged write, the owner first.
    pub fn holders(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.owner.into_iter().chain(self.in_sync.iter().copied())
    }

    pub fn is_holder(&self, node: NodeId) -> bool {
        self.owner == Some(node) || self.in_sync.contains(&node)
    }

    pub fn filling(&self, node: NodeId) -> Option<ReplicaFill> {
        self.filling.iter().copied().find(|it| it.node == node)
    }

    /// The target nodes, the owner first. Empty only if the slot has no owner.
    pub fn goal(&self) -> Vec<NodeId> {
        match &self.goal {
            Some(goal) => goal.clone(),
            None => self.holders().collect(),
        }
    }

    /// The in-sync replica to which the owner should hand over the slot, if no process is stopping.
    pub fn next_owner(&self) -> Option<NodeId> {
        let first = self.goal.as_ref()?.first().copied()?;
        (self.owner.is_some() && self.in_sync.contains(&first)).then_some(first)
    }

    /// Returns whether the slot has its target placement.
    pub fn is_settled(&self) -> bool {
        self.goal.is_none() && self.filling.is_empty()
    }

    /// Returns whether the slot's placement contains `node` in any role.
    pub fn includes(&self, node: NodeId) -> bool {
        let is_goal = self.goal.as_ref().is_some_and(|it| it.contains(&node));
        self.is_holder(node) || self.filling(node).is_some() || is_goal
    }

    /// Sets the target placement, and stores it only if it differs from the current one.
    pub(super) fn set_goal(&mut self, mut goal: Vec<NodeId>) {
        if goal.len() > 1 {
            goal[1..].sort_unstable();
        }
        self.in_sync.sort_unstable();
        self.filling.sort_unstable();
        let is_current = goal.iter().copied().eq(self.holders());
        self.goal = (!is_current && !goal.is_empty()).then_some(goal);
    }

    pub(super) fn stored_goal(&self) -> Option<&[NodeId]> {
        self.goal.as_deref()
    }
}

/// All slots, as runs in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Slots {
    runs: Vec<Run>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            runs: vec![Run {
                slots: SlotRange::ALL,
                placement: Placement::default(),
            }],
        }
    }
}

impl Slots {
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns the run that contains `slot`.
    ///
    /// # Panics
    ///
    /// If `slot` is out of range.
    pub fn of(&self, slot: u16) -> &Run {
        assert!(slot < SLOTS, "there is no slot {slot}");
        let at = self.runs.partition_point(|run| run.slots.to < slot);
        &self.runs[at]
    }

    /// Calls `edit` for each part of a run that an entry of `edits` covers, with the entry's value, and then merges equal
    /// adjacent runs. The goal is preserved, unless `edit` sets it.
    ///
    /// # Errors
    ///
    /// `edits` is not sorted, overlaps, or exceeds the last slot; or the error of `edit`.
    pub(super) fn edit<T>(
        &mut self,
        edits: &[(SlotRange, T)],
        mut edit: impl FnMut(SlotRange, &mut Placement, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut next = 0;
        for (slots, _) in edits {
            if slots.from > slots.to || slots.to >= SLOTS || u32::from(slots.from) < next {
                return Err(format!(
                    "{slots} is out of order, overlaps another, or reaches beyond slot {}",
                    SLOTS - 1
                ));
            }
            next = u32::from(slots.to) + 1;
        }
        let mut edited: Vec<Run> = Vec::with_capacity(self.runs.len() + edits.len());
        let mut edits = edits.iter().peekable();
        for run in &self.runs {
            let mut rest = run.slots;
            loop {
                while edits.next_if(|(slots, _)| slots.to < rest.from).is_some() {}
                let common = edits.peek().and_then(|(slots, _)| slots.intersection(rest));
                let Some(common) = common else {
                    push(&mut edited, rest, run.placement.clone());
                    break;
                };
                if common.from > rest.from {
                    let before = SlotRange::new(rest.from, common.from - 1);
                    push(&mut edited, before, run.placement.clone());
                }
                let mut placement = run.placement.clone();
                let value = edits.peek().map(|(_, value)| value);
                edit(common, &mut placement, value.expect("checked above"))?;
                push(&mut edited, common, placement);
                if common.to == rest.to {
                    break;
                }
                rest.from = common.to + 1;
            }
        }
        self.runs = edited;
        Ok(())
    }
}

fn push(runs: &mut Vec<Run>, slots: SlotRange, placement: Placement) {
    if let Some(last) = runs.last_mut()
        && last.placement == placement
    {
        last.slots.to = slots.to;
        return;
    }
    runs.push(Run { slots, placement });
}

impl Serialize for Run {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let placement = &self.placement;
        let mut run = serializer.serialize_seq(None)?;
        run.serialize_element(&self.slots.from)?;
        run.serialize_element(&self.slots.to)?;
        run.serialize_element(&placement.term)?;
        run.serialize_element(&placement.owner)?;
        run.serialize_element(&placement.in_sync)?;
        if !placement.filling.is_empty() || placement.goal.is_some() {
            run.serialize_element(&placement.filling)?;
        }
        if let Some(goal) = &placement.goal {
            run.serialize_element(goal)?;
        }
        run.end()
    }
}

impl<'de> Deserialize<'de> for Run {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Run, D::Error> {
        struct Runs;
        impl<'de> Visitor<'de> for Runs {
            type Value = Run;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a run of slots: [from, to, term, owner, in sync, filling, goal]")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut run: A) -> Result<Run, A::Error> {
                let missing = || A::Error::custom("a run of slots has 5 to 7 elements");
                let slots = SlotRange {
                    from: run.next_element()?.ok_or_else(missing)?,
                    to: run.next_element()?.ok_or_else(missing)?,
                };
                let placement = Placement {
                    term: run.next_element()?.ok_or_else(missing)?,
                    owner: run.next_element()?.ok_or_else(missing)?,
                    in_sync: run.next_element()?.ok_or_else(missing)?,
                    filling: run.next_element()?.unwrap_or_default(),
                    goal: run.next_element()?,
                };
                if run.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    return Err(missing());
                }
                Ok(Run { slots, placement })
            }
        }
        deserializer.deserialize_seq(Runs)
    }
}
