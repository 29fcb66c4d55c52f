//! Page modifications: inserting, replacing and removing rows.

use super::build::{self, Account, Slack, Span, build, free_block, record_size};
use super::{Cell, Page, SLOT, Scratch};
use crate::value::Shared;

/// The effect of an insertion on a page.
pub(crate) enum Insertion {
    InPlace,
    /// The page is in another block now.
    Moved(Page),
    /// The page was split: left page, separator, right page.
    Split(Page, Box<[u8]>, Page),
}

impl Page {
    /// Inserts a row at the index that `search` returned.
    pub(crate) fn insert(
        mut self,
        account: &mut Account,
        index: usize,
        key: &[u8],
        cell: Cell<'_>,
    ) -> Insertion {
        let rows = self.rows();
        let fits = key.strip_prefix(self.prefix()).is_some();
        if fits {
            let prefix = self.prefix().len();
            if record_size(key, prefix, cell) + SLOT <= self.gap() {
                let at = self.write_record(account, key, None, cell, prefix);
                let slot = u32::from(super::head_of(&key[prefix..])) << 16 | at as u32;
                let place = self.slot_at(index);
                // SAFETY: there is room for one slot after the last; the slots from `index` on move up by one.
                unsafe {
                    std::ptr::copy(place, place.add(1), rows - index);
                    place.write(slot);
                }
                self.header_mut().rows += 1;
                return Insertion::InPlace;
            }
        }
        if fits && self.is_compact() {
            let size = record_size(key, self.prefix().len(), cell) + SLOT;
            if let Some(page) = build::grow(account, self, size, index == rows) {
                page.insert(account, index, key, cell);
                return Insertion::Moved(page);
            }
        }
        let new = Span::New(key, cell);
        let spans = [
            Span::Rows(self, 0, index),
            new,
            Span::Rows(self, index, rows),
        ];
        if let Some(page) = build(account, self.level(), &spans, Slack::Some) {
            free_block(account, self);
            return Insertion::Moved(page);
        }
        self.split(account, index, key, cell, fits)
    }

    /// Returns whether rebuilding a leaf would gain nothing: it has no bytes of removed rows and no longer common
    /// prefix.
    fn is_compact(self) -> bool {
        let rows = self.rows();
        let is_spread = |page: Page| page.slot(0) >> 24 != page.slot(rows - 1) >> 24;
        self.is_leaf() && self.header().dead == 0 && rows >= 2 && is_spread(self)
    }

    /// Splits a full page and inserts a row.
    fn split(
        self,
        account: &mut Account,
        index: usize,
        key: &[u8],
        cell: Cell<'_>,
        fits: bool,
    ) -> Insertion {
        let (rows, level) = (self.rows(), self.level());
        let new = Span::New(key, cell);
        // Rows that arrive in order fill pages completely: the new row starts a page of its own.
        if index == rows {
            let between = if level > 0 {
                key.into()
            } else {
                separator(self.key(rows - 1, &mut Scratch::new()), key)
            };
            let right =
                build(account, level, &[new], Slack::None).expect("a page has room for one row");
            return Insertion::Split(self, between, right);
        }
        // The row comes first, or does not share the page's prefix and sorts before all rows.
        let first = usize::from(level > 0);
        let cut = if !fits || index == 0 {
            index + 1
        } else {
            self.middle(index, record_size(key, self.prefix().len(), cell))
        };
        let (left, right) = if cut <= index {
            (
                [
                    Span::Rows(self, 0, cut),
                    Span::Rows(self, 0, 0),
                    Span::Rows(self, 0, 0),
                ],
                [
                    Span::Rows(self, cut, index),
                    new,
                    Span::Rows(self, index, rows),
                ],
            )
        } else {
            let cut = cut - 1;
            (
                [
                    Span::Rows(self, 0, index),
                    new,
                    Span::Rows(self, index, cut),
                ],
                [
                    Span::Rows(self, cut, rows),
                    Span::Rows(self, 0, 0),
                    Span::Rows(self, 0, 0),
                ],
            )
        };
        debug_assert!(cut > first || !fits);
        let (mut low, mut high) = (Scratch::new(), Scratch::new());
        let row_before = |cut: usize| if cut <= index { cut - 1 } else { cut - 2 };
        let left_last = if cut == index + 1 {
            key
        } else {
            self.key(row_before(cut), &mut low)
        };
        let right_first = if cut == index {
            key
        } else {
            self.key(if cut < index { cut } else { cut - 1 }, &mut high)
        };
        let between = if level > 0 {
            right_first.into()
        } else {
            separator(left_last, right_first)
        };
        let left = build(account, level, &left, Slack::Some).expect("half a page fits a page");
        let right = build(account, level, &right, Slack::Some).expect("half a page fits a page");
        free_block(account, self);
        Insertion::Split(left, between, right)
    }

