//! The part of a node that pulls versions of stores and reads their partitions.

use super::super::stores::PartitionRead;
use super::*;

impl Node {
    pub(super) fn pull(&mut self, now_ms: u64, out: &mut Outputs<Wire>) {
        let (Some(map), Some(me)) = (self.map.clone(), self.me()) else {
            return;
        };
        if let Some(text) = self.stores.tick(&map, me, now_ms, &mut self.random) {
            let change = self.host.replace("stores", text, out);
            self.stores.is_written_by(change);
            self.host.sync_due = true;
        }
    }

    /// A client reads a record in each slot, all from one version.
    pub(super) fn read_versions(&mut self, client: At, number: u64, out: &mut Outputs<Wire>) {
        let refused = Output::Send(client, Wire::VersionsRead(number, None));
        let (Some(map), Some(me)) = (self.map.clone(), self.me()) else {
            return out.push(refused);
        };
        let live = if self.setup.planted.swaps_before_it_is_live {
            self.stores.latest_pulled()
        } else {
            Stores::live(&map)
        };
        let Some(version) = live else {
            return out.push(refused);
        };
        self.look_numbers += 1;
        let mut read = PartitionRead::new(client, number);
        for (at, slot) in SLOTS.into_iter().enumerate() {
            if self.stores.answers(&map, me, slot, version) {
                read.parts[at] = Some(version);
                continue;
            }
            let placed = &map.slots().of(slot).placement;
            let others: Vec<NodeId> = placed.holders().filter(|node| *node != me).collect();
            let to = others.iter().find_map(|node| {
                let greeted = self.host.greeted.iter();
                greeted
                    .into_iter()
                    .find(|(_, it)| *it == node)
                    .map(|(at, _)| *at)
            });
            match to {
                Some(to) => {
                    let part = Wire::Part(self.look_numbers, slot, version);
                    out.push(Output::Send(to, part));
                }
                None => return out.push(refused),
            }
        }
        self.partition_reads.insert(self.look_numbers, read);
        self.finish_read(self.look_numbers, out);
        while self.partition_reads.len() > 50 {
            self.partition_reads.pop_first();
        }
    }

    /// Another node requests a slot: answers from the version of that request, or with nothing.
    pub(super) fn partition_version(&self, slot: u16, version: VersionId) -> Option<VersionId> {
        let (Some(map), Some(me)) = (&self.map, self.me()) else {
            return None;
        };
        let version = if self.setup.planted.mixes_versions {
            Stores::live(map)?
        } else {
            version
        };
        self.stores
            .answers(map, me, slot, version)
            .then_some(version)
    }

    pub(super) fn handle_partition_reply(
        &mut self,
        number: u64,
        slot: u16,
        answer: Option<VersionId>,
        out: &mut Outputs<Wire>,
    ) {
        let Some(read) = self.partition_reads.get_mut(&number) else {
            return;
        };
        let Some(answer) = answer else {
            out.push(Output::Send(
                read.client,
                Wire::VersionsRead(read.number, None),
            ));
            self.partition_reads.remove(&number);
            return;
        };
        let at = SLOTS
            .iter()
            .position(|it| *it == slot)
            .expect("it was asked for");
        read.parts[at] = Some(answer);
        self.finish_read(number, out);
    }

    pub(super) fn finish_read(&mut self, number: u64, out: &mut Outputs<Wire>) {
        let is_complete = self
            .partition_reads
            .get(&number)
            .is_some_and(PartitionRead::is_complete);
        if is_complete && let Some(read) = self.partition_reads.remove(&number) {
            let versions = read.parts.into_iter().flatten().collect();
            out.push(Output::Send(
                read.client,
                Wire::VersionsRead(read.number, Some(versions)),
            ));
        }
    }
}
