//! The assignment as pieces: adjacent slots with the same holders, at most a block long.

/// Adjacent slots that the same nodes hold. Nodes are identified by index.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub from: u16,
    pub count: u16,
    /// The first is the owner if `is_owned`.
    pub holders: Vec<u16>,
    /// True if the first holder is an owner that may remain so.
    pub is_owned: bool,
    /// Nodes that held the piece before. A copy on any other node must be created, wherever it is placed.
    pub before: Vec<u16>,
    /// Nodes that have the rows and are not holders.
    pub present: Vec<u16>,
}

impl Piece {
    pub fn holds(&self, node: u16) -> bool {
        self.holders.contains(&node)
    }

    pub fn owner(&self) -> Option<u16> {
        self.holders.first().copied().filter(|_| self.is_owned)
    }

    /// Makes the holder `node` the owner.
    pub fn make_owner(&mut self, node: u16) {
        let at = self.holders.iter().position(|&it| it == node);
        self.holders
            .swap(0, at.expect("only holders become owners"));
        self.is_owned = true;
    }

    /// Replaces one holder by another, which also takes over ownership.
    pub fn replace(&mut self, from: u16, to: u16) {
        let at = self.holders.iter().position(|&it| it == from);
        self.holders[at.expect("only holders are replaced")] = to;
    }

    pub fn drop_holder(&mut self, node: u16) {
        let at = self.holders.iter().position(|&it| it == node);
        let at = at.expect("only holders are dropped");
        self.is_owned &= at != 0;
        self.holders.remove(at);
    }

    /// Splits the piece: the first `count` slots stay, the others are returned.
    pub fn split(&mut self, count: u16) -> Piece {
        let mut rest = self.clone();
        rest.from += count;
        rest.count -= count;
        self.count = count;
        rest
    }
}
