//! Decodes replies into results, element by element as they arrive.

use std::sync::Arc;

use super::super::resp::common::split_value;
use crate::model::population::Population;
use crate::stores::contract::{Comments, Feed, People, Post, Profile, Resources};
use crate::stores::resp::{Receiver, Token, hex_of, number_of};

/// The number of digits of the author before a comment's text.
const AUTHOR: usize = 8;

/// The hash of a loaded script.
#[derive(Default)]
pub struct Sha(pub String);

impl Receiver for Sha {
    fn take(&mut self, token: Token<'_>) {
        if let Token::Bulk(sha) = token {
            self.0 = String::from_utf8_lossy(sha).into_owned();
        }
    }
}

/// Combines elements and their values.
struct Pairs<K> {
    /// The element whose value comes next.
    key: Option<K>,
    is_broken: bool,
}

impl<K> Pairs<K> {
    fn new() -> Pairs<K> {
        Pairs {
            key: None,
            is_broken: false,
        }
    }

    /// Returns an element with its value, once both have arrived.
    #[inline]
    fn pair<'t>(
        &mut self,
        token: Token<'t>,
        parse: impl FnOnce(&[u8]) -> Option<K>,
    ) -> Option<(K, &'t [u8])> {
        let bytes = match token {
            Token::Bulk(bytes) => bytes,
            Token::Array(_) => return None,
            _ => {
                self.is_broken = true;
                self.key = None;
                return None;
            }
        };
        if let Some(key) = self.key.take() {
            return Some((key, bytes));
        }
        self.key = parse(bytes);
        self.is_broken |= self.key.is_none();
        None
    }

    /// Returns the number of wrong elements. An invalid reply counts as one.
    fn wrong(&self) -> u32 {
        u32::from(self.is_broken || self.key.is_some())
    }
}

/// The reply to `HMGET bg:member:m`.
pub struct PersonFields {
    population: Arc<Population>,
    owner: u32,
    is_own: bool,
    /// The index of the next field.
    field: usize,
    is_broken: bool,
    profile: Profile,
}

impl PersonFields {
    pub fn new(population: Arc<Population>, owner: u32, is_own: bool) -> PersonFields {
        PersonFields {
            population,
            owner,
            is_own,
            field: 0,
            is_broken: false,
            profile: Profile::default(),
        }
    }

    pub fn profile(mut self) -> Profile {
        let is_whole = !self.is_broken && self.field == if self.is_own { 4 } else { 3 };
        self.profile.wrong += u32::from(!is_whole);
        self.profile
    }
}

impl Receiver for PersonFields {
    fn take(&mut self, token: Token<'_>) {
        let value = match token {
            Token::Array(_) => return,
            Token::Bulk(value) => value,
            _ => {
                self.is_broken = true;
                return;
            }
        };
        self.field += 1;
        if self.field == 1 {
            let (attributes, image) = split_value(&self.population, value);
            self.profile
                .check(&self.population, self.owner, attributes, image);
            return;
        }
        let Some(count) = number_of(value) else {
            self.is_broken = true;
            return;
        };
        match self.field {
            2 => self.profile.friends = count,
            3 => self.profile.resources = count,
            _ => self.profile.invitations = Some(count),
        }
    }
}

/// Members with their cards.
pub struct PeopleCards {
    pairs: Pairs<u32>,
    population: Arc<Population>,
    people: People,
}

impl PeopleCards {
    pub fn new(population: Arc<Population>) -> PeopleCards {
        PeopleCards {
            pairs: Pairs::new(),
            population,
            people: People::default(),
        }
    }

    pub fn people(mut self) -> People {
        self.people.wrong += self.pairs.wrong();
        self.people
    }
}

impl Receiver for PeopleCards {
    fn take(&mut self, token: Token<'_>) {
        if let Token::Array(tokens) = token {
            self.people.members.reserve((tokens / 2).min(4096));
        }
        let member = |bytes: &[u8]| number_of(bytes).and_then(|member| member.try_into().ok());
        if let Some((member, card)) = self.pairs.pair(token, member) {
            let (profile, thumbnail) = split_value(&self.population, card);
            self.people
                .push(&self.population, member, profile, thumbnail);
        }
    }
}

/// Resources with their bodies.
pub struct WallBodies {
    pairs: Pairs<u64>,
    population: Arc<Population>,
    resources: Resources,
}

impl WallBodies {
    pub fn new(population: Arc<Population>) -> WallBodies {
        WallBodies {
            pairs: Pairs::new(),
            population,
            resources: Resources::default(),
        }
    }

    pub fn resources(mut self) -> Resources {
        self.resources.wrong += self.pairs.wrong();
        self.resources
    }
}

impl Receiver for WallBodies {
    fn take(&mut self, token: Token<'_>) {
        if let Some((resource, body)) = self.pairs.pair(token, number_of) {
            self.resources.push(&self.population, resource, body);
        }
    }
}

/// Numbers of comments, with authors and texts.
pub struct CommentFields {
    pairs: Pairs<u64>,
    population: Arc<Population>,
    resource: u64,
    comments: Comments,
}

impl CommentFields {
    pub fn new(population: Arc<Population>, resource: u64) -> CommentFields {
        CommentFields {
            pairs: Pairs::new(),
            population,
            resource,
            comments: Comments::default(),
        }
    }

    pub fn comments(mut self) -> Comments {
        self.comments.wrong += self.pairs.wrong();
        self.comments
    }
}

impl Receiver for CommentFields {
    fn take(&mut self, token: Token<'_>) {
        if let Some((number, value)) = self.pairs.pair(token, number_of) {
            let text = value.get(AUTHOR..).unwrap_or_default();
            self.comments
                .push(&self.population, self.resource, number, text);
        }
    }
}

/// Entries of a feed, with their texts.
pub struct FeedPosts {
    pairs: Pairs<Post>,
    population: Arc<Population>,
    feed: Feed,
}

impl FeedPosts {
    pub fn new(population: Arc<Population>) -> FeedPosts {
        FeedPosts {
            pairs: Pairs::new(),
            population,
            feed: Feed::default(),
        }
    }

    pub fn feed(mut self) -> Feed {
        self.feed.wrong += self.pairs.wrong();
        self.feed
    }
}

impl Receiver for FeedPosts {
    fn take(&mut self, token: Token<'_>) {
        if let Some((post, text)) = self.pairs.pair(token, entry) {
            self.feed.push(&self.population, post, text);
        }
    }
}

/// Parses `time|author|number`.
fn entry(bytes: &[u8]) -> Option<Post> {
    let mut parts = bytes.split(|&byte| byte == b'|').map(hex_of);
    Some(Post {
        time: parts.next()??,
        author: parts.next()??.try_into().ok()?,
        number: parts.next()??,
    })
}
