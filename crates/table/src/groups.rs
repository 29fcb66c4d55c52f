//! The groups of a table: records in chunks, found by the hash of the prefix, by id, or in order.
//!
//! 1. A group exists exactly as long as it has rows.
//! 2. Removing a group increments its record's generation. A record whose generation is exhausted is not reused. When
//!    the last group is removed and all chunks are freed, new records start above every earlier generation. Two
//!    groups therefore never have the same id.
//! 3. `order` holds every group's prefix with its number.

use crate::index::{Index, hash};
use crate::page::build::Account;
use larder_types::fetch;

use crate::page::Cell;
use crate::short;
use crate::tree::{Place, Tree};

/// Identifies a group that had rows when [`Table::group`](crate::Table::group) returned the id. Puts by id skip the
/// search for the group. An id may be kept indefinitely: it becomes invalid when the group's last row is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId {
    index: u32,
    generation: u32,
}

impl GroupId {
    /// Returns an index for an array parallel to the groups. It is less than the maximum number of groups that
    /// existed simultaneously. Another group may reuse it after this one is removed.
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// The state of a group lookup in steps: see [`Table::seek`](crate::Table::seek).
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupLookup(u32);

const CHUNK: usize = 1024;
const NONE: u32 = u32::MAX;
/// Maximum length of a prefix that is stored in the record, so that a record fits one cache line.
const PREFIX_INLINE: usize = 22;

#[repr(align(64))]
pub(crate) struct Group {
    /// `None` for a free record; `next_free` is then the next one.
    tree: Option<Tree>,
    generation: u32,
    next_free: u32,
    prefix: Prefix,
}

const _: () = assert!(size_of::<Group>() == 64);

enum Prefix {
    Inline(u8, [u8; PREFIX_INLINE]),
    Out(Box<[u8]>),
}

pub(crate) struct Groups {
    chunks: Vec<Vec<Group>>,
    index: Index,
    order: Option<Tree>,
    live: u32,
    used: u32,
    free: u32,
    generation: u32,
    generation_max: u32,
    seed: u64,
}

impl Prefix {
    fn new(account: &mut Account, bytes: &[u8]) -> Prefix {
        if bytes.len() > PREFIX_INLINE {
            account.bytes += bytes.len();
            return Prefix::Out(bytes.into());
        }
        let mut inline = [0; PREFIX_INLINE];
        inline[..bytes.len()].copy_from_slice(bytes);
        Prefix::Inline(bytes.len() as u8, inline)
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        match self {
            Prefix::Inline(len, bytes) => &bytes[..usize::from(*len)],
            Prefix::Out(bytes) => bytes,
        }
    }
}

impl Group {
    #[inline]
    pub(crate) fn prefix(&self) -> &[u8] {
        self.prefix.bytes()
    }

    #[inline]
    pub(crate) fn tree(&self) -> &Tree {
        self.tree.as_ref().expect("a group that is found has rows")
    }

    #[inline]
    pub(crate) fn tree_mut(&mut self) -> &mut Tree {
        self.tree.as_mut().expect("a group that is found has rows")
    }
}

impl Groups {
    pub(crate) fn new(seed: u64) -> Groups {
        Groups {
            chunks: Vec::new(),
            index: Index::new(),
            order: None,
            live: 0,
            used: 0,
            free: NONE,
            generation: 0,
            generation_max: 0,
            seed,
        }
    }

