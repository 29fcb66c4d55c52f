//! Failing disks and slow disks. After a failed write the journal holds its entries and continues when it can. After
//! a failed sync it stops permanently, and reports the state of every append.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder_journal::{
    AppendOutcome, Entry, Error, Failure, Fsync, Journal, LastSnapshot, Options, Producer,
    SnapshotStep, Writer, WriterStep,
};

use crate::model_disk::{ModelDisk, Random};
use crate::rows::Rows;

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ENOSPC: i32 = 28;
const EROFS: i32 = 30;

fn open(disk: &ModelDisk, fsync: Fsync) -> (Journal, Writer, Producer) {
    let options = Options {
        fsync,
        backlog_bytes_max: 1000,
        snapshot_log_bytes_min: 2000,
        ..Options::default()
    };
    let (journal, writer, _) =
        Journal::open_stepped(Arc::new(disk.clone()), Path::new("j"), options, &mut |_| ())
            .unwrap();
    let producer = journal.producer(|| ());
    (journal, writer, producer)
}

fn put(key: &[u8]) -> Entry<'_> {
    Entry::Put {
        key,
        value: b"value",
        deadline_ms: None,
    }
}

#[test]
fn a_failed_sync_stops_the_journal_without_a_retry() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::Always);
    let done = producer.append(put(b"done")).unwrap();
    producer.commit();
    writer.step();
    let unknown = producer.append(put(b"unknown")).unwrap();
    producer.commit();
    assert_eq!(producer.outcome(done), AppendOutcome::Done);
    assert_eq!(producer.outcome(unknown), AppendOutcome::Pending);

    // The first operation of a step is the write, the second the sync.
    disk.fail_at(2, EIO);
    assert_eq!(writer.step(), WriterStep::Stop);
    let not_done = producer.append(put(b"not done")).unwrap_err();
    assert_eq!(producer.outcome(done), AppendOutcome::Done);
    assert_eq!(producer.outcome(unknown), AppendOutcome::Unknown);
    assert!(matches!(not_done, Error::Stopped(_)));
    let message = not_done.to_string();
    assert!(
        message.contains("cannot sync j/log-0000000001"),
        "{message}"
    );
    assert!(
        message.contains("rejects writes until a restart"),
        "{message}"
    );

    let operations = disk.operations();
    assert_eq!(writer.step(), WriterStep::Stop);
    producer.commit();
    assert_eq!(
        journal.sizes().backlog_bytes,
        0,
        "no write is held for later"
    );
    assert!(journal.begin_snapshot_stepped(1).is_err());
    assert!(journal.close_stepped(&mut writer).is_err());
    assert_eq!(disk.operations(), operations, "no operation is retried");

    // The machine crashes. Acknowledged writes survive.
    disk.restart(&mut Random::new(3));
    let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert!(rows.rows.contains_key(&b"done"[..]));
    assert!(!rows.rows.contains_key(&b"not done"[..]));
}

/// The fsync problem that PostgreSQL discovered in 2018: the kernel shows bytes that a sync failed to write, and
/// reports success for the next sync.
#[test]
fn a_start_after_a_failed_sync_rewrites_the_bytes_that_it_replays() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
    producer.append(put(b"k")).unwrap();
    producer.commit();
    disk.advance(Duration::from_secs(1));
    disk.fail_at(1, EIO);
    assert_eq!(writer.step(), WriterStep::Stop);
    drop((producer, journal));
    disk.restart_process();
    let (journal, _, _) = open(&disk, Fsync::EverySecond);
    // It was replayed, and clients have read it; now the power fails.
    std::mem::forget(journal);
    disk.restart(&mut Random::new(3));
    let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert!(rows.rows.contains_key(&b"k"[..]));
}

