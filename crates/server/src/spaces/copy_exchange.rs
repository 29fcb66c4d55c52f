//! The copies of a core, in the interface of the exchange.

use larder_join::{Engine, PartRows, Parts, Shard};

use super::Spaces;
use super::local::Backlog;

/// The copies of these spaces.
pub struct CopyExchange<'a>(pub(super) &'a Spaces);

impl Parts for CopyExchange<'_> {
    fn subscribe(&mut self, reader: u16, number: u32, part: Option<&[u8]>) {
        let all = &mut *self.0.write();
        all.copies.subscribe(&all.spaces, reader, number, part);
    }

    fn handle_reader_loss(&mut self, reader: u16) {
        self.0.write().copies.reader_lost(reader);
    }

    fn rows(
        &mut self,
        engine: &Engine,
        shard: &Shard,
        part: &[u8],
        after: Option<&[u8]>,
        rows_max: usize,
    ) -> Option<PartRows> {
        let all = &*self.0.read();
        match all.backlog() {
            Backlog::Empty => {
                (all.copies).rows(&all.spaces, engine, shard, (part, after), rows_max)
            }
            _ => None,
        }
    }

    fn supply(
        &mut self,
        shard: &Shard,
        owner: u16,
        number: u32,
        part: &[u8],
        rows: Vec<(Box<[u8]>, Box<[u8]>)>,
        is_last: bool,
    ) {
        let copies = &mut self.0.write().copies;
        copies.receive_rows(shard, owner, number, part, rows, is_last);
    }

    fn change(&mut self, shard: &Shard, owner: u16, number: u32, key: &[u8], value: Option<&[u8]>) {
        let copies = &mut self.0.write().copies;
        copies.apply_change(shard, owner, number, key, value);
    }

    fn withdraw(&mut self, slots: &[(u16, u16)]) {
        let is_gone = |slot: u16| slots.iter().any(|(lo, hi)| (*lo..=*hi).contains(&slot));
        self.0.write().copies.discard_slots(is_gone, false);
    }
}
