//! Tests of validation: traces larger than memory, corrupted traces, full disks, and the logs of the original BG.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

use larder_bg::verdict::validate::{Bound, TraceFolder, judge_within};
use larder_validate::Span;
use larder_validate::record::{Encoder, Outcome, RECORD_SIZE, Record, RecordKind};
use larder_validate::report::{Level, Report};
use larder_validate::set::Sketch;
use larder_validate::trace::{Initial, Options};

const OPTIONS: Options = Options {
    seed: 3,
    cores: 2,
    witnesses_max: 10,
};

/// An initial state with two friends and two invitations each.
struct TwoElements;

impl Initial for TwoElements {
    fn count(&self, _: u64) -> i32 {
        2
    }

    fn set(&self, _: u64) -> Vec<u64> {
        vec![1, 2]
    }

    fn content(&self, _: u64) -> u64 {
        0
    }
}

/// Writes three files of calls on many members, with right and wrong answers. Returns the number of records.
fn write_traces(folder: &Path) -> u64 {
    let mut state = 7u64;
    let mut below = move |bound: u64| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 33) % bound
    };
    let mut count = 0;
    for file in 0..3 {
        let mut encoder = Encoder::default();
        let mut bytes = Encoder::header().to_vec();
        for call in 0..4_000 {
            let member = below(300);
            let start = 1_000 + call * 50 + below(200);
            let span = Span::new(start, start + below(300)).unwrap();
            let mut put = |kind: u64, what| {
                let item = (kind << 56) + member;
                bytes.extend(encoder.record(&Record {
                    item,
                    span,
                    session: file * 10_000 + call as u32,
                    action: 0,
                    outcome: Outcome::Done,
                    what,
                }));
                count += 1;
            };
            let element = 1 + below(4);
            let item = (1 << 56) + member;
            match below(5) {
                0 => put(1, RecordKind::PutElement(element)),
                1 => put(1, RecordKind::RemoveElement(element)),
                2 => put(
                    1,
                    RecordKind::ReadSet(Sketch::of(OPTIONS.seed, item, 1..1 + below(4))),
                ),
                _ => {
                    // One call with two records, which stay together.
                    put(1, RecordKind::ReadCount(1 + below(3) as i64));
                    put(2, RecordKind::ReadCount(2));
                }
            }
        }
        bytes.extend(encoder.footer());
        fs::write(folder.join(format!("worker-{file}.trace")), bytes).unwrap();
    }
    count
}

fn judged(folder: &Path, bound: &Bound) -> Result<Report, String> {
    judge_within(&TraceFolder::open(folder)?, &TwoElements, &OPTIONS, bound)
}

fn files_in(folder: &Path) -> usize {
    fs::read_dir(folder).unwrap().count()
}

#[test]
fn splitting_on_disk_gives_the_same_report_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let count = write_traces(folder.path());
    let complete = judged(folder.path(), &Bound::new(1 << 30, folder.path())).unwrap();
    assert_eq!(complete.total.reads + complete.writes, count);
    assert!(complete.unpredictable() > 1000 && complete.level(Level::Joint).judged > 100);
    for memory in [count * 256 - 1, 1_000_000, 50_000, 20_000] {
        // The bound is too small for the trace, so it is split into files, which are removed afterwards.
        let parts = judged(folder.path(), &Bound::new(memory, folder.path())).unwrap();
        assert_eq!(parts, complete, "{memory}");
        assert_eq!(files_in(folder.path()), 3);
    }
    let error = judged(folder.path(), &Bound::new(100, folder.path())).unwrap_err();
    assert!(error.contains("use at least --memory 1M"), "{error}");
}

#[test]
fn truncated_or_corrupted_traces_are_rejected_by_name() {
    let folder = tempfile::tempdir().unwrap();
    write_traces(folder.path());
    let path = folder.path().join("worker-1.trace");
    let complete = fs::read(&path).unwrap();
    let refuse = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        for memory in [1 << 30, 200_000] {
            let error = judged(folder.path(), &Bound::new(memory, folder.path()));
            let error = error.expect_err("a damaged trace is rejected");
            assert!(error.contains("worker-1.trace"), "{error}");
            assert_eq!(files_in(folder.path()), 3);
        }
    };
    for size in [
        0,
        1,
        64,
        100,
        128,
        complete.len() - 1,
        complete.len() - RECORD_SIZE,
    ] {
        refuse(&complete[..size]);
    }
    for at in [
        3,
        9,
        70,
        complete.len() / 2,
        complete.len() - 60,
        complete.len() - 50,
    ] {
        let mut flipped = complete.clone();
        flipped[at] ^= 4;
        refuse(&flipped);
    }
}

