//! memcached's meta commands, over connections that many calls share.
//!
//! | command | request | reply |
//! |---|---|---|
//! | `mg key f c [v]` | get flags, CAS and value | `VA size fF cC`, value; `HD fF cC`; `EN` |
//! | `ms key size Fflags Tseconds Mmode [Ccas] c` | store | `HD cC`; `NS`, `EX`, `NF` |
//! | `md key [Ccas]` | delete | `HD`; `NF`; `EX` |
//!
//! Requires memcached 1.6.15 or later, whose `ms` returns the CAS of the stored entry.

use bytes::Bytes;

use super::links::Links;
use super::pipe::{Framing, Pipe};
use crate::stores::contract::Failure;

/// A cache with compare-and-swap. Every operation is atomic.
///
/// A *CAS* is the number of an entry's version. It is unique among all versions of all entries.
pub trait Cache {
    /// Returns the entry without its value.
    fn peek(&self, key: &str) -> impl Future<Output = Result<Option<CachedEntry>, Failure>>;

    fn get(&self, key: &str) -> impl Future<Output = Result<Option<CachedEntry>, Failure>>;

    /// Stores an entry. Returns the CAS of the new version, or `None` if the condition did not hold.
    ///
    /// # Errors
    ///
    /// Among others, the value is too large.
    fn store(
        &self,
        key: &str,
        entry: &Entry<'_>,
        only: StoreCondition,
    ) -> impl Future<Output = Result<Option<u64>, Failure>>;

    /// Deletes the entry, or only its version `cas`.
    fn delete(
        &self,
        key: &str,
        cas: Option<u64>,
    ) -> impl Future<Output = Result<DeleteOutcome, Failure>>;
}

/// An entry to store.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    pub value: &'a [u8],
    pub flags: u32,
    /// The TTL in seconds.
    pub seconds: u32,
}

/// An entry that was found.
#[derive(Clone, Debug)]
pub struct CachedEntry {
    pub value: Bytes,
    pub flags: u32,
    pub cas: u64,
}

