//! One read by key, over a connection.

use std::io::{Read, Write};
use std::net::TcpStream;

use mysql::prelude::Queryable;
use mysql::{Conn, Statement};

use super::VALUE_BYTES;
use crate::engine::Result;

pub trait Client: Send {
    /// Looks up a key. Returns whether the complete value was received.
    fn get(&mut self, key: &[u8]) -> Result<bool>;
}

pub struct Resp {
    stream: TcpStream,
    request: Vec<u8>,
    reply: Vec<u8>,
}

impl Resp {
    pub fn connect(address: &str) -> Result<Resp> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        Ok(Resp {
            stream,
            request: Vec::new(),
            reply: vec![0; VALUE_BYTES as usize + 64],
        })
    }
}

impl Client for Resp {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        self.request.clear();
        write!(
            self.request,
            "*2\r\n$3\r\nGET\r\n${}\r\nbench:",
            key.len() + 6
        )?;
        self.request.extend_from_slice(key);
        self.request.extend_from_slice(b"\r\n");
        self.stream.write_all(&self.request)?;
        let head = format!("${VALUE_BYTES}\r\n");
        let whole = head.len() + VALUE_BYTES as usize + 2;
        let mut read = 0;
        while read < whole {
            let more = self.stream.read(&mut self.reply[read..])?;
            if more == 0 {
                return Err("the server closed the connection".into());
            }
            read += more;
            if read >= 5 && !self.reply.starts_with(&head.as_bytes()[..5]) {
                return Err(String::from_utf8_lossy(&self.reply[..read]).into());
            }
        }
        Ok(read == whole)
    }
}

pub struct Prepared {
    connection: Conn,
    statement: Statement,
}

impl Prepared {
    pub fn new(mut connection: Conn) -> Result<Prepared> {
        let statement = connection.prep("SELECT v FROM bench.t WHERE k = ?")?;
        Ok(Prepared {
            connection,
            statement,
        })
    }
}

impl Client for Prepared {
    fn get(&mut self, key: &[u8]) -> Result<bool> {
        let value: Option<Vec<u8>> = self.connection.exec_first(&self.statement, (key,))?;
        Ok(value.is_some_and(|it| it.len() as u64 == VALUE_BYTES))
    }
}
