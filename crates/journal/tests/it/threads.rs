//! The journal as in a server: with threads, on real files.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use larder_journal::{
    AppendOutcome, Entry, Fsync, Journal, LastSnapshot, Options, Producer, RealDisk, SnapshotPart,
    Ticket,
};

use crate::rows::Rows;

fn options(fsync: Fsync) -> Options {
    Options {
        fsync,
        snapshot_log_bytes_min: 200_000,
        ..Options::default()
    }
}

fn put<'a>(key: &'a [u8], value: &'a [u8]) -> Entry<'a> {
    Entry::Put {
        key,
        value,
        deadline_ms: None,
    }
}

fn read(folder: &Path) -> Rows {
    Rows::replayed(&RealDisk, folder).unwrap().0
}

/// Three cores write and add their rows to snapshots concurrently; nothing is lost over restarts.
#[test]
fn concurrent_writes_during_snapshots_are_all_recovered() {
    for fsync in [Fsync::Always, Fsync::EverySecond, Fsync::No] {
        let folder = tempfile::tempdir().unwrap();
        let mut all = Rows::default();
        for start in 0..3u64 {
            let mut found = Rows::default();
            let (journal, recovery) = Journal::open(folder.path(), options(fsync), &mut |entry| {
                found.apply(entry)
            })
            .unwrap();
            assert!(found == all, "{fsync:?}, start {start}");
            assert_eq!(recovery.torn_tail, None);
            assert!(recovery.log_bytes < 4_000_000, "logs stay bounded");
            let slots = Slots::default();
            let cores: Vec<Rows> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3u8)
                    .map(|name| {
                        let (journal, rows, slots) = (&journal, found.of(name), &slots);
                        scope.spawn(move || core(journal, slots, name, start, rows))
                    })
                    .collect();
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .collect()
            });
            all = Rows::default();
            cores
                .into_iter()
                .for_each(|core| all.rows.extend(core.rows));
            journal.close().unwrap();
        }
        assert!(read(folder.path()) == all);
        let files = fs::read_dir(folder.path()).unwrap().count();
        assert!(files <= 8, "{files} files");
    }
}

