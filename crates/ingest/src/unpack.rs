//! Compressed text: gzip and zstd, detected by their first bytes.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read};

use flate2::bufread::GzDecoder;

use crate::error::{Fault, one_line};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Compression {
    Gzip,
    Zstd,
}

type PackedReader = BufReader<Box<dyn Read + Send>>;

impl Compression {
    pub fn of(head: &[u8]) -> Option<Compression> {
        match head {
            [0x1f, 0x8b, ..] => Some(Compression::Gzip),
            // A skippable frame may come first: pzstd writes one before each frame of data.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => {
                Some(Compression::Zstd)
            }
            _ => None,
        }
    }

    pub fn unpack(self, packed: Box<dyn Read + Send>) -> Result<Box<dyn Read + Send>, Fault> {
        let packed = BufReader::with_capacity(256 << 10, packed);
        Ok(match self {
            Compression::Gzip => Box::new(Gzip {
                member: Some(GzDecoder::new(packed)),
            }),
            Compression::Zstd => Box::new(
                zstd::Decoder::with_buffer(packed)
                    .map_err(|e| Fault::file(format!("it cannot be unpacked: {}", one_line(&e))))?,
            ),
        })
    }
}

/// Reads the members of a gzip file consecutively. Like `gzip`, it skips zeros after a member: tapes and block
/// devices pad with them.
struct Gzip {
    /// `None` after the last member.
    member: Option<GzDecoder<PackedReader>>,
}

impl Read for Gzip {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        while let Some(member) = &mut self.member {
            let count = member.read(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            let next = self.member.take().map(GzDecoder::into_inner);
            self.member = next.map(next_member).transpose()?.flatten();
        }
        Ok(0)
    }
}

fn next_member(mut packed: PackedReader) -> std::io::Result<Option<GzDecoder<PackedReader>>> {
    loop {
        let bytes = packed.fill_buf()?;
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        match bytes.get(zeros) {
            Some(0x1f) => {
                packed.consume(zeros);
                return Ok(Some(GzDecoder::new(packed)));
            }
            Some(_) => {
                return Err(Error::new(
                    ErrorKind::InvalidData,
                    "bytes that are not gzip follow the compressed data",
                ));
            }
            None if bytes.is_empty() => return Ok(None),
            None => packed.consume(zeros),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    fn unpacked(packed: &[u8]) -> std::io::Result<String> {
        let compression = Compression::of(packed).expect("it is compressed");
        let mut text = String::new();
        let packed = Box::new(Cursor::new(packed.to_vec()));
        let mut reader = compression.unpack(packed).expect("it begins well");
        reader.read_to_string(&mut text)?;
        Ok(text)
    }

    fn gzip(text: &str) -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    }

    #[test]
    fn only_zeros_are_skipped_after_a_gzip_member() {
        let two = [gzip("a"), vec![0; 700], gzip("b"), vec![0; 300_000]].concat();
        assert_eq!(unpacked(&two).unwrap(), "ab");
        let more = [gzip("a"), vec![0, 7]].concat();
        assert!(unpacked(&more).is_err());
        let cut = [gzip("a"), gzip("b")[..5].to_vec()].concat();
        let error = unpacked(&cut).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn skippable_zstd_frames_are_skipped_at_every_position() {
        let skippable = |kind: u8| [&[kind, 0x2a, 0x4d, 0x18, 4, 0, 0, 0][..], b"size"].concat();
        let frame = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        let packed = [
            skippable(0x50),
            frame("a"),
            skippable(0x5f),
            frame("b"),
            skippable(0x51),
        ];
        assert_eq!(unpacked(&packed.concat()).unwrap(), "ab");
        assert_eq!(unpacked(&skippable(0x50)).unwrap(), "");
    }
}
