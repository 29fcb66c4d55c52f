//! A tree of pages: the rows of one group by their suffixes, or the groups of a table by their prefixes.
//!
//! A B+tree after Bayer and McCreight with truncated separators (Bayer and Unterauer, Prefix B-Trees, 1977). Pages
//! have no sibling links, because they move when they grow. A scan finds the next leaf from the root by the last key
//! of the current leaf, which reads the two or three inner pages once per leaf.
//!
//! 1. `tail` is the last leaf. A key greater than all others is appended there without reading inner pages.
//! 2. No page is empty. A root with one child is replaced by it.
//! 3. The first eight bytes of every key are at most `last_head`. A greater key goes to the end, and a range that
//!    begins after it is empty; neither check reads a page.

use crate::page::build::{Account, Slack, Span, build, free_block};
use crate::page::{Cell, Insertion, Page, Scratch, size_max};

/// More than the number of levels that 2^64 bytes of pages can have.
const LEVELS_MAX: usize = 32;

#[derive(Clone, Copy)]
pub(crate) struct Tree {
    root: Page,
    tail: Page,
    /// Twice the number of rows, plus one if the last put went to the tail's end. The next put probably does too, so
    /// it searches the tail first.
    rows_appending: u64,
    last_head: u64,
}

/// Returns the first eight bytes of a key as a zero-padded big-endian number, which preserves the keys' order.
#[inline]
fn head_of(key: &[u8]) -> u64 {
    match key.first_chunk() {
        Some(head) => u64::from_be_bytes(*head),
        None => key
            .iter()
            .fold(0, |head, &byte| head << 8 | u64::from(byte))
            .checked_shl(64 - 8 * key.len() as u32)
            .unwrap_or(0),
    }
}

/// The position of a row.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) leaf: Page,
    pub(crate) index: usize,
}

/// The inner pages above a leaf, root first, each with the index of the child taken.
struct Path {
    steps: [std::mem::MaybeUninit<(Page, usize)>; LEVELS_MAX],
    len: usize,
}

impl Path {
    fn new() -> Path {
        Path {
            steps: [const { std::mem::MaybeUninit::uninit() }; LEVELS_MAX],
            len: 0,
        }
    }

    fn push(&mut self, page: Page, index: usize) {
        self.steps[self.len].write((page, index));
        self.len += 1;
    }

    fn pop(&mut self) -> Option<(Page, usize)> {
        self.len = self.len.checked_sub(1)?;
        // SAFETY: the steps below `len` were written by `push`.
        Some(unsafe { self.steps[self.len].assume_init() })
    }
}

