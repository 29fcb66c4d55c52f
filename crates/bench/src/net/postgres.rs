//! Timelines in PostgreSQL: three tables, each with an index, and triggers that fill the timelines.
//!
//! Operations are prepared statements, each in a transaction of its own, and are pipelined like those of other systems.
//! Implements version 3 of the protocol, because a client library would pipeline differently.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::drive::number;
use super::timelines::{Connection, Pipe, System, TimelineContext};
use super::workload::ReadChecksum;
use crate::Result;

const SCHEMA: &str = "
CREATE TABLE s (poster int, usr int, PRIMARY KEY (poster, usr));
CREATE TABLE p (poster int, time bigint, tweet text, PRIMARY KEY (poster, time));
CREATE TABLE t (usr int, time bigint, poster int, tweet text, PRIMARY KEY (usr, time, poster));
CREATE FUNCTION posted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO t SELECT usr, NEW.time, NEW.poster, NEW.tweet FROM s WHERE poster = NEW.poster;
  RETURN NULL; END $$;
CREATE FUNCTION subscribed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  INSERT INTO t SELECT NEW.usr, time, poster, tweet FROM p WHERE poster = NEW.poster;
  RETURN NULL; END $$";

/// The statements to execute after the initial subscriptions are loaded.
const LOADED: &str = "
CREATE TRIGGER posted AFTER INSERT ON p FOR EACH ROW EXECUTE FUNCTION posted();
CREATE TRIGGER subscribed AFTER INSERT ON s FOR EACH ROW EXECUTE FUNCTION subscribed();
ANALYZE s";

/// The time limit for the start.
const START_TIMEOUT: Duration = Duration::from_secs(30);

const STATEMENTS: [(&str, &str); 4] = [
    ("load", "INSERT INTO s SELECT $1, unnest($2::int[])"),
    ("subscribe", "INSERT INTO s VALUES ($1, $2)"),
    ("post", "INSERT INTO p VALUES ($1, $2, 'tweet')"),
    (
        "check",
        "SELECT time, poster, tweet FROM t WHERE usr = $1 AND time >= $2 AND time < $3 ORDER BY time, poster",
    ),
];

pub struct Postgres;

impl Postgres {
    /// Connects as the user postgres, and creates the tables.
    pub fn connect(address: SocketAddr) -> Result<Connection> {
        run(address, SCHEMA)?;
        Ok(Connection::with_stream(connect_with(address, &STATEMENTS)?))
    }
}

/// Opens a connection as the user postgres, and prepares named statements.
pub fn connect_with(address: SocketAddr, statements: &[(&str, &str)]) -> Result<TcpStream> {
    let mut stream = log_in(address)?;
    let mut out = Vec::new();
    for (name, text) in statements {
        message(&mut out, b'P', |out| {
            out.extend_from_slice(format!("{name}\0{text}\0").as_bytes());
            out.extend_from_slice(&0_u16.to_be_bytes());
        });
    }
    message(&mut out, b'S', |_| {});
    exchange(&mut stream, &out)?;
    Ok(stream)
}

/// Executes SQL on a new connection.
pub fn run(address: SocketAddr, text: &str) -> Result<()> {
    exchange(&mut log_in(address)?, &query(text))
}

fn log_in(address: SocketAddr) -> Result<TcpStream> {
    let mut out = vec![0; 4];
    out.extend_from_slice(&196_608_u32.to_be_bytes());
    out.extend_from_slice(b"user\0postgres\0database\0postgres\0\0");
    close(&mut out, 0);
    let started = Instant::now();
    loop {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        match exchange(&mut stream, &out) {
            Ok(()) => return Ok(stream),
            // The server listens before its start is complete.
            Err(error)
                if error.to_string().contains("57P03") && started.elapsed() < START_TIMEOUT => {}
            Err(error) => return Err(error),
        }
    }
}

/// Sends a request, and reads until the server is ready for the next one.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> Result<()> {
    stream.write_all(request)?;
    let mut input = Vec::new();
    let mut buffer = [0; 4096];
    while ready_at(&input)?.is_none() {
        match stream.read(&mut buffer)? {
            0 => return Err("postgres closed the connection".into()),
            count => input.extend_from_slice(&buffer[..count]),
        }
    }
    Ok(())
}

/// Appends a message: its kind, its length, and its body.
fn message(out: &mut Vec<u8>, kind: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    write(out);
    close(out, start);
}

fn close(out: &mut [u8], start: usize) {
    let size = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&size.to_be_bytes());
}

pub fn query(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    message(&mut out, b'Q', |out| {
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    });
    out
}

/// Appends the execution of a prepared statement with its parameters as text, and the end of its transaction.
pub fn execute<T: AsRef<str>>(out: &mut Vec<u8>, statement: &str, parameters: &[T]) {
    message(out, b'B', |out| {
        out.extend_from_slice(format!("\0{statement}\0").as_bytes());
        out.extend_from_slice(&0_u16.to_be_bytes());
        out.extend_from_slice(&(parameters.len() as u16).to_be_bytes());
        for parameter in parameters.iter().map(AsRef::as_ref) {
            out.extend_from_slice(&(parameter.len() as u32).to_be_bytes());
            out.extend_from_slice(parameter.as_bytes());
        }
        out.extend_from_slice(&0_u16.to_be_bytes());
    });
    message(out, b'E', |out| out.extend_from_slice(&[0; 5]));
    message(out, b'S', |_| {});
}