#[test]
fn the_duration_of_a_stalled_write_or_sync_is_reported() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
    let mut syncer = writer.split_syncs();
    let (clock, health) = (disk.clone(), journal.health());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    disk.during_operations(move || {
        clock.advance(Duration::from_secs(7));
        noted.lock().unwrap().push(health.stalled_for());
    });
    producer.append(put(b"k")).unwrap();
    producer.commit();
    assert_eq!(journal.health().stalled_for(), None);
    writer.step();
    assert!(syncer.step());
    let seven = Some(Duration::from_secs(7));
    assert_eq!(*seen.lock().unwrap(), [seven, seven], "a write and a sync");
    assert_eq!(journal.health().stalled_for(), None);
}

#[test]
fn writes_held_by_a_full_disk_are_done_once_when_there_is_room() {
    for fsync in [Fsync::Always, Fsync::EverySecond, Fsync::No] {
        for errno in [ENOSPC, EIO, EROFS] {
            let disk = ModelDisk::new(1);
            let (journal, mut writer, mut producer) = open(&disk, fsync);
            let mut tickets = Vec::new();
            for n in 0u32..30 {
                disk.fill((10..20).contains(&n).then_some(errno));
                tickets.push(producer.append(put(&n.to_be_bytes())).unwrap());
                producer.commit();
                let next = writer.step();
                let done = producer.outcome(tickets[n as usize]) == AppendOutcome::Done;
                assert_eq!(done, !(10..20).contains(&n), "{n}");
                match journal.write_failure() {
                    None => assert!(done),
                    Some((error, _)) => {
                        assert!(!done);
                        assert_eq!(error.is_disk_full(), errno == ENOSPC);
                        assert!(matches!(next, WriterStep::WaitUntil(_)), "{next:?}");
                        assert!(
                            producer.has_room(),
                            "a core does not wait for the rejection"
                        );
                    }
                }
            }
            assert!(
                tickets
                    .iter()
                    .all(|t| producer.outcome(*t) == AppendOutcome::Done)
            );
            drop(producer);
            journal.close_stepped(&mut writer).unwrap();
            let mut found = Vec::new();
            larder_journal::replay(&disk, Path::new("j"), &mut |entry| {
                if let Entry::Put { key, .. } = entry {
                    found.push(u32::from_be_bytes(key.try_into().unwrap()));
                }
            })
            .unwrap();
            assert_eq!(found, (0..30).collect::<Vec<_>>(), "each once, in order");
        }
    }
}

#[test]
fn closing_a_journal_on_a_full_disk_reports_the_error() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
    disk.fill(Some(ENOSPC));
    let ticket = producer.append(put(b"k")).unwrap();
    producer.commit();
    assert_eq!(producer.outcome(ticket), AppendOutcome::Pending);
    let message = journal.close_stepped(&mut writer).unwrap_err();
    assert!(message.is_disk_full(), "{message}");
    assert_eq!(producer.outcome(ticket), AppendOutcome::Unknown);
}

