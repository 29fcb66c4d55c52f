//! The items of a trace: identifiers for the values that actions read and write.

/// The kind of an item. The rest of the item is its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The confirmed friends of a member.
    Friends = 1,
    /// The members whose invitations a member has not answered.
    Invitations = 2,
    /// The comments on a resource.
    Comments = 3,
    /// The resources on a member's wall.
    Wall = 4,
    /// The posts of a member.
    Posts = 5,
}

impl Kind {
    pub const ALL: [Kind; 5] = [
        Kind::Friends,
        Kind::Invitations,
        Kind::Comments,
        Kind::Wall,
        Kind::Posts,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Friends => "friends",
            Kind::Invitations => "invitations",
            Kind::Comments => "comments",
            Kind::Wall => "wall",
            Kind::Posts => "posts",
        }
    }

    /// Returns the item of this kind for a member or a resource, whose number must be below 2^56.
    pub fn item(self, id: u64) -> u64 {
        (self as u64) << 56 | id
    }
}

/// Splits an item. Returns `None` for numbers that [`Kind::item`] does not produce.
pub fn parse(item: u64) -> Option<(Kind, u64)> {
    let kind = Kind::ALL
        .into_iter()
        .find(|kind| *kind as u64 == item >> 56)?;
    Some((kind, item & ((1 << 56) - 1)))
}