    #[inline]
    pub(crate) fn get(&self, number: u32) -> &Group {
        &self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u32) -> &mut Group {
        &mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Returns the number of the group with this prefix.
    #[inline]
    pub(crate) fn find(&self, prefix: &[u8]) -> Option<u32> {
        self.find_hashed(hash(self.seed, prefix), prefix)
    }

    #[inline]
    fn find_hashed(&self, hash: u32, prefix: &[u8]) -> Option<u32> {
        self.index.find(hash, |number| {
            short::equal(self.get(number).prefix(), prefix)
        })
    }

    /// Returns the group with this prefix, unless it certainly has no rows at the suffix or after it.
    #[inline]
    pub(crate) fn find_from(&self, prefix: &[u8], suffix: &[u8]) -> Option<GroupId> {
        let index = self.find(prefix)?;
        let group = self.get(index);
        group.tree().may_have_from(suffix).then_some(GroupId {
            index,
            generation: group.generation,
        })
    }

    /// Hashes the prefix of a group and prefetches its slot in the index.
    #[inline]
    pub(crate) fn start_lookup(&self, prefix: &[u8]) -> GroupLookup {
        let hash = hash(self.seed, prefix);
        self.index.prefetch(hash);
        GroupLookup(hash)
    }

    /// Prefetches the record of the first group with this hash, which is probably the right one.
    #[inline]
    pub(crate) fn prefetch_lookup(&self, sought: GroupLookup) {
        if let Some(number) = self.index.find(sought.0, |_| true) {
            fetch(std::ptr::from_ref(self.get(number)).cast());
        }
    }

    /// Returns the group with this prefix and prefetches its root page.
    #[inline]
    pub(crate) fn finish_lookup(&self, sought: GroupLookup, prefix: &[u8]) -> Option<GroupId> {
        let number = self.find_hashed(sought.0, prefix)?;
        self.get(number).tree().prefetch_root();
        Some(self.id(number))
    }

    /// Prefetches the group's root page.
    #[inline]
    pub(crate) fn prefetch_root(&self, id: GroupId) {
        if let Some(number) = self.resolve(id) {
            self.get(number).tree().prefetch_root();
        }
    }

    /// Prefetches the first rows of a group that has one page. Reads the page's header.
    #[inline]
    pub(crate) fn prefetch_rows(&self, id: GroupId) {
        if let Some(number) = self.resolve(id) {
            let tree = self.get(number).tree();
            if tree.tail().is_leaf() && tree.rows() == tree.tail().rows() as u64 {
                tree.tail().prefetch_heap();
            }
        }
    }

    pub(crate) fn id(&self, number: u32) -> GroupId {
        GroupId {
            index: number,
            generation: self.get(number).generation,
        }
    }

    /// Returns the number of a group that still has rows.
    #[inline]
    pub(crate) fn resolve(&self, id: GroupId) -> Option<u32> {
        let group = self
            .chunks
            .get(id.index as usize / CHUNK)?
            .get(id.index as usize % CHUNK)?;
        (group.generation == id.generation && group.tree.is_some()).then_some(id.index)
    }

    /// Prefetches a group's record; with `deep`, reads the record and prefetches what an append to the group touches.
    #[inline]
    pub(crate) fn prefetch(&self, id: GroupId, deep: bool) {
        let Some(group) = self
            .chunks
            .get(id.index as usize / CHUNK)
            .and_then(|c| c.get(id.index as usize % CHUNK))
        else {
            return;
        };
        if !deep {
            fetch(std::ptr::from_ref(group).cast());
        } else if let Some(tree) = group.tree {
            tree.tail().prefetch(false);
        }
    }

    /// Prefetches the lines after the header of the group's last leaf. Reads the header.
    #[inline]
    pub(crate) fn prefetch_tail(&self, id: GroupId) {
        if let Some(tree) = self.resolve(id).and_then(|number| self.get(number).tree) {
            tree.tail().prefetch(true);
        }
    }

    /// Creates a group with one row.
    pub(crate) fn insert(
        &mut self,
        account: &mut Account,
        prefix: &[u8],
        suffix: &[u8],
        cell: Cell<'_>,
    ) -> u32 {
        let tree = Some(Tree::new(account, suffix, cell));
        let number = self.free_record(account);
        let prefix_held = Prefix::new(account, prefix);
        let group = self.get_mut(number);
        group.tree = tree;
        group.prefix = prefix_held;
        let cell = number.to_ne_bytes();
        match &mut self.order {
            None => self.order = Some(Tree::new(account, prefix, Cell::Inline(&cell))),
            Some(order) => {
                order.put(account, prefix, Cell::Inline(&cell), |_| ());
            }
        }
        self.index.insert(account, hash(self.seed, prefix), number);
        self.live += 1;
        number
    }

    fn free_record(&mut self, account: &mut Account) -> u32 {
        if self.free != NONE {
            let number = self.free;
            self.free = self.get(number).next_free;
            return number;
        }
        let number = self.used;
        assert!(number < NONE, "a table has less than 2^32 - 1 groups");
        let at = number as usize / CHUNK;
        let outer = self.chunks.capacity();
        if at == self.chunks.len() {
            // The first chunk grows with the table; the others are allocated at full size and never move.
            self.chunks.push(if at == 0 {
                Vec::new()
            } else {
                Vec::with_capacity(CHUNK)
            });
            account.bytes += (self.chunks.capacity() - outer) * size_of::<Vec<Group>>();
            account.bytes += self.chunks[at].capacity() * size_of::<Group>();
        }
        let generation = self.generation;
        let chunk = &mut self.chunks[at];
        let before = chunk.capacity();
        if chunk.len() == before {
            chunk.reserve_exact(before.max(1).min(CHUNK - before));
        }
        chunk.push(Group {
            tree: None,
            generation,
            next_free: NONE,
            prefix: Prefix::Inline(0, [0; PREFIX_INLINE]),
        });
        account.bytes += (chunk.capacity() - before) * size_of::<Group>();
        self.used += 1;
        number
    }

    /// Removes a group. Its tree has no rows and is freed already, or `free_tree` frees it here.
    pub(crate) fn remove(&mut self, account: &mut Account, number: u32, free_tree: bool) {
        let group = self.get_mut(number);
        let tree = group.tree.take().expect("a group that is removed is there");
        let prefix = std::mem::replace(&mut group.prefix, Prefix::Inline(0, [0; PREFIX_INLINE]));
        group.generation += 1;
        let generation = group.generation;
        if free_tree {
            tree.free(account);
        }
        if let Prefix::Out(bytes) = &prefix {
            account.bytes -= bytes.len();
        }
        self.generation_max = self.generation_max.max(generation);
        self.live -= 1;
        if self.live == 0 && self.generation_max < u32::MAX {
            if let Some(order) = self.order.take() {
                order.free(account);
            }
            return self.clear_records(account);
        }
        if generation < u32::MAX {
            let next = self.free;
            self.get_mut(number).next_free = next;
            self.free = number;
        }
        let order = self.order.as_mut().expect("it holds every group");
        if !order
            .remove(account, prefix.bytes(), |_| ())
            .expect("it holds every group")
        {
            self.order = None;
        }
        self.index.remove(hash(self.seed, prefix.bytes()), number);
    }

    /// Frees the memory of the records, all of which are unused.
    fn clear_records(&mut self, account: &mut Account) {
        let records: usize = self
            .chunks
            .iter()
            .map(|chunk| chunk.capacity() * size_of::<Group>())
            .sum();
        account.bytes -= records + self.chunks.capacity() * size_of::<Vec<Group>>();
        self.chunks = Vec::new();
        self.index.clear(account);
        self.used = 0;
        self.free = NONE;
        self.generation = self.generation_max;
    }

    /// Removes all groups and their rows.
    pub(crate) fn clear(&mut self, account: &mut Account) {
        let spent = self.generation_max >= u32::MAX - 1;
        for number in 0..self.used {
            // Removing the last group clears the order and the index, so the other groups need not be removed from
            // them one by one.
            if self.get(number).tree.is_some() {
                if self.live == 1 || spent {
                    self.remove(account, number, true);
                    if self.live == 0 {
                        return;
                    }
                } else {
                    self.forget(account, number);
                }
            }
        }
    }

    /// Frees a group's tree and prefix. The order and the index still contain the group.
    fn forget(&mut self, account: &mut Account, number: u32) {
        let group = self.get_mut(number);
        if let Some(tree) = group.tree.take() {
            tree.free(account);
        }
        if let Prefix::Out(bytes) =
            std::mem::replace(&mut group.prefix, Prefix::Inline(0, [0; PREFIX_INLINE]))
        {
            account.bytes -= bytes.len();
        }
        group.generation += 1;
        let generation = group.generation;
        self.generation_max = self.generation_max.max(generation);
        self.live -= 1;
    }

    pub(crate) fn order(&self) -> Option<&Tree> {
        self.order.as_ref()
    }
}

/// Returns the group number that an entry of `order` holds.
#[inline]
pub(crate) fn group_at(place: Place) -> u32 {
    u32::from_ne_bytes(
        place
            .leaf
            .value(place.index)
            .try_into()
            .expect("a group's number is four bytes"),
    )
}