/// A lack of descriptors or disk space for it must not affect the open log.
#[test]
fn a_log_continues_when_the_next_one_cannot_be_created() {
    for errno in [EMFILE, ENOSPC] {
        for operation in 1..=4 {
            let disk = ModelDisk::new(1);
            let (journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
            producer.append(put(b"a")).unwrap();
            producer.commit();
            let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
            let before = disk.names();
            // Create, write and sync the next log; sync this one; and seal it.
            match operation {
                4 => disk.fail_at(5, errno),
                _ => disk.fail_at(operation, errno),
            }
            writer.step();
            assert!(journal.write_failure().is_none() && journal.failure().is_none());
            assert_eq!(maker.step(), SnapshotStep::Ended);
            match journal.last_snapshot() {
                Some(LastSnapshot::Failed(error)) => {
                    assert!(
                        error.to_string().contains("a new log cannot be created"),
                        "{error}"
                    );
                }
                other => panic!("{other:?}"),
            }
            drop(parts);
            if operation < 4 {
                assert_eq!(disk.names(), before);
            }
            let ticket = producer.append(put(b"b")).unwrap();
            producer.commit();
            writer.step();
            assert_eq!(producer.outcome(ticket), AppendOutcome::Done);
            // The next snapshot succeeds.
            let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
            for mut part in parts {
                part.add(put(b"a")).unwrap();
                part.add(put(b"b")).unwrap();
                part.finish(&mut producer);
            }
            writer.step();
            while maker.step() != SnapshotStep::Ended {}
            assert_eq!(
                disk.names(),
                ["log-0000000002", "newest-log", "snapshot-0000000002"]
            );
            drop(producer);
            journal.close_stepped(&mut writer).unwrap();
            let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
            assert_eq!(rows.rows.len(), 2);
        }
    }
}

/// Nothing may follow a log's end, so later writes wait until the next log has its final name.
#[test]
fn a_log_that_has_ended_waits_for_the_next_ones_name() {
    for operation in [7, 8] {
        let disk = ModelDisk::new(1);
        let (journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
        producer.append(put(b"a")).unwrap();
        producer.commit();
        let (parts, _maker) = journal.begin_snapshot_stepped(1).unwrap();
        // Create, write, sync; sync, write the end, sync; rename, sync the folder.
        disk.fail_at(operation, EIO);
        writer.step();
        assert!(journal.write_failure().is_some());
        let ticket = producer.append(put(b"b")).unwrap();
        producer.commit();
        assert_eq!(producer.outcome(ticket), AppendOutcome::Pending);
        writer.step();
        assert!(journal.write_failure().is_none());
        assert_eq!(producer.outcome(ticket), AppendOutcome::Done);
        drop((parts, producer));
        journal.close_stepped(&mut writer).unwrap();
        let (rows, recovery) = Rows::replayed(&disk, Path::new("j")).unwrap();
        assert_eq!((rows.rows.len(), recovery.logs), (2, 2));
    }
}

#[test]
fn under_everysec_and_no_a_reply_waits_for_the_write_to_the_system() {
    for fsync in [Fsync::EverySecond, Fsync::No] {
        let disk = ModelDisk::new(1);
        let (journal, mut writer, mut producer) = open(&disk, fsync);
        let ticket = producer.append(put(b"k")).unwrap();
        assert_eq!(producer.outcome(ticket), AppendOutcome::Pending);
        // The core writes it itself, without waiting for the writer's thread.
        producer.commit();
        assert_eq!(producer.outcome(ticket), AppendOutcome::Done);
        assert_eq!(producer.durable_ticket().0, 0);
        // But not while a sync is in progress, which may delay a write.
        let mut syncer = writer.split_syncs();
        producer.append(put(b"l")).unwrap();
        producer.commit();
        disk.advance(Duration::from_secs(1));
        let (parts, _maker) = journal.begin_snapshot_stepped(1).unwrap();
        for part in parts {
            part.finish(&mut producer);
        }
        writer.step();
        let second = producer.append(put(b"m")).unwrap();
        producer.commit();
        assert_eq!(producer.outcome(second), AppendOutcome::Pending);
        writer.step();
        assert_eq!(producer.outcome(second), AppendOutcome::Done);
        assert!(syncer.step());
        assert!(
            producer.durable_ticket() < second,
            "the sync had begun before it"
        );
        let third = producer.append(put(b"n")).unwrap();
        producer.commit();
        assert_eq!(producer.outcome(third), AppendOutcome::Done);
        // If the process is killed now, nothing is lost.
        std::mem::forget(journal);
        disk.restart_process();
        let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
        assert_eq!(rows.rows.len(), 4);
    }
}

#[test]
fn a_failure_at_any_operation_loses_no_acknowledged_write() {
    let mut stopped = 0;
    for operation in 1..200 {
        for errno in [EIO, ENOSPC] {
            let disk = ModelDisk::new(operation);
            let (journal, mut writer, mut producer) = open(&disk, Fsync::Always);
            disk.fail_at(operation, errno);
            let mut tickets = Vec::new();
            let mut snapshot = None;
            for n in 0u32..60 {
                let key = n.to_be_bytes();
                let Ok(ticket) = producer.append(put(&key)) else {
                    break;
                };
                tickets.push(ticket);
                producer.commit();
                writer.step();
                if n % 20 == 10
                    && let Ok((parts, maker)) = journal.begin_snapshot_stepped(1)
                {
                    for mut part in parts {
                        for n in 0..=n {
                            part.add(put(&n.to_be_bytes())).unwrap();
                        }
                        part.finish(&mut producer);
                    }
                    snapshot = Some(maker);
                }
                if let Some(maker) = &mut snapshot {
                    maker.step();
                }
            }
            writer.step();
            stopped += u64::from(journal.failure().is_some());
            let acknowledged = tickets
                .iter()
                .filter(|ticket| producer.outcome(**ticket) == AppendOutcome::Done)
                .count();
            if journal.failure().is_none() {
                assert_eq!(acknowledged, 60, "operation {operation}");
            }
            std::mem::forget(journal);
            disk.restart(&mut Random::new(operation));
            let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
            for n in 0..acknowledged {
                let key = (n as u32).to_be_bytes();
                assert!(
                    rows.rows.contains_key(&key[..]),
                    "operation {operation}: {n} of {acknowledged} acknowledged"
                );
            }
        }
    }
    assert!(stopped > 50, "{stopped} runs met a failed sync of the log");
}

#[test]
fn a_failed_snapshot_leaves_the_journal_running_and_delays_the_next() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::Always);
    let fill = |producer: &mut Producer, writer: &mut Writer, bytes: usize| {
        for _ in 0..bytes / 8 {
            producer.append(put(b"k")).unwrap();
        }
        producer.commit();
        writer.step();
    };
    assert!(!journal.is_snapshot_due());
    fill(&mut producer, &mut writer, 4000);
    assert!(journal.is_snapshot_due());
    let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
    assert!(!journal.is_snapshot_due(), "one is being made");
    assert!(journal.begin_snapshot_stepped(1).is_err());
    for mut part in parts {
        part.add(put(b"k")).unwrap();
        part.finish(&mut producer);
    }
    writer.step();
    disk.fail_at(1, ENOSPC);
    assert_eq!(maker.step(), SnapshotStep::Ended);
    match journal.last_snapshot() {
        Some(LastSnapshot::Failed(error)) => assert!(error.is_disk_full(), "{error}"),
        other => panic!("{other:?}"),
    }
    assert!(!disk.names().iter().any(|name| name.ends_with(".tmp")));
    assert!(journal.failure().is_none());
    assert!(
        !journal.is_snapshot_due(),
        "it is not due immediately after a failure"
    );
    fill(&mut producer, &mut writer, 4000);
    assert!(journal.is_snapshot_due());
    let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
    for mut part in parts {
        part.add(put(b"k")).unwrap();
        part.finish(&mut producer);
    }
    writer.step();
    while maker.step() != SnapshotStep::Ended {}
    assert!(matches!(
        journal.last_snapshot(),
        Some(LastSnapshot::Made { rows: 1, .. })
    ));
    assert_eq!(
        disk.names(),
        ["log-0000000003", "newest-log", "snapshot-0000000003"]
    );
    assert_eq!(journal.sizes().log_bytes, 0, "the new log has no entries");
}

