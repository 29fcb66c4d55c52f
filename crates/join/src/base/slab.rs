//! Small records in one memory block, addressed by number. The number of a removed record is reused.

/// A record with a value that marks an empty place.
pub trait Vacant {
    fn vacant() -> Self;
    fn is_vacant(&self) -> bool;
}

#[derive(Debug)]
pub struct Slab<T> {
    records: Vec<T>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self {
            records: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T: Vacant> Slab<T> {
    pub fn insert(&mut self, record: T) -> u32 {
        if let Some(number) = self.free.pop() {
            self.records[number as usize] = record;
            return number;
        }
        if self.records.len() == self.records.capacity() {
            // Grow by an eighth, not by doubling: there are many records, and their memory is counted.
            self.records.reserve_exact(self.records.len() / 8 + 4);
        }
        self.records.push(record);
        u32::try_from(self.records.len() - 1).expect("fewer than four billion records")
    }

    pub fn remove(&mut self, number: u32) -> T {
        self.free.push(number);
        let record = std::mem::replace(&mut self.records[number as usize], T::vacant());
        if self.free.len() == self.records.len() {
            *self = Self::default();
        }
        record
    }

    pub fn get(&self, number: u32) -> &T {
        &self.records[number as usize]
    }

    pub fn get_mut(&mut self, number: u32) -> &mut T {
        &mut self.records[number as usize]
    }

    pub fn at(&self, number: u32) -> Option<&T> {
        self.records.get(number as usize)
    }

    pub fn at_mut(&mut self, number: u32) -> Option<&mut T> {
        self.records.get_mut(number as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.records
            .iter()
            .enumerate()
            .filter(|(_, r)| !r.is_vacant())
            .map(|(n, r)| (n as u32, r))
    }

    pub fn len(&self) -> usize {
        self.records.len() - self.free.len()
    }

    pub fn memory_bytes(&self) -> usize {
        self.records.capacity() * size_of::<T>() + self.free.capacity() * size_of::<u32>()
    }
}
