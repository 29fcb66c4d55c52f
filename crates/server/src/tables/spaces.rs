//! Keeps the indexes of spaces in step with the rows: a change of an object updates the indexes of its core in the same
//! turn. Outstanding objects are indexed in steps, by maintenance or by a search that waits for them.

use larder_cluster::map::Map;
use larder_join::{Engine, LogEntry};
use larder_journal::Entry;
use larder_protocol::errors::Code;
use larder_types::SLOTS;

use super::{Gate, Refusal, Tables};
use crate::spaces::{Backlog, Catalog, NameUpdate, Spaces};

/// Objects that are indexed in one step.
pub(super) const STEP_OBJECTS: usize = 64;

impl Tables {
    /// This core's part of all spaces.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// Applies changes of rows to the indexes, in the turn in which they are made.
    #[inline]
    pub(super) fn update_space_indexes(&self, changes: &[LogEntry], engine: &Engine) {
        if self.spaces.is_any() {
            self.spaces.apply_changes(changes, engine);
            // A turn without changes does not wake the next one: the outstanding work may be resting.
            if !changes.is_empty() && self.spaces.read().backlog() != Backlog::Empty {
                self.wake_maintenance();
            }
        }
    }

    /// Starts with the spaces from the journal; their objects are indexed in steps.
    pub(super) fn load_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces
            .apply_catalog(&catalog, &self.engine.borrow(), true);
        if self.spaces.is_any() {
            self.wake_maintenance();
        }
    }

    /// Switches to the current catalog of spaces.
    pub fn apply_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces
            .apply_catalog(&catalog, &self.engine.borrow(), false);
        self.wake_maintenance();
    }

    /// Indexes some outstanding objects. Returns what is still outstanding.
    pub fn index_step(&self) -> Backlog {
        self.queue_moved_objects();
        if !self.spaces.is_any() {
            return Backlog::Empty;
        }
        if self.spaces.read().backlog() == Backlog::Empty {
            return Backlog::Empty;
        }
        let engine = self.engine.borrow();
        self.spaces.index_step(&engine, STEP_OBJECTS)
    }

    /// Queues objects that arrived or left with their slots for indexing. Must precede any use of the indexes.
    pub(super) fn queue_moved_objects(&self) {
        let moved = self.take_moved_objects();
        if moved.is_empty() {
            return;
        }
        self.update_moved_field_expiries(&moved);
        if self.spaces.is_any() {
            self.spaces.queue_moved(moved.into_iter());
            self.wake_maintenance();
        }
    }

    /// Returns whether this core has the spaces of the map.
    pub(super) fn has_spaces_of(&self, map: &Map) -> bool {
        let all = self.spaces.read();
        all.catalog.map_records == *map.spaces()
    }

    /// Checks that this core owns its slots in the map of this epoch, that all their rows are present, and that none of
    /// them has moved since.
    ///
    /// # Errors
    /// One of these is false, or the lease may have expired.
    pub fn ensure_owner_since(&self, epoch: u64) -> Result<(), Refusal> {
        let (Some(sharing), true) = (&self.sharing, self.is_replicated()) else {
            return Ok(());
        };
        self.ensure_lease()?;
        let try_again = |why: &str| Err((Code::TryAgain, why.to_owned()));
        if self.map_epoch() < epoch {
            return try_again(
                "a node has not received the current map yet; send the command again",
            );
        }
        if self.ownership_epoch() > epoch {
            return try_again("slots have moved to another node during the command; send it again");
        }
        let Some(view) = self.view() else {
            return try_again("a node has not received a map yet; send the command again");
        };
        // The places of this node have the lowest numbers.
        let (own, shard) = (self.index as u16, sharing.shard());
        let is_here =
            |slot: u16| view.owners.owner_of(slot) != own || shard.owner_of_slot(slot) == own;
        // If the shard uses the view's own table, it has all of its slots.
        if shard.uses_owners(&view.owners) || (0..SLOTS).all(is_here) {
            Ok(())
        } else {
            try_again("a slot is moving to another node; send the command again")
        }
    }

    /// Records names of spaces in the journal.
    ///
    /// # Errors
    /// The journal has stopped.
    pub fn log_spaces(&self, sets: &[NameUpdate], gate: &mut Gate) -> Result<(), Refusal> {
        let mut producer = self.producer.borrow_mut();
        let mut batch = producer.batch();
        let appended = sets
            .iter()
            .try_for_each(|set| {
                batch.add(Entry::Space {
                    name: set.name.as_bytes(),
                    record: set.record.as_deref().unwrap_or_default(),
                })
            })
            .and_then(|()| batch.end());
        drop(producer);
        match appended {
            Ok(ticket) => {
                gate.ticket = gate.ticket.max(Some(ticket));
                self.wake_maintenance();
                Ok(())
            }
            Err(error) => {
                self.check_journal();
                let why = format!("{error}; it is unknown whether this change is durable");
                Err((Code::Io, why))
            }
        }
    }
}

/// Reads the spaces of a journal or a map. Invalid records are logged and omitted.
pub fn decode_catalog<'a>(records: impl Iterator<Item = (&'a str, &'a [u8])>) -> Catalog {
    let (catalog, unread) = Catalog::decode(records);
    for (name, why) in unread {
        tracing::error!(name, why, "a space cannot be decoded; it is skipped");
    }
    catalog
}
