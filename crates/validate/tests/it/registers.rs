use larder_validate::register::{Content, Registers, judge_together};
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
fn validation_equals_brute_force_over_all_orders() {
    let mut random = Random::new(3);
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
fn only_the_stronger_level_detects_reads_that_go_back() {
    // One write is in flight throughout: a read may see it or not, but not first the new content and then the old.
    let writes = [content(1, 1, 2), content(2, 4, 20)];
    let reads = [content(2, 5, 6), content(1, 8, 9)];
    let plain = Registers::new(0, &writes);
    assert_eq!(
        reads.map(|read| plain.judge(read)),
        [Verdict::Acceptable; 2]
    );
    assert_eq!(
        judge_together(&plain, &writes, &reads),
        [Verdict::Acceptable, Verdict::Unacceptable]
    );
}

#[test]
fn two_writes_that_were_never_ordered_may_not_take_turns() {
    // Either may have been the later one, but not both.
    let writes = [content(1, 0, 10), content(2, 0, 10)];
    let reads = [content(1, 11, 12), content(2, 13, 14), content(1, 15, 16)];
    let registers = Registers::new(0, &writes);
    assert_eq!(
        judge_together(&registers, &writes, &reads),
        [
            Verdict::Acceptable,
            Verdict::Unacceptable,
            Verdict::Acceptable
        ]
    );
}

#[test]
fn the_stronger_level_decides_whether_one_order_explains_all_calls() {
    let mut random = Random::new(11);
    let mut refused = 0;
    for _ in 0..rounds(20_000, 100_000) {
        let stamps = random.pick(&[6, 10, 20]);
        let span = |random: &mut Random| {
            let start = random.below(stamps);
            Span::new(start, start + random.pick(&[0, 1, 3, 8])).unwrap()
        };
        let writes: Vec<Content> = (0..1 + random.below(3))
            .map(|index| {
                let span = span(&mut random);
                let unknown = random.one_in(6);
                Content {
                    span: if unknown {
                        Span::unanswered(span.start())
                    } else {
                        span
                    },
                    value: index + 1,
                }
            })
            .collect();
        let registers = Registers::new(0, &writes);
        let reads: Vec<Content> = (0..1 + random.below(4))
            .map(|_| Content {
                span: span(&mut random),
                value: random.below(writes.len() as u64 + 1),
            })
            .filter(|read| registers.judge(*read) == Verdict::Acceptable)
            .collect();
        let verdicts = judge_together(&registers, &writes, &reads);
        let kept = |wanted: bool| {
            let reads = reads.iter().zip(&verdicts);
            let kept = reads.filter(move |(_, verdict)| wanted || **verdict == Verdict::Acceptable);
            let kept = kept.map(|(read, _)| (read.span, Call::Read(read.value)));
            let writes = writes
                .iter()
                .map(|write| (write.span, Call::Write(write.value)));
            writes.chain(kept).collect::<Vec<_>>()
        };
        let apply = |state: &u64, call: &Call| match call {
            Call::Write(value) => Some(*value),
            Call::Read(value) => (state == value).then_some(*state),
        };
        let all = verdicts
            .iter()
            .all(|verdict| *verdict == Verdict::Acceptable);
        let tell = || format!("{writes:?}, {reads:?}: {verdicts:?}");
        assert_eq!(brute::has_order(&0, &kept(true), &apply), all, "{}", tell());
        assert!(brute::has_order(&0, &kept(false), &apply), "{}", tell());
        refused += u64::from(!all);
    }
    assert!(refused > 100, "{refused}");
}

enum Call {
    Write(u64),
    Read(u64),
}

#[test]
fn the_stronger_level_accepts_every_reply_of_a_correct_store() {
    let mut random = Random::new(4);
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
        let verdicts = judge_together(&Registers::new(0, &writes), &writes, &reads);
        assert_eq!(
            verdicts,
            vec![Verdict::Acceptable; reads.len()],
            "{writes:?} and {reads:?}"
        );
    }
}
