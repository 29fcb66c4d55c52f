//! The part of MariaDB's protocol that prepared statements need. Implemented here, because a client library would not
//! pipeline.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::Result;

/// The capabilities of this client: the protocol since 4.1, a database, changed rows counted by matches, authentication
/// by a plugin.
const CAPABILITIES: u32 = 0x1 | 0x2 | 0x8 | 0x200 | 0x2000 | 0x8000 | 0x8_0000;
const PACKET_MAX: u32 = 1 << 24;
const UTF8MB4_BIN: u8 = 46;
const PLUGIN: &str = "mysql_native_password";

const QUERY: u8 = 0x03;
const PREPARE: u8 = 0x16;
const EXECUTE: u8 = 0x17;
const VAR_STRING: u8 = 0xfd;
const OK: u8 = 0x00;
const END: u8 = 0xfe;
const ERROR: u8 = 0xff;

/// Opens a connection as root to a database, and prepares statements, which get the ids 1, 2, and so on.
pub fn connect_with(address: SocketAddr, database: &str, statements: &[&str]) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    // The greeting contains a salt for the password, and there is no password.
    let _greeting = packet(&mut stream)?;
    let mut body = Vec::new();
    body.extend_from_slice(&CAPABILITIES.to_le_bytes());
    body.extend_from_slice(&PACKET_MAX.to_le_bytes());
    body.push(UTF8MB4_BIN);
    body.extend_from_slice(&[0; 23]);
    body.extend_from_slice(b"root\0\0");
    body.extend_from_slice(format!("{database}\0{PLUGIN}\0").as_bytes());
    send(&mut stream, 1, &body)?;
    let answer = packet(&mut stream)?;
    match answer.first() {
        Some(&OK) => {}
        _ => return Err(error_text(&answer).into()),
    }
    for (at, text) in statements.iter().enumerate() {
        send(&mut stream, 0, &[&[PREPARE], text.as_bytes()].concat())?;
        let answer = packet(&mut stream)?;
        let number = |from: usize| {
            let bytes = answer.get(from..from + 2);
            bytes.map_or(0, |it| u16::from_le_bytes([it[0], it[1]]))
        };
        if answer.first() != Some(&OK) {
            return Err(format!("{text}: {}", error_text(&answer)).into());
        }
        if usize::from(number(1)) != at + 1 {
            return Err("MariaDB does not count statements from 1".into());
        }
        // The columns, then the parameters. Each list that is not empty ends with a packet of its own.
        for count in [number(5), number(7)].into_iter().filter(|it| *it > 0) {
            for _ in 0..=count {
                packet(&mut stream)?;
            }
        }
    }
    Ok(stream)
}

/// Executes SQL on a new connection.
pub fn run(address: SocketAddr, database: &str, text: &str) -> Result<()> {
    let mut stream = connect_with(address, database, &[])?;
    send(&mut stream, 0, &[&[QUERY], text.as_bytes()].concat())?;
    let mut input = Vec::new();
    while reply(&input)?.is_none() {
        let part = packet(&mut stream)?;
        append(&mut input, 0, &part);
    }
    Ok(())
}

/// Appends the execution of a prepared statement, with its parameters as text.
pub fn execute<T: AsRef<str>>(out: &mut Vec<u8>, statement: u32, parameters: &[T]) {
    let mut body = vec![EXECUTE];
    body.extend_from_slice(&statement.to_le_bytes());
    // No cursor; one iteration.
    body.push(0);
    body.extend_from_slice(&1_u32.to_le_bytes());
    if !parameters.is_empty() {
        body.extend(std::iter::repeat_n(0, parameters.len().div_ceil(8)));
        body.push(1);
        parameters
            .iter()
            .for_each(|_| body.extend_from_slice(&[VAR_STRING, 0]));
        for parameter in parameters.iter().map(AsRef::as_ref) {
            let size = u8::try_from(parameter.len()).ok().filter(|it| *it < 251);
            body.push(size.expect("parameters are short here"));
            body.extend_from_slice(parameter.as_bytes());
        }
    }
    append(out, 0, &body);
}

/// Returns the size of the reply at the start of `bytes`, and the number of its rows or of changed rows. `None` if it
/// is incomplete.
///
/// # Errors
/// The reply is an error.
pub fn reply(bytes: &[u8]) -> Result<Option<(usize, u32)>> {
    let Some((body, mut at)) = first(bytes) else {
        return Ok(None);
    };
    match body.first() {
        Some(&OK) => return Ok(Some((at, u32::from(body.get(1).copied().unwrap_or(0))))),
        Some(&ERROR) => return Err(error_text(body).into()),
        _ => {}
    }
    // The columns and their end, then the rows and their end.
    let (mut ends, mut rows) = (0, 0);
    while ends < 2 {
        let Some((body, size)) = first(&bytes[at..]) else {
            return Ok(None);
        };
        at += size;
        match body.first() {
            Some(&END) if body.len() < 9 => ends += 1,
            Some(&ERROR) => return Err(error_text(body).into()),
            _ => rows += u32::from(ends == 1),
        }
    }
    Ok(Some((at, rows)))
}

/// Returns the body of the first packet, and the size of the complete packet.
fn first(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let size = bytes.get(..4)?;
    let size = 4 + u32::from_le_bytes([size[0], size[1], size[2], 0]) as usize;
    Some((bytes.get(4..size)?, size))
}

fn append(out: &mut Vec<u8>, number: u8, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u32).to_le_bytes()[..3]);
    out.push(number);
    out.extend_from_slice(body);
}

fn send(stream: &mut TcpStream, number: u8, body: &[u8]) -> Result<()> {
    let mut out = Vec::new();
    append(&mut out, number, body);
    Ok(stream.write_all(&out)?)
}

fn packet(stream: &mut TcpStream) -> Result<Vec<u8>> {
    let mut head = [0; 4];
    stream.read_exact(&mut head)?;
    let size = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let mut body = vec![0; size as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn error_text(body: &[u8]) -> String {
    let text = body.get(3..).unwrap_or_default();
    format!("MariaDB answered: {}", String::from_utf8_lossy(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complete_results_are_counted_and_errors_are_reported() {
        let mut bytes = Vec::new();
        let parts: [&[u8]; 6] = [
            &[1],
            b"\x03def",
            &[END, 0, 0, 0, 0],
            &[0, 0, 1, b'a'],
            &[0, 0, 1, b'b'],
            &[END, 0, 0, 0, 0],
        ];
        for (number, part) in parts.iter().enumerate() {
            assert_eq!(reply(&bytes).expect("no error"), None, "{number}");
            append(&mut bytes, number as u8, part);
        }
        assert_eq!(reply(&bytes).expect("no error"), Some((bytes.len(), 2)));
        let mut done = Vec::new();
        append(&mut done, 1, &[OK, 1, 0, 2, 0, 0, 0]);
        assert_eq!(reply(&done).expect("no error"), Some((done.len(), 1)));
        let mut error = Vec::new();
        append(&mut error, 1, b"\xff\x15\x04#28000no");
        let error = reply(&error).expect_err("it is one");
        assert!(error.to_string().contains("no"), "{error}");
    }
}
