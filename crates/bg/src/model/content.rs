//! The bytes of profiles, images, resources, comments and posts: functions of the seed and of whose they are.
//!
//! So a client knows at once whether what it was given is what was stored, without having kept it, and two clients load the same.
//!
//! Texts are letters from `a` to `p` (SQL columns take them as they are), images are any bytes. Nobody has the same text as somebody
//! else but by chance of 2^-64 in the first eight bytes.

use larder_types::{Random, mix};

/// Attributes of a profile, in order, all of the size that the population says; a store may keep them apart or one behind the other.
pub const FIELDS: [&str; 10] = [
    "username",
    "password",
    "first_name",
    "last_name",
    "gender",
    "born",
    "joined",
    "address",
    "email",
    "telephone",
];

/// The report's.
pub const ATTRIBUTE_SIZE_DEFAULT: usize = 100;
pub const COMMENT_SIZE_DEFAULT: usize = 100;
pub const THUMBNAIL_SIZE: usize = 2048;
pub const RESOURCE_SIZE: usize = 200;
pub const POST_SIZE: usize = 100;

/// Whose bytes, and which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// All fields of a member's profile, one behind the other.
    Profile(u32),
    Thumbnail(u32),
    /// The profile image; of any size.
    Image(u32),
    Resource(u64),
    /// Of a resource, by number.
    Comment(u64, u64),
    /// Of a member, by number.
    Post(u32, u64),
}

/// Makes and checks bytes.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    seed: u64,
}

impl Contents {
    pub fn new(seed: u64) -> Contents {
        Contents { seed }
    }

    /// Fills `into`, of any size.
    pub fn fill(&self, owner: Owner, into: &mut [u8]) {
        let mut words = self.words(owner);
        let (whole, rest) = into.as_chunks_mut::<8>();
        for piece in whole {
            *piece = words.next();
        }
        let last = words.next();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    pub fn make(&self, owner: Owner, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.fill(owner, &mut bytes);
        bytes
    }

    /// Whether `found` is what [`fill`](Self::fill) makes at `size`; reads `found` once and copies nothing.
    pub fn is(&self, owner: Owner, size: usize, found: &[u8]) -> bool {
        if found.len() != size {
            return false;
        }
        let mut words = self.words(owner);
        let (whole, rest) = found.as_chunks::<8>();
        whole.iter().all(|piece| *piece == words.next()) && *rest == words.next()[..rest.len()]
    }

    fn words(&self, owner: Owner) -> Words {
        let (kind, id, number, text) = match owner {
            Owner::Profile(member) => (1, member.into(), 0, true),
            Owner::Thumbnail(member) => (2, member.into(), 0, false),
            Owner::Image(member) => (3, member.into(), 0, false),
            Owner::Resource(resource) => (4, resource, 0, true),
            Owner::Comment(resource, number) => (5, resource, number, true),
            Owner::Post(member, number) => (6, member.into(), number, true),
        };
        let state = mix(mix(mix(self.seed ^ kind) ^ id) ^ number);
        Words {
            random: Random::new(state),
            text,
        }
    }
}

struct Words {
    random: Random,
    text: bool,
}

impl Words {
    fn next(&mut self) -> [u8; 8] {
        let word = self.random.word();
        let word = if self.text {
            (word & 0x0f0f_0f0f_0f0f_0f0f) + 0x6161_6161_6161_6161
        } else {
            word
        };
        word.to_le_bytes()
    }
}
