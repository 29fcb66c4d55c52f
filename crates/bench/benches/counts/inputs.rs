//! The journal, inputs of builds, and traces.

use std::any::Any;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use larder_ingest::{Format, InputOptions, RowSink, SinkError, ValueSpec, ingest_text};
use larder_journal::{Disk, DiskFile, Entry, Fsync, Journal, Options};
use larder_types::Random;
use larder_validate::Span;
use larder_validate::record::{Outcome, Record, RecordKind};
use larder_validate::trace::{self, Empty, judge};

use crate::{Result, count};

/// Rows of the CSV text, and records of the trace.
const ROWS: u64 = 5_000;

pub fn count_inputs() -> Result<()> {
    count_journal()?;
    count_csv();
    count_trace();
    Ok(())
}

/// Commits of ten entries each, written by the committing thread.
fn count_journal() -> Result<()> {
    const COMMITTED: u64 = 10;
    let options = Options {
        fsync: Fsync::No,
        ..Options::default()
    };
    let disk = Arc::new(NoDisk);
    let opened = Journal::open_stepped(disk, Path::new("journal"), options, &mut |_| {});
    let (journal, _writer, _) = opened?;
    let mut producer = journal.producer(|| {});
    let value = [b'v'; 100];
    count("journal, per written row", 100, COMMITTED, &mut |_| {
        for number in 0..COMMITTED {
            let key = [b'u', b'|', number as u8];
            let put = Entry::Put {
                key: &key,
                value: &value,
                deadline_ms: None,
            };
            producer.append(put).expect("the journal is open");
        }
        producer.commit();
    });
    Ok(())
}

fn count_csv() {
    let mut random = Random::new(5);
    let mut text = "id,name,city,price\n".to_owned();
    for number in 0..ROWS {
        let (city, price) = (random.below(100), random.below(10_000));
        text += &format!("{number},hotel number {number},city{city},{price}\n");
    }
    let options = InputOptions {
        key: vec!["id".into()],
        value: ValueSpec::Json,
        threads: 1,
        ..InputOptions::default()
    };
    count("CSV, per row", 1, ROWS, &mut |_| {
        let text = text.clone().into_bytes();
        let rows = ingest_text(
            text,
            Format::Csv,
            &options,
            64 << 10,
            Box::new(DiscardedRows),
        );
        assert_eq!(rows.expect("the text is valid"), ROWS);
    });
}

/// Reads of correct contents, and a tenth as many writes, over a hundred items.
fn count_trace() {
    let mut random = Random::new(6);
    let mut contents = [0; 100];
    let records: Vec<Record> = (0..ROWS)
        .map(|call| {
            let item = random.index(contents.len());
            let what = if call % 11 == 0 {
                contents[item] = call + 1;
                RecordKind::WriteContent(call + 1)
            } else {
                RecordKind::ReadContent(contents[item])
            };
            let instant = 1_000_000 + call * 100;
            let span = Span::new(instant - random.below(2_000), instant + random.below(2_000));
            Record {
                item: item as u64,
                span: span.expect("ascending"),
                session: 0,
                action: 0,
                outcome: Outcome::Done,
                what,
            }
        })
        .collect();
    let options = trace::Options {
        seed: 1,
        cores: 1,
        witnesses_max: 3,
    };
    count("trace, per record", 1, ROWS, &mut |_| {
        let report = judge(&records, &Empty, &options);
        assert_eq!(report.total.unpredictable(), 0);
    });
}

struct DiscardedRows;

impl RowSink for DiscardedRows {
    fn row(&mut self, _: u64, key: &[u8], value: &[u8]) -> std::result::Result<(), SinkError> {
        std::hint::black_box((key, value));
        Ok(())
    }
}

/// A disk that stores nothing, whose clock stands still: the journal writes more slowly after a write that took long.
struct NoDisk;

impl Disk for NoDisk {
    fn create_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn lock(&self, _: &Path) -> io::Result<Box<dyn Any + Send + Sync>> {
        Ok(Box::new(()))
    }

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn create(&self, _: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoDisk))
    }

    fn open(&self, _: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(NoDisk))
    }

    fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn remove(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        Ok(())
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn new_id(&self) -> io::Result<u64> {
        Ok(1)
    }
}

impl DiskFile for NoDisk {
    fn write_at(&self, _: u64, parts: &[&[u8]]) -> io::Result<()> {
        std::hint::black_box(parts);
        Ok(())
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<usize> {
        Ok(0)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(0)
    }

    fn truncate(&self, _: u64) -> io::Result<()> {
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}