fn execute_into(pipe: &mut Pipe, statement: &str, parameters: &[&str], awaited: TimelineContext) {
    execute(&mut pipe.out, statement, parameters);
    pipe.push_context(awaited);
}

/// Returns the first message: its kind, its body and its size.
pub fn first(bytes: &[u8]) -> Option<(u8, &[u8], usize)> {
    let size = bytes.get(1..5)?;
    let size = 1 + u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize;
    Some((bytes[0], bytes.get(5..size)?, size))
}

/// Returns the end of the messages up to "ready for query".
pub fn ready_at(bytes: &[u8]) -> Result<Option<usize>> {
    let mut at = 0;
    while let Some((kind, body, size)) = first(&bytes[at..]) {
        at += size;
        match kind {
            b'Z' => return Ok(Some(at)),
            b'E' => {
                let text = String::from_utf8_lossy(body).replace('\0', " ");
                return Err(format!("postgres answered: {text}").into());
            }
            _ => {}
        }
    }
    Ok(None)
}

/// Returns the columns of a row, none of which is null.
fn columns(mut body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body = body.get(2..).unwrap_or_default();
    std::iter::from_fn(move || {
        let size = body.get(..4)?;
        let size = 4 + u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize;
        let column = body.get(4..size)?;
        body = &body[size..];
        Some(column)
    })
}

impl System for Postgres {
    fn reply_len(&mut self, bytes: &[u8], _awaited: TimelineContext) -> Result<Option<usize>> {
        ready_at(bytes)
    }

    fn load(&mut self, pipe: &mut Pipe, poster: u32, followers: &[u32]) {
        let users: Vec<String> = followers.iter().map(u32::to_string).collect();
        let users = format!("{{{}}}", users.join(","));
        execute_into(
            pipe,
            "load",
            &[&poster.to_string(), &users],
            TimelineContext::Done,
        );
    }

    fn loaded(&mut self, pipe: &mut Pipe) {
        pipe.out.extend_from_slice(&query(LOADED));
        pipe.push_context(TimelineContext::Done);
    }

    fn copies(&self) -> bool {
        false
    }

    fn subscribe(&mut self, pipe: &mut Pipe, user: u32, poster: u32) {
        let parameters = [poster.to_string(), user.to_string()];
        execute_into(
            pipe,
            "subscribe",
            &[&parameters[0], &parameters[1]],
            TimelineContext::Done,
        );
    }

    fn post(&mut self, pipe: &mut Pipe, poster: u32, time: u64) {
        let parameters = [poster.to_string(), time.to_string()];
        execute_into(
            pipe,
            "post",
            &[&parameters[0], &parameters[1]],
            TimelineContext::Done,
        );
    }

    fn check(&mut self, pipe: &mut Pipe, user: u32, since: u64, until: u64) {
        let awaited = TimelineContext::Check { user, since, until };
        let [user, since, until] =
            [user.into(), since, until].map(|number: u64| number.to_string());
        execute_into(pipe, "check", &[&user, &since, &until], awaited);
    }

    fn reply(
        &mut self,
        _: &mut Pipe,
        awaited: TimelineContext,
        reply: &[u8],
        seen: &mut ReadChecksum,
    ) -> Result<()> {
        let TimelineContext::Check { user, .. } = awaited else {
            return Ok(());
        };
        let mut at = 0;
        while let Some((kind, body, size)) = first(&reply[at..]) {
            at += size;
            if kind == b'D' {
                let mut columns = columns(body);
                let (time, poster) = (columns.next(), columns.next());
                let (time, poster) = time.zip(poster).ok_or("a row without its columns")?;
                seen.row(user, number(time), number(poster) as u32);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_up_to_ready_and_errors_are_reported() {
        let mut bytes = Vec::new();
        message(&mut bytes, b'D', |out| {
            out.extend_from_slice(&2_u16.to_be_bytes());
            for column in ["17", "4"] {
                out.extend_from_slice(&(column.len() as u32).to_be_bytes());
                out.extend_from_slice(column.as_bytes());
            }
        });
        let (_, body, _) = first(&bytes).unwrap();
        assert_eq!(columns(body).collect::<Vec<_>>(), [&b"17"[..], b"4"]);
        message(&mut bytes, b'Z', |out| out.push(b'I'));
        assert_eq!(ready_at(&bytes).unwrap(), Some(bytes.len()));
        assert_eq!(ready_at(&bytes[..bytes.len() - 1]).unwrap(), None);
        message(&mut bytes, b'E', |out| out.extend_from_slice(b"SERROR\0"));
        let error = ready_at(&bytes[bytes.len() - 12..]).unwrap_err();
        assert!(error.to_string().contains("SERROR"), "{error}");
    }
}
