//! Batches that two cores write concurrently, with crashes at all kinds of moments: such a batch is atomic, also for
//! every later start, and the surrounding writes of the cores keep their order.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use larder_journal::{AppendOutcome, Entry, Fsync, Journal, Options, Producer, Ticket, Writer};

use crate::model_disk::{ModelDisk, Random};
use crate::rows::Rows;

struct Batch {
    number: u64,
    /// The number of parts that each core still has to write.
    left: [u64; 2],
    keys: Vec<Vec<u8>>,
}

fn open(disk: &ModelDisk, rows: &mut Rows) -> (Journal, Writer, [Producer; 2]) {
    let options = Options {
        fsync: Fsync::EverySecond,
        ..Options::default()
    };
    let disk = Arc::new(disk.clone());
    let (journal, writer, _) = Journal::open_stepped(disk, Path::new("j"), options, &mut |entry| {
        rows.apply(entry)
    })
    .unwrap();
    let producers = [journal.producer(|| ()), journal.producer(|| ())];
    (journal, writer, producers)
}

fn put(producer: &mut Producer, batch: Option<u64>, key: &[u8], value: u64) -> Ticket {
    let entry = Entry::Put {
        key,
        value: &value.to_be_bytes(),
        deadline_ms: None,
    };
    let mut one = producer.batch();
    match batch {
        Some(batch) => one.add_part(batch, entry).unwrap(),
        None => one.add(entry).unwrap(),
    }
    one.end().unwrap()
}

#[test]
fn a_batch_of_two_cores_is_recovered_completely_or_not_at_all() {
    let (mut kept, mut dropped) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let disk = ModelDisk::new(seed);
        let (journal, mut writer, mut cores) = open(&disk, &mut Rows::default());
        let mut journal = Some(journal);
        let (mut serial, mut round) = (0u64, 0u8);
        let mut before: BTreeMap<Vec<u8>, _> = BTreeMap::new();
        for _ in 0..4 {
            round += 1;
            let mut batches: Vec<Batch> = Vec::new();
            // The keys of each batch that ended, and the ticket of its end.
            let mut ended: Vec<(Vec<Vec<u8>>, Ticket)> = Vec::new();
            // The values of a key that one core overwrites repeatedly outside of batches, each with its ticket.
            let mut alone: Vec<(Ticket, u64)> = Vec::new();
            disk.crash_at(Some(1 + random.below(40) as u64));
            for _ in 0..60 {
                serial += 1;
                match random.below(8) {
                    0 => batches.push(Batch {
                        number: cores[0].new_shared_batch(),
                        left: [1 + random.below(3) as u64, 1 + random.below(3) as u64],
                        keys: Vec::new(),
                    }),
                    1..=3 if !batches.is_empty() => {
                        let at = random.below(batches.len());
                        let core = random.below(2);
                        if batches[at].left[core] > 0 {
                            batches[at].left[core] -= 1;
                            let key = [&[b'p', round][..], &serial.to_be_bytes()].concat();
                            put(&mut cores[core], Some(batches[at].number), &key, serial);
                            batches[at].keys.push(key);
                        }
                        if batches[at].left == [0, 0] {
                            let batch = batches.remove(at);
                            cores.iter_mut().for_each(Producer::commit);
                            let number = batch.number;
                            let entry = Entry::Commit { batch: number };
                            ended.push((batch.keys, cores[0].append(entry).unwrap()));
                        }
                    }
                    4 | 5 => alone.push((put(&mut cores[1], None, b"alone", serial), serial)),
                    6 => cores[random.below(2)].commit(),
                    _ => drop(writer.step()),
                }
                if disk.crashed() {
                    break;
                }
            }
            let is_done = |core: &Producer, ticket| core.outcome(ticket) == AppendOutcome::Done;
            let sure: Vec<bool> = ended.iter().map(|(_, t)| is_done(&cores[0], *t)).collect();
            let least = alone.iter().rfind(|(t, _)| is_done(&cores[1], *t));
            let least = least.map(|(_, value)| *value);
            std::mem::forget(journal.take());
            let machine = random.one_in(2);
            if machine {
                disk.restart(&mut random)
            } else {
                disk.restart_process()
            }
            let mut rows = Rows::default();
            let (opened, opened_writer, opened_cores) = open(&disk, &mut rows);
            (journal, writer, cores) = (Some(opened), opened_writer, opened_cores);
            for ((keys, _), sure) in ended.iter().zip(sure) {
                let found = keys.iter().filter(|key| rows.rows.contains_key(*key));
                let found = found.count();
                assert!(
                    found == 0 || found == keys.len(),
                    "seed {seed}: half a batch"
                );
                assert!(found > 0 || !sure || machine, "seed {seed}: lost");
                kept += u64::from(found > 0);
                dropped += u64::from(found == 0);
            }
            for key in batches.iter().flat_map(|batch| &batch.keys) {
                assert!(!rows.rows.contains_key(key), "seed {seed}: it never ended");
                dropped += 1;
            }
            if let (Some(least), false) = (least, machine) {
                let (value, _) = &rows.rows[&b"alone"[..]];
                let value = u64::from_be_bytes(value[..].try_into().unwrap());
                assert!(value >= least, "seed {seed}: {value} is before {least}");
            }
            // Each start finds the parts that earlier starts found.
            let parts = rows.rows.iter().filter(|(key, _)| key[0] == b'p');
            let parts: BTreeMap<_, _> = parts.map(|(k, v)| (k.clone(), v.clone())).collect();
            let earlier = |key: &[u8]| key[1] < round;
            let found: Vec<_> = parts.keys().filter(|key| earlier(key)).collect();
            assert_eq!(found, before.keys().collect::<Vec<_>>(), "seed {seed}");
            before = parts;
        }
        std::mem::forget(journal);
    }
    assert!(
        kept > 200 && dropped > 200,
        "{kept} kept, {dropped} dropped"
    );
}

