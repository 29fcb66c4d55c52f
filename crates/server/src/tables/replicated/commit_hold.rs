//! Withheld messages: messages about own rows to other engines, until all changes that were executed before them are
//! committed.
//!
//! 1. Messages to one engine are sent in order.
//! 2. If the outcome of a change before a message is unknown, the message is never sent: its conversation ends, and the
//!    reader drops the rows of this core.
//! 3. Messages of a conversation that has ended are not sent in another one: they would precede the rows with which it
//!    begins, and changes in between would be lost.

use larder_join::EngineMessage;

/// The condition of a message that shows changes without numbers; see [`CommitHold::assign_numbers`].
pub const UNNUMBERED: u64 = u64::MAX;

#[derive(Default)]
pub struct CommitHold(Vec<(u64, u16, Vec<EngineMessage>)>);

impl CommitHold {
    /// Takes from `messages` those that must wait until `upto` changes are settled.
    pub fn hold(
        &mut self,
        upto: u64,
        to: u16,
        messages: &mut Vec<EngineMessage>,
        waits: impl Fn(&EngineMessage) -> bool,
    ) {
        let held: Vec<EngineMessage> = messages.extract_if(.., |message| waits(message)).collect();
        if !held.is_empty() {
            self.0.push((upto, to, held));
        }
    }

    /// Makes [`UNNUMBERED`] messages wait for the changes up to this one, because their changes now have numbers.
    pub fn assign_numbers(&mut self, upto: u64) {
        let unnumbered = self.0.iter_mut().filter(|(upto, ..)| *upto == UNNUMBERED);
        unnumbered.for_each(|(waits_for, ..)| *waits_for = upto);
    }

    /// Removes and returns the messages that may be sent now.
    pub fn release_up_to(&mut self, settled: u64) -> Vec<(u16, Vec<EngineMessage>)> {
        let free = self.0.extract_if(.., |(upto, ..)| *upto <= settled);
        free.map(|(_, to, messages)| (to, messages)).collect()
    }

    /// Drops the messages to a reader whose conversation has ended.
    pub fn drop_for(&mut self, reader: u16) {
        self.0.retain(|(_, to, _)| *to != reader);
    }

    /// Drops all messages. Returns the readers to which they were addressed.
    pub fn drop_all(&mut self) -> Vec<u16> {
        let mut to: Vec<u16> = self.0.drain(..).map(|(_, to, _)| to).collect();
        to.sort_unstable();
        to.dedup();
        to
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use larder_join::KeyRange;

    use super::*;

    const OF_OWNER: fn(&EngineMessage) -> bool = EngineMessage::is_from_owner;

    fn supply() -> EngineMessage {
        EngineMessage::Supply {
            range: KeyRange::new(b"a", b"b"),
            rows: Vec::new(),
            epoch: 0,
        }
    }

    #[test]
    fn messages_of_an_ended_conversation_are_sent_in_no_other() {
        let mut hold = CommitHold::default();
        hold.hold(5, 1, &mut vec![supply()], OF_OWNER);
        hold.hold(6, 2, &mut vec![supply()], OF_OWNER);
        hold.drop_for(1);
        hold.hold(7, 1, &mut vec![EngineMessage::EpochTooOld(3)], OF_OWNER);
        let expected = [
            (2, vec![supply()]),
            (1, vec![EngineMessage::EpochTooOld(3)]),
        ];
        assert_eq!(hold.release_up_to(9), expected);
    }

    #[test]
    fn only_owner_messages_wait_for_commits() {
        let mut hold = CommitHold::default();
        let mut messages = vec![EngineMessage::Ack(1), supply(), EngineMessage::Processed];
        hold.hold(5, 1, &mut messages, OF_OWNER);
        assert_eq!(messages, [EngineMessage::Ack(1), EngineMessage::Processed]);
        hold.hold(7, 2, &mut vec![supply()], OF_OWNER);
        assert!(hold.release_up_to(4).is_empty());
        assert_eq!(hold.release_up_to(6), [(1, vec![supply()])]);
        hold.hold(8, 2, &mut vec![supply()], OF_OWNER);
        assert_eq!(hold.drop_all(), [2]);
        assert!(hold.is_empty() && hold.release_up_to(9).is_empty());
    }

    #[test]
    fn messages_that_wait_for_numbers_delay_no_other_engine() {
        let mut hold = CommitHold::default();
        hold.hold(UNNUMBERED, 7, &mut vec![supply()], OF_OWNER);
        hold.hold(3, 1, &mut vec![supply()], OF_OWNER);
        assert_eq!(hold.release_up_to(3), [(1, vec![supply()])]);
        hold.assign_numbers(5);
        assert!(hold.release_up_to(4).is_empty());
        assert_eq!(hold.release_up_to(5), [(7, vec![supply()])]);
    }
}
