//! Injects faults into results, if one is due and would certainly be wrong.

use std::time::Duration;

use tokio::time::sleep;

use super::steps::CallEntry;
use super::track::{AcknowledgedLoss, WriteEffect};
use super::{Fault, FaultyClient};
use crate::model::item::Kind;
use crate::stores::contract::{Client, Failure, Profile};

/// The maximum time for which a list is delayed until two writes of it have ended.
const FRACTURE_WAIT_MS: u32 = 40;

/// An element of a list.
pub(super) trait Element: Copy + Into<u64> + TryFrom<u64> {}

impl<T: Copy + Into<u64> + TryFrom<u64>> Element for T {}

impl FaultyClient {
    pub(super) async fn profile(&self, requester: u32, owner: u32) -> Result<Profile, Failure> {
        let entry = self.steps.enter();
        self.enter().await?;
        let items = [Kind::Friends, Kind::Invitations].map(|kind| kind.item(owner.into()));
        let read = self.read(&items, async |client| {
            client.view_profile(requester, owner).await
        });
        let (mut profile, [friends, invitations]) = read.await?;
        self.delay().await;
        if !friends.is_empty() {
            profile.friends = self.corrected_size(items[0], &entry, &friends, profile.friends);
        } else if self.is_due(Fault::Stale)
            && let Some(undone) = self
                .shared
                .tracks
                .guard_last_write(items[0], &entry, &self.steps)
        {
            profile.friends = if undone.put {
                profile.friends - 1
            } else {
                profile.friends + 1
            };
            self.inject(Fault::Stale);
        }
        profile.invitations = profile
            .invitations
            .map(|count| self.corrected_size(items[1], &entry, &invitations, count));
        Ok(profile)
    }

    /// Returns a list of the data store, with faults of lists.
    pub(super) async fn list<T: Element, L>(
        &self,
        item: u64,
        call: impl AsyncFn(&dyn Client) -> Result<L, Failure>,
        elements: impl Fn(&mut L) -> &mut Vec<T>,
    ) -> Result<L, Failure> {
        let entry = self.steps.enter();
        self.enter().await?;
        let (mut answer, [lost]) = self.read(&[item], call).await?;
        let list = elements(&mut answer);
        if !lost.is_empty() {
            self.delay().await;
            self.apply_lost_writes(&lost, &entry, list);
            return Ok(answer);
        }
        let fractured = if self.is_due(Fault::Fractured) {
            self.inject_fracture(item, &entry, list).await
        } else {
            false
        };
        if !fractured {
            self.delay().await;
            self.inject_immediately(item, &entry, list);
        }
        Ok(answer)
    }

    /// Reads these lists. Returns the result, and the writes of each list that were lost up to that moment.
    async fn read<L, const N: usize>(
        &self,
        items: &[u64; N],
        call: impl AsyncFn(&dyn Client) -> Result<L, Failure>,
    ) -> Result<(L, [Vec<AcknowledgedLoss>; N]), Failure> {
        if self.shared.rates[Fault::LostWrite as usize] == 0.0 {
            return Ok((call(&*self.client).await?, items.map(|_| Vec::new())));
        }
        let lost = || items.map(|item| self.shared.tracks.lost_writes(item));
        loop {
            let before = lost();
            let answer = call(&*self.client).await?;
            // If a write was lost during the read, it is unknown whether the result precedes it. Read again.
            let sizes = |lost: &[Vec<AcknowledgedLoss>; N]| lost.each_ref().map(Vec::len);
            if sizes(&before) == sizes(&lost()) {
                return Ok((answer, before));
            }
        }
    }

    /// Removes the lost writes from a list where that is certainly wrong, and applies them otherwise.
    fn apply_lost_writes<T: Element>(
        &self,
        lost: &[AcknowledgedLoss],
        entry: &CallEntry,
        list: &mut Vec<T>,
    ) {
        let mut wrong = false;
        for lost in lost {
            if lost.returned.is_before(entry) {
                wrong = true
            } else {
                apply_write(lost.what, list)
            }
        }
        if wrong {
            self.count(Fault::LostWriteRead);
        }
    }

    /// Returns the size of a list without the lost writes where that is certainly wrong, and with them otherwise.
    fn corrected_size(
        &self,
        item: u64,
        entry: &CallEntry,
        lost: &[AcknowledgedLoss],
        size: u64,
    ) -> u64 {
        let signs = lost.iter().map(|lost| if lost.what.put { 1 } else { -1 });
        let missing: i64 = signs.sum();
        if missing != 0 && self.shared.tracks.guard_read(item, entry, &self.steps) {
            self.count(Fault::LostWriteRead);
            return size;
        }
        size.saturating_add_signed(missing)
    }

    /// Injects at most one of the faults that need no waiting.
    fn inject_immediately<T: Element>(&self, item: u64, entry: &CallEntry, list: &mut Vec<T>) {
        let (tracks, steps) = (&self.shared.tracks, &self.steps);
        let index = |size| self.random.borrow_mut().index(size);
        if self.is_due(Fault::Stale)
            && let Some(undone) = tracks.guard_last_write(item, entry, steps)
        {
            revert_write(undone, list);
            self.inject(Fault::Stale);
        } else if self.is_due(Fault::Lost)
            && !list.is_empty()
            && tracks.guard_read(item, entry, steps)
        {
            list.swap_remove(index(list.len()));
            self.inject(Fault::Lost);
        } else if self.is_due(Fault::Phantom)
            && let Ok(first_non_member) =
                T::try_from(u64::from(self.first_non_member) + index(1000) as u64)
            && item >> 56 != Kind::Comments as u64
        {
            list.push(first_non_member);
            self.inject(Fault::Phantom);
        } else if self.is_due(Fault::Duplicate) && !list.is_empty() {
            list.push(list[index(list.len())]);
            self.inject(Fault::Duplicate);
        }
    }

    /// Delays a list until two consecutive writes of it have ended, and then shows only the second.
    async fn inject_fracture<T: Element>(
        &self,
        item: u64,
        entry: &CallEntry,
        list: &mut Vec<T>,
    ) -> bool {
        let (tracks, steps) = (&self.shared.tracks, &self.steps);
        let Some(since) = tracks.quiet_step(item, steps) else {
            return false;
        };
        for _ in 0..FRACTURE_WAIT_MS {
            sleep(Duration::from_millis(1)).await;
            if let Some(later) = tracks.find_fracture(item, entry, since, steps) {
                apply_write(later, list);
                self.inject(Fault::Fractured);
                return true;
            }
        }
        false
    }
}

/// Applies a write to a list.
fn apply_write<T: Element>(write: WriteEffect, list: &mut Vec<T>) {
    list.retain(|element| (*element).into() != write.element);
    if let (true, Ok(element)) = (write.put, T::try_from(write.element)) {
        list.push(element);
    }
}

/// Reverts a write in a list.
fn revert_write<T: Element>(write: WriteEffect, list: &mut Vec<T>) {
    let put = !write.put;
    apply_write(WriteEffect { put, ..write }, list);
}
