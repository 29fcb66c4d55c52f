//! Writes one segment sequentially, from records in (hash, key) order.

use std::io::{self, Write};

use xxhash_rust::xxh3::xxh3_64;

use super::block::{BLOCK_OVERHEAD, BlockBuilder};
use super::check::{self, CHECK_SIZE};
use super::compression::{Compression, Encoder};
use super::filter::{self, FilterBuilder};
use super::format::{FORMAT, Footer, HEADER_SIZE, LARGE_VALUE_BYTES_MIN, Layout, header};
use super::ranks::{self, block_and_fraction};
use super::{directory, uniform};
use crate::digest::{DigestKind, SegmentDigest};

#[derive(Debug, Clone)]
pub struct SegmentOptions {
    pub compression: Compression,
    /// Average bytes of records per block, before compression.
    pub block_size: u32,
    pub filter: bool,
    /// [`FORMAT`], or 1 for earlier readers.
    pub format: u32,
    /// True if the segment belongs to a delta: the pushed values end with the marker of `delta.rs`, and the filter is
    /// larger, because a lookup queries the filters of all layers.
    pub is_delta: bool,
}

/// The properties of a segment that are known before its first record. They determine the number of blocks. Fewer
/// records may arrive if duplicates are dropped.
#[derive(Debug, Clone, Copy, Default)]
pub struct SegmentPlan {
    pub partition: u32,
    pub partitions: u32,
    pub record_count: u64,
    /// Bytes of keys, and of values that are stored in blocks.
    pub inline_bytes: u64,
    /// The common size of all keys and that of all values, if there is one.
    pub sizes: Option<(u32, u32)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentSummary {
    pub size_bytes: u64,
    pub record_count: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    pub digest: String,
}

/// See the module. Records must arrive in (hash, key) order without duplicates, which is asserted.
pub struct SegmentWriter<W: Write> {
    out: DigestWriter<W>,
    options: SegmentOptions,
    block_count: u64,
    /// The start of each block; unused in a uniform segment.
    positions: Vec<u64>,
    /// A word for each block, if records have checksums of their own.
    words: Vec<u64>,
    filter: Option<FilterBuilder>,
    current: BlockBuilder,
    current_index: u64,
    /// The fractions of the records of the current block.
    fractions: Vec<u64>,
    last: Option<(u64, Vec<u8>)>,
    encoder: EncoderState,
    buffer: Vec<u8>,
    footer: Footer,
}

enum EncoderState {
    /// With zstd, blocks are held here until there are enough to train a dictionary.
    Training {
        blocks: Vec<(u64, BlockBuilder)>,
        bytes: usize,
    },
    Ready {
        encoder: Encoder,
        dictionary: Vec<u8>,
    },
}

/// The bytes gathered before a dictionary is trained, their minimum, and the dictionary's size.
const TRAINING_BYTES: usize = 2 << 20;
const TRAINING_BYTES_MIN: usize = 256 << 10;
const DICTIONARY_BYTES: usize = 32 << 10;

/// The size of one write.
const FLUSH_BYTES: usize = 256 << 10;

impl<W: Write> SegmentWriter<W> {
    /// # Errors
    /// If the header cannot be written.
    pub fn new(out: W, options: SegmentOptions, plan: SegmentPlan) -> io::Result<Self> {
        let mut out = DigestWriter {
            inner: out,
            digest: SegmentDigest::new(match options.format {
                1 => DigestKind::Xxh3,
                _ => DigestKind::Blake3,
            }),
            position: 0,
        };
        out.write(&header(options.format))?;
        let layout = layout(&options, &plan);
        let block_count = match layout {
            Layout::Sealed => sealed_block_count(&options, &plan),
            _ => block_count(&options, &plan),
        };
        let (key_size, value_size) = match (layout, plan.sizes) {
            (Layout::Uniform, Some(sizes)) => sizes,
            _ => (0, 0),
        };
        let encoder = match options.compression {
            Compression::Zstd { .. } => EncoderState::Training {
                blocks: Vec::new(),
                bytes: 0,
            },
            other => EncoderState::Ready {
                encoder: new_encoder(other, &[])?,
                dictionary: Vec::new(),
            },
        };
        let footer = Footer {
            block_count,
            partition: plan.partition,
            partitions: plan.partitions,
            block_size: options.block_size,
            compression: options.compression.code(),
            layout,
            is_delta: options.is_delta,
            key_size,
            value_size,
            ..Footer::default()
        };
        Ok(SegmentWriter {
            out,
            block_count,
            positions: Vec::new(),
            words: Vec::new(),
            filter: options.filter.then(|| {
                let bits = if options.is_delta {
                    filter::BITS_PER_KEY_DELTA
                } else {
                    filter::BITS_PER_KEY
                };
                FilterBuilder::for_bits(plan.record_count * bits, u64::from(options.format))
            }),
            current: BlockBuilder::default(),
            current_index: 0,
            fractions: Vec::new(),
            last: None,
            encoder,
            buffer: Vec::new(),
            footer,
            options,
        })
    }

