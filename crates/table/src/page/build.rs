//! Builds pages from rows of other pages and new rows. Growing, splitting, merging and shrinking all use this module.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ptr::{self, NonNull};

use super::{
    CODE_OUT, CODE_U16, Cell, HEADER, Header, INLINE_MAX, PREFIX_MAX, Page, SLOT, Scratch, head_of,
    size_max,
};

/// The number of allocated bytes that are not freed yet.
#[derive(Debug, Default)]
pub(crate) struct Account {
    pub(crate) bytes: usize,
}

/// Rows of a page to build, in order.
#[derive(Clone, Copy)]
pub(crate) enum Span<'a> {
    /// Rows `from..to` of a page; ownership of their out-of-line data moves with them.
    Rows(Page, usize, usize),
    New(&'a [u8], Cell<'a>),
}

impl Span<'_> {
    fn rows(&self) -> usize {
        match self {
            Span::Rows(_, from, to) => to - from,
            Span::New(..) => 1,
        }
    }
}

/// Builds a page from the rows of all spans, with free space according to `slack` (up to the page's size limit).
/// `None` if the rows do not fit. The caller then releases the source pages with `free_block`.
pub(crate) fn build(
    account: &mut Account,
    level: u8,
    spans: &[Span<'_>],
    slack: Slack,
) -> Option<Page> {
    let rows: usize = spans.iter().map(Span::rows).sum();
    let first = usize::from(level > 0);
    let (mut low, mut high) = (Scratch::new(), Scratch::new());
    let mut prefix: &[u8] = &[];
    if rows >= first + 2 {
        let low = key_at(spans, first, &mut low);
        prefix = &low[..common(low, key_at(spans, rows - 1, &mut high)).min(PREFIX_MAX)];
    }
    let mut need = slots_start(prefix.len()) + rows * SLOT;
    let mut new = 0;
    let mut index = 0;
    for span in spans {
        match *span {
            Span::New(key, cell) => {
                new = record_size(
                    key,
                    if index < first {
                        key.len()
                    } else {
                        prefix.len()
                    },
                    cell,
                );
                need += new;
                index += 1;
            }
            Span::Rows(page, from, to) if same_shape(page, prefix, index, from, first) => {
                need += if (from, to) == (0, page.rows()) {
                    page.records_size()
                } else {
                    (from..to).map(|row| page.record(row).size).sum()
                };
                index += to - from;
            }
            Span::Rows(page, from, to) => {
                for row in from..to {
                    let mut scratch = Scratch::new();
                    let key = page.key(row, &mut scratch);
                    need += record_size(
                        key,
                        if index < first {
                            key.len()
                        } else {
                            prefix.len()
                        },
                        page.record(row).cell(),
                    );
                    index += 1;
                }
            }
        }
    }
    if need > size_max(level) {
        return None;
    }
    let size = match slack {
        Slack::None => need,
        Slack::Some => with_slack(level, need, new),
    };
    let mut page = alloc_block(account, size, level, prefix);
    let mut index = 0;
    for span in spans {
        match *span {
            Span::New(key, cell) => {
                let key = if index < first { &[] } else { key };
                page.append(
                    account,
                    key,
                    None,
                    cell,
                    if index < first { 0 } else { prefix.len() },
                );
                index += 1;
            }
            Span::Rows(from_page, from, to)
                if same_shape(from_page, prefix, index, from, first) =>
            {
                page.append_rows(from_page, from, to);
                index += to - from;
            }
            Span::Rows(from_page, from, to) => {
                for row in from..to {
                    let mut scratch = Scratch::new();
                    let record = from_page.record(row);
                    let key = from_page.key(row, &mut scratch);
                    let out = record.key_out.then(|| record.key_address());
                    if index < first {
                        if let Some(out) = out {
                            free_out_key(account, out);
                        }
                        page.append(account, &[], None, record.cell(), 0);
                    } else {
                        page.append(account, key, out, record.cell(), prefix.len());
                    }
                    index += 1;
                }
            }
        }
    }
    Some(page)
}

/// Copies a page into a larger block with room for a row of `new` bytes, and frees the old block. `None` if the row
/// does not fit. With `in_order`, the page is copied unchanged; otherwise its records are sorted, so that a range
/// scan reads them sequentially.
pub(super) fn grow(account: &mut Account, page: Page, new: usize, in_order: bool) -> Option<Page> {
    let need = page.used() + new;
    if need > size_max(0) {
        return None;
    }
    let mut larger = alloc_block(account, with_slack(0, need, new), 0, page.prefix());
    if in_order {
        larger.copy_all(page);
    } else {
        larger.append_rows(page, 0, page.rows());
    }
    free_block(account, page);
    Some(larger)
}

/// Adds an eighth, or room for eight rows like the new one, but at most half of the size. Large rows then do not
/// cause a copy per row, and small pages stay small.
fn with_slack(level: u8, need: usize, new: usize) -> usize {
    (need + (need / 8).max((8 * new).min(need / 2))).min(size_max(level))
}

/// The free space of a new page: none, or some.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slack {
    None,
    Some,
}

