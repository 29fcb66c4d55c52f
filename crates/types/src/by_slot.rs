//! A sparse map from hash slots to values, indexed directly: a request looks up several entries, and a node may have
//! all 16,384 slots.

use crate::SLOTS;

/// A map from slots to values, iterated in slot order. It holds one pointer for each slot up to the highest that it
/// has ever contained, so iterating over a few low slots is cheap.
#[derive(Debug, Clone)]
pub struct BySlot<T> {
    entries: Vec<Option<Box<T>>>,
    len: usize,
}

impl<T> Default for BySlot<T> {
    fn default() -> BySlot<T> {
        BySlot {
            entries: Vec::new(),
            len: 0,
        }
    }
}

impl<T> BySlot<T> {
    /// Returns the number of slots that have a value.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn contains(&self, slot: u16) -> bool {
        self.get(slot).is_some()
    }

    #[inline]
    pub fn get(&self, slot: u16) -> Option<&T> {
        self.entries.get(usize::from(slot))?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, slot: u16) -> Option<&mut T> {
        self.entries.get_mut(usize::from(slot))?.as_deref_mut()
    }

    /// Sets the value of `slot` and returns the previous one.
    ///
    /// # Panics
    /// If `slot` is not a valid slot.
    pub fn insert(&mut self, slot: u16, value: T) -> Option<T> {
        let before = self.place(slot).replace(Box::new(value));
        self.len += usize::from(before.is_none());
        before.map(|it| *it)
    }

    pub fn remove(&mut self, slot: u16) -> Option<T> {
        let before = self.entries.get_mut(usize::from(slot))?.take()?;
        self.len -= 1;
        Some(*before)
    }

    /// Returns the value of `slot`, and inserts the default if it has none.
    ///
    /// # Panics
    /// If `slot` is not a valid slot.
    pub fn get_or_default(&mut self, slot: u16) -> &mut T
    where
        T: Default,
    {
        self.len += usize::from(!self.contains(slot));
        self.place(slot).get_or_insert_default()
    }

    pub fn slots(&self) -> impl Iterator<Item = u16> + '_ {
        self.iter().map(|(slot, _)| slot)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u16, &T)> {
        let all = (0..SLOTS).zip(&self.entries);
        all.filter_map(|(slot, entry)| Some((slot, entry.as_deref()?)))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (u16, &mut T)> {
        let all = (0..SLOTS).zip(&mut self.entries);
        all.filter_map(|(slot, entry)| Some((slot, entry.as_deref_mut()?)))
    }

    fn place(&mut self, slot: u16) -> &mut Option<Box<T>> {
        assert!(slot < SLOTS, "slot {slot} does not exist");
        let at = usize::from(slot);
        if at >= self.entries.len() {
            self.entries.resize_with(at + 1, || None);
        }
        &mut self.entries[at]
    }
}

impl<T> FromIterator<(u16, T)> for BySlot<T> {
    fn from_iter<I: IntoIterator<Item = (u16, T)>>(all: I) -> BySlot<T> {
        let mut by_slot = BySlot::default();
        for (slot, value) in all {
            by_slot.insert(slot, value);
        }
        by_slot
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::Random;

    #[test]
    fn it_behaves_like_a_map() {
        let (mut random, mut map) = (Random::new(1), BTreeMap::new());
        let mut by_slot: BySlot<u64> = BySlot::default();
        for turn in 0..20_000 {
            let slot = (random.below(100) * 165) as u16;
            match random.below(4) {
                0 => assert_eq!(by_slot.insert(slot, turn), map.insert(slot, turn)),
                1 => assert_eq!(by_slot.remove(slot), map.remove(&slot)),
                2 => {
                    *by_slot.get_or_default(slot) += 1;
                    *map.entry(slot).or_default() += 1;
                }
                _ => assert_eq!(by_slot.get_mut(slot), map.get_mut(&slot)),
            }
            assert_eq!(
                (by_slot.len(), by_slot.get(slot)),
                (map.len(), map.get(&slot))
            );
        }
        let all: Vec<(u16, u64)> = by_slot.iter().map(|(slot, it)| (slot, *it)).collect();
        assert_eq!(all, map.into_iter().collect::<Vec<_>>());
        assert!(!by_slot.contains(SLOTS - 1) && by_slot.get(u16::MAX).is_none());
    }
}