/// Creates the file of a part.
type Create = fn(&Path) -> io::Result<Box<dyn Write>>;

/// A disk that is full after a few writes.
struct FullDisk(File, usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1 = self.1.checked_sub(1).ok_or(io::ErrorKind::StorageFull)?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_ends_validation_with_advice() {
    let folder = tempfile::tempdir().unwrap();
    write_traces(folder.path());
    let creators: [Create; 3] = [
        // Fails at the first write that reaches the disk, at a later write, or at the creation of the last part.
        |path| Ok(Box::new(FullDisk(File::create_new(path)?, 0))),
        |path| Ok(Box::new(FullDisk(File::create_new(path)?, 2))),
        |path| {
            if path.ends_with("part-009.trace") {
                Err(io::ErrorKind::StorageFull.into())
            } else {
                Ok(Box::new(File::create_new(path)?))
            }
        },
    ];
    for create in creators {
        let bound = Bound {
            create,
            ..Bound::new(400_000, folder.path())
        };
        let error = judged(folder.path(), &bound).unwrap_err();
        assert!(error.starts_with("cannot write "), "{error}");
        assert!(error.contains("--scratch"), "{error}");
        assert_eq!(files_in(folder.path()), 3);
    }
}

#[test]
fn logs_of_the_released_bg_can_be_validated() {
    let folder = tempfile::tempdir().unwrap();
    let log = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    log(
        "update0-0.txt",
        "UPDATE,ACCEPTFRND,0,0,7,1,3,1,D,THAW\nUPDATE,ACCEPTFRND,1,0,7,2,4,2,I,ACCEPT\n",
    );
    log(
        "read0-1.txt",
        "READ,ACCEPTFRND,2,1,7,0,10,100,PROFILE\nREAD,ACCEPTFRND,2,1,7,5,10,101,PROFILE\n\
         READ,PENDFRND,3,1,8,5,10,null,PROFILE\nREAD,GRPSHORTEST,4,1,8,5,10,3#3,SHORTEST\n",
    );
    let bg = |arguments: &[&str]| {
        let bg = Command::new(env!("CARGO_BIN_EXE_bg"))
            .arg("validate")
            .arg(folder.path())
            .args(arguments)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        // Validated, whatever the result.
        let done = bg.status.code() != Some(2);
        (done, text(bg.stdout), text(bg.stderr))
    };
    let (done, out, err) = bg(&["--format", "bg-text", "--initial", "ACCEPTFRND=100"]);
    assert!(done, "{err}");
    assert!(
        out.starts_with("2 reads beside 2 writes: 1 unpredictable (50.0000 %), 0 undecided\n"),
        "{out}"
    );
    assert!(
        out.contains("read ACCEPTFRND of 7 from 5 ns to 10 ns and saw 101: stale by 2 ns"),
        "{out}"
    );
    assert!(
        err.contains("1 reads logged without a value, 1 reads of the graph"),
        "{err}"
    );
    let (done, out, _) = bg(&["--format", "bg-text", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(done);
    assert_eq!(report["total"]["unpredictable"], 2);
    assert_eq!(report["levels"][0]["refused"], 2);
    assert_eq!(report["kinds"]["ACCEPTFRND"]["reads"], 2);

    log("read0-2.txt", "READ,ACCEPTFRND,2,1,7,0\n");
    let (done, _, err) = bg(&["--format", "bg-text"]);
    assert!(
        !done && err.contains("read0-2.txt: line 1: field 6"),
        "{err}"
    );
    let (done, _, err) = bg(&["--initial", "ACCEPTFRND=100"]);
    assert!(!done && err.contains("--format bg-text"), "{err}");
    let (done, _, err) = bg(&["--format", "bg-text", "--initial", "FRIENDS=1"]);
    assert!(!done && err.contains("is not ACCEPTFRND"), "{err}");
}
