//! Keeps the indexes of spaces in step with the rows: a change of an object updates the indexes of its core in the same
//! turn. Outstanding objects are indexed in steps, by maintenance or by a search that waits for them.

use larder_cluster::map::Map;
use larder_join::{Engine, LogEntry};
use larder_journal::Entry;
use larder_protocol::errors::Code;
use larder_types::SLOTS;

use super::{Gate, Refusal, Tables};
use crate::spaces::{Behind, Catalog, Set, Spaces};

/// Objects that are indexed in one step.
pub(super) const STEP_OBJECTS: usize = 64;

impl Tables {
    /// This core's part of all spaces.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// Applies changes of rows to the indexes, in the turn in which they are made.
    #[inline]
    pub(super) fn note_objects(&self, changes: &[LogEntry], engine: &Engine) {
        if self.spaces.is_any() {
            self.spaces.note(changes, engine);
            // A turn without changes does not wake the next one: the outstanding work may be resting.
            if !changes.is_empty() && self.spaces.read().behind() != Behind::Nothing {
                self.wake_maintenance();
            }
        }
    }

    /// Starts with the spaces from the journal; their objects are indexed in steps.
    pub(super) fn begin_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces.follow(&catalog, &self.engine.borrow(), true);
        if self.spaces.is_any() {
            self.wake_maintenance();
        }
    }

    /// Switches to the current catalog of spaces.
    pub fn follow_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces.follow(&catalog, &self.engine.borrow(), false);
        self.wake_maintenance();
    }

    /// Indexes some outstanding objects. Returns what is still outstanding.
    pub fn index_some(&self) -> Behind {
        self.note_moved_objects();
        if !self.spaces.is_any() {
            return Behind::Nothing;
        }
        if self.spaces.read().behind() == Behind::Nothing {
            return Behind::Nothing;
        }
        let engine = self.engine.borrow();
        self.spaces.look_at_some(&engine, STEP_OBJECTS)
    }

    /// Queues objects that arrived or left with their slots for indexing. Must precede any use of the indexes.
    pub(super) fn note_moved_objects(&self) {
        let moved = self.take_moved_objects();
        if moved.is_empty() {
            return;
        }
        self.note_moved_field_times(&moved);
        if self.spaces.is_any() {
            self.spaces.note_moved(moved.into_iter());
            self.wake_maintenance();
        }
    }

    /// Returns whether this core has the spaces of the map.
    pub(super) fn has_spaces_of(&self, map: &Map) -> bool {
        let all = self.spaces.read();
        all.catalog.in_map == *map.spaces()
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
        let again = |why: &str| Err((Code::TryAgain, why.to_owned()));
        if self.epoch_of_map() < epoch {
            return again("a node has not heard of the present map yet; send it again");
        }
        if self.owners_since() > epoch {
            return again("slots have moved to another node meanwhile; send it again");
        }
        let Some(view) = self.view() else {
            return again("a node has not heard of a map yet; send it again");
        };
        // The places of this node have the lowest numbers.
        let (own, shard) = (self.index as u16, sharing.shard());
        let is_here = |slot: u16| view.owners.of(slot) != own || shard.owner_of_slot(slot) == own;
        // If the shard uses the view's own table, it has all of its slots.
        if shard.goes_by(&view.owners) || (0..SLOTS).all(is_here) {
            Ok(())
        } else {
            again("a slot is on its way to another node; send it again")
        }
    }

    /// Records names of spaces in the journal.
    ///
    /// # Errors
    /// The journal has stopped.
    pub fn log_spaces(&self, sets: &[Set], gate: &mut Gate) -> Result<(), Refusal> {
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
                let why = format!("{error}; whether this is kept is unknown");
                Err((Code::Io, why))
            }
        }
    }
}

/// Reads the spaces of a journal or a map. Invalid records are logged and omitted.
pub fn read_catalog<'a>(records: impl Iterator<Item = (&'a str, &'a [u8])>) -> Catalog {
    let (catalog, unread) = Catalog::read(records);
    for (name, why) in unread {
        tracing::error!(name, why, "a space cannot be read, and is left out");
    }
    catalog
}
