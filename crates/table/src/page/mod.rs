//! A page: a sorted run of rows in one block of at most 16 KiB for a leaf and 4 KiB for an inner page.
//!
//! ```text
//!  0        16             slots                slots + 4*rows       size - heap              size
//!  | header | prefix bytes | slot 0, 1 .. n-1   | free               | .. records, unordered  |
//!
//!  slot    head << 16 | distance of the record's start from the block's end
//!          head: the first two bytes of the key after the prefix, zero padded
//!  record  key code, value code, [u16 key length], [u16 value length], key after prefix and head, value
//!            code 0..=253: the length; 254: it is in a u16; 255: an address (8 bytes) of out-of-line data
//! ```
//!
//! This is a slotted page with Graefe's prefix truncation and "poor man's normalized keys" (Modern B-Tree Techniques,
//! 2011, sections 3.5 and 3.6). It differs in two ways. A block is only an eighth larger than its contents, so a page
//! of one row costs little more than that row. The head is not stored again in the record. Header, prefix and slots
//! are adjacent at the front, so a search prefetches their lines together. Records are addressed from the end, so a
//! block grows by copying both ends unchanged.
//!
//! 1. Slots are in key order: by prefix, head, rest, and finally by length (which distinguishes padding from zero
//!    bytes).
//! 2. Every key of a leaf begins with the prefix. In an inner page this holds from the second row on; the first row's
//!    key is empty and means "less than any key".
//! 3. An inner page's values are the addresses of its children. All keys under child i are at least key i and less
//!    than key i + 1.
//! 4. A key of more than 512 bytes is out of line (complete, including the prefix), as are shared values and values
//!    of more than 512 bytes. Every page therefore has room for at least three rows.
//! 5. A page owns its out-of-line keys and one reference per shared value. `Page` itself is a plain pointer; the tree
//!    that holds it frees it.

pub(crate) mod build;
mod edit;

pub(crate) use edit::Insertion;

use std::cmp::Ordering;
use std::ops::Range;
use std::ptr::NonNull;

use larder_types::fetch;

use crate::short;
use crate::value::{Shared, Value};

/// Maximum block size of a leaf: one leaf holds a group of a hundred rows of a hundred bytes.
const LEAF_MAX: usize = 16 << 10;
/// Maximum block size of an inner page.
const INNER_MAX: usize = 4 << 10;
const HEADER: usize = size_of::<Header>();
const SLOT: usize = 4;
const PREFIX_MAX: usize = 255;
/// Maximum length of a key or a value that is stored in a page.
pub(crate) const INLINE_MAX: usize = 512;
/// The number of rows at the end of a leaf that a search probes first: their slots fill a cache line.
const LATEST: usize = 16;
/// The number of cache lines of a row to prefetch before its length is known.
const ROW_LINES: usize = 5;
const CODE_U16: u8 = 254;
const CODE_OUT: u8 = 255;

#[repr(C, align(8))]
struct Header {
    rows: u16,
    prefix: u16,
    /// Offset of the slots.
    slots: u16,
    /// Size of the records at the end of the block.
    heap: u16,
    /// Size of removed records among them.
    dead: u16,
    size: u16,
    level: u8,
    /// Not 0 if any record may have out-of-line data.
    out: u8,
    unused: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Page(NonNull<Header>);

/// A value to be stored in a page.
#[derive(Clone, Copy)]
pub(crate) enum Cell<'a> {
    Inline(&'a [u8]),
    /// The address of a shared value, with ownership of one reference.
    Out(usize),
}

/// A decoded record.
#[derive(Clone, Copy)]
pub(crate) struct Record {
    /// The length of the key after the prefix, including the head.
    key_len: usize,
    rest: *const u8,
    rest_len: usize,
    key_out: bool,
    value: *const u8,
    value_len: usize,
    value_out: bool,
    at: *const u8,
    size: usize,
}

/// A buffer for assembling a key, as long as the longest key that is stored in a page.
pub(crate) struct Scratch([u8; INLINE_MAX]);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        Scratch([0; INLINE_MAX])
    }
}