/// Restart time and disk space are proportional to the number of rows, not to the number of writes.
#[test]
fn logs_and_snapshots_stay_in_proportion_to_the_rows() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::No);
    const KEYS: u64 = 100;
    let put = |n: u64, add: &mut dyn FnMut(Entry<'_>)| {
        add(Entry::Put {
            key: &n.to_be_bytes(),
            value: &[7; 92],
            deadline_ms: None,
        });
    };
    let row_bytes = 100 * KEYS;
    let (mut snapshots, mut most) = (0, 0);
    for _ in 0..2000 {
        for n in 0..KEYS {
            put(n, &mut |entry| {
                producer.append(entry).unwrap();
            });
        }
        producer.commit();
        writer.step();
        if journal.is_snapshot_due() {
            let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
            for mut part in parts {
                for n in 0..KEYS {
                    put(n, &mut |entry| part.add(entry).unwrap());
                }
                part.finish(&mut producer);
            }
            writer.step();
            while maker.step() != SnapshotStep::Ended {}
            snapshots += 1;
        }
        let sizes = journal.sizes();
        most = most.max(sizes.log_bytes + sizes.snapshot_bytes);
        assert!(disk.names().len() <= 3);
    }
    // A log up to the size of the snapshot, and the turn in which it exceeds that.
    assert!(most < 3 * row_bytes, "{most} bytes for {row_bytes} of rows");
    // There are no more snapshots than the growth of the log requires.
    assert!((500..=1001).contains(&snapshots), "{snapshots} snapshots");
}

