use larder_validate::bg_text::{InitialData, Kind, Line, parse};
use larder_validate::record::Record;
use larder_validate::report::{Class, Failure};
use larder_validate::trace::{Options, judge};

use crate::random::{Random, rounds};

const LOG: &str = "\
UPDATE,ACCEPTFRND,0,0,7,1,3,1,D,THAW
UPDATE,ACCEPTFRND,1,0,7,2,4,2,I,ACCEPT
READ,ACCEPTFRND,2,1,7,0,10,100,PROFILE
READ,ACCEPTFRND,2,1,7,5,10,101,PROFILE
READ,PENDFRND,3,1,7,-5,10,0,PENDING
READ,PENDFRND,3,1,8,5,10,null,PROFILE
READ,GRPSHORTEST,4,1,8,5,10,3#3,SHORTEST
READ,POSTCOMMENT,4,1,8,5,10,1,GETRESCOMMENT
";

#[test]
fn a_log_of_the_released_bg_is_validated_equally() {
    let lines: Vec<Line> = LOG.lines().map(|line| parse(line).unwrap()).collect();
    let records: Vec<Record> = lines
        .iter()
        .filter_map(|line| {
            if let Line::Call(record) = line {
                Some(*record)
            } else {
                None
            }
        })
        .collect();
    assert_eq!((lines[5], lines[6]), (Line::NoValue, Line::Graph));
    let loaded = InitialData {
        friends: 100,
        ..InitialData::default()
    };
    let report = judge(
        &records,
        &loaded,
        &Options {
            seed: 0,
            cores: 1,
            witnesses_max: 9,
        },
    );
    assert_eq!(
        (report.total.reads, report.writes, report.unpredictable()),
        (4, 2, 2)
    );
    assert_eq!((report.total.stale, report.total.never), (1, 1));
    let stale = report
        .witnesses
        .iter()
        .find(|witness| witness.item == Kind::Friends.item(7))
        .unwrap();
    // 101 requires the second write without the first, which was possible until the first ended, at 3.
    let class = Class::Stale {
        age_ns: 2,
        behind: 2,
    };
    assert_eq!(stale.failure, Failure::Class(class));
}

#[test]
fn invalid_log_lines_are_rejected_by_field_without_a_panic() {
    for (line, field) in [
        ("", 0),
        ("WRITE,ACCEPTFRND,0,0,7,1,3,1,D,THAW", 0),
        ("READ,FRIENDS,0,0,7,1,3,1,PROFILE", 1),
        ("READ,ACCEPTFRND,0,0,-7,1,3,1,PROFILE", 4),
        ("READ,ACCEPTFRND,0,0,7,4,3,1,PROFILE", 6),
        ("READ,ACCEPTFRND,0,0,7,1,3,one,PROFILE", 7),
        ("READ,ACCEPTFRND,0,0,7,1,3,1", 8),
        ("UPDATE,ACCEPTFRND,0,0,7,1,3,1,X,THAW", 8),
    ] {
        assert_eq!(parse(line).unwrap_err().field, field, "{line}");
    }
    let mut random = Random::new(10);
    for _ in 0..rounds(20_000, 500_000) {
        let mut line: Vec<char> = random
            .pick(&LOG.lines().collect::<Vec<_>>())
            .chars()
            .collect();
        for _ in 0..=random.below(4) {
            let at = random.below(line.len() as u64) as usize;
            line[at] = random.pick(&[',', '-', '9', 'é', ' ', 'n']);
        }
        let _ = parse(&String::from_iter(line));
    }
}
