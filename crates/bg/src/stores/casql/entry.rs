//! The encoding of results in the cache: little-endian numbers, and bytes preceded by their size.

use tokio_postgres::Row;

use crate::model::population::Population;
use crate::stores::contract::{Comments, Failure, People, Profile, Resources};
use crate::stores::postgres::{ProfileRow, Raw, member, number};

/// The size that means absent bytes, as opposed to empty ones.
const ABSENT: u32 = u32::MAX;

pub fn encode_profile(row: &ProfileRow) -> Vec<u8> {
    let mut entry = Vec::with_capacity(2048 + row.image().map_or(0, <[u8]>::len));
    entry.extend(row.friends.to_le_bytes());
    entry.extend(row.invitations.unwrap_or_default().to_le_bytes());
    entry.extend(row.resources.to_le_bytes());
    put(&mut entry, Some(row.attributes()));
    put(&mut entry, row.image());
    entry
}

pub fn decode_profile(
    entry: &[u8],
    population: &Population,
    owner: u32,
    is_own: bool,
) -> Result<Profile, Failure> {
    let mut entry = EntryReader(entry);
    let mut profile = Profile {
        friends: entry.number()?,
        ..Profile::default()
    };
    profile.invitations = Some(entry.number()?).filter(|_| is_own);
    profile.resources = entry.number()?;
    let attributes = entry.bytes()?.unwrap_or_default();
    profile.check(population, owner, attributes, entry.bytes()?);
    Ok(profile)
}

/// Encodes rows of number, profile and thumbnail.
pub fn encode_people(rows: &[Row]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(rows.len() * 3100);
    for row in rows {
        entry.extend(u64::from(member(row, 0)).to_le_bytes());
        let (Raw(profile), thumbnail) = (row.get(1), row.get::<_, Option<Raw>>(2));
        put(&mut entry, Some(profile));
        put(&mut entry, thumbnail.map(|Raw(bytes)| bytes));
    }
    entry
}

pub fn decode_people(entry: &[u8], population: &Population) -> Result<People, Failure> {
    let mut entry = EntryReader(entry);
    let mut people = People::default();
    while !entry.0.is_empty() {
        let member = entry.number()? as u32;
        let profile = entry.bytes()?.unwrap_or_default();
        people.push(population, member, profile, entry.bytes()?);
    }
    Ok(people)
}

/// Encodes rows of number and body.
pub fn encode_texts(rows: &[Row]) -> Vec<u8> {
    let mut entry = Vec::with_capacity(rows.len() * 220);
    for row in rows {
        let Raw(body) = row.get(1);
        entry.extend(number(row, 0).to_le_bytes());
        put(&mut entry, Some(body));
    }
    entry
}

pub fn decode_resources(entry: &[u8], population: &Population) -> Result<Resources, Failure> {
    let mut entry = EntryReader(entry);
    let mut resources = Resources::default();
    while !entry.0.is_empty() {
        let number = entry.number()?;
        resources.push(population, number, entry.bytes()?.unwrap_or_default());
    }
    Ok(resources)
}

pub fn decode_comments(
    entry: &[u8],
    population: &Population,
    on: u64,
) -> Result<Comments, Failure> {
    let mut entry = EntryReader(entry);
    let mut comments = Comments::default();
    while !entry.0.is_empty() {
        let number = entry.number()?;
        comments.push(population, on, number, entry.bytes()?.unwrap_or_default());
    }
    Ok(comments)
}

fn put(entry: &mut Vec<u8>, bytes: Option<&[u8]>) {
    let size = bytes.map_or(ABSENT, |bytes| bytes.len() as u32);
    entry.extend(size.to_le_bytes());
    entry.extend(bytes.unwrap_or_default());
}

/// The remaining bytes of an entry.
struct EntryReader<'a>(&'a [u8]);

impl<'a> EntryReader<'a> {
    fn number(&mut self) -> Result<u64, Failure> {
        let bytes = self.take(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    fn bytes(&mut self) -> Result<Option<&'a [u8]>, Failure> {
        let size = self.take(4)?;
        match u32::from_le_bytes(size.try_into().expect("four bytes")) {
            ABSENT => Ok(None),
            size => self.take(size as usize).map(Some),
        }
    }

    fn take(&mut self, size: usize) -> Result<&'a [u8], Failure> {
        let invalid = || Failure::Refused("the cache returned an invalid entry".to_owned());
        let (taken, rest) = self.0.split_at_checked(size).ok_or_else(invalid)?;
        self.0 = rest;
        Ok(taken)
    }
}