impl Tree {
    /// Creates a tree with one row.
    pub(crate) fn new(account: &mut Account, key: &[u8], cell: Cell<'_>) -> Tree {
        let page = build(account, 0, &[Span::New(key, cell)], Slack::None)
            .expect("a page has room for one row");
        Tree {
            root: page,
            tail: page,
            rows_appending: 2 + 1,
            last_head: head_of(key),
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows_appending >> 1
    }

    fn is_appending(&self) -> bool {
        self.rows_appending & 1 != 0
    }

    /// Returns whether there may be rows at a key or after it; `false` is definite.
    #[inline]
    pub(crate) fn may_have_from(&self, key: &[u8]) -> bool {
        head_of(key) <= self.last_head
    }

    #[inline]
    pub(crate) fn prefetch_root(&self) {
        self.root.prefetch_start();
    }

    pub(crate) fn root(&self) -> Page {
        self.root
    }

    pub(crate) fn tail(&self) -> Page {
        self.tail
    }

    /// Returns the position of a key and whether it exists; else the position at which to insert it.
    #[inline]
    pub(crate) fn find(&self, key: &[u8]) -> (Place, bool) {
        let mut page = self.root;
        while !page.is_leaf() {
            page = page.child(page.child_index(key));
            page.prefetch_start();
        }
        match page.search(key) {
            Ok(index) => (Place { leaf: page, index }, true),
            Err(index) => (Place { leaf: page, index }, false),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Place> {
        let (place, found) = self.find(key);
        found.then_some(place)
    }

    /// Puts a row and calls `old` with the replaced row, if any. Returns whether the row is new.
    pub(crate) fn put(
        &mut self,
        account: &mut Account,
        key: &[u8],
        cell: Cell<'_>,
        old: impl FnOnce(Option<Place>),
    ) -> bool {
        let head = head_of(key);
        if (self.is_appending() || self.root == self.tail)
            && (head > self.last_head || self.tail.is_after(key))
        {
            old(None);
            self.last_head = head;
            self.rows_appending = (self.rows_appending + 2) | 1;
            let path = Path::new();
            match self.tail.insert(account, self.tail.rows(), key, cell) {
                Insertion::InPlace => {}
                placed if self.root == self.tail => {
                    self.update_parents(account, path, placed, true)
                }
                placed => {
                    let path = self.path_to_tail();
                    self.update_parents(account, path, placed, true);
                }
            }
            return true;
        }
        let mut path = Path::new();
        let mut page = self.root;
        while !page.is_leaf() {
            let index = page.child_index(key);
            path.push(page, index);
            page = page.child(index);
            page.prefetch_start();
        }
        let (index, new) = match page.search(key) {
            Ok(index) => {
                old(Some(Place { leaf: page, index }));
                if page.replace(index, cell) {
                    return false;
                }
                page.erase(account, index);
                (index, false)
            }
            Err(index) => {
                old(None);
                (index, true)
            }
        };
        self.last_head = self.last_head.max(head);
        let appending = page == self.tail && index == page.rows();
        self.rows_appending = (self.rows() + u64::from(new)) << 1 | u64::from(appending);
        let is_tail = page == self.tail;
        let placed = page.insert(account, index, key, cell);
        self.update_parents(account, path, placed, is_tail);
        new
    }

    /// Returns the inner pages above the tail without reading the tail, which may already be freed. The root is an
    /// inner page.
    fn path_to_tail(&self) -> Path {
        let mut path = Path::new();
        let mut page = self.root;
        loop {
            let index = page.rows() - 1;
            path.push(page, index);
            if page.level() == 1 {
                return path;
            }
            page = page.child(index);
        }
    }

    /// Updates the tail and the pages above a changed leaf.
    fn update_parents(
        &mut self,
        account: &mut Account,
        mut path: Path,
        mut placed: Insertion,
        is_tail: bool,
    ) {
        use Insertion::{InPlace, Moved, Split};
        if is_tail {
            match placed {
                InPlace => {}
                Moved(page) | Split(_, _, page) => self.tail = page,
            }
        }
        loop {
            placed = match (placed, path.pop()) {
                (InPlace, _) => return,
                (Moved(page), None) => {
                    self.root = page;
                    return;
                }
                (Moved(page), Some((parent, index))) => return parent.set_child(index, page),
                (Split(left, between, right), None) => {
                    let (low, high) = (left.address().to_ne_bytes(), right.address().to_ne_bytes());
                    let rows = [
                        Span::New(&[], Cell::Inline(&low)),
                        Span::New(&between, Cell::Inline(&high)),
                    ];
                    self.root = build(account, left.level() + 1, &rows, Slack::Some)
                        .expect("a page has room for two rows");
                    return;
                }
                (Split(left, between, right), Some((parent, index))) => {
                    parent.set_child(index, left);
                    parent.insert(
                        account,
                        index + 1,
                        &between,
                        Cell::Inline(&right.address().to_ne_bytes()),
                    )
                }
            };
        }
    }

    fn find_tail(&mut self) {
        self.tail = last_leaf(self.root);
    }

    /// Removes a row; calls `old` with it first. `None` if there is no such row; else whether rows are left. If none
    /// are, the tree has no pages and must be discarded.
    pub(crate) fn remove(
        &mut self,
        account: &mut Account,
        key: &[u8],
        old: impl FnOnce(Place),
    ) -> Option<bool> {
        let mut path = Path::new();
        let mut page = self.root;
        while !page.is_leaf() {
            let index = page.child_index(key);
            path.push(page, index);
            page = page.child(index);
        }
        let index = page.search(key).ok()?;
        old(Place { leaf: page, index });
        self.rows_appending -= 2;
        page.erase(account, index);
        let is_single_leaf = path.len == 0;
        loop {
            if page.rows() == 0 {
                free_block(account, page);
                let Some((mut parent, index)) = path.pop() else {
                    return Some(false);
                };
                erase_child(account, &mut parent, index);
                page = parent;
                continue;
            }
            let shrunk = page.shrink(account);
            let Some((mut parent, index)) = path.pop() else {
                self.root = shrunk;
                break;
            };
            if shrunk != page {
                parent.set_child(index, shrunk);
            }
            if !merge_child(account, &mut parent, index) {
                break;
            }
            page = parent;
        }
        while !self.root.is_leaf() && self.root.rows() == 1 {
            let child = self.root.child(0);
            free_block(account, self.root);
            self.root = child;
        }
        if is_single_leaf {
            self.tail = self.root
        } else {
            self.find_tail()
        }
        Some(true)
    }

    pub(crate) fn free(self, account: &mut Account) {
        self.root.free(account);
    }

    /// Returns the first row.
    pub(crate) fn first(&self) -> Place {
        Place {
            leaf: first_leaf(self.root),
            index: 0,
        }
    }

    /// Returns the last row.
    pub(crate) fn last(&self) -> Place {
        Place {
            leaf: self.tail,
            index: self.tail.rows() - 1,
        }
    }

    /// Returns the first row at or after a key; strictly after it if `after`.
    pub(crate) fn at_or_after(&self, key: &[u8], after: bool) -> Option<Place> {
        let mut page = self.root;
        while !page.is_leaf() {
            let index = page.child_index(key);
            let child = page.child(index);
            child.prefetch_start();
            // A scan may continue in the next leaf.
            if page.level() == 1 && index + 1 < page.rows() {
                page.child(index + 1).prefetch_start();
            }
            page = child;
        }
        let (found, index) = match page.search_near_end(key) {
            Ok(index) => (true, index),
            Err(index) => (false, index),
        };
        let mut place = Place { leaf: page, index };
        place.index += usize::from(found && after);
        if place.index == place.leaf.rows() {
            self.next_leaf(place.leaf)
                .map(|leaf| Place { leaf, index: 0 })
        } else {
            Some(place)
        }
    }

    /// Returns the last row at or before a key; strictly before it if `before`.
    pub(crate) fn at_or_before(&self, key: &[u8], before: bool) -> Option<Place> {
        let (mut place, found) = self.find(key);
        if found && !before {
            return Some(place);
        }
        if place.index > 0 {
            place.index -= 1;
            return Some(place);
        }
        self.previous_leaf(place.leaf)
    }

    /// Returns the row after a place.
    #[inline]
    pub(crate) fn next(&self, place: Place) -> Option<Place> {
        if place.index + 1 < place.leaf.rows() {
            return Some(Place {
                leaf: place.leaf,
                index: place.index + 1,
            });
        }
        self.next_leaf(place.leaf)
            .map(|leaf| Place { leaf, index: 0 })
    }

    /// Returns the row before a place.
    #[inline]
    pub(crate) fn previous(&self, place: Place) -> Option<Place> {
        if place.index > 0 {
            return Some(Place {
                leaf: place.leaf,
                index: place.index - 1,
            });
        }
        self.previous_leaf(place.leaf)
    }

    pub(crate) fn next_leaf(&self, leaf: Page) -> Option<Page> {
        if leaf == self.tail {
            return None;
        }
        let mut scratch = Scratch::new();
        let key = leaf.key(leaf.rows() - 1, &mut scratch);
        let mut next = None;
        let mut page = self.root;
        while !page.is_leaf() {
            let index = page.child_index(key);
            if index + 1 < page.rows() {
                next = Some((page, index + 1));
            }
            page = page.child(index);
        }
        next.map(|(page, index)| first_leaf(page.child(index)))
    }

    fn previous_leaf(&self, leaf: Page) -> Option<Place> {
        let mut scratch = Scratch::new();
        let key = leaf.key(0, &mut scratch);
        let mut previous = None;
        let mut page = self.root;
        while !page.is_leaf() {
            let index = page.child_index(key);
            if index > 0 {
                previous = Some((page, index - 1));
            }
            page = page.child(index);
        }
        let leaf = previous.map(|(page, index)| last_leaf(page.child(index)))?;
        Some(Place {
            leaf,
            index: leaf.rows() - 1,
        })
    }

    /// Counts the rows from one position up to, but not including, another.
    pub(crate) fn count(&self, from: Place, to: Option<Place>) -> u64 {
        let mut place = from;
        let mut count = 0;
        loop {
            match to {
                Some(to) if to.leaf == place.leaf => {
                    return count + to.index.saturating_sub(place.index) as u64;
                }
                _ => count += (place.leaf.rows() - place.index) as u64,
            }
            match self.next_leaf(place.leaf) {
                Some(leaf) => place = Place { leaf, index: 0 },
                None => return count,
            }
        }
    }
}

/// Removes a child from an inner page. The first row's key means "less than any key": it stays, and takes over the
/// second row's child.
fn erase_child(account: &mut Account, parent: &mut Page, mut index: usize) {
    if index == 0 && parent.rows() > 1 {
        parent.set_child(0, parent.child(1));
        index = 1;
    }
    parent.erase(account, index);
}

/// Merges a child with a neighbor if both are small. Returns whether it did.
fn merge_child(account: &mut Account, parent: &mut Page, index: usize) -> bool {
    let child = parent.child(index);
    if child.used() > size_max(child.level()) / 4 {
        return false;
    }
    for left in [index, index.wrapping_sub(1)] {
        if left == usize::MAX || left + 1 >= parent.rows() {
            continue;
        }
        let mut scratch = Scratch::new();
        let between = parent.key(left + 1, &mut scratch);
        if let Some(page) = parent
            .child(left)
            .merge(account, between, parent.child(left + 1))
        {
            parent.set_child(left, page);
            parent.erase(account, left + 1);
            return true;
        }
    }
    false
}

fn first_leaf(mut page: Page) -> Page {
    while !page.is_leaf() {
        page = page.child(0);
    }
    page
}

fn last_leaf(mut page: Page) -> Page {
    while !page.is_leaf() {
        page = page.child(page.rows() - 1);
    }
    page
}
