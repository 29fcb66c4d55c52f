//! The byte transport of a connection: a non-blocking socket, optionally with TLS.
//!
//! TLS buffers data until the socket accepts it. It accepts no request data before the handshake is complete, so a
//! failed handshake has sent no request.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::PollFlags;
use rustls::ClientConnection;

pub(crate) struct Transport {
    pub socket: TcpStream,
    tls: Option<Box<ClientConnection>>,
}

impl Transport {
    pub fn new(socket: TcpStream, tls: Option<ClientConnection>) -> Transport {
        Transport {
            socket,
            tls: tls.map(Box::new),
        }
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the events to wait for; `has_more` means that there is data to write.
    pub fn poll_events(&self, has_more: bool) -> PollFlags {
        let has_output = match &self.tls {
            None => has_more,
            Some(tls) => tls.wants_write() || (has_more && !tls.is_handshaking()),
        };
        if has_output {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        }
    }

    /// Writes some of the bytes.
    ///
    /// # Errors
    /// `WouldBlock` if it accepts none at present. After any other error it is no longer usable.
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

    /// Writes buffered TLS data to the socket.
    ///
    /// # Errors
    /// Like [`Transport::write`].
    pub fn flush(&mut self) -> io::Result<()> {
        if let Some(tls) = &mut self.tls {
            while tls.wants_write() {
                tls.write_tls(&mut self.socket)?;
            }
        }
        Ok(())
    }

    /// Reads received data; returns 0 if the peer has closed the connection.
    ///
    /// # Errors
    /// `WouldBlock` if there is none. After any other error it is no longer usable.
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

    /// Passes data from the socket to TLS.
    fn receive(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else {
            return Ok(());
        };
        if tls.read_tls(&mut self.socket)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = tls.process_new_packets() {
            // Sends the TLS alert to the peer, best effort.
            let _ = tls.write_tls(&mut self.socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(())
    }

    /// Returns whether the peer has neither sent data nor closed the connection.
    pub fn has_no_input(&mut self) -> bool {
        let is_empty_read = |error: io::Error| error.kind() == io::ErrorKind::WouldBlock;
        if self.tls.is_none() {
            return self.socket.peek(&mut [0]).is_err_and(is_empty_read);
        }
        // Processes TLS control messages, which are not data.
        self.read(&mut [0]).is_err_and(is_empty_read)
    }
}