    /// Returns the number of rows in the left half, including the new row at `index`.
    fn middle(self, index: usize, new_size: usize) -> usize {
        let rows = self.rows();
        let half = (self.records_size() + rows * SLOT + new_size + SLOT) / 2;
        let (mut bytes, mut count) = (0, 0);
        while bytes < half && count < rows {
            bytes += SLOT
                + if count == index {
                    new_size
                } else {
                    self.record(if count < index { count } else { count - 1 })
                        .size
                };
            count += 1;
        }
        count.max(1)
    }

    /// Replaces a row's value in place if the new one has the same size, and returns whether it did.
    pub(crate) fn replace(self, index: usize, cell: Cell<'_>) -> bool {
        let record = self.record(index);
        let at = record.value.cast_mut();
        match cell {
            Cell::Inline(bytes) if !record.value_out && bytes.len() == record.value_len => {
                // SAFETY: the record's value has this length, and the new bytes are not in the page.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at, bytes.len()) };
                true
            }
            Cell::Out(address) if record.value_out => {
                // SAFETY: the row releases its reference, and takes over the one of the new address.
                unsafe {
                    drop(Shared::from_address(record.out_address()));
                    at.cast::<usize>().write_unaligned(address);
                }
                true
            }
            _ => false,
        }
    }

    /// Returns a row's value if it is stored in the page.
    pub(crate) fn value_mut(&mut self, index: usize) -> Option<&mut [u8]> {
        let record = self.record(index);
        if record.value_out {
            return None;
        }
        // SAFETY: a record's value is `value_len` bytes long, and editing a table requires exclusive access to its
        // pages.
        Some(unsafe { std::slice::from_raw_parts_mut(record.value.cast_mut(), record.value_len) })
    }

    /// Removes a row and its out-of-line data. The block keeps its size; see `shrink`.
    pub(crate) fn erase(&mut self, account: &mut Account, index: usize) {
        let record = self.record(index);
        if record.value_out {
            // SAFETY: takes the reference back from the row, which is removed.
            drop(unsafe { Shared::from_address(record.out_address()) });
        }
        if record.key_out {
            build::free_out_key(account, record.key_address());
        }
        let rows = self.rows();
        let place = self.slot_at(index);
        // SAFETY: the slots after `index` move down by one.
        unsafe { std::ptr::copy(place.add(1), place, rows - 1 - index) };
        let is_lowest = record.at == self.heap_start();
        let header = self.header_mut();
        header.rows -= 1;
        if is_lowest {
            header.heap -= record.size as u16;
        } else {
            header.dead += record.size as u16;
        }
    }

    /// Moves the page to a smaller block if much of this one is free. The page has rows.
    pub(crate) fn shrink(self, account: &mut Account) -> Page {
        let free = self.header().size as usize - self.used();
        if free <= self.header().size as usize / 4 + 16 {
            return self;
        }
        let page = build(
            account,
            self.level(),
            &[Span::Rows(self, 0, self.rows())],
            Slack::None,
        )
        .expect("fewer rows fit");
        free_block(account, self);
        page
    }

    /// Merges two neighbors into one page if they are small enough. `between` is the separator between them.
    pub(crate) fn merge(self, account: &mut Account, between: &[u8], right: Page) -> Option<Page> {
        if self.used() + right.used() > super::size_max(self.level()) * 3 / 4 {
            return None;
        }
        let left = Span::Rows(self, 0, self.rows());
        let page = if self.is_leaf() {
            build(
                account,
                0,
                &[left, Span::Rows(right, 0, right.rows())],
                Slack::None,
            )?
        } else {
            let first = Span::New(between, right.record(0).cell());
            build(
                account,
                self.level(),
                &[left, first, Span::Rows(right, 1, right.rows())],
                Slack::None,
            )?
        };
        free_block(account, self);
        free_block(account, right);
        Some(page)
    }

    /// Replaces the address of a child.
    pub(crate) fn set_child(self, index: usize, child: Page) {
        let at = self.record(index).value.cast_mut();
        // SAFETY: an inner page's value is an address.
        unsafe { at.cast::<usize>().write_unaligned(child.address()) };
    }

    /// Frees the page, all pages below it, and their out-of-line data.
    pub(crate) fn free(self, account: &mut Account) {
        if !self.is_leaf() {
            for index in 0..self.rows() {
                self.child(index).free(account);
            }
        }
        if self.header().out != 0 {
            for index in 0..self.rows() {
                let record = self.record(index);
                if record.value_out {
                    // SAFETY: takes the reference back from the row, whose page is freed.
                    drop(unsafe { Shared::from_address(record.out_address()) });
                }
                if record.key_out {
                    build::free_out_key(account, record.key_address());
                }
            }
        }
        free_block(account, self);
    }
}

/// Returns the shortest key that is greater than `low` and at most `high`.
fn separator(low: &[u8], high: &[u8]) -> Box<[u8]> {
    debug_assert!(low < high);
    high[..build::common(low, high) + 1].into()
}
