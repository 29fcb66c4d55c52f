//! Spaces follow the rows: what changes an object changes the indexes of its core in the same turn, and what is left to look at is looked at in
//! steps, by maintenance or by a search that waits for it.

use larder_cluster::map::Map;
use larder_join::{Engine, LogEntry};
use larder_journal::Entry;
use larder_protocol::errors::Code;
use larder_types::SLOTS;

use super::{Gate, Refusal, Tables};
use crate::spaces::{Behind, Catalog, Set, Spaces};

/// Objects that are looked at in one step.
pub(super) const STEP_OBJECTS: usize = 64;

impl Tables {
    /// This core's part of all spaces.
    pub fn spaces(&self) -> &Spaces {
        &self.spaces
    }

    /// Takes in changes of rows, in the turn in which they are made.
    #[inline]
    pub(super) fn note_objects(&self, changes: &[LogEntry], engine: &Engine) {
        if self.spaces.is_any() {
            self.spaces.note(changes, engine);
            // A turn in which nothing changed does not wake the next one: what is left may be resting.
            if !changes.is_empty() && self.spaces.read().behind() != Behind::Nothing {
                self.wake_maintenance();
            }
        }
    }

    /// Begins with the spaces that the journal had; their objects are looked at in steps.
    pub(super) fn begin_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces.follow(&catalog, &self.engine.borrow(), true);
        if self.spaces.is_any() {
            self.wake_maintenance();
        }
    }

    /// Goes on with the spaces that there are now.
    pub fn follow_spaces(&self) {
        let catalog = self.handle.spaces.load_full();
        self.spaces.follow(&catalog, &self.engine.borrow(), false);
        self.wake_maintenance();
    }

    /// Looks at some objects that are left to look at; says what is left then.
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

    /// Puts objects that came with their slots, or went with them, on the list of what is left to look at: before anything is made of what the indexes have.
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

    /// Whether the spaces here are those that the map has.
    pub(super) fn has_spaces_of(&self, map: &Map) -> bool {
        let all = self.spaces.read();
        all.catalog.in_map == *map.spaces()
    }

    /// Makes sure that this core owns what the map of this epoch says, that all of it is here, and that nothing of it has moved since.
    ///
    /// # Errors
    /// It is not so; or the lease may have ended.
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
        // Places of this node have the first numbers.
        let (own, shard) = (self.index as u16, sharing.shard());
        let is_here = |slot: u16| view.owners.of(slot) != own || shard.owner_of_slot(slot) == own;
        // It goes by the view's own list where it has all of its slots.
        match shard.goes_by(&view.owners) || (0..SLOTS).all(is_here) {
            true => Ok(()),
            false => again("a slot is on its way to another node; send it again"),
        }
    }

    /// What the journal is told of names of spaces.
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

/// The spaces that a journal, or a map, has; what cannot be read is told in the log.
pub fn read_catalog<'a>(records: impl Iterator<Item = (&'a str, &'a [u8])>) -> Catalog {
    let (catalog, unread) = Catalog::read(records);
    for (name, why) in unread {
        tracing::error!(name, why, "a space cannot be read, and is left out");
    }
    catalog
}
