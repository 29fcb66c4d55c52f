//! Compiled patterns: they split a key into slot values, and build a key from slot values.
//!
//! 1. A key and the slot values of its pattern determine each other. A slot with a width holds exactly that many bytes.
//!    A slot without one holds at least one byte, and none of the bytes that end it in any pattern of its join, nor
//!    `|`.
//! 2. A pattern begins with literal text that names its table.

use crate::base::key_range::{KeyRange, common_prefix, step_up};
use crate::base::rows::Split;

/// A slot's number within its join.
pub type SlotId = u8;

/// Maximum number of slots in a join.
pub const SLOTS_MAX: usize = 32;

#[derive(Debug, Clone)]
pub struct Slot {
    pub name: String,
    /// `None` for a slot that extends to the literal text after it.
    pub width: Option<usize>,
    /// The bytes that end a slot without a width.
    pub stops: [bool; 256],
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Element {
    Text(Box<[u8]>),
    Slot(SlotId),
}

#[derive(Debug, Clone)]
pub struct Pattern {
    pub elements: Vec<Element>,
    /// The pattern as written.
    pub text: String,
    /// The length of every key, if all slots have widths.
    pub key_len: Option<usize>,
    /// The slots that occur in the pattern, as a bit set.
    pub slots: u32,
}

/// The slot values found so far. Slots are bound and unbound in stack order.
#[derive(Debug, Clone, Default)]
pub struct Binding {
    bytes: Vec<u8>,
    spans: [(u32, u32); SLOTS_MAX],
    pub bound: u32,
}

#[derive(Debug, Clone, Copy)]
pub struct Mark {
    bytes_len: usize,
    bound: u32,
}

impl Binding {
    pub fn is_bound(&self, slot: SlotId) -> bool {
        self.bound & (1 << slot) != 0
    }

    pub fn get(&self, slot: SlotId) -> &[u8] {
        let (start, end) = self.spans[slot as usize];
        &self.bytes[start as usize..end as usize]
    }

    pub fn bind(&mut self, slot: SlotId, value: &[u8]) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(value);
        self.spans[slot as usize] = (start, self.bytes.len() as u32);
        self.bound |= 1 << slot;
    }

    pub fn mark(&self) -> Mark {
        Mark {
            bytes_len: self.bytes.len(),
            bound: self.bound,
        }
    }

    pub fn reset(&mut self, mark: Mark) {
        self.bytes.truncate(mark.bytes_len);
        self.bound = mark.bound;
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bound = 0;
    }

    /// Writes the values of `slots` in the order of their numbers, in the form that [`Self::unpack`] reads.
    pub fn pack(&self, slots: u32, table: &[Slot], out: &mut Vec<u8>) {
        for slot in ids(slots) {
            let value = self.get(slot);
            if table[slot as usize].width.is_none() {
                out.extend_from_slice(&(value.len() as u32).to_be_bytes());
            }
            out.extend_from_slice(value);
        }
    }

    pub fn unpack(&mut self, slots: u32, table: &[Slot], mut packed: &[u8]) {
        for slot in ids(slots) {
            let len = match table[slot as usize].width {
                Some(width) => width,
                None => {
                    let (len, rest) = packed.split_at(4);
                    packed = rest;
                    u32::from_be_bytes(len.try_into().expect("four bytes")) as usize
                }
            };
            let (value, rest) = packed.split_at(len);
            self.bind(slot, value);
            packed = rest;
        }
    }
}

/// Iterates over the slots of a bit set, in ascending order.
pub fn ids(slots: u32) -> impl Iterator<Item = SlotId> {
    let mut left = slots;
    std::iter::from_fn(move || {
        (left != 0).then(|| {
            let id = left.trailing_zeros();
            left &= left - 1;
            id as SlotId
        })
    })
}

impl Pattern {
    /// Matches `key`: binds the unbound slots and compares the bound ones. If it returns `false`, the binding is
    /// unchanged.
    pub fn matches(&self, key: &[u8], slots: &[Slot], binding: &mut Binding) -> bool {
        if self.key_len.is_some_and(|len| len != key.len()) {
            return false;
        }
        let mark = binding.mark();
        let found = self.match_elements(key, slots, binding);
        if !found {
            binding.reset(mark);
        }
        found
    }