/// A part in an older log whose batch ends in the next one; and one whose batch never ends.
#[test]
fn batches_end_in_a_later_log_or_are_aborted_by_the_next_start() {
    let disk = ModelDisk::new(1);
    let (journal, mut writer, mut cores) = open(&disk, &mut Rows::default());
    let (first, second) = (cores[0].new_shared_batch(), cores[0].new_shared_batch());
    put(&mut cores[0], Some(first), b"first", 1);
    put(&mut cores[1], Some(second), b"second", 1);
    put(&mut cores[1], None, b"after", 1);
    cores.iter_mut().for_each(Producer::commit);
    // An abandoned snapshot leaves a new log.
    let (parts, _maker) = journal.begin_snapshot_stepped(1).unwrap();
    writer.step();
    cores[1].append(Entry::Commit { batch: first }).unwrap();
    cores[1].commit();
    std::mem::forget((journal, parts));
    for start in 0..3 {
        disk.restart_process();
        let mut rows = Rows::default();
        let (journal, _, mut cores) = open(&disk, &mut rows);
        let keys: Vec<_> = rows.rows.keys().map(Vec::as_slice).collect();
        match start {
            0 => assert_eq!(keys, [&b"after"[..], b"first"]),
            _ => assert_eq!(keys, [&b"after"[..], b"first", b"later"]),
        }
        put(&mut cores[0], None, b"later", start);
        cores[0].commit();
        std::mem::forget(journal);
    }
    let mut abandoned = 0;
    for name in disk.names().into_iter().filter(|it| it.starts_with("log")) {
        let path = Path::new("j").join(name);
        let file = larder_journal::Disk::open(&disk, &path).unwrap();
        larder_journal::scan_log(&path, file.as_ref(), &mut |entry| {
            abandoned += u32::from(matches!(entry, Entry::Abort { .. }));
        })
        .unwrap();
    }
    assert_eq!(abandoned, 1, "only the first start has to say so");
}
