//! Journals of every published format must stay readable, and the current code must reproduce them byte for byte.
//! `LARDER_BLESS=1 cargo test -p larder-journal golden` created `testdata/golden/journal-1`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_journal::{Entry, Fsync, Journal, Options, RealDisk, SnapshotStep};

use crate::model_disk::ModelDisk;
use crate::rows::Rows;

fn golden() -> PathBuf {
    larder_testing::golden_path("journal-1")
}

/// Returns a snapshot, a log with every kind of entry after it, and the resulting rows.
pub fn example() -> (ModelDisk, Rows) {
    let disk = ModelDisk::new(1);
    let options = Options {
        fsync: Fsync::Always,
        ..Options::default()
    };
    let (journal, mut writer, _) =
        Journal::open_stepped(Arc::new(disk.clone()), Path::new("j"), options, &mut |_| ())
            .unwrap();
    let mut producer = journal.producer(|| ());
    let mut rows = Rows::default();

    let keys: Vec<String> = (0..20).map(|n| format!("post|bob|{n:04}")).collect();
    for (n, key) in keys.iter().enumerate() {
        let value = key.repeat(n % 4);
        let put = Entry::Put {
            key: key.as_bytes(),
            value: value.as_bytes(),
            deadline_ms: (n % 5 == 0).then_some(1_700_000_000_000 + n as u64),
        };
        producer.append(put).unwrap();
        rows.apply(put);
    }
    let define = Entry::Define {
        name: b"timeline",
        text: b"t|<user>|<time>|<poster> = check s|<user>|<poster> copy post|<poster>|<time>",
    };
    rows.apply(define);
    producer.append(define).unwrap();
    producer.commit();

    let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
    let mut part = parts.into_iter().next().unwrap();
    part.add(define).unwrap();
    for (key, (value, deadline_ms)) in &rows.rows {
        let deadline_ms = *deadline_ms;
        part.add(Entry::Put {
            key,
            value,
            deadline_ms,
        })
        .unwrap();
    }
    part.finish(&mut producer);
    writer.step();
    while maker.step() != SnapshotStep::Ended {}

    let entries = [
        Entry::Put {
            key: b"post|liz|0001",
            value: b"hello",
            deadline_ms: None,
        },
        Entry::Put {
            key: b"post|liz|0002",
            value: b"",
            deadline_ms: Some(2_000_000_000_000),
        },
        Entry::Expire {
            key: b"post|liz|0001",
            deadline_ms: Some(2_000_000_000_001),
        },
        Entry::Expire {
            key: b"post|liz|0002",
            deadline_ms: None,
        },
        Entry::Remove {
            key: b"post|bob|0003",
        },
        Entry::RemoveRange {
            lo: b"post|bob|0005",
            hi: Some(b"post|bob|0009"),
        },
        Entry::RemoveRange { lo: b"z", hi: None },
        Entry::Define {
            name: b"count",
            text: b"n|<poster> = count post|<poster>|<time>",
        },
        Entry::Drop { name: b"timeline" },
        Entry::Position {
            source: b"postgres",
            position: b"0/16B3748",
        },
    ];
    for entry in entries {
        producer.append(entry).unwrap();
        rows.apply(entry);
        producer.commit();
        writer.step();
    }
    drop(producer);
    journal.close_stepped(&mut writer).unwrap();
    (disk, rows)
}

#[test]
fn the_golden_journal_is_read_and_reproduced() {
    let (disk, rows) = example();
    let bless = std::env::var_os("LARDER_BLESS").is_some();
    if bless {
        let _ = fs::remove_dir_all(golden());
        fs::create_dir_all(golden()).unwrap();
    }
    // The golden journal is from a version without a record of the newest log.
    for name in disk.names().into_iter().filter(|it| it != "newest-log") {
        let now = disk.contents(&Path::new("j").join(&name));
        let path = golden().join(&name);
        if bless {
            fs::write(&path, &now).unwrap();
        }
        let golden = fs::read(&path).unwrap();
        assert!(golden == now, "{name} is written differently today");
    }
    let (read, recovery) = Rows::replayed(&RealDisk, &golden()).unwrap();
    assert_eq!(read, rows);
    assert_eq!((recovery.snapshot_rows, recovery.log_entries), (20, 10));
    assert_eq!(recovery.torn_tail, None);
}