/// One core: writes its rows, and adds them to each snapshot that the first core starts.
fn core(journal: &Journal, slots: &Slots, name: u8, start: u64, mut rows: Rows) -> Rows {
    let mut producer = journal.producer(|| ());
    for n in 0..4000u64 {
        let key = [&[name][..], &(n * 7919 % 500).to_be_bytes()].concat();
        let value = [&n.to_be_bytes()[..], &start.to_be_bytes(), &[7; 100]].concat();
        let entry = if n % 9 == 0 {
            Entry::Remove { key: &key }
        } else {
            put(&key, &value)
        };
        rows.apply(entry);
        producer.append(entry).unwrap();
        if n % 8 == 0 {
            producer.commit();
        }
        if n % 1000 == 500 && name == 0 {
            let begun = journal.begin_snapshot(slots.len()).unwrap();
            for (slot, part) in slots.iter().zip(begun) {
                *slot.lock().unwrap() = Some(part);
            }
        }
        if n % 1000 == 900 {
            let part = loop {
                if let Some(part) = slots[usize::from(name)].lock().unwrap().take() {
                    break part;
                }
                std::thread::yield_now();
            };
            write_part(part, &rows, &mut producer);
            if name == 0 {
                // The next snapshot may not start before this one has ended.
                match journal.wait_for_snapshot() {
                    Some(LastSnapshot::Made { .. }) => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    let last = producer.last_ticket();
    producer.wait_durable(last).unwrap();
    assert_eq!(producer.outcome(last), AppendOutcome::Done);
    rows
}

/// The first core stores each core's part here.
type Slots = [Mutex<Option<SnapshotPart>>; 3];

fn write_part(mut part: SnapshotPart, rows: &Rows, producer: &mut Producer) {
    for (key, (value, _)) in &rows.rows {
        part.add(put(key, value)).unwrap();
    }
    part.finish(producer);
}

#[test]
fn under_always_the_waker_is_called_when_a_write_is_durable() {
    let folder = tempfile::tempdir().unwrap();
    let (journal, recovery) =
        Journal::open(folder.path(), options(Fsync::Always), &mut |_| ()).unwrap();
    assert!(recovery.is_new);
    let (called, calls) = std::sync::mpsc::channel();
    let mut producer = journal.producer(move || {
        let _ = called.send(());
    });
    for n in 0..100u64 {
        let ticket = producer.append(put(&n.to_be_bytes(), b"v")).unwrap();
        assert_eq!(producer.outcome(ticket), AppendOutcome::Pending);
        producer.commit();
        while producer.outcome(ticket) == AppendOutcome::Pending {
            calls.recv().unwrap();
        }
        assert_eq!(producer.outcome(ticket), AppendOutcome::Done);
        // Another process would find it; a copy of the folder shows that.
        if n % 25 == 0 {
            assert_eq!(read(folder.path()).rows.len() as u64, n + 1);
        }
    }
    drop(producer);
    journal.close().unwrap();
}

#[test]
fn a_folder_can_be_opened_only_once() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Journal::open(folder.path(), options(Fsync::No), &mut |_| ());
    let first = open().unwrap();
    let message = open().err().unwrap().to_string();
    assert!(message.contains("open in another process"), "{message}");
    drop(first);
    open().unwrap();
}

#[test]
fn starts_without_writes_leave_one_log_and_starts_with_writes_make_a_snapshot_due() {
    let folder = tempfile::tempdir().unwrap();
    let open = || Journal::open(folder.path(), options(Fsync::No), &mut |_| ()).unwrap();
    for _ in 0..5 {
        open().0.close().unwrap();
    }
    // The log, and the record of the newest log.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    for _ in 0..70 {
        let (journal, _) = open();
        let mut producer = journal.producer(|| ());
        producer.append(put(b"k", b"v")).unwrap();
        producer.commit();
        journal.close().unwrap();
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 71);
    let (journal, _) = open();
    assert!(journal.is_snapshot_due());
    let mut producer = journal.producer(|| ());
    for mut part in journal.begin_snapshot(1).unwrap() {
        part.add(put(b"k", b"v")).unwrap();
        part.finish(&mut producer);
    }
    match journal.wait_for_snapshot() {
        Some(LastSnapshot::Made { rows: 1, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(!journal.is_snapshot_due());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    journal.close().unwrap();
    assert_eq!(read(folder.path()).rows.len(), 1);
}

/// Needs to mount a small file system, which requires root.
#[test]
fn a_full_disk_delays_writes_and_then_has_each_once() {
    for fsync in [Fsync::Always, Fsync::EverySecond] {
        let folder = tempfile::tempdir().unwrap();
        let Some(disk) = SmallDisk::mount(folder.path().join("disk"), "size=2m") else {
            return larder_testing::report_unsupported("mount a small file system (it takes root)");
        };
        let journal_folder = disk.path.join("journal");
        let (journal, _) = Journal::open(&journal_folder, options(fsync), &mut |_| ()).unwrap();
        let (called, calls) = std::sync::mpsc::channel();
        let mut producer = journal.producer(move || {
            let _ = called.send(());
        });
        let mut acknowledged = 0u64;
        let mut tickets: Vec<Ticket> = Vec::new();
        let error = 'full: loop {
            let key = acknowledged.to_be_bytes();
            tickets.push(producer.append(put(&key, &[7; 1000])).unwrap());
            producer.commit();
            while producer.outcome(tickets[tickets.len() - 1]) != AppendOutcome::Done {
                if let Some((error, _)) = journal.write_failure() {
                    break 'full error;
                }
                calls.recv().unwrap();
            }
            acknowledged += 1;
        };
        assert!(error.is_disk_full(), "{error}");
        assert!((1500..2100).contains(&acknowledged), "{acknowledged}");
        let last = producer.last_ticket();
        assert_eq!(producer.outcome(last), AppendOutcome::Pending);

        disk.resize("size=8m");
        while producer.outcome(last) != AppendOutcome::Done {
            calls.recv().unwrap();
        }
        // The journal updates this just after the write, and calls again.
        while journal.write_failure().is_some() {
            calls.recv().unwrap();
        }
        let ticket = producer.append(put(b"again", b"v")).unwrap();
        producer.wait_durable(ticket).unwrap();
        drop(producer);
        journal.close().unwrap();
        let mut found = 0;
        larder_journal::replay(&RealDisk, &journal_folder, &mut |_| found += 1).unwrap();
        assert_eq!(found, acknowledged + 2, "each once");

        // There is no space even for a new log: the start reports it and changes nothing.
        fs::write(disk.path.join("filler"), vec![0; 8 << 20]).unwrap_err();
        match Journal::open(&journal_folder, options(fsync), &mut |_| ()) {
            Ok((journal, _)) => drop(journal),
            Err(error) => assert!(error.is_disk_full(), "{error}"),
        }
        assert_eq!(read(&journal_folder).rows.len() as u64, acknowledged + 2);
    }
}

/// An in-memory file system, unmounted on drop.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn mount(path: std::path::PathBuf, size: &str) -> Option<SmallDisk> {
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", size, "larder-test"])
            .arg(&path)
            .output()
            .is_ok_and(|output| output.status.success());
        mounted.then_some(SmallDisk { path })
    }

    fn resize(&self, size: &str) {
        let remounted = Command::new("mount")
            .args(["-o", &format!("remount,{size}")])
            .arg(&self.path)
            .status();
        assert!(remounted.unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount")
            .arg("--lazy")
            .arg(&self.path)
            .status();
    }
}

#[test]
fn a_waiting_core_is_notified_when_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    // Each write waits for its sync, so entries arrive much faster than they are written.
    let options = Options {
        backlog_bytes_max: 100_000,
        ..options(Fsync::Always)
    };
    let (journal, _) = Journal::open(folder.path(), options, &mut |_| ()).unwrap();
    let calls = Arc::new(AtomicU64::new(0));
    let (room, rooms) = std::sync::mpsc::channel();
    let counted = calls.clone();
    let mut producer = journal.producer(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let _ = room.send(());
    });
    let value = [7; 1000];
    for n in 0..20_000u64 {
        while !producer.has_room() {
            rooms.recv().unwrap();
        }
        producer.append(put(&n.to_be_bytes(), &value)).unwrap();
        producer.commit();
        assert!(journal.sizes().backlog_bytes <= 102_000);
    }
    assert!(calls.load(Ordering::Relaxed) > 0, "it never had to wait");
}