    fn match_elements(&self, key: &[u8], slots: &[Slot], binding: &mut Binding) -> bool {
        let mut rest = key;
        for (at, element) in self.elements.iter().enumerate() {
            match element {
                Element::Text(text) => match rest.strip_prefix(&**text) {
                    Some(after) => rest = after,
                    None => return false,
                },
                Element::Slot(id) => {
                    let slot = &slots[*id as usize];
                    let len = match slot.width {
                        Some(width) if width <= rest.len() => width,
                        Some(_) => return false,
                        None => match self.slot_len(at, slot, rest, true) {
                            Some(len) => len,
                            None => return false,
                        },
                    };
                    let (value, after) = rest.split_at(len);
                    if binding.is_bound(*id) {
                        if binding.get(*id) != value {
                            return false;
                        }
                    } else {
                        binding.bind(*id, value);
                    }
                    rest = after;
                }
            }
        }
        rest.is_empty()
    }

    /// Returns the length of a slot without a width at the start of `rest`. Returns `None` if no length matches, or if
    /// `rest` is only a prefix of a key (`whole` is false) and does not contain the end of the slot.
    fn slot_len(&self, at: usize, slot: &Slot, rest: &[u8], is_complete: bool) -> Option<usize> {
        let end = rest.iter().position(|&b| slot.stops[b as usize]);
        let len = match (self.elements.get(at + 1), end) {
            (Some(Element::Text(_)), Some(end)) => end,
            (None, None) if is_complete => rest.len(),
            _ => return None,
        };
        (len > 0).then_some(len)
    }

    /// Writes the key. All slots must be bound.
    pub fn write(&self, binding: &Binding, out: &mut Vec<u8>) {
        for element in &self.elements {
            match element {
                Element::Text(text) => out.extend_from_slice(text),
                Element::Slot(id) => out.extend_from_slice(binding.get(*id)),
            }
        }
    }

    /// Writes the key up to its first unbound slot. Returns the number of elements written.
    pub fn write_prefix(&self, binding: &Binding, out: &mut Vec<u8>) -> usize {
        for (at, element) in self.elements.iter().enumerate() {
            match element {
                Element::Text(text) => out.extend_from_slice(text),
                Element::Slot(id) if binding.is_bound(*id) => {
                    out.extend_from_slice(binding.get(*id))
                }
                Element::Slot(_) => return at,
            }
        }
        self.elements.len()
    }

    /// Returns the number of elements before the first slot that is not in `bound`.
    pub fn elements_bound(&self, bound: u32) -> usize {
        self.elements
            .iter()
            .position(|e| matches!(e, Element::Slot(id) if bound & (1 << id) == 0))
            .unwrap_or(self.elements.len())
    }

    /// Binds the slots of a key's first `elements` elements.
    pub fn bind_prefix(
        &self,
        prefix: &[u8],
        elements: usize,
        slots: &[Slot],
        binding: &mut Binding,
    ) {
        let mut at = 0;
        for number in 0..elements {
            let end = self
                .prefix_len(prefix, number + 1, slots)
                .expect("invariant: it is a prefix of the pattern");
            if let Element::Slot(id) = self.elements[number]
                && !binding.is_bound(id)
            {
                binding.bind(id, &prefix[at..end]);
            }
            at = end;
        }
    }

    /// Returns the length of the first `elements` elements in `key`, or `None` if the key does not have them.
    pub fn prefix_len(&self, key: &[u8], elements: usize, slots: &[Slot]) -> Option<usize> {
        let mut at = 0;
        for (number, element) in self.elements[..elements].iter().enumerate() {
            at += match element {
                Element::Text(text) => text.len(),
                Element::Slot(id) => match slots[*id as usize].width {
                    Some(width) => width,
                    None => self.slot_len(number, &slots[*id as usize], key.get(at..)?, true)?,
                },
            };
        }
        (at <= key.len()).then_some(at)
    }

    /// Chooses the split of a table that is mostly read by one leading slot.
    pub fn split(&self, slots: &[Slot]) -> Split {
        let mut len = 0;
        for (at, element) in self.elements.iter().enumerate() {
            match element {
                Element::Text(text) => len += text.len(),
                Element::Slot(id) => {
                    let last = at + 1 == self.elements.len();
                    let Some(width) = slots[*id as usize].width else {
                        return if last { Split::None } else { Split::Columns(1) };
                    };
                    let text = match self.elements.get(at + 1) {
                        Some(Element::Text(text)) => text.len(),
                        _ => 0,
                    };
                    return if last {
                        Split::None
                    } else {
                        Split::Bytes(len + width + text)
                    };
                }
            }
        }
        Split::None
    }

