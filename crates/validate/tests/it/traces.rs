use larder_validate::Span;
use larder_validate::record::{Corrupted, Decoder, Encoder, Outcome, Record, RecordKind, decode};
use larder_validate::report::{Class, Failure, Level, Report};
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, Options, judge};

use crate::random::{Random, rounds};

const SEED: u64 = 77;

/// Counts of 10, the elements 1, 2 and 3, content 0.
struct TraceInitial;

impl Initial for TraceInitial {
    fn count(&self, _: u64) -> i32 {
        10
    }

    fn set(&self, _: u64) -> Vec<u64> {
        vec![1, 2, 3]
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

fn record(item: u64, start: u64, end: u64, what: RecordKind) -> Record {
    let span = Span::new(start, end).unwrap();
    Record {
        item,
        span,
        session: 5,
        action: 6,
        outcome: Outcome::Done,
        what,
    }
}

fn list(item: u64, elements: &[u64]) -> RecordKind {
    RecordKind::ReadSet(Sketch::of(SEED, item, elements.iter().copied()))
}

fn report(records: &[Record], cores: usize) -> Report {
    judge(
        records,
        &TraceInitial,
        &Options {
            seed: SEED,
            cores,
            witnesses_max: 20,
        },
    )
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    records
        .iter()
        .for_each(|record| bytes.extend(encoder.record(record)));
    bytes.extend(encoder.footer());
    bytes
}

fn any_record(random: &mut Random) -> Record {
    let number = random.next();
    let what = match random.below(8) {
        0 => RecordKind::ReadCount(number as i64),
        1 => RecordKind::AddCount(number as i32),
        2 => RecordKind::SetCount(number as i32),
        3 => RecordKind::ReadSet(Sketch {
            count: number as u32,
            keys: u128::from(number) << 60 | 5,
        }),
        4 => RecordKind::PutElement(number),
        5 => RecordKind::RemoveElement(number),
        6 => RecordKind::ReadContent(number),
        _ => RecordKind::WriteContent(number),
    };
    let outcome = random.pick(&[Outcome::Done, Outcome::NotDone, Outcome::Unknown]);
    let start = random.next() >> 1;
    let span = Span::new(start, start + random.below(1000)).unwrap();
    Record {
        item: random.next(),
        span,
        session: number as u32,
        action: number as u8,
        outcome,
        what,
    }
}

#[test]
fn a_trace_round_trips() {
    let mut random = Random::new(6);
    for size in 0..50 {
        let records: Vec<Record> = (0..size).map(|_| any_record(&mut random)).collect();
        assert_eq!(decode_slowly(&encoded(&records)).as_ref(), Ok(&records));
        assert_eq!(decode(&encoded(&records)), Ok(records));
    }
}

/// Decodes piece by piece.
fn decode_slowly(bytes: &[u8]) -> Result<Vec<Record>, Corrupted> {
    let (pieces, _) = bytes.as_chunks::<64>();
    let head = pieces.first().ok_or(Corrupted::Header)?;
    let mut decoder = Decoder::start(bytes.len() as u64, head)?;
    assert_eq!(decoder.expected(), pieces.len() as u64 - 2);
    let records = pieces[1..pieces.len() - 1].iter();
    let records: Result<Vec<Record>, Corrupted> =
        records.map(|piece| decoder.record(piece)).collect();
    decoder.finish(&pieces[pieces.len() - 1])?;
    records
}

#[test]
fn any_damage_is_an_error_and_never_a_panic() {
    let mut random = Random::new(7);
    let records: Vec<Record> = (0..20).map(|_| any_record(&mut random)).collect();
    let intact = encoded(&records);
    for size in 0..intact.len() {
        assert!(decode(&intact[..size]).is_err(), "cut at {size}");
    }
    for bit in 0..intact.len() * 8 {
        let mut damaged = intact.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(decode(&damaged).is_err(), "bit {bit}");
    }
    let mut swapped = intact.clone();
    let (left, right) = swapped.split_at_mut(128);
    left[64..].swap_with_slice(&mut right[..64]);
    assert!(matches!(decode(&swapped), Err(Corrupted::Checksum { .. })));
    let mut missing = intact.clone();
    missing.drain(64..128);
    assert_eq!(
        decode(&missing),
        Err(Corrupted::Count {
            records: 19,
            footer: 20
        })
    );
    for _ in 0..rounds(20_000, 500_000) {
        let mut damaged = intact.clone();
        for _ in 0..=random.below(6) {
            let at = random.below(damaged.len().max(1) as u64) as usize;
            let byte = random.next() as u8;
            match random.below(4) {
                0 => drop(damaged.splice(at..at, [byte])),
                1 if damaged.len() > 1 => drop(damaged.remove(at)),
                2 => damaged.truncate(at.max(1)),
                _ => damaged[at] = byte,
            }
        }
        let decoded = decode(&damaged);
        assert!(damaged == intact || decoded.is_err());
        assert_eq!(decode_slowly(&damaged).is_ok(), decoded.is_ok());
    }
}

#[test]
fn each_fault_is_classified_with_its_age() {
    let records = [
        record(1, 100, 110, RecordKind::AddCount(1)),
        record(1, 150, 160, RecordKind::ReadCount(10)),
        record(1, 150, 160, RecordKind::ReadCount(11)),
        record(1, 50, 60, RecordKind::ReadCount(11)),
        record(1, 150, 160, RecordKind::ReadCount(9)),
        record(2, 100, 110, RecordKind::PutElement(4)),
        record(2, 200, 210, RecordKind::RemoveElement(1)),
        record(2, 300, 310, list(2, &[1, 2, 3])),
        record(2, 300, 310, list(2, &[1, 2, 3, 4])),
        record(2, 300, 310, list(2, &[2, 3, 4])),
        record(2, 150, 160, list(2, &[2, 3, 4])),
        record(2, 150, 160, list(2, &[2, 3])),
        record(2, 90, 220, list(2, &[1, 2, 3, 4])),
        record(4, 100, 110, RecordKind::RemoveElement(1)),
        record(4, 200, 210, RecordKind::PutElement(5)),
        record(4, 90, 220, list(4, &[1, 2, 3, 5])),
        record(3, 100, 110, RecordKind::WriteContent(7)),
        record(3, 150, 160, RecordKind::ReadContent(0)),
        record(3, 150, 160, RecordKind::ReadContent(7)),
        record(3, 50, 60, RecordKind::ReadContent(7)),
        record(3, 50, 60, RecordKind::ReadContent(8)),
    ];
    let report = report(&records, 1);
    let found: Vec<(u64, u64, Class)> = report
        .witnesses
        .iter()
        .map(|witness| match witness.failure {
            Failure::Class(class) => (witness.item, witness.read.start(), class),
            other => panic!("{other:?}"),
        })
        .collect();
    let stale = |age_ns, behind| Class::Stale { age_ns, behind };
    let expected = [
        (1, 50, Class::Future),
        (3, 50, Class::Future),
        (3, 50, Class::Phantom),
        (4, 90, Class::Fractured),
        (1, 150, stale(40, 1)),
        (1, 150, Class::Never),
        (2, 150, Class::Never),
        (2, 150, Class::Future),
        (3, 150, stale(40, 1)),
        (2, 300, stale(190, 2)),
        (2, 300, stale(90, 1)),
    ];
    assert_eq!(found.len(), expected.len());
    for wanted in expected {
        assert!(found.contains(&wanted), "{wanted:?} is not in {found:?}");
    }
    let total = report.total;
    assert_eq!((total.reads, report.writes), (15, 6));
    assert_eq!(
        (
            total.stale,
            total.fractured,
            total.future,
            total.phantom,
            total.never
        ),
        (4, 1, 3, 1, 2)
    );
    assert_eq!(total.acceptable, 4);
    assert_eq!((report.ages.count(), report.ages.max()), (4, 190));
    assert_eq!(report.versions_behind.max(), 2);
    let level = |level| {
        let tally = report.level(level);
        (tally.judged, tally.refused, tally.undecided)
    };
    assert_eq!(level(Level::Bg), (11, 7, 0));
    assert_eq!(level(Level::Members), (11, 7, 0));
    assert_eq!(level(Level::Snapshot), (11, 8, 0));
    assert_eq!(level(Level::Atomic), (4, 0, 0));
}

/// Returns the trace of a correct store: each call takes effect at a point of its own, and reads return the state at
/// that point.
fn correct_trace(random: &mut Random, calls: u64) -> Vec<Record> {
    let mut counts = [10i64; 4];
    let mut lists: [std::collections::BTreeSet<u64>; 4] = std::array::from_fn(|_| [1, 2, 3].into());
    let mut contents = [0u64; 4];
    (0..calls)
        .map(|call| {
            let at = random.below(4) as usize;
            let outcome = if random.one_in(20) {
                Outcome::Unknown
            } else {
                Outcome::Done
            };
            // Unknown outcome: applied or not.
            let happens = outcome == Outcome::Done || random.one_in(2);
            let element = random.below(8);
            let what = match random.below(7) {
                0 => RecordKind::AddCount(random.below(3) as i32 - 1),
                1 => RecordKind::PutElement(element),
                2 => RecordKind::RemoveElement(element),
                3 => RecordKind::WriteContent(call + 1),
                4 => RecordKind::ReadCount(counts[at]),
                5 => RecordKind::ReadSet(Sketch::of(SEED, at as u64, lists[at].iter().copied())),
                _ => RecordKind::ReadContent(contents[at]),
            };
            match what {
                RecordKind::AddCount(delta) if happens => counts[at] += i64::from(delta),
                RecordKind::PutElement(element) if happens => drop(lists[at].insert(element)),
                RecordKind::RemoveElement(element) if happens => drop(lists[at].remove(&element)),
                RecordKind::WriteContent(content) if happens => contents[at] = content,
                _ => {}
            }
            let point = 1000 + call * 10;
            let span = Span::new(point - random.below(60), point + random.below(60)).unwrap();
            Record {
                item: at as u64,
                span,
                session: 0,
                action: 0,
                outcome,
                what,
            }
        })
        .collect()
}

#[test]
fn a_correct_store_passes_and_all_injected_faults_are_detected() {
    let mut random = Random::new(8);
    for _ in 0..rounds(20, 500) {
        let mut records = correct_trace(&mut random, 2000);
        let clean = report(&records, 2);
        assert_eq!(
            (
                clean.unpredictable(),
                clean.total.undecided,
                clean.level(Level::Atomic).refused
            ),
            (0, 0, 0),
            "{:?}",
            clean.witnesses
        );
        let mut injected = 0;
        for record in &mut records {
            if record.outcome != Outcome::Done || !random.one_in(30) {
                continue;
            }
            match &mut record.what {
                RecordKind::ReadCount(value) => *value += 5000,
                RecordKind::ReadSet(sketch) => {
                    // One further element that was never added, or the same one twice.
                    sketch.add(SEED, record.item, 1000);
                    if random.one_in(2) {
                        sketch.add(SEED, record.item, 1000);
                    }
                }
                RecordKind::ReadContent(content) => *content += 1 << 40,
                _ => continue,
            }
            injected += 1;
        }
        let found = report(&records, 2);
        assert_eq!(found.unpredictable(), injected);
        // The result depends neither on the cores nor on the order.
        records.reverse();
        assert_eq!(report(&records, 1), found);
        assert_eq!(report(&records, 7), found);
    }
}

#[test]
fn the_first_format_is_still_readable() {
    // Format 1, as defined in docs/formats/trace.md. The checksum covers every byte of the records.
    let records = [
        record(1, 100, 110, RecordKind::AddCount(-1)),
        record(2, 300, 310, list(2, &[1, 2, 3])),
        record(3, 150, 160, RecordKind::ReadContent(7)),
    ];
    let bytes = encoded(&records);
    assert_eq!(bytes.len(), 64 * 5);
    assert_eq!(bytes[64 + 24..64 + 40], [255; 16]);
    assert_eq!(
        bytes[64 * 4 + 16..64 * 4 + 24],
        GOLDEN_CHECKSUM.to_le_bytes()
    );
}

const GOLDEN_CHECKSUM: u64 = 0xe72f_58fa;
