//! The delivery and the loss of watch events.

use super::{Action, Model, Output, Ticket};
use crate::coordination::{Event, Watched};

impl Model {
    pub(super) fn tell_soon(&mut self, ticket: Ticket) {
        let late = self.up_to(self.faults.watch_late_ms);
        if let Some(watching) = self.watches.get_mut(&ticket)
            && !watching.is_due
        {
            watching.is_due = true;
            self.at(late, Action::Tell(ticket));
        }
    }

    pub(super) fn tell(&mut self, ticket: Ticket) {
        let (is_cut, is_lost) = (
            self.happens(self.faults.watches_cut),
            self.happens(self.faults.watches_lossy),
        );
        let Some(watching) = self.watches.get_mut(&ticket) else {
            return;
        };
        watching.is_due = false;
        let member = &self.members[watching.member];
        if !member.is_up || is_cut {
            self.watches.remove(&ticket);
            self.outputs.push(Output::Cut(ticket));
            return;
        }
        let (after, through) = (watching.through, member.store.revision());
        if after < self.kept_after {
            self.watches.remove(&ticket);
            self.outputs
                .push(Output::Watched(ticket, Watched::Compacted));
            return;
        }
        watching.through = after.max(through);
        let new = self.events.iter().filter(|event| {
            event.revision > after && event.revision <= through && watching.keys.contain(&event.key)
        });
        let new: Vec<Event> = new.cloned().collect();
        if !new.is_empty() && !is_lost {
            self.outputs
                .push(Output::Watched(ticket, Watched::Events(new)));
        }
    }
}