    /// Returns the range of keys that `binding` allows, given bounds on one of the unbound slots.
    pub fn range(&self, binding: &Binding, bounds: Option<&SlotBounds>) -> KeyRange {
        let (mut lo, mut hi) = (Vec::with_capacity(32), Vec::with_capacity(32));
        self.write_range(binding, bounds, &mut lo, &mut hi);
        KeyRange {
            lo: lo.into(),
            hi: hi.into(),
        }
    }

    /// Like [`Self::range`], into reused buffers.
    pub fn write_range(
        &self,
        binding: &Binding,
        bounds: Option<&SlotBounds>,
        lo: &mut Vec<u8>,
        hi: &mut Vec<u8>,
    ) {
        lo.clear();
        let elements = self.write_prefix(binding, lo);
        hi.clear();
        hi.extend_from_slice(lo);
        let Some(next) = self.elements.get(elements) else {
            hi.push(0);
            return;
        };
        match bounds.filter(|b| *next == Element::Slot(b.slot)) {
            Some(bounds) => {
                lo.extend_from_slice(&bounds.lo);
                match &bounds.hi {
                    Some(high) => {
                        hi.extend_from_slice(high);
                        if bounds.hi_included {
                            step_up(hi);
                        }
                    }
                    None => step_up(hi),
                }
            }
            None => step_up(hi),
        }
    }

    /// Derives slot constraints from a range of this pattern's keys: binds the slots that have the same value in all
    /// keys of the range. Returns `None` if no key of the pattern is in the range.
    pub fn constrain(
        &self,
        range: &KeyRange,
        slots: &[Slot],
        binding: &mut Binding,
    ) -> Option<Constraint> {
        let (common, point) = common_prefix(&range.lo, &range.hi);
        let mut at = 0;
        for (number, element) in self.elements.iter().enumerate() {
            match element {
                Element::Text(text) => {
                    let seen = text.len().min(common.len() - at);
                    if text[..seen] != common[at..at + seen] || (point && seen < text.len()) {
                        return None;
                    }
                    if seen < text.len() {
                        return Some(Constraint {
                            bounds: None,
                            point: false,
                            unsized_next: false,
                        });
                    }
                    at += seen;
                }
                Element::Slot(id) => {
                    let slot = &slots[*id as usize];
                    let len = match slot.width {
                        Some(width) => (at + width <= common.len()).then_some(width),
                        None => self.slot_len(number, slot, &common[at..], point),
                    };
                    let Some(len) = len else {
                        if point {
                            return None;
                        }
                        let bounds = slot
                            .width
                            .map(|width| SlotBounds::new(*id, width, at, range));
                        return Some(Constraint {
                            bounds,
                            point: false,
                            unsized_next: slot.width.is_none(),
                        });
                    };
                    let value = &common[at..at + len];
                    if binding.is_bound(*id) {
                        if binding.get(*id) != value {
                            return None;
                        }
                    } else {
                        binding.bind(*id, value);
                    }
                    at += len;
                }
            }
        }
        (at == common.len()).then_some(Constraint {
            bounds: None,
            point: true,
            unsized_next: false,
        })
    }
}

/// The constraints that a range of output keys implies.
#[derive(Debug, Clone)]
pub struct Constraint {
    /// Bounds on the first slot without a fixed value, if it has a width.
    pub bounds: Option<SlotBounds>,
    /// True if the range has only one possible key.
    pub point: bool,
    /// True if the first slot without a fixed value has no width.
    pub unsized_next: bool,
}

/// Bounds on a slot with a width. Both are prefixes of slot values.
#[derive(Debug, Clone)]
pub struct SlotBounds {
    pub slot: SlotId,
    pub lo: Box<[u8]>,
    pub hi: Option<Box<[u8]>>,
    pub hi_included: bool,
}

impl SlotBounds {
    fn new(slot: SlotId, width: usize, at: usize, range: &KeyRange) -> Self {
        let (lo, hi) = (&range.lo, &range.hi);
        let low = lo
            .get(at..)
            .map_or(&[][..], |rest| &rest[..rest.len().min(width)]);
        // Both ends share all bytes before `at`, unless `hi` is the successor of those bytes.
        let shared = hi.len() > at && lo.len() >= at && hi[..at] == lo[..at];
        let high = shared.then(|| Box::from(&hi[at..hi.len().min(at + width)]));
        Self {
            slot,
            lo: low.into(),
            hi: high,
            hi_included: hi.len() > at + width,
        }
    }
}
