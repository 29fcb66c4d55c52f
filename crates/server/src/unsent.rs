//! Measures how much data written to a socket has not been received by its client.
//!
//! A socket accepts more data only after a good part of its buffer is free, for which a slow reader may need minutes. The bytes
//! that the system still holds show whether the client is reading.

use std::os::fd::RawFd;

/// The bytes that the system holds for the socket `fd`: written, and not acknowledged by the peer. 0 if unknown.
pub fn unsent_bytes(fd: RawFd) -> usize {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int, to a place of ours that outlives the call. A number that is not a socket is an error of
    // the call.
    let status = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    match status {
        0 => usize::try_from(bytes).unwrap_or(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn unsent_bytes_shrink_as_the_client_reads() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        assert_eq!(unsent_bytes(server.as_raw_fd()), 0);
        server.set_nonblocking(true).unwrap();
        while server.write(&[0; 65536]).is_ok() {}
        let before = unsent_bytes(server.as_raw_fd());
        assert!(before > 0);
        let mut received = vec![0; 65536];
        while unsent_bytes(server.as_raw_fd()) == before {
            client.read_exact(&mut received).unwrap();
        }
        assert!(unsent_bytes(server.as_raw_fd()) < before);
        assert_eq!(unsent_bytes(-1), 0);
    }
}
