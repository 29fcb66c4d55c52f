//! A buffer in which keys are assembled; it allocates only above 112 bytes.

const INLINE: usize = 112;

pub(crate) struct KeyBuffer {
    len: usize,
    inline: [u8; INLINE],
    spill: Vec<u8>,
}

impl KeyBuffer {
    pub(crate) fn from(bytes: &[u8]) -> KeyBuffer {
        let mut buffer = KeyBuffer {
            len: 0,
            inline: [0; INLINE],
            spill: Vec::new(),
        };
        buffer.resize(0, bytes.len()).copy_from_slice(bytes);
        buffer
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len <= INLINE {
            &self.inline[..self.len]
        } else {
            &self.spill[..self.len]
        }
    }

    /// Sets the length to `len` and preserves the first `keep` bytes.
    #[inline]
    pub(crate) fn resize(&mut self, keep: usize, len: usize) -> &mut [u8] {
        let was = std::mem::replace(&mut self.len, len);
        if len <= INLINE {
            if was > INLINE {
                self.inline[..keep].copy_from_slice(&self.spill[..keep]);
            }
            return &mut self.inline[..len];
        }
        if self.spill.len() < len {
            self.spill.resize(len, 0);
        }
        if was <= INLINE {
            self.spill[..keep].copy_from_slice(&self.inline[..keep]);
        }
        &mut self.spill[..len]
    }
}

#[cfg(test)]
mod tests {
    use super::KeyBuffer;

    #[test]
    fn the_kept_prefix_survives_every_change_of_length() {
        let mut buffer = KeyBuffer::from(b"abc");
        for len in [3, 200, 112, 113, 5, 1000, 4] {
            buffer.resize(3, len)[3..].fill(b'x');
            assert_eq!(buffer.bytes()[..3], *b"abc");
            assert_eq!(buffer.bytes().len(), len);
            assert!(buffer.bytes()[3..].iter().all(|&b| b == b'x'));
        }
    }
}
