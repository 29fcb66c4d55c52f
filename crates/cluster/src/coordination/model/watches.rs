//! The delivery and the loss of watch events.

use super::{Action, Model, Output, Ticket};
use crate::coordination::{KeyEvent, WatchItem};

impl Model {
    pub(super) fn schedule_delivery(&mut self, ticket: Ticket) {
        let late = self.random_up_to(self.faults.watch_late_ms);
        if let Some(watch) = self.watches.get_mut(&ticket)
            && !watch.is_due
        {
            watch.is_due = true;
            self.schedule(late, Action::Deliver(ticket));
        }
    }

    pub(super) fn deliver(&mut self, ticket: Ticket) {
        let (is_cut, is_lost) = (
            self.happens(self.faults.watches_cut),
            self.happens(self.faults.watches_lossy),
        );
        let Some(watch) = self.watches.get_mut(&ticket) else {
            return;
        };
        watch.is_due = false;
        let member = &self.members[watch.member];
        if !member.is_up || is_cut {
            self.watches.remove(&ticket);
            self.outputs.push(Output::WatchBroken(ticket));
            return;
        }
        let (after, through) = (watch.through, member.store.revision());
        if after < self.kept_after {
            self.watches.remove(&ticket);
            self.outputs
                .push(Output::WatchItem(ticket, WatchItem::Compacted));
            return;
        }
        watch.through = after.max(through);
        let new = self.events.iter().filter(|event| {
            event.revision > after && event.revision <= through && watch.keys.contains(&event.key)
        });
        let new: Vec<KeyEvent> = new.cloned().collect();
        if !new.is_empty() && !is_lost {
            self.outputs
                .push(Output::WatchItem(ticket, WatchItem::Events(new)));
        }
    }
}
