//! Decodes rows into results as they arrive: a key, then its value.

use std::sync::Arc;

use super::super::resp::common::split_value;
use crate::model::population::Population;
use crate::stores::contract::{Comments, Feed, People, Post, Profile, Resources};
use crate::stores::resp::{Receiver, Token, hex_of, number_of};

/// The widths of columns: members, and other numbers.
const MEMBER: usize = 8;
const NUMBER: usize = 16;

/// Combines keys and values. Only the last columns of a key are decoded, which have known widths.
struct Rows<const N: usize> {
    widths: [usize; N],
    /// The columns of the key whose value comes next.
    key: Option<[u64; N]>,
    is_broken: bool,
}

impl<const N: usize> Rows<N> {
    fn new(widths: [usize; N]) -> Rows<N> {
        Rows {
            widths,
            key: None,
            is_broken: false,
        }
    }

    /// Returns the columns and the value of a row, once both have arrived.
    #[inline]
    fn row<'t>(&mut self, token: Token<'t>) -> Option<([u64; N], &'t [u8])> {
        let bytes = match token {
            Token::Bulk(bytes) => bytes,
            Token::Array(_) => return None,
            _ => {
                self.is_broken = true;
                return None;
            }
        };
        if let Some(key) = self.key.take() {
            return Some((key, bytes));
        }
        self.key = columns(bytes, self.widths);
        self.is_broken |= self.key.is_none();
        None
    }

    /// Returns the number of wrong elements. An invalid reply counts as one.
    fn wrong(&self) -> u32 {
        u32::from(self.is_broken || self.key.is_some())
    }
}

#[inline]
fn columns<const N: usize>(key: &[u8], widths: [usize; N]) -> Option<[u64; N]> {
    let mut columns = [0; N];
    let mut end = key.len();
    for (column, width) in columns.iter_mut().zip(widths).rev() {
        let begin = end.checked_sub(width)?;
        *column = hex_of(&key[begin..end])?;
        end = begin.checked_sub(1)?;
    }
    Some(columns)
}

/// Rows of `bg.page`.
pub struct PageRows {
    rows: Rows<1>,
    population: Arc<Population>,
    owner: u32,
    has_person: bool,
    profile: Profile,
}

impl PageRows {
    pub fn new(population: Arc<Population>, owner: u32, is_own: bool) -> PageRows {
        PageRows {
            rows: Rows::new([1]),
            population,
            owner,
            has_person: false,
            profile: Profile {
                invitations: is_own.then_some(0),
                ..Profile::default()
            },
        }
    }

    pub fn profile(mut self) -> Profile {
        let is_wrong = self.rows.wrong() > 0 || !self.has_person;
        self.profile.wrong += u32::from(is_wrong);
        self.profile
    }
}

impl Receiver for PageRows {
    fn take(&mut self, token: Token<'_>) {
        let Some(([row], value)) = self.rows.row(token) else {
            return;
        };
        match row {
            1 => {
                let (attributes, image) = split_value(&self.population, value);
                self.profile
                    .check(&self.population, self.owner, attributes, image);
                self.has_person = true;
            }
            2..=4 => {
                let Some(count) = number_of(value) else {
                    self.rows.is_broken = true;
                    return;
                };
                match row {
                    2 => self.profile.friends = count,
                    3 => self.profile.resources = count,
                    _ => self.profile.invitations = Some(count),
                }
            }
            _ => self.rows.is_broken = true,
        }
    }
}

/// Rows of `bg.friends` and `bg.requests`.
pub struct PeopleRows {
    rows: Rows<1>,
    population: Arc<Population>,
    people: People,
}

impl PeopleRows {
    pub fn new(population: Arc<Population>) -> PeopleRows {
        PeopleRows {
            rows: Rows::new([MEMBER]),
            population,
            people: People::default(),
        }
    }

    pub fn people(mut self) -> People {
        self.people.wrong += self.rows.wrong();
        self.people
    }
}

impl Receiver for PeopleRows {
    fn take(&mut self, token: Token<'_>) {
        if let Token::Array(tokens) = token {
            self.people.members.reserve((tokens / 2).min(4096));
        }
        if let Some(([member], value)) = self.rows.row(token) {
            let (profile, thumbnail) = split_value(&self.population, value);
            self.people
                .push(&self.population, member as u32, profile, thumbnail);
        }
    }
}

/// Rows of `bg.wall`.
pub struct WallRows {
    rows: Rows<1>,
    population: Arc<Population>,
    resources: Resources,
}

impl WallRows {
    pub fn new(population: Arc<Population>) -> WallRows {
        WallRows {
            rows: Rows::new([NUMBER]),
            population,
            resources: Resources::default(),
        }
    }

    pub fn resources(mut self) -> Resources {
        self.resources.wrong += self.rows.wrong();
        self.resources
    }
}

impl Receiver for WallRows {
    fn take(&mut self, token: Token<'_>) {
        if let Some(([resource], body)) = self.rows.row(token) {
            self.resources.push(&self.population, resource, body);
        }
    }
}

/// Rows of `bg.comment`.
pub struct CommentRows {
    rows: Rows<1>,
    population: Arc<Population>,
    resource: u64,
    comments: Comments,
}

impl CommentRows {
    pub fn new(population: Arc<Population>, resource: u64) -> CommentRows {
        CommentRows {
            rows: Rows::new([NUMBER]),
            population,
            resource,
            comments: Comments::default(),
        }
    }

    pub fn comments(mut self) -> Comments {
        self.comments.wrong += self.rows.wrong();
        self.comments
    }
}

impl Receiver for CommentRows {
    fn take(&mut self, token: Token<'_>) {
        if let Some(([number], value)) = self.rows.row(token) {
            let text = value.get(MEMBER..).unwrap_or_default();
            self.comments
                .push(&self.population, self.resource, number, text);
        }
    }
}

/// Rows of `bg.feed`.
pub struct FeedRows {
    rows: Rows<3>,
    population: Arc<Population>,
    feed: Feed,
}

impl FeedRows {
    pub fn new(population: Arc<Population>) -> FeedRows {
        FeedRows {
            rows: Rows::new([NUMBER, MEMBER, NUMBER]),
            population,
            feed: Feed::default(),
        }
    }

    pub fn feed(mut self) -> Feed {
        self.feed.wrong += self.rows.wrong();
        self.feed
    }
}

impl Receiver for FeedRows {
    fn take(&mut self, token: Token<'_>) {
        if let Some(([time, author, number], text)) = self.rows.row(token) {
            let author = author as u32;
            let post = Post {
                author,
                number,
                time,
            };
            self.feed.push(&self.population, post, text);
        }
    }
}