#[test]
fn a_slow_disk_applies_back_pressure_and_notifies_when_there_is_room() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, _) = open(&disk, Fsync::Always);
    let calls = Arc::new(AtomicU64::new(0));
    let counted = calls.clone();
    let mut producer = journal.producer(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    let mut appended = 0;
    while producer.has_room() {
        producer.append(put(b"key")).unwrap();
        producer.commit();
        appended += 1;
    }
    assert!((50..200).contains(&appended), "{appended}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
    writer.step();
    assert!(calls.load(Ordering::Relaxed) > 0);
    assert!(producer.has_room());
}

#[test]
fn everysec_has_no_room_once_the_oldest_unsynced_write_is_a_second_old() {
    let disk = ModelDisk::new(1);
    let (_journal, mut writer, mut producer) = open(&disk, Fsync::EverySecond);
    let ticket = producer.append(put(b"key")).unwrap();
    producer.commit();
    assert_eq!(
        producer.outcome(ticket),
        AppendOutcome::Done,
        "accepted immediately"
    );
    assert_eq!(
        writer.step(),
        WriterStep::WaitUntil(Duration::from_millis(500))
    );
    assert_eq!(producer.durable_ticket().0, 0);
    let syncs = disk.syncs();
    disk.advance(Duration::from_millis(499));
    writer.step();
    assert_eq!(disk.syncs(), syncs);
    // The disk delays the writer; the core continues until a second has passed.
    assert!(producer.has_room());
    disk.advance(Duration::from_millis(501));
    assert!(!producer.has_room());
    writer.step();
    assert_eq!(producer.durable_ticket(), ticket);
    assert!(producer.has_room());
    assert_eq!(disk.syncs(), syncs + 1);
}

#[test]
fn one_sync_covers_all_pending_commits() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut first) = open(&disk, Fsync::Always);
    let mut second = journal.producer(|| ());
    let mut tickets = Vec::new();
    let syncs = disk.syncs();
    let operations = disk.operations();
    for _ in 0..100 {
        tickets.push(first.append(put(b"a")).unwrap());
        first.commit();
        second.append(put(b"b")).unwrap();
        second.commit();
    }
    writer.step();
    assert_eq!(disk.operations() - operations, 2, "one write and one sync");
    assert_eq!(disk.syncs() - syncs, 1);
    assert!(
        tickets
            .iter()
            .all(|t| first.outcome(*t) == AppendOutcome::Done)
    );
    assert_eq!(second.durable_ticket(), second.last_ticket());
}

#[test]
fn a_batch_dropped_before_its_end_is_discarded() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::Always);
    producer.append(put(b"before")).unwrap();
    {
        let mut batch = producer.batch();
        batch.add(put(b"in it")).unwrap();
        assert!(batch.add(put(b"")).is_err(), "an empty key");
    }
    assert!(
        producer
            .append_all(&[put(b"neither"), Entry::Remove { key: b"" }])
            .is_err()
    );
    let ticket = producer.append(put(b"after")).unwrap();
    assert_eq!(ticket.0, 2);
    producer.commit();
    drop(producer);
    journal.close_stepped(&mut writer).unwrap();
    let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
    let keys: Vec<_> = rows.rows.keys().map(Vec::as_slice).collect();
    assert_eq!(keys, [&b"after"[..], b"before"]);
}

#[test]
fn a_closed_journal_rejects_appends() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut producer) = open(&disk, Fsync::No);
    producer.append(put(b"k")).unwrap();
    producer.commit();
    journal.close_stepped(&mut writer).unwrap();
    match producer.append(put(b"k")) {
        Err(Error::Stopped(why)) => assert!(matches!(*why, Failure::Closed)),
        other => panic!("{other:?}"),
    }
}
