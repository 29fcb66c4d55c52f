//! A join's part of a page: the split of its rows by page and word (see `tables::pages`).

use crate::base::key_range::{KeyRange, is_successor};
use crate::base::pattern::{Binding, Element};
use crate::base::rows::Split;
use crate::join::Join;
use crate::language::grammar::JoinMode;

/// A page from the view of one join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Length of the prefix that all keys of the page share.
    pub len: usize,
    /// The literal text of the join's keys after that prefix.
    pub word: Box<[u8]>,
}

impl Join {
    /// Splits the rows of a join without rows as its first fill suggests.
    pub fn split_for_fill(&mut self, gap: &KeyRange, prefix: &[u8], elements: usize) {
        if self.fills.len() > 0 || !self.output.rows.is_empty() {
            return;
        }
        let definition = &self.definition;
        let has_width = |element: &Element| match element {
            Element::Text(_) => true,
            Element::Slot(id) => definition.slots[*id as usize].width.is_some(),
        };
        let word = prefix.strip_prefix(&*gap.lo).filter(|word| {
            !word.is_empty()
                && is_successor(&gap.lo, &gap.hi)
                && definition.shape.rank.is_none()
                && elements > 1
                && definition.shape.output.elements[..elements]
                    .iter()
                    .all(has_width)
        });
        let page = word.map(|word| Page {
            len: gap.lo.len(),
            word: word.into(),
        });
        if page != self.page {
            self.output.rows.reset_split(match page {
                Some(_) => Split::Bytes(prefix.len()),
                None => definition.shape.output.split(&definition.slots),
            });
            self.page = page;
        }
    }

    /// Splits the rows of a join that was never read as its part of a page, which other joins fill, suggests.
    pub fn split_for_page(&mut self, page: &KeyRange) {
        if self.page.is_some() {
            return;
        }
        let mut binding = Binding::default();
        let definition = &self.definition;
        let found = definition
            .shape
            .output
            .constrain(page, &definition.slots, &mut binding);
        if found.is_some() {
            let mut prefix = Vec::new();
            let elements = definition.shape.output.write_prefix(&binding, &mut prefix);
            self.split_for_fill(page, &prefix, elements);
        }
    }

    /// Returns whether the stored rows can be output without checks once they are filled and settled: none of them can
    /// be invalid.
    pub fn is_read_as_stored(&self) -> bool {
        let definition = &self.definition;
        definition.mode == JoinMode::Push
            && self.nodes.backlog().is_empty()
            && (definition.shape.row_state()).is_none_or(|state| state.always_formats())
    }

    /// Returns whether all changes of this join's output have been applied to the outputs that depend on it.
    pub fn is_idle(&self) -> bool {
        self.nodes.backlog().is_empty() && self.fills.unsettled().is_empty()
    }
}
