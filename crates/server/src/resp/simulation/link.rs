//! The client's end of a connection.

use std::io;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, DuplexStream};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkReply {
    Nil,
    Status(String),
    Number(i64),
    Text(String),
    Many(Vec<LinkReply>),
    /// An error reply, with its message.
    Error(String),
}

pub struct Link(BufReader<DuplexStream>);

impl Link {
    pub fn new(stream: DuplexStream) -> Link {
        Link(BufReader::new(stream))
    }

    /// Sends requests, whose words are separated by blanks, as one pipeline.
    ///
    /// # Errors
    /// The connection has ended; the same applies to the other functions.
    pub async fn send(&mut self, lines: &[String]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            put_request(&words, &mut bytes);
        }
        self.0.get_mut().write_all(&bytes).await
    }

    /// Sends one request and returns the bytes of its reply.
    ///
    /// # Errors
    /// As [`Link::send`].
    pub async fn request(&mut self, words: &[String]) -> io::Result<Vec<u8>> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut bytes = Vec::new();
        put_request(&words, &mut bytes);
        self.0.get_mut().write_all(&bytes).await?;
        self.frame().await
    }

    /// Reads `count` replies.
    pub async fn replies(&mut self, count: usize) -> io::Result<Vec<LinkReply>> {
        let mut replies = Vec::new();
        for _ in 0..count {
            let frame = self.frame().await?;
            replies.push(decode(&mut &*frame));
        }
        Ok(replies)
    }

    /// Reads the bytes of one reply.
    async fn frame(&mut self) -> io::Result<Vec<u8>> {
        let (mut bytes, mut left) = (Vec::new(), 1);
        while left > 0 {
            left -= 1;
            let begin = bytes.len();
            self.0.read_until(b'\n', &mut bytes).await?;
            if bytes.last() != Some(&b'\n') {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let count = number(&bytes[begin + 1..]).unwrap_or(-1).max(-1);
            match bytes[begin] {
                b'$' if count >= 0 => {
                    let at = bytes.len();
                    bytes.resize(at + count as usize + 2, 0);
                    self.0.read_exact(&mut bytes[at..]).await?;
                }
                b'*' => left += count.max(0),
                _ => {}
            }
        }
        Ok(bytes)
    }
}

fn put_request(words: &[&str], bytes: &mut Vec<u8>) {
    bytes.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
}

fn number(line: &[u8]) -> Option<i64> {
    std::str::from_utf8(line).ok()?.trim_end().parse().ok()
}

/// Decodes the first of several complete replies, and advances `bytes` past it.
fn decode(bytes: &mut &[u8]) -> LinkReply {
    let end = bytes
        .iter()
        .position(|byte| *byte == b'\n')
        .expect("a complete line")
        + 1;
    let (line, rest) = bytes.split_at(end);
    *bytes = rest;
    let count = || number(&line[1..]).expect("a number");
    let text = || String::from_utf8_lossy(&line[1..end - 2]).into_owned();
    match line[0] {
        b'+' => LinkReply::Status(text()),
        b'-' => LinkReply::Error(text()),
        b':' => LinkReply::Number(count()),
        b'$' | b'*' if count() < 0 => LinkReply::Nil,
        b'$' => {
            let (text, rest) = bytes.split_at(count() as usize);
            *bytes = &rest[2..];
            LinkReply::Text(String::from_utf8_lossy(text).into_owned())
        }
        b'*' => LinkReply::Many((0..count()).map(|_| decode(bytes)).collect()),
        _ => panic!("{}", text()),
    }
}
