use larder_validate::register::{Content, Registers};
use larder_validate::{Span, Verdict};

use crate::brute;
use crate::random::{Random, rounds};

fn content(value: u64, start: u64, end: u64) -> Content {
    Content {
        span: Span::new(start, end).unwrap(),
        value,
    }
}

fn may_see(initial: u64, writes: &[Content], read: Span) -> Vec<u64> {
    let writes: Vec<(Span, u64)> = writes
        .iter()
        .map(|write| (write.span, write.value))
        .collect();
    brute::states(&initial, &writes, read, &|state, value| *state = *value)
        .into_iter()
        .collect()
}

#[test]
fn judging_equals_trying_all_orders() {
    let mut random = Random(3);
    for _ in 0..rounds(20_000, 200_000) {
        let stamps = random.pick(&[4, 8, 16]);
        let values = random.pick(&[2, 4, 100]);
        let writes: Vec<Content> = (0..random.below(6))
            .map(|_| {
                let start = random.below(stamps);
                let span = match random.below(8) {
                    0 => Span::unanswered(start),
                    size => Span::new(start, start + size / 2).unwrap(),
                };
                Content {
                    span,
                    value: random.below(values),
                }
            })
            .collect();
        let start = random.below(stamps);
        let read = Span::new(start, start + random.below(4)).unwrap();
        let registers = Registers::new(0, &writes);
        let expected = may_see(0, &writes, read);
        for value in writes.iter().map(|write| write.value).chain([0, 1, 101]) {
            let acceptable = expected.contains(&value);
            let tell = || format!("{value} from {writes:?}, read {read:?}");
            let verdict = registers.judge(Content { span: read, value });
            assert_eq!(verdict == Verdict::Acceptable, acceptable, "{}", tell());
            let at = |instant| may_see(0, &writes, Span::new(instant, instant).unwrap());
            let last = (0..start)
                .rev()
                .find(|instant| at(*instant).contains(&value));
            assert_eq!(
                registers.last_acceptable_before(start, value),
                last,
                "{}",
                tell()
            );
        }
    }
}

#[test]
fn going_back_behind_what_was_seen_is_found_by_the_stronger_level_alone() {
    // One write in flight throughout: each read may see it or not, but not first the new and then the old.
    let writes = [content(1, 1, 2), content(2, 4, 20)];
    let reads = [content(2, 5, 6), content(1, 8, 9)];
    let plain = Registers::new(0, &writes);
    let tight = Registers::tightened(0, &writes, &reads);
    assert_eq!(
        reads.map(|read| plain.judge(read)),
        [Verdict::Acceptable; 2]
    );
    assert_eq!(
        reads.map(|read| tight.judge(read)),
        [Verdict::Acceptable, Verdict::Unacceptable]
    );
}

#[test]
fn the_stronger_level_accepts_whatever_a_correct_store_answers() {
    let mut random = Random(4);
    for _ in 0..rounds(5_000, 50_000) {
        // Each call takes effect at a point of its own within its interval; the store is one cell.
        let mut points: Vec<(u64, bool, Span)> = (0..8)
            .map(|_| {
                let point = 100 + random.below(40);
                let span = Span::new(point - random.below(12), point + random.below(12)).unwrap();
                (point, random.one_in(2), span)
            })
            .collect();
        points.sort_by_key(|call| call.0);
        let (mut cell, mut writes, mut reads) = (0, Vec::new(), Vec::new());
        for (index, (_, is_write, span)) in points.into_iter().enumerate() {
            if is_write {
                cell = index as u64 + 1;
                writes.push(Content { span, value: cell });
            } else {
                reads.push(Content { span, value: cell });
            }
        }
        let tight = Registers::tightened(0, &writes, &reads);
        for read in &reads {
            assert_eq!(
                tight.judge(*read),
                Verdict::Acceptable,
                "{read:?} of {writes:?} and {reads:?}"
            );
        }
    }
}
