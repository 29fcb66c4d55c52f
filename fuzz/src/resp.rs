//! The bytes of a connection.

/// Bytes that arrive in pieces are decoded as the same bytes in one.
pub fn resp(_bytes: &[u8]) {}
