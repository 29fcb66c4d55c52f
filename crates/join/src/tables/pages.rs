//! Pages: which joins of a table are read together, one behind the other (see `evaluate::pages`).

use crate::base::rows::{GroupId, Sought};
use crate::join::{Join, JoinId};

/// How the joins of a table are read together.
#[derive(Debug, Default)]
pub struct Pages {
    /// In the order of their words; none if they cannot be.
    pub makers: Vec<JoinId>,
    pub len: usize,
    pub is_known: bool,
    /// What was found of the last page: which join has which group.
    pub found: Vec<(JoinId, Option<GroupId>)>,
    pub sought: Vec<(Sought, Option<GroupId>)>,
    /// The page's groups, one behind the other.
    pub keys: Vec<u8>,
}

impl Pages {
    /// Forgets how joins are read together if one of them has changed.
    pub fn forget_if_old(&mut self, join: &Join) {
        let len = join.page.as_ref().map(|page| page.len);
        if self.is_known && len != (!self.makers.is_empty()).then_some(self.len) {
            self.is_known = false;
        }
    }
}
