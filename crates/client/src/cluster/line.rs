//! What bytes go over: a socket that never blocks, or TLS on it.
//!
//! What TLS has taken waits in it until the socket takes it. Of requests it takes nothing before both sides know each other: so a
//! handshake that fails has sent no request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustls::ClientConnection;

pub(crate) struct Line {
    pub socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Line {
    pub fn new(socket: TcpStream, tls: Option<ClientConnection>) -> Line {
        Line {
            socket,
            tls: tls.map(Box::new),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What to wait for; `has_more`: there is something to write.
    pub fn wants(&self, has_more: bool) -> PollFlags {
        let writes = match &self.tls {
            None => has_more,
            Some(tls) => tls.wants_write() || (has_more && !tls.is_handshaking()),
        };
        match writes {
            true => PollFlags::IN | PollFlags::OUT,
            false => PollFlags::IN,
        }
    }

    /// Takes some of the bytes.
    ///
    /// # Errors
    /// `WouldBlock`: it takes none at present. Else it is of no more use.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.flush()?;
        let Some(tls) = &mut self.tls else {
            return self.socket.write(bytes);
        };
        if tls.is_handshaking() {
            self.receive()?;
            return Err(io::ErrorKind::Interrupted.into());
        }
        let taken = tls.writer().write(bytes)?;
        match self.flush() {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    /// Gives the socket what was taken before.
    ///
    /// # Errors
    /// As for [`Line::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.socket)?;
            }
        }
        Ok(())
    }

    /// Gives what has come; nothing when the other side has closed.
    ///
    /// # Errors
    /// `WouldBlock`: nothing has. Else it is of no more use.
    pub fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(tls) = &mut self.tls else {
                return self.socket.read(room);
            };
            match tls.reader().read(room) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            self.receive()?;
        }
    }

    /// Lets TLS take what the socket has.
    fn receive(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        if tls.read_tls(&mut self.socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = tls.process_new_packets() {
            // The other side is told why, if it listens.
            let _ = tls.write_tls(&mut self.socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Whether the other side has said nothing, and has not closed.
    pub fn is_quiet(&mut self) -> bool {
        let quiet = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if self.tls.is_none() {
            return self.socket.peek(&mut [0]).is_err_and(quiet);
        }
        // What TLS says for itself is taken; that is not for us.
        self.read(&mut [0]).is_err_and(quiet)
    }
}
