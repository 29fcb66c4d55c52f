//! Changed bytes and missing files must yield an error that names the place, and never silently fewer rows.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use larder_journal::{Entry, Error, Fsync, Journal, Options, replay};

use crate::golden::example;
use crate::model_disk::ModelDisk;
use crate::rows::Rows;

fn path(name: &str) -> PathBuf {
    Path::new("j").join(name)
}

/// Returns the log of a killed process: `puts` in separate frames, under `fsync`.
fn killed_log(puts: u32, fsync: Fsync) -> (ModelDisk, PathBuf) {
    let disk = ModelDisk::new(7);
    let options = Options {
        fsync,
        ..Options::default()
    };
    let (journal, mut writer, _) =
        Journal::open_stepped(Arc::new(disk.clone()), Path::new("j"), options, &mut |_| ())
            .unwrap();
    let mut producer = journal.producer(|| ());
    for n in 0..puts {
        let key = n.to_le_bytes();
        producer
            .append(Entry::Put {
                key: &key,
                value: b"value",
                deadline_ms: None,
            })
            .unwrap();
        producer.commit();
        writer.step();
    }
    std::mem::forget(journal);
    (disk, path("log-0000000001"))
}

fn check_corrupted(disk: &ModelDisk, file: &Path, words: &str) {
    match Rows::replayed(disk, Path::new("j")) {
        Err(error @ Error::Corrupted { .. }) => {
            let message = error.to_string();
            assert!(
                message.contains(file.to_str().unwrap())
                    && message.contains("at byte")
                    && message.contains(words),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flipped_bit_anywhere_in_a_closed_journal_is_found() {
    let (disk, rows) = example();
    for name in disk.names() {
        let original = disk.contents(&path(&name));
        for at in 0..original.len() {
            let mut bytes = original.clone();
            bytes[at] ^= 1 << (at % 8);
            disk.put(&path(&name), &bytes);
            match Rows::replayed(&disk, Path::new("j")) {
                Err(Error::Corrupted { path: named, .. }) => {
                    assert_eq!(named, path(&name), "byte {at}");
                }
                // The record of the newest log is optional; a damaged one is ignored.
                Ok((read, recovery)) if name == "newest-log" => {
                    assert_eq!((read, recovery.torn_tail), (rows.clone(), None));
                }
                other => panic!("{name}, byte {at}: {other:?}"),
            }
        }
        disk.put(&path(&name), &original);
    }
    Rows::replayed(&disk, Path::new("j")).unwrap();
}

#[test]
fn a_flipped_bit_in_a_killed_log_is_damage_or_a_reported_torn_tail() {
    let (disk, log) = killed_log(10, Fsync::Always);
    let original = disk.contents(&log);
    let frame = (original.len() - 64) / 10;
    for at in 0..original.len() {
        let mut bytes = original.clone();
        bytes[at] ^= 1 << (at % 8);
        disk.put(&log, &bytes);
        match Rows::replayed(&disk, Path::new("j")) {
            Err(Error::Corrupted { .. }) => assert!(at < original.len() - frame),
            Ok((rows, recovery)) => {
                assert!(at >= original.len() - frame, "byte {at} was acknowledged");
                assert_eq!(rows.rows.len(), 9);
                assert_eq!(recovery.torn_tail.unwrap().bytes, frame as u64);
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_log_truncated_at_any_byte_keeps_its_complete_frames() {
    let (disk, log) = killed_log(10, Fsync::No);
    let original = disk.contents(&log);
    let frame = (original.len() - 64) / 10;
    for size in 64..original.len() {
        let disk = ModelDisk::new(3);
        disk.put(&log, &original[..size]);
        let mut rows = Rows::default();
        let disk = Arc::new(disk);
        let options = Options::default();
        let (journal, mut writer, recovery) =
            Journal::open_stepped(disk.clone(), Path::new("j"), options, &mut |entry| {
                rows.apply(entry);
            })
            .unwrap();
        assert_eq!(rows.rows.len(), (size - 64) / frame);
        let torn = (size - 64) % frame;
        assert_eq!(recovery.torn_tail.map_or(0, |cut| cut.bytes), torn as u64);
        journal.close_stepped(&mut writer).unwrap();
        let (replayed, recovery) = Rows::replayed(disk.as_ref(), Path::new("j")).unwrap();
        assert_eq!(
            (replayed, recovery.torn_tail),
            (rows, None),
            "the truncated bytes do not return"
        );
    }
}

#[test]
fn a_hole_in_unsynced_bytes_is_a_torn_tail() {
    // There was no sync between these frames: the disk may write the second and not the first.
    let (disk, log) = killed_log(10, Fsync::No);
    let mut bytes = disk.contents(&log);
    let frame = (bytes.len() - 64) / 10;
    bytes[64 + 4 * frame..64 + 5 * frame].fill(0);
    disk.put(&log, &bytes);
    let (rows, recovery) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert_eq!(rows.rows.len(), 4);
    assert_eq!(recovery.torn_tail.unwrap().bytes, 6 * frame as u64);
}

#[test]
fn blocks_of_an_older_file_are_not_replayed() {
    // A file in reused blocks: the bytes of a newer log, followed by those of an older and longer one, whose frames
    // have the right sequence number, size and position.
    let (old, log) = killed_log(10, Fsync::Always);
    let old = old.contents(&log);
    let frame = (old.len() - 64) / 10;
    let disk = ModelDisk::new(8);
    let (journal, mut writer, _) = Journal::open_stepped(
        Arc::new(disk.clone()),
        Path::new("j"),
        Options::default(),
        &mut |_| (),
    )
    .unwrap();
    let mut producer = journal.producer(|| ());
    producer
        .append(Entry::Put {
            key: b"new!",
            value: b"value",
            deadline_ms: None,
        })
        .unwrap();
    producer.commit();
    writer.step();
    std::mem::forget(journal);
    let mut bytes = disk.contents(&log);
    assert_eq!(bytes.len(), 64 + frame);
    bytes.extend_from_slice(&old[64 + frame..]);
    disk.put(&log, &bytes);
    let (rows, recovery) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert_eq!(rows.rows.keys().collect::<Vec<_>>(), [&b"new!".to_vec()]);
    assert_eq!(recovery.torn_tail.unwrap().bytes, 9 * frame as u64);
}

#[test]
fn moved_frames_are_invalid() {
    let (disk, log) = killed_log(10, Fsync::Always);
    let mut bytes = disk.contents(&log);
    let frame = (bytes.len() - 64) / 10;
    bytes.drain(64 + 3 * frame..64 + 4 * frame);
    disk.put(&log, &bytes);
    // The frames after the gap are at the wrong offset: they prove nothing and are reported as truncated.
    let (rows, recovery) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert_eq!(rows.rows.len(), 3);
    assert_eq!(recovery.torn_tail.unwrap().bytes, 6 * frame as u64);
}

#[test]
fn errors_name_missing_and_foreign_files() {
    let (disk, _) = example();
    let log = path("log-0000000002");
    let snapshot = path("snapshot-0000000002");
    let (log_bytes, snapshot_bytes) = (disk.contents(&log), disk.contents(&snapshot));

    disk.delete(&log);
    check_corrupted(&disk, &log, "missing");
    disk.put(&log, &log_bytes);

    disk.delete(&snapshot);
    check_corrupted(&disk, &path("log-0000000001"), "missing");
    disk.put(&snapshot, &snapshot_bytes);

    // Another journal's log under this one's name.
    let (other, other_log) = killed_log(3, Fsync::Always);
    disk.put(&log, &other.contents(&other_log));
    check_corrupted(&disk, &log, "the name of another file");
    disk.put(&log, &log_bytes);

    disk.put(&path("log-0000000004"), &log_bytes);
    check_corrupted(&disk, &path("log-0000000003"), "missing");
    disk.delete(&path("log-0000000004"));

    // A log that ends before the changes that its snapshot contains.
    disk.put(&log, &log_bytes[..64]);
    check_corrupted(&disk, &log, "the journal was closed in order");
    disk.delete(&path("newest-log"));
    Rows::replayed(&disk, Path::new("j")).expect("the snapshot saw nothing of this log");
    disk.put(&log, &log_bytes);
    Rows::replayed(&disk, Path::new("j")).unwrap();
}

/// Wherever it is truncated: without the record this is indistinguishable from a crash.
#[test]
fn a_log_truncated_after_an_orderly_close_is_damage() {
    let (disk, rows) = example();
    let log = path("log-0000000002");
    let original = disk.contents(&log);
    for size in 64..original.len() {
        disk.put(&log, &original[..size]);
        check_corrupted(&disk, &log, "the journal was closed in order");
    }
    let longer = [&original[..], &[0]].concat();
    disk.put(&log, &longer);
    check_corrupted(&disk, &log, "bytes after the log's end");
    disk.put(&log, &original);
    assert_eq!(Rows::replayed(&disk, Path::new("j")).unwrap().0, rows);
    // A journal of an earlier version has no record and opens as before.
    disk.delete(&path("newest-log"));
    assert_eq!(Rows::replayed(&disk, Path::new("j")).unwrap().0, rows);
}

#[test]
fn the_error_names_a_missing_newest_log() {
    // After an orderly close...
    let (disk, _) = killed_log(3, Fsync::Always);
    let open = |disk: &ModelDisk| {
        Journal::open_stepped(
            Arc::new(disk.clone()),
            Path::new("j"),
            Options::default(),
            &mut |_| (),
        )
    };
    let (journal, mut writer, _) = open(&disk).unwrap();
    journal.close_stepped(&mut writer).unwrap();
    let newest = path("log-0000000002");
    let bytes = disk.contents(&newest);
    disk.delete(&newest);
    check_corrupted(&disk, &newest, "it was the newest log");
    assert!(open(&disk).is_err(), "the start fails");
    disk.put(&newest, &bytes);
    // ... after a crash, and if no other log is left.
    std::mem::forget(open(&disk).unwrap());
    disk.delete(&newest);
    check_corrupted(&disk, &newest, "it was the newest log");
    disk.delete(&path("log-0000000001"));
    check_corrupted(&disk, &newest, "it was the newest log");
}

/// A server of an earlier version continued the journal and did not update the record.
#[test]
fn a_record_older_than_the_newest_log_is_accepted() {
    let (disk, log) = killed_log(3, Fsync::Always);
    let record = disk.contents(&path("newest-log"));
    let (journal, mut writer, _) = Journal::open_stepped(
        Arc::new(disk.clone()),
        Path::new("j"),
        Options::default(),
        &mut |_| (),
    )
    .unwrap();
    journal.close_stepped(&mut writer).unwrap();
    disk.put(&path("newest-log"), &record);
    let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert_eq!(rows.rows.len(), 3);
    // The log in the record was replaced by another one without entries.
    let (other, _) = killed_log(2, Fsync::Always);
    disk.delete(&path("log-0000000002"));
    disk.put(&log, &other.contents(&log));
    let (rows, _) = Rows::replayed(&disk, Path::new("j")).unwrap();
    assert_eq!(rows.rows.len(), 2);
}

#[test]
fn a_snapshot_whose_log_ends_too_early_is_damage() {
    let disk = ModelDisk::new(5);
    let options = Options {
        fsync: Fsync::Always,
        ..Options::default()
    };
    let (journal, mut writer, _) =
        Journal::open_stepped(Arc::new(disk.clone()), Path::new("j"), options, &mut |_| ())
            .unwrap();
    let mut producer = journal.producer(|| ());
    let (parts, mut maker) = journal.begin_snapshot_stepped(1).unwrap();
    let put = Entry::Put {
        key: b"k",
        value: b"v",
        deadline_ms: None,
    };
    for mut part in parts {
        producer.append(put).unwrap();
        part.add(put).unwrap();
        part.finish(&mut producer);
    }
    writer.step();
    while maker.step() != larder_journal::SnapshotStep::Ended {}
    std::mem::forget(journal);
    let log = path("log-0000000002");
    let bytes = disk.contents(&log);
    disk.put(&log, &bytes[..bytes.len() - 1]);
    check_corrupted(&disk, &log, "the snapshot was made when");
}

#[test]
fn the_error_of_a_damaged_snapshot_names_the_logs_with_the_same_rows() {
    let (disk, _) = example();
    // The state after a crash between a snapshot's rename and the removal of the files that it replaces.
    let (older, log) = killed_log(1, Fsync::Always);
    disk.put(&log, &older.contents(&log));
    let snapshot = path("snapshot-0000000002");
    let mut bytes = disk.contents(&snapshot);
    bytes[100] ^= 1;
    disk.put(&snapshot, &bytes);
    check_corrupted(&disk, &snapshot, "move this file away and start again");
}

#[test]
fn reading_changes_nothing() {
    let (disk, log) = killed_log(3, Fsync::Always);
    let bytes = disk.contents(&log);
    disk.put(&log, &bytes[..bytes.len() - 1]);
    let operations = disk.operations();
    replay(&disk, Path::new("j"), &mut |_| ()).unwrap();
    assert_eq!(disk.operations(), operations);
}