/// The condition for storing.
#[derive(Clone, Copy, Debug)]
pub enum StoreCondition {
    Always,
    IfAbsent,
    /// The entry has this version.
    If(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeleteOutcome {
    Deleted,
    Absent,
    /// The entry has another version, and was not deleted.
    VersionMismatch,
}

/// The connections to one memcached.
pub struct Memcached {
    address: String,
    links: Links<Pipe<Meta>>,
}

impl Memcached {
    pub async fn connect(address: &str, connections: usize) -> Result<Memcached, Failure> {
        let memcached = Memcached {
            address: address.to_owned(),
            links: Links::new(connections),
        };
        memcached
            .links
            .open_all(|| Pipe::open(&memcached.address))
            .await?;
        Ok(memcached)
    }

    pub async fn flush(&self) -> Result<(), Failure> {
        // The reply is `OK`.
        self.call(|out| out.extend_from_slice(b"flush_all\r\n"))
            .await?;
        Ok(())
    }

    async fn call(&self, encode: impl FnOnce(&mut Vec<u8>)) -> Result<Bytes, Failure> {
        let link = self.links.acquire(|| Pipe::open(&self.address)).await?;
        link.call(encode).await
    }

    async fn find(&self, key: &str, value: &str) -> Result<Option<CachedEntry>, Failure> {
        let request = format!("mg {key} f c{value}\r\n");
        let reply = self
            .call(|out| out.extend_from_slice(request.as_bytes()))
            .await?;
        let (line, end) = line(&reply);
        let Some(rest) = line.strip_prefix("VA ").or(line.strip_prefix("HD")) else {
            return match line {
                "EN" => Ok(None),
                _ => Err(unexpected_reply(line)),
            };
        };
        let value = if line.starts_with("VA") {
            reply.slice(end..reply.len() - 2)
        } else {
            Bytes::new()
        };
        let (Some(flags), Some(cas)) = (flag(rest, 'f'), flag(rest, 'c')) else {
            return Err(unexpected_reply(line));
        };
        Ok(Some(CachedEntry {
            value,
            flags: flags as u32,
            cas,
        }))
    }
}

impl Cache for Memcached {
    async fn peek(&self, key: &str) -> Result<Option<CachedEntry>, Failure> {
        self.find(key, "").await
    }

    async fn get(&self, key: &str) -> Result<Option<CachedEntry>, Failure> {
        self.find(key, " v").await
    }

    async fn store(
        &self,
        key: &str,
        entry: &Entry<'_>,
        only: StoreCondition,
    ) -> Result<Option<u64>, Failure> {
        let only = match only {
            StoreCondition::Always => String::new(),
            StoreCondition::IfAbsent => " ME".to_owned(),
            StoreCondition::If(cas) => format!(" C{cas}"),
        };
        let (size, flags, seconds) = (entry.value.len(), entry.flags, entry.seconds);
        let request = format!("ms {key} {size} c F{flags} T{seconds}{only}\r\n");
        let reply = self.call(|out| {
            out.extend_from_slice(request.as_bytes());
            out.extend_from_slice(entry.value);
            out.extend_from_slice(b"\r\n");
        });
        let reply = reply.await?;
        let (line, _) = line(&reply);
        match line.split_once(' ').unwrap_or((line, "")) {
            ("HD", rest) => flag(rest, 'c')
                .map(Some)
                .ok_or_else(|| unexpected_reply(line)),
            ("NS" | "EX" | "NF", _) => Ok(None),
            ("SERVER_ERROR", why) => Err(Failure::Refused(format!("memcached: {why}"))),
            _ => Err(unexpected_reply(line)),
        }
    }

    async fn delete(&self, key: &str, cas: Option<u64>) -> Result<DeleteOutcome, Failure> {
        let request = match cas {
            None => format!("md {key}\r\n"),
            Some(cas) => format!("md {key} C{cas}\r\n"),
        };
        let reply = self
            .call(|out| out.extend_from_slice(request.as_bytes()))
            .await?;
        match line(&reply).0 {
            "HD" => Ok(DeleteOutcome::Deleted),
            "NF" => Ok(DeleteOutcome::Absent),
            "EX" => Ok(DeleteOutcome::VersionMismatch),
            other => Err(unexpected_reply(other)),
        }
    }
}

/// Returns the first line of a reply, and the position after it.
fn line(reply: &[u8]) -> (&str, usize) {
    let end = memchr::memchr(b'\n', reply).map_or(reply.len(), |at| at + 1);
    let line = std::str::from_utf8(&reply[..end]).unwrap_or_default();
    (line.trim_end(), end)
}

/// Returns the number after a flag in a reply.
fn flag(line: &str, name: char) -> Option<u64> {
    let mut flags = line.split(' ');
    flags.find_map(|flag| flag.strip_prefix(name)?.parse().ok())
}

fn unexpected_reply(line: &str) -> Failure {
    Failure::Unknown(format!("unexpected reply from memcached: {line:?}"))
}

struct Meta;

/// The maximum length of a reply line.
const LINE_SIZE_MAX: usize = 2048;

impl Framing for Meta {
    fn size(bytes: &[u8]) -> Result<Option<usize>, String> {
        let Some(end) = memchr::memchr(b'\n', &bytes[..bytes.len().min(LINE_SIZE_MAX)]) else {
            return if bytes.len() < LINE_SIZE_MAX {
                Ok(None)
            } else {
                Err("memcached sent a line that is too long".to_owned())
            };
        };
        let line = &bytes[..=end];
        let Some(rest) = line.strip_prefix(b"VA ") else {
            return Ok(Some(line.len()));
        };
        let size = rest.split(|byte| *byte == b' ' || *byte == b'\r').next();
        let size = size.and_then(|size| std::str::from_utf8(size).ok()?.parse::<usize>().ok());
        let size = size.ok_or("memcached sent a value without a size")?;
        Ok(Some(line.len().saturating_add(size).saturating_add(2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_reply_includes_its_value() {
        assert_eq!(Meta::size(b""), Ok(None));
        assert_eq!(Meta::size(b"HD c1\r"), Ok(None));
        assert_eq!(Meta::size(b"HD c1\r\nEN\r\n"), Ok(Some(7)));
        assert_eq!(Meta::size(b"VA 3 f0 c7\r\nab"), Ok(Some(17)));
        assert!(Meta::size(b"VA x\r\n").is_err());
        assert!(Meta::size(&[b'x'; LINE_SIZE_MAX]).is_err());
        assert_eq!(
            Meta::size(format!("VA {}\r\n", usize::MAX).as_bytes()),
            Ok(Some(usize::MAX))
        );
    }
}