/// Returns whether records can be copied unchanged: the prefix has the same length, and an inner page's first row
/// stays first.
fn same_shape(page: Page, prefix: &[u8], index: usize, from: usize, first: usize) -> bool {
    page.prefix().len() == prefix.len() && (first == 0 || (index == 0) == (from == 0))
}

fn key_at<'s>(spans: &[Span<'s>], mut index: usize, scratch: &'s mut Scratch) -> &'s [u8] {
    for span in spans {
        if index < span.rows() {
            return match *span {
                Span::New(key, _) => key,
                Span::Rows(page, from, _) => page.key(from + index, scratch),
            };
        }
        index -= span.rows();
    }
    unreachable!("the spans have fewer rows than they say")
}

pub(crate) fn common(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// Returns the size of a record whose key is shortened by a prefix of this length.
pub(super) fn record_size(key: &[u8], prefix: usize, cell: Cell<'_>) -> usize {
    let value = match cell {
        Cell::Inline(bytes) => bytes.len() + if bytes.len() >= CODE_U16.into() { 2 } else { 0 },
        Cell::Out(_) => 8,
    };
    let key_len = key.len() - prefix;
    let key = if key.len() > INLINE_MAX && key_len > 0 {
        8
    } else {
        key_len - key_len.min(2) + if key_len >= CODE_U16.into() { 2 } else { 0 }
    };
    2 + key + value
}

/// Returns the offset of the slots after a prefix.
fn slots_start(prefix: usize) -> usize {
    (HEADER + prefix).next_multiple_of(SLOT)
}

fn block_layout(size: usize) -> Layout {
    Layout::from_size_align(size, align_of::<Header>()).expect("a page is small")
}

fn alloc_block(account: &mut Account, size: usize, level: u8, prefix: &[u8]) -> Page {
    let layout = block_layout(size.next_multiple_of(align_of::<Header>()));
    account.bytes += layout.size();
    // SAFETY: the size is not zero, because it includes a header.
    let at = unsafe { alloc(layout) };
    let Some(header) = NonNull::new(at.cast::<Header>()) else {
        handle_alloc_error(layout)
    };
    let slots = slots_start(prefix.len());
    // SAFETY: the block is new, aligned, and has room for the header and the prefix.
    unsafe {
        header.write(Header {
            rows: 0,
            prefix: prefix.len() as u16,
            slots: slots as u16,
            heap: 0,
            dead: 0,
            size: layout.size() as u16,
            level,
            out: 0,
            unused: 0,
        });
        ptr::copy_nonoverlapping(prefix.as_ptr(), at.add(HEADER), prefix.len());
    }
    Page(header)
}

/// Frees a page's block, but not the out-of-line data of its rows, which belongs to another page.
pub(crate) fn free_block(account: &mut Account, page: Page) {
    let layout = block_layout(page.header().size as usize);
    account.bytes -= layout.size();
    // SAFETY: the block was allocated with this layout, and its owner no longer uses it.
    unsafe { dealloc(page.base(), layout) };
}

impl Page {
    /// Appends a record and its slot. The block must have room. A key that is already out of line is not copied.
    pub(super) fn append(
        &mut self,
        account: &mut Account,
        key: &[u8],
        out: Option<usize>,
        cell: Cell<'_>,
        prefix: usize,
    ) {
        let at = self.write_record(account, key, out, cell, prefix);
        let rows = self.rows();
        let slot = u32::from(head_of(&key[prefix..])) << 16 | at as u32;
        // SAFETY: there is room for one more slot.
        unsafe { self.slot_at(rows).write(slot) };
        self.header_mut().rows += 1;
    }

    /// Writes a record below the others and returns its distance from the block's end. The block must have room.
    pub(super) fn write_record(
        &mut self,
        account: &mut Account,
        key: &[u8],
        out: Option<usize>,
        cell: Cell<'_>,
        prefix: usize,
    ) -> usize {
        let distance = self.header().heap as usize + record_size(key, prefix, cell);
        let at = self.header().size as usize - distance;
        let key_len = key.len() - prefix;
        let is_out = key.len() > INLINE_MAX && key_len > 0;
        // SAFETY: the caller ensures that `record_size` bytes are free below the records.
        let end = unsafe {
            let start = self.base().add(at);
            let mut next = start.add(2);
            start.write(if is_out {
                CODE_OUT
            } else if key_len >= CODE_U16.into() {
                next.cast::<u16>().write_unaligned(key_len as u16);
                next = next.add(2);
                CODE_U16
            } else {
                key_len as u8
            });
            start.add(1).write(match cell {
                Cell::Out(_) => CODE_OUT,
                Cell::Inline(bytes) if bytes.len() >= CODE_U16.into() => {
                    next.cast::<u16>().write_unaligned(bytes.len() as u16);
                    next = next.add(2);
                    CODE_U16
                }
                Cell::Inline(bytes) => bytes.len() as u8,
            });
            if is_out {
                let address = out.unwrap_or_else(|| new_out_key(account, key));
                next.cast::<usize>().write_unaligned(address);
                next = next.add(8);
            } else {
                let rest = &key[prefix + key_len.min(2)..];
                ptr::copy_nonoverlapping(rest.as_ptr(), next, rest.len());
                next = next.add(rest.len());
            }
            match cell {
                Cell::Out(address) => {
                    next.cast::<usize>().write_unaligned(address);
                    next = next.add(8);
                }
                Cell::Inline(bytes) => {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), next, bytes.len());
                    next = next.add(bytes.len());
                }
            }
            next.offset_from_unsigned(self.base())
        };
        debug_assert_eq!(self.heap_start(), self.base().wrapping_add(end));
        let header = self.header_mut();
        header.heap = distance as u16;
        if is_out || matches!(cell, Cell::Out(_)) {
            header.out = 1;
        }
        distance
    }

    /// Copies another page's slots and records unchanged. This page is empty, larger, and has the same prefix.
    fn copy_all(&mut self, page: Page) {
        let (header, heap) = (page.header(), page.header().heap as usize);
        // SAFETY: this block is larger than the other. Slots begin at the same offset because the prefixes have the
        // same length, and records keep their distance from the end.
        unsafe {
            let slots = self.base().add(header.slots as usize).cast();
            ptr::copy_nonoverlapping(page.slot_at(0), slots, header.rows as usize);
            let to_end = self.base().add(self.header().size as usize);
            ptr::copy_nonoverlapping(page.heap_start(), to_end.sub(heap), heap);
        }
        let own = self.header_mut();
        (own.rows, own.heap, own.out) = (header.rows, header.heap, header.out);
    }

    /// Copies rows of a page that has the same prefix. The block must have room.
    fn append_rows(&mut self, page: Page, from: usize, to: usize) {
        for row in from..to {
            page.prefetch_row(row + 12);
            let record = page.record(row);
            let distance = self.header().heap as usize + record.size;
            let at = self.header().size as usize - distance;
            let rows = self.rows();
            let slot = page.slot(row) & 0xffff_0000 | distance as u32;
            // SAFETY: there is room for the record and one more slot.
            unsafe {
                ptr::copy_nonoverlapping(record.at, self.base().add(at), record.size);
                self.slot_at(rows).write(slot);
            }
            let header = self.header_mut();
            header.heap = distance as u16;
            header.rows += 1;
        }
        self.header_mut().out |= page.header().out;
    }
}

