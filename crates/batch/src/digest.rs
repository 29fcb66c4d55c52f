//! Digests of segments and manifests.
//!
//! Manifests of format 3 and later use BLAKE3. It is collision resistant, so a trusted manifest authenticates its
//! segments. Manifests of formats 1 and 2 use XXH3-128, which detects accidental damage but not deliberate changes.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// The hash function of a digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestKind {
    Xxh3,
    Blake3,
}

impl DigestKind {
    /// Returns the kind for a manifest of this format.
    pub fn for_manifest(format: u32) -> DigestKind {
        match format {
            0..=2 => DigestKind::Xxh3,
            _ => DigestKind::Blake3,
        }
    }

    /// Returns the digest of `bytes` in hexadecimal.
    pub fn of(self, bytes: &[u8]) -> String {
        match self {
            DigestKind::Xxh3 => format!("{:032x}", xxh3_128(bytes)),
            DigestKind::Blake3 => blake3::hash(bytes).to_hex().to_string(),
        }
    }

    /// Returns whether a text has the form of a digest of this kind.
    pub fn is_valid(self, digest: &str) -> bool {
        let size = match self {
            DigestKind::Xxh3 => 32,
            DigestKind::Blake3 => 64,
        };
        digest.len() == size
            && digest
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    }
}

/// An incremental digest of a segment's bytes.
pub struct SegmentDigest(State);

enum State {
    Xxh3(Box<Xxh3>),
    Blake3(Box<blake3::Hasher>),
}

impl SegmentDigest {
    pub fn new(kind: DigestKind) -> SegmentDigest {
        SegmentDigest(match kind {
            DigestKind::Xxh3 => State::Xxh3(Box::default()),
            DigestKind::Blake3 => State::Blake3(Box::default()),
        })
    }

    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            State::Xxh3(state) => state.update(bytes),
            State::Blake3(state) => {
                state.update(bytes);
            }
        }
    }

    /// Returns the digest in hexadecimal.
    pub fn finish_hex(&self) -> String {
        match &self.0 {
            State::Xxh3(state) => format!("{:032x}", state.digest128()),
            State::Blake3(state) => state.finalize().to_hex().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_match_the_published_test_vectors() {
        let blake3 = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert_eq!(DigestKind::Blake3.of(b""), blake3);
        assert_eq!(DigestKind::Xxh3.of(b""), "99aa06d3014798d86001c324468d497f");
        for kind in [DigestKind::Blake3, DigestKind::Xxh3] {
            let mut pieces = SegmentDigest::new(kind);
            pieces.update(b"lar");
            pieces.update(b"der");
            assert_eq!(pieces.finish_hex(), kind.of(b"larder"));
            assert!(
                kind.is_valid(&kind.of(b""))
                    && !kind.is_valid("99aa")
                    && !kind.is_valid(&"G".repeat(64))
            );
        }
    }
}