    /// # Errors
    /// If `out` fails.
    pub fn push(&mut self, hash: u64, key: &[u8], value: &[u8]) -> io::Result<()> {
        if let Some((last_hash, last_key)) = &mut self.last {
            assert!(
                (*last_hash, &last_key[..]) < (hash, key),
                "records must ascend by (hash, key)"
            );
            *last_hash = hash;
            last_key.clear();
            last_key.extend_from_slice(key);
        } else {
            self.last = Some((hash, key.to_vec()));
        }
        let (index, fraction) = block_and_fraction(hash, self.block_count);
        if index != self.current_index {
            self.end_block()?;
            self.current_index = index;
        }
        match self.footer.layout {
            Layout::Uniform => self.push_uniform(key, value)?,
            _ => self.current.push(hash, key, value),
        }
        if self.footer.layout != Layout::Sealed {
            self.fractions.push(fraction);
        }
        if let Some(filter) = &mut self.filter {
            filter.insert(hash);
        }
        self.footer.record_count += 1;
        self.footer.key_bytes += key.len() as u64;
        self.footer.value_bytes += value.len() as u64;
        Ok(())
    }

    /// Writes the sections after the data and returns `out`, which the caller makes durable.
    ///
    /// # Errors
    /// If `out` fails.
    pub fn finish(mut self) -> io::Result<(W, SegmentSummary)> {
        self.end_block()?;
        self.end_training()?;
        self.flush_buffer(1)?;
        let end = self.out.position;
        self.footer.data_size = end - HEADER_SIZE as u64;
        let (kind, directory) = self.directory(end);
        self.footer.directory_kind = kind;

        let EncoderState::Ready { dictionary, .. } = &self.encoder else {
            unreachable!("training has ended")
        };
        let filter = self
            .filter
            .take()
            .map(|filter| filter.encode())
            .unwrap_or_default();
        self.footer.dictionary_size = dictionary.len() as u64;
        self.footer.filter_size = filter.len() as u64;
        self.footer.directory_size = directory.len() as u64;
        self.footer.dictionary_check = xxh3_64(dictionary);
        self.footer.filter_check = xxh3_64(&filter);
        self.footer.directory_check = xxh3_64(&directory);
        for section in [dictionary, &filter, &directory, &self.footer.encode()[..]] {
            self.out.write(section)?;
        }
        let summary = SegmentSummary {
            size_bytes: self.out.position,
            record_count: self.footer.record_count,
            key_bytes: self.footer.key_bytes,
            value_bytes: self.footer.value_bytes,
            digest: self.out.digest.finish_hex(),
        };
        Ok((self.out.inner, summary))
    }

    /// Returns the directory's kind and its bytes.
    fn directory(&mut self, end: u64) -> (u8, Vec<u8>) {
        let blocks = self.block_count as usize;
        if self.footer.layout != Layout::Sealed {
            self.words.resize(blocks, 0);
        }
        if self.footer.layout == Layout::Uniform {
            return (0, uniform::encode(&self.words));
        }
        self.positions.resize(blocks + 1, end);
        let (kind, positions) = directory::encode(&self.positions);
        let words = self.words.iter().flat_map(|word| word.to_le_bytes());
        (kind as u8, words.chain(positions).collect())
    }

    fn push_uniform(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        assert!(
            (key.len(), value.len())
                == (
                    self.footer.key_size as usize,
                    self.footer.value_size as usize
                ),
            "the plan requires that all records have the same size"
        );
        let start = self.buffer.len();
        self.buffer.extend([0; CHECK_SIZE]);
        self.buffer.extend_from_slice(key);
        self.buffer.extend_from_slice(value);
        check::seal(&mut self.buffer[start..], self.footer.record_count);
        self.flush_buffer(FLUSH_BYTES)
    }