/// Returns the maximum block size of a page at this level.
#[inline]
pub(crate) fn size_max(level: u8) -> usize {
    if level == 0 { LEAF_MAX } else { INNER_MAX }
}

impl Page {
    #[inline]
    fn header(&self) -> &Header {
        // SAFETY: the holder of a page keeps its block allocated, and the header was written when the page was built.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    fn header_mut(&mut self) -> &mut Header {
        // SAFETY: as in `header`; edits require `&mut Table`, so there are no concurrent readers.
        unsafe { self.0.as_mut() }
    }

    #[inline]
    fn base(self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    #[inline]
    pub(crate) fn address(self) -> usize {
        self.0.as_ptr().expose_provenance()
    }

    /// # Safety
    ///
    /// `address` must come from `address` of a page that is still allocated.
    #[inline]
    unsafe fn from_address(address: usize) -> Page {
        // SAFETY: guaranteed by the caller; a page's address is not zero.
        Page(unsafe { NonNull::new_unchecked(std::ptr::with_exposed_provenance_mut(address)) })
    }

    #[inline]
    pub(crate) fn rows(self) -> usize {
        self.header().rows as usize
    }

    #[inline]
    pub(crate) fn is_leaf(self) -> bool {
        self.header().level == 0
    }

    #[inline]
    pub(crate) fn level(self) -> u8 {
        self.header().level
    }

    #[inline]
    pub(crate) fn prefix<'p>(self) -> &'p [u8] {
        // SAFETY: the prefix follows the header.
        unsafe {
            std::slice::from_raw_parts(self.base().add(HEADER), self.header().prefix as usize)
        }
    }

    /// Returns the number of bytes in use, without free space and removed records.
    pub(crate) fn used(self) -> usize {
        let header = self.header();
        header.slots as usize + header.rows as usize * SLOT + self.records_size()
    }

    /// Returns the size of all records.
    fn records_size(self) -> usize {
        let header = self.header();
        (header.heap - header.dead) as usize
    }

    /// Returns the free space between the slots and the records.
    fn gap(self) -> usize {
        let header = self.header();
        header.size as usize
            - header.heap as usize
            - header.slots as usize
            - header.rows as usize * SLOT
    }

    #[inline]
    fn slot_at(self, index: usize) -> *mut u32 {
        debug_assert!(index <= self.rows());
        // SAFETY: there are `rows` slots after the prefix, and room for one more when one is written.
        unsafe {
            self.base()
                .add(self.header().slots as usize + index * SLOT)
                .cast()
        }
    }

    #[inline]
    fn slot(self, index: usize) -> u32 {
        debug_assert!(index < self.rows());
        // SAFETY: the slot exists; slots begin at a multiple of 4, so it is aligned.
        unsafe { self.slot_at(index).read() }
    }

    /// Returns the offset of a slot's record in the block.
    #[inline]
    fn record_at(self, slot: u32) -> usize {
        self.header().size as usize - (slot & 0xffff) as usize
    }

    #[inline]
    pub(crate) fn record(self, index: usize) -> Record {
        let at = self.record_at(self.slot(index));
        // SAFETY: a slot's distance is that of a completely written record, and `key_out` means that the address of
        // an out-of-line key was written.
        unsafe {
            let start = self.base().add(at).cast_const();
            let (key_code, value_code) = (*start, *start.add(1));
            let mut next = start.add(2);
            let mut key_len = key_code as usize;
            let mut value_len = value_code as usize;
            if key_code == CODE_U16 {
                key_len = next.cast::<u16>().read_unaligned() as usize;
                next = next.add(2);
            }
            if value_code >= CODE_U16 {
                if value_code == CODE_U16 {
                    value_len = next.cast::<u16>().read_unaligned() as usize;
                    next = next.add(2);
                } else {
                    value_len = 8;
                }
            }
            let (rest, rest_len, value);
            if key_code == CODE_OUT {
                let bytes = build::out_key(next.cast::<usize>().read_unaligned());
                let bytes = &bytes[self.prefix().len()..];
                key_len = bytes.len();
                rest = bytes.as_ptr().add(key_len.min(2));
                rest_len = key_len - key_len.min(2);
                value = next.add(8);
            } else {
                rest = next;
                rest_len = key_len - key_len.min(2);
                value = next.add(rest_len);
            }
            Record {
                key_len,
                rest,
                rest_len,
                key_out: key_code == CODE_OUT,
                value,
                value_len,
                value_out: value_code == CODE_OUT,
                at: start,
                size: value.add(value_len).offset_from_unsigned(start),
            }
        }
    }

    /// Returns the value of a row.
    #[inline]
    pub(crate) fn value<'p>(self, index: usize) -> &'p [u8] {
        self.record(index).value()
    }

    /// Returns the value of a row as a handle or a copy.
    pub(crate) fn share(self, index: usize) -> Value {
        let record = self.record(index);
        if record.value_out {
            // SAFETY: the row owns a reference; the clone belongs to the caller, and the row's reference is not
            // dropped.
            let shared =
                std::mem::ManuallyDrop::new(unsafe { Shared::from_address(record.out_address()) });
            Value::from_shared((*shared).clone())
        } else {
            Value::new(record.value())
        }
    }

    /// Returns a child of an inner page.
    #[inline]
    pub(crate) fn child(self, index: usize) -> Page {
        debug_assert!(!self.is_leaf());
        // SAFETY: by invariant 3 the value is the address of a page that this page owns.
        unsafe { Page::from_address(self.record(index).value.cast::<usize>().read_unaligned()) }
    }

    /// Writes a row's key, without the page's prefix, to `into[at..]`.
    #[inline]
    pub(crate) fn write_rest(self, index: usize, record: &Record, into: &mut [u8], at: usize) {
        let head = (self.slot(index) >> 16) as u16;
        let head = head.to_be_bytes();
        let into = &mut into[at..at + record.key_len];
        if let [a, b, rest @ ..] = into {
            (*a, *b) = (head[0], head[1]);
            // SAFETY: a record's rest is `rest_len` bytes long, which is `key_len` less two here.
            unsafe { short::copy(record.rest, rest.as_mut_ptr(), rest.len()) };
        } else if let [a] = into {
            *a = head[0];
        }
    }

    /// Returns a row's complete key (without its group's prefix).
    pub(crate) fn key(self, index: usize, scratch: &mut Scratch) -> &[u8] {
        if !self.is_leaf() && index == 0 {
            return &[];
        }
        let record = self.record(index);
        if record.key_out {
            // SAFETY: the row owns its key and outlives the borrow: nothing is edited while it is read.
            return unsafe { build::out_key(record.key_address()) };
        }
        let prefix = self.prefix();
        scratch.0[..prefix.len()].copy_from_slice(prefix);
        self.write_rest(index, &record, &mut scratch.0, prefix.len());
        &scratch.0[..prefix.len() + record.key_len]
    }

    /// Returns the index of the key, or the index at which to insert it. In an inner page the first row is less than
    /// any key.
    #[inline]
    pub(crate) fn search(self, key: &[u8]) -> Result<usize, usize> {
        self.search_beginning(key, self.rows() / 2)
    }

    /// Like [`Page::search`] of a leaf, for a key that is probably among the last ones: rows often arrive in order,
    /// and the latest are read most. Prefetches the lines that such a search reads.
    #[inline]
    pub(crate) fn search_near_end(self, key: &[u8]) -> Result<usize, usize> {
        self.prefetch(true);
        let rows = self.rows();
        self.search_beginning(
            key,
            if rows > 2 * LATEST {
                rows - LATEST
            } else {
                rows / 2
            },
        )
    }

    /// Searches for a key and probes row `at` first.
    #[inline]
    fn search_beginning(self, key: &[u8], at: usize) -> Result<usize, usize> {
        let first = usize::from(!self.is_leaf());
        let prefix = self.prefix();
        let Some(key) = key.strip_prefix(prefix) else {
            return Err(if key < prefix { first } else { self.rows() });
        };
        let head = head_of(key);
        let (mut lo, mut hi) = (first, self.rows());
        let mut mid = at.max(first);
        while lo < hi {
            match self.compare(mid, head, key) {
                Ordering::Less => lo = mid + 1,
                Ordering::Equal => return Ok(mid),
                Ordering::Greater => hi = mid,
            }
            mid = lo + (hi - lo) / 2;
        }
        Err(lo)
    }

    /// Returns whether the key is greater than all keys of the page, a leaf with rows.
    #[inline]
    pub(crate) fn is_after(self, key: &[u8]) -> bool {
        // A row inserted here is written below the records; this prefetch need not wait for the slot.
        fetch(self.heap_start().wrapping_sub(1));
        match key.strip_prefix(self.prefix()) {
            None => key > self.prefix(),
            Some(key) => self.compare(self.rows() - 1, head_of(key), key) == Ordering::Less,
        }
    }

    /// Returns whether the key of a leaf's row is less than `key`.
    #[inline]
    pub(crate) fn is_less(self, index: usize, key: &[u8]) -> bool {
        match key.strip_prefix(self.prefix()) {
            None => self.prefix() < key,
            Some(key) => self.compare(index, head_of(key), key) == Ordering::Less,
        }
    }

    #[inline]
    fn compare(self, index: usize, head: u16, key: &[u8]) -> Ordering {
        let found = (self.slot(index) >> 16) as u16;
        if found != head {
            return found.cmp(&head);
        }
        let record = self.record(index);
        // SAFETY: a record's rest is `rest_len` bytes long.
        let rest = unsafe { std::slice::from_raw_parts(record.rest, record.rest_len) };
        rest.cmp(&key[key.len().min(2)..])
            .then(record.key_len.cmp(&key.len()))
    }

    /// Returns the index of the child whose subtree may contain a key.
    #[inline]
    pub(crate) fn child_index(self, key: &[u8]) -> usize {
        match self.search(key) {
            Ok(index) => index,
            Err(index) => index - 1,
        }
    }

    /// Prefetches a row.
    #[inline]
    pub(crate) fn prefetch_row(self, index: usize) {
        if index < self.rows() {
            let at = self.base().wrapping_add(self.record_at(self.slot(index)));
            fetch(at);
            fetch(at.wrapping_add(64));
        }
    }

    /// Returns the rows of a leaf whose slots have the same head as `key`: if the key exists, it is among them.
    #[inline]
    pub(crate) fn candidate_rows(self, key: &[u8]) -> Range<usize> {
        let Some(key) = key.strip_prefix(self.prefix()) else {
            return 0..0;
        };
        let head = head_of(key);
        let first = |mut lo: usize, is_before: fn(u16, u16) -> bool| {
            let mut hi = self.rows();
            while lo < hi {
                let mid = lo + (hi - lo) / 2;
                if is_before((self.slot(mid) >> 16) as u16, head) {
                    lo = mid + 1
                } else {
                    hi = mid
                }
            }
            lo
        };
        let begin = first(0, |found, head| found < head);
        begin..first(begin, |found, head| found <= head)
    }

    /// Probes the middle one of at least two candidate rows of a leaf, and discards about half of them.
    #[inline]
    pub(crate) fn halve(self, rows: &mut Range<usize>, key: &[u8]) {
        let middle = rows.start + rows.len() / 2;
        if self.compare_row(middle, key).is_gt() {
            rows.end = middle
        } else {
            rows.start = middle
        }
    }

    /// Compares a row's key with `key`, which begins with the page's prefix.
    #[inline]
    pub(crate) fn compare_row(self, index: usize, key: &[u8]) -> Ordering {
        let key = &key[self.prefix().len()..];
        self.compare(index, head_of(key), key)
    }

    /// Prefetches the key of the row that [`Page::halve`] probes, or the complete row if it is the only candidate.
    #[inline]
    pub(crate) fn prefetch_middle(self, rows: &Range<usize>) {
        if rows.is_empty() {
            return;
        }
        let middle = rows.start + rows.len() / 2;
        let at = self.base().wrapping_add(self.record_at(self.slot(middle)));
        let lines = if rows.len() == 1 { ROW_LINES } else { 1 };
        for line in 0..lines {
            fetch(at.wrapping_add(line * 64));
        }
    }

    /// Prefetches rows, as [`Page::prefetch_row`] does. A scan uses it for its first rows.
    #[inline]
    pub(crate) fn prefetch_rows(self, from: usize, to: usize) {
        for index in from..to.min(self.rows()) {
            self.prefetch_row(index);
        }
    }

    /// Prefetches the header and slots that a search reads.
    #[inline]
    pub(crate) fn prefetch_start(self) {
        for line in 0..4 {
            fetch(self.base().wrapping_add(line * 64));
        }
    }

    /// Prefetches the records, at most the first 12 lines.
    #[inline]
    pub(crate) fn prefetch_heap(self) {
        let lines = usize::from(self.header().heap).div_ceil(64).min(12);
        let end = self.base().wrapping_add(self.header().size as usize);
        for line in 1..=lines {
            fetch(end.wrapping_sub(line * 64));
        }
    }

    /// Returns the address of the lowest record.
    #[inline]
    fn heap_start(self) -> *const u8 {
        let header = self.header();
        self.base()
            .wrapping_add(header.size as usize - header.heap as usize)
    }

    /// Prefetches the header. With `deep`, reads the header and prefetches where a row with a greater key is written.
    #[inline]
    pub(crate) fn prefetch(self, deep: bool) {
        fetch(self.base());
        if deep {
            let header = self.header();
            fetch(self.heap_start().wrapping_sub(1));
            fetch(
                self.base()
                    .wrapping_add(header.slots as usize + header.rows as usize * SLOT),
            );
        }
    }
}

impl Record {
    #[inline]
    pub(crate) fn key_len(&self) -> usize {
        self.key_len
    }