/// Returns the layout of an out-of-line key: its length in four bytes, then its bytes.
fn out_key_layout(len: usize) -> Layout {
    Layout::from_size_align(4 + len, 4).expect("a key has less than 4 GiB")
}

fn new_out_key(account: &mut Account, key: &[u8]) -> usize {
    let len = u32::try_from(key.len()).expect("a key has less than 4 GiB");
    let layout = out_key_layout(key.len());
    account.bytes += layout.size();
    // SAFETY: the size is at least four.
    let at = unsafe { alloc(layout) };
    if at.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the allocation is new and has room for the length and the bytes.
    unsafe {
        at.cast::<u32>().write(len);
        ptr::copy_nonoverlapping(key.as_ptr(), at.add(4), key.len());
    }
    at.expose_provenance()
}

/// # Safety
///
/// `address` must be that of an out-of-line key, which must not be freed while the bytes are used.
#[inline]
pub(super) unsafe fn out_key<'k>(address: usize) -> &'k [u8] {
    let at = ptr::with_exposed_provenance::<u8>(address);
    // SAFETY: guaranteed by the caller; the length precedes the bytes.
    unsafe { std::slice::from_raw_parts(at.add(4), at.cast::<u32>().read() as usize) }
}

pub(super) fn free_out_key(account: &mut Account, address: usize) {
    // SAFETY: the record that owned the key no longer uses it.
    let layout = out_key_layout(unsafe { out_key(address) }.len());
    account.bytes -= layout.size();
    // SAFETY: it was allocated with this layout.
    unsafe { dealloc(ptr::with_exposed_provenance_mut(address), layout) };
}