    fn end_block(&mut self) -> io::Result<()> {
        if !self.fractions.is_empty() {
            self.words.resize(self.current_index as usize, 0);
            self.words.push(ranks::encode(&self.fractions));
            self.fractions.clear();
        }
        if self.current.is_empty() {
            return Ok(());
        }
        if let EncoderState::Training { blocks, bytes } = &mut self.encoder {
            *bytes += self.current.bytes().len();
            blocks.push((self.current_index, std::mem::take(&mut self.current)));
            return if *bytes >= TRAINING_BYTES {
                self.end_training()
            } else {
                Ok(())
            };
        }
        let mut block = std::mem::take(&mut self.current);
        self.write_block(self.current_index, &mut block)?;
        self.current = block;
        Ok(())
    }

    fn write_block(&mut self, index: u64, block: &mut BlockBuilder) -> io::Result<()> {
        let position = self.out.position + self.buffer.len() as u64;
        self.positions.resize(index as usize + 1, position);
        let EncoderState::Ready { encoder, .. } = &mut self.encoder else {
            unreachable!("training has ended")
        };
        match self.footer.layout {
            Layout::Varied => block.finish_varied(index, &mut self.buffer),
            _ => block.finish(index, encoder, &mut self.buffer),
        }
        self.flush_buffer(FLUSH_BYTES)
    }

    fn flush_buffer(&mut self, bytes_min: usize) -> io::Result<()> {
        if self.buffer.len() >= bytes_min {
            self.out.write(&self.buffer)?;
            self.buffer.clear();
        }
        Ok(())
    }

    fn end_training(&mut self) -> io::Result<()> {
        let EncoderState::Training { blocks, bytes } = &mut self.encoder else {
            return Ok(());
        };
        let mut blocks = std::mem::take(blocks);
        let dictionary = if *bytes < TRAINING_BYTES_MIN {
            Vec::new()
        } else {
            let samples: Vec<&[u8]> = blocks.iter().map(|(_, block)| block.bytes()).collect();
            // Training fails on data without common substrings; then there is no dictionary.
            zstd::dict::from_samples(&samples, DICTIONARY_BYTES).unwrap_or_default()
        };
        let encoder = new_encoder(self.options.compression, &dictionary)?;
        self.encoder = EncoderState::Ready {
            encoder,
            dictionary,
        };
        for (index, block) in &mut blocks {
            self.write_block(*index, block)?;
        }
        Ok(())
    }
}

fn new_encoder(compression: Compression, dictionary: &[u8]) -> io::Result<Encoder> {
    Encoder::new(compression, dictionary).map_err(|error| io::Error::other(error.to_string()))
}

fn layout(options: &SegmentOptions, plan: &SegmentPlan) -> Layout {
    if options.format < FORMAT || options.compression != Compression::None {
        return Layout::Sealed;
    }
    match plan.sizes {
        Some((_, value_size)) if value_size as usize <= LARGE_VALUE_BYTES_MIN => Layout::Uniform,
        _ => Layout::Varied,
    }
}

/// Returns the number of blocks at which they average `block_size` bytes, but enough that a block's word resolves its
/// records well.
fn block_count(options: &SegmentOptions, plan: &SegmentPlan) -> u64 {
    const RECORDS_PER_BLOCK: u64 = 20;
    let records = plan.record_count.max(1);
    let bytes = plan.inline_bytes + records * CHECK_SIZE as u64;
    let blocks = (bytes / u64::from(options.block_size)).max(records / RECORDS_PER_BLOCK);
    blocks.clamp(1, records)
}

/// Returns the number of blocks at which they average `block_size` bytes, but at most four per record: entries for
/// empty blocks would make the directory large relative to short records.
fn sealed_block_count(options: &SegmentOptions, plan: &SegmentPlan) -> u64 {
    const BLOCKS_PER_RECORD_MAX: u64 = 4;
    let records = plan.record_count.max(1);
    // Each record has a tag, and two or three bytes more if sizes differ.
    let bytes = plan.inline_bytes + records * 2;
    let per_block = u64::from(options.block_size)
        .saturating_sub(BLOCK_OVERHEAD / 2)
        .max(1);
    (bytes / per_block).clamp(1, records * BLOCKS_PER_RECORD_MAX)
}

/// A writer that counts and digests the bytes that pass through it.
struct DigestWriter<W> {
    inner: W,
    digest: SegmentDigest,
    position: u64,
}

impl<W: Write> DigestWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)?;
        self.digest.update(bytes);
        self.position += bytes.len() as u64;
        Ok(())
    }
}