    #[inline]
    pub(crate) fn value<'p>(&self) -> &'p [u8] {
        // SAFETY: a record's value is `value_len` bytes long; an out-of-line value is kept alive by the row's
        // reference.
        unsafe {
            if self.value_out {
                let shared = std::mem::ManuallyDrop::new(Shared::from_address(self.out_address()));
                let bytes = shared.bytes();
                return std::slice::from_raw_parts(bytes.as_ptr(), bytes.len());
            }
            std::slice::from_raw_parts(self.value, self.value_len)
        }
    }

    fn out_address(&self) -> usize {
        debug_assert!(self.value_out);
        // SAFETY: the value is an address of eight bytes.
        unsafe { self.value.cast::<usize>().read_unaligned() }
    }

    fn key_address(&self) -> usize {
        debug_assert!(self.key_out);
        // SAFETY: an address of eight bytes precedes the value.
        unsafe { self.value.sub(8).cast::<usize>().read_unaligned() }
    }

    fn cell<'p>(&self) -> Cell<'p> {
        if self.value_out {
            return Cell::Out(self.out_address());
        }
        // SAFETY: a record's value is `value_len` bytes long.
        Cell::Inline(unsafe { std::slice::from_raw_parts(self.value, self.value_len) })
    }
}

#[inline]
fn head_of(key: &[u8]) -> u16 {
    match *key {
        [] => 0,
        [a] => u16::from_be_bytes([a, 0]),
        [a, b, ..] => u16::from_be_bytes([a, b]),
    }
}
