//! Pages: which joins of a table can be read one after the other without a merge (see `evaluate::pages`).

use crate::base::rows::{GroupId, GroupLookup};
use crate::join::{Join, JoinId};

/// The way in which the joins of a table are read together.
#[derive(Debug, Default)]
pub struct Pages {
    /// In the order of their literal words. Empty if the joins cannot be read this way.
    pub makers: Vec<JoinId>,
    pub len: usize,
    pub is_analyzed: bool,
    /// Lookups of the last page: each join's group.
    pub found: Vec<(JoinId, Option<GroupId>)>,
    pub sought: Vec<(GroupLookup, Option<GroupId>)>,
    /// The prefixes of the page's groups, concatenated.
    pub keys: Vec<u8>,
}

impl Pages {
    /// Invalidates the plan if one of the joins has changed.
    pub fn invalidate_if_stale(&mut self, join: &Join) {
        let len = join.page.as_ref().map(|page| page.len);
        if self.is_analyzed && len != (!self.makers.is_empty()).then_some(self.len) {
            self.is_analyzed = false;
        }
    }
}
