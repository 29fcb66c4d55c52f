//! Traces of benchmark runs, and text logs of the released BG. Validation relies on them, so a decoder must be right,
//! or reject them.

use larder_validate::Span;
use larder_validate::bg_text::{self, Line};
use larder_validate::record::{Corrupted, Decoder, Encoder, RECORD_SIZE, Record, decode};
use larder_validate::trace::{Initial, OnlineValidator, Options, judge};

/// The maximum number of validated records, because hostile intervals that all overlap take long to validate.
const JUDGED_MAX: usize = 16;

/// Any bytes yield all records of a trace or `Corrupted`, whether decoded as a whole or piece by piece. Validation
/// accepts any records without a panic.
pub fn trace(bytes: &[u8]) {
    check(bytes);
    if let Some(sealed) = reseal_trace(bytes) {
        check(&sealed);
    }
}

fn check(bytes: &[u8]) {
    let decoded = decode(bytes);
    assert_eq!(decode_slowly(bytes).is_ok(), decoded.is_ok());
    let Ok(records) = decoded else {
        return;
    };
    assert_eq!(encode(&records), bytes, "a trace is spelled in one way");
    let few = &records[..records.len().min(JUDGED_MAX)];
    let options = Options {
        seed: 1,
        cores: 1,
        witnesses_max: 4,
    };
    let report = judge(few, &Nothing, &options);
    for witness in &report.witnesses {
        assert!(!witness.describe(&larder_validate::report::Plain).is_empty());
    }
    let mut online = OnlineValidator::new(Nothing, &options, 0);
    online.feed(few);
    assert_eq!(online.finish().levels, report.levels);
}

fn decode_slowly(bytes: &[u8]) -> Result<usize, Corrupted> {
    let (pieces, _) = bytes.as_chunks::<RECORD_SIZE>();
    let head = pieces.first().ok_or(Corrupted::Header)?;
    let mut decoder = Decoder::start(bytes.len() as u64, head)?;
    let records = &pieces[1..1 + decoder.expected() as usize];
    for record in records {
        decoder.record(record)?;
    }
    decoder.finish(&pieces[pieces.len() - 1])?;
    Ok(records.len())
}

fn encode(records: &[Record]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    for record in records {
        bytes.extend_from_slice(&encoder.record(record));
    }
    bytes.extend_from_slice(&encoder.footer());
    bytes
}

/// Returns whether these bytes are a trace with at least one record.
pub fn holds_records(bytes: &[u8]) -> bool {
    decode(bytes).is_ok_and(|records| !records.is_empty())
}

/// Returns the same pieces as records that an encoder may write, on few items, with a correct checksum.
pub fn reseal_trace(bytes: &[u8]) -> Option<Vec<u8>> {
    let (pieces, _) = bytes.get(RECORD_SIZE..)?.as_chunks::<RECORD_SIZE>();
    let mut records = Vec::new();
    for piece in pieces {
        let mut piece = *piece;
        piece[0] %= 2;
        piece[1..7].fill(0);
        piece[7] = 1 + piece[7] % 3;
        // Intervals that are close together overlap.
        let start = u64::from(piece[8]);
        let end = start + u64::from(piece[16] % 32);
        piece[8..16].copy_from_slice(&start.to_le_bytes());
        piece[16..24].copy_from_slice(&end.to_le_bytes());
        piece[48] = 1 + piece[48] % 8;
        piece[49] %= 3;
        piece[51..].fill(0);
        let number = i64::from_le_bytes(piece[24..32].try_into().expect("eight bytes"));
        match piece[48] {
            1 => piece[24..40].copy_from_slice(&i128::from(number).to_le_bytes()),
            2 | 3 => piece[24..40].copy_from_slice(&i128::from(number as i32).to_le_bytes()),
            4 => continue_with(&mut records, piece),
            _ => piece[32..40].fill(0),
        }
        if piece[48] != 4 {
            piece[40..44].fill(0);
            continue_with(&mut records, piece);
        }
    }
    Some(encode(&records))
}

/// Keeps the piece if it is a record.
fn continue_with(records: &mut Vec<Record>, piece: [u8; RECORD_SIZE]) {
    let header = Encoder::header();
    let size = RECORD_SIZE as u64 * 3;
    let mut decoder = Decoder::start(size, &header).expect("a header");
    records.extend(decoder.record(&piece));
}

/// Any line is a call, an ignored read, or rejected. A call can be represented in a trace.
pub fn bg_text(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    for line in text.lines() {
        if let Ok(Line::Call(record)) = bg_text::parse(line) {
            assert!(Span::new(record.span.start(), record.span.end()).is_some());
            assert_eq!(decode(&encode(&[record])), Ok(vec![record]));
        }
    }
}

struct Nothing;

impl Initial for Nothing {
    fn count(&self, _: u64) -> i32 {
        0
    }

    fn set(&self, _: u64) -> Vec<u64> {
        Vec::new()
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}
