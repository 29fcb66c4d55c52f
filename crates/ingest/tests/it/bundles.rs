//! Rows that an engine shuffles in bundles: each arrives once; and damaged bundles.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, BinaryArray, Int32Array, RecordBatch, StringArray};
use larder_ingest::{
    BUNDLE_COLUMN, Batches, BundleOptions, InputOptions, RowSink, SinkError, TARGET_COLUMN,
    ValueSpec, assemble, bundle_of, ingest_bundles, rows_of_bundle,
};
use larder_types::Random;

const PARTITIONS: usize = 7;

/// Returns the partition: the first digit of the key.
fn partition_of(key: &[u8]) -> u32 {
    u32::from(key[0] - b'0')
}

fn target_of(partition: usize) -> i32 {
    100 + partition as i32
}

type Rows = BTreeMap<String, String>;

fn rows(count: usize, random: &mut Random) -> Rows {
    let mut row = |number| {
        let partition = random
            .below(PARTITIONS as u64)
            .min(random.below(PARTITIONS as u64));
        let size = match random.below(50) {
            0 => 5_000,
            _ => random.below(200) as usize,
        };
        (format!("{partition}-{number}"), "v".repeat(size))
    };
    (0..count).map(&mut row).collect()
}

fn frame(rows: &Rows, rows_a_batch: usize) -> Batches {
    let (keys, values): (Vec<&String>, Vec<&String>) = rows.iter().unzip();
    let batches: Vec<RecordBatch> = keys
        .chunks(rows_a_batch)
        .zip(values.chunks(rows_a_batch))
        .map(|(keys, values)| {
            let column =
                |of: &[&String]| -> ArrayRef { Arc::new(StringArray::from_iter_values(of)) };
            RecordBatch::try_from_iter([("k", column(keys)), ("v", column(values))])
                .expect("two columns of a length")
        })
        .collect();
    Batches::new(batches[0].schema(), batches)
}

fn bundles(rows: &Rows, bundle_bytes_max: usize, open_bytes_max: usize) -> Vec<RecordBatch> {
    let options = InputOptions {
        key: vec!["k".into()],
        value: ValueSpec::Column("v".into()),
        ..InputOptions::default()
    };
    let bundling = BundleOptions {
        partition_of: Box::new(partition_of),
        write_value: Box::new(|value, out| out.extend_from_slice(value)),
        targets: (0..PARTITIONS).map(target_of).collect(),
        bundle_bytes_max,
        open_bytes_max,
    };
    let made = assemble(frame(rows, 100), options, bundling).expect("the columns are there");
    made.collect::<Result<_, _>>().expect("the rows are good")
}

#[derive(Clone, Default)]
struct CollectSink(Arc<Mutex<Vec<(String, String)>>>);

impl RowSink for CollectSink {
    fn row(&mut self, _: u64, key: &[u8], value: &[u8]) -> Result<(), SinkError> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
        let mut rows = self.0.lock().expect("no panic");
        rows.push((text(key), text(value)));
        Ok(())
    }
}

fn read(batches: Vec<RecordBatch>, threads: usize) -> Result<Vec<(String, String)>, String> {
    let kept = CollectSink::default();
    let batches = Batches::new(batches[0].schema(), batches);
    let sink = || -> Result<Box<dyn RowSink>, SinkError> { Ok(Box::new(kept.clone())) };
    let done = ingest_bundles(batches, threads, &sink).map_err(|error| error.to_string())?;
    let rows = std::mem::take(&mut *kept.0.lock().expect("no panic"));
    assert_eq!(done.rows, rows.len() as u64);
    Ok(rows)
}

#[test]
fn every_row_is_in_one_bundle_of_its_partition() {
    let mut random = Random::new(3);
    for (bundle_bytes, open_bytes) in [
        (1 << 16, 1 << 20),
        (1 << 16, 7 << 10),
        (1 << 10, 1 << 20),
        (0, 0),
    ] {
        let rows = rows(3_000, &mut random);
        let made = bundles(&rows, bundle_bytes, open_bytes);
        let room = bundle_bytes.min(open_bytes / PARTITIONS);
        let mut count = 0;
        for batch in &made {
            let targets = batch.column_by_name(TARGET_COLUMN).expect("the column");
            let bundles = batch.column_by_name(BUNDLE_COLUMN).expect("the column");
            let bundles = bundles.as_binary::<i32>().iter().flatten();
            for (target, bundle) in targets
                .as_primitive::<Int32Type>()
                .values()
                .iter()
                .zip(bundles)
            {
                let rows: Vec<_> = rows_of_bundle(bundle)
                    .map(|row| row.expect("whole"))
                    .collect();
                assert!(
                    bundle.len() <= room || rows.len() == 1,
                    "{} bytes",
                    bundle.len()
                );
                for (key, _) in rows {
                    assert_eq!(target_of(partition_of(key) as usize), *target);
                }
                count += 1;
            }
        }
        match room {
            0 => assert_eq!(count, rows.len()),
            _ => assert!(count < rows.len() / 2, "{count} bundles"),
        }
        for threads in [1, 3] {
            let mut back = read(made.clone(), threads).expect("they are whole");
            back.sort();
            assert_eq!(back, rows.clone().into_iter().collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_damaged_or_missing_bundle_is_rejected() {
    let complete = bundle_of([(&b"k"[..], &b"v"[..])]);
    let batch = |name: &str, column: ArrayRef| {
        vec![RecordBatch::try_from_iter([(name, column)]).expect("a column")]
    };
    let of = |bytes: &[u8]| batch(BUNDLE_COLUMN, Arc::new(BinaryArray::from_vec(vec![bytes])));
    assert_eq!(read(of(&complete), 1), Ok(vec![("k".into(), "v".into())]));
    for wrong in [
        of(&complete[..complete.len() - 1]),
        of(b"\xff\xff\xff\xff"),
        batch(BUNDLE_COLUMN, Arc::new(Int32Array::from(vec![1]))),
        batch(
            BUNDLE_COLUMN,
            Arc::new(BinaryArray::from_opt_vec(vec![None])),
        ),
        batch("rows", Arc::new(BinaryArray::from_vec(vec![&complete]))),
    ] {
        let refused = read(wrong, 1).expect_err("it is no bundle");
        assert!(refused.contains("a bundle of rows is damaged"), "{refused}");
    }
}
