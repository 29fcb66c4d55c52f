//! The bytes of profiles, images, resources, comments and posts, as functions of the seed and the owner.
//!
//! A client can therefore verify what it reads without storing what was written, and two clients load the same data.
//!
//! Texts consist of the letters `a` to `p`, which SQL columns store unchanged; images contain any bytes. The first
//! eight bytes of two owners are equal only with a probability of 2^-64.

use larder_types::{Random, mix};

/// The attributes of a profile, in order. Each has the size that the population specifies. A store may store them
/// separately or concatenated.
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

/// The report's value.
pub const ATTRIBUTE_SIZE_DEFAULT: usize = 100;
pub const COMMENT_SIZE_DEFAULT: usize = 100;
pub const THUMBNAIL_SIZE: usize = 2048;
pub const RESOURCE_SIZE: usize = 200;
pub const POST_SIZE: usize = 100;

/// The owner and kind of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// All fields of a member's profile, concatenated.
    Profile(u32),
    Thumbnail(u32),
    /// The profile image, of any size.
    Image(u32),
    Resource(u64),
    /// A resource, and the number of the comment.
    Comment(u64, u64),
    /// A member, and the number of the post.
    Post(u32, u64),
}

/// Generates and verifies contents.
#[derive(Clone, Copy, Debug)]
pub struct Contents {
    seed: u64,
}

impl Contents {
    pub fn new(seed: u64) -> Contents {
        Contents { seed }
    }

    /// Fills `into`, which may have any size.
    pub fn fill(&self, owner: Owner, into: &mut [u8]) {
        let mut words = self.words(owner);
        let (chunks, rest) = into.as_chunks_mut::<8>();
        for chunk in chunks {
            *chunk = words.next();
        }
        let last = words.next();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    pub fn generate(&self, owner: Owner, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        self.fill(owner, &mut bytes);
        bytes
    }

    /// Returns whether `found` is what [`fill`](Self::fill) generates for `size` bytes. Reads `found` once, and copies
    /// nothing.
    pub fn matches(&self, owner: Owner, size: usize, found: &[u8]) -> bool {
        if found.len() != size {
            return false;
        }
        let mut words = self.words(owner);
        let (chunks, rest) = found.as_chunks::<8>();
        chunks.iter().all(|chunk| *chunk == words.next()) && *rest == words.next()[..rest.len()]
    }

    fn words(&self, owner: Owner) -> WordStream {
        let (kind, id, number, text) = match owner {
            Owner::Profile(member) => (1, member.into(), 0, true),
            Owner::Thumbnail(member) => (2, member.into(), 0, false),
            Owner::Image(member) => (3, member.into(), 0, false),
            Owner::Resource(resource) => (4, resource, 0, true),
            Owner::Comment(resource, number) => (5, resource, number, true),
            Owner::Post(member, number) => (6, member.into(), number, true),
        };
        let state = mix(mix(mix(self.seed ^ kind) ^ id) ^ number);
        WordStream {
            random: Random::new(state),
            text,
        }
    }
}

struct WordStream {
    random: Random,
    text: bool,
}

impl WordStream {
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
