use std::collections::BTreeSet;

use larder_validate::set::{Read, Sketch, Write, judge, judge_apart};
use larder_validate::{Span, Verdict};

use crate::brute;
use crate::random::{Random, rounds};

fn write(element: u64, member: bool, start: u64, end: u64) -> Write {
    Write {
        span: Span::new(start, end).unwrap(),
        element,
        member,
    }
}

fn verdict(initial: &[u64], writes: &[Write], span: (u64, u64), list: &[u64]) -> Verdict {
    let span = Span::new(span.0, span.1).unwrap();
    judge(
        9,
        1,
        initial,
        writes,
        &[Read {
            span,
            sketch: Sketch::of(9, 1, list.iter().copied()),
        }],
    )[0]
}

#[test]
fn the_right_number_of_wrong_members_is_found() {
    let writes = [write(3, true, 1, 2)];
    assert_eq!(
        verdict(&[1, 2], &writes, (5, 6), &[3, 2, 1]),
        Verdict::Acceptable
    );
    assert_eq!(
        verdict(&[1, 2], &writes, (5, 6), &[1, 2, 4]),
        Verdict::Unacceptable
    );
    assert_eq!(
        verdict(&[1, 2], &writes, (5, 6), &[1, 2, 2]),
        Verdict::Unacceptable
    );
    assert_eq!(
        verdict(&[1, 2], &writes, (5, 6), &[1, 2, 3, 2, 2]),
        Verdict::Unacceptable
    );
}

#[test]
fn a_fractured_list_is_found() {
    // 1 was removed before 2 was added: neither and each alone are states, but both together never were.
    let writes = [write(1, false, 2, 3), write(2, true, 5, 6)];
    for list in [&[1][..], &[], &[2]] {
        assert_eq!(verdict(&[1], &writes, (0, 9), list), Verdict::Acceptable);
    }
    assert_eq!(
        verdict(&[1], &writes, (0, 9), &[1, 2]),
        Verdict::Unacceptable
    );
}

#[test]
fn validation_equals_brute_force_over_all_orders() {
    let mut random = Random::new(5);
    for _ in 0..rounds(20_000, 200_000) {
        let stamps = random.pick(&[4, 8, 16]);
        let initial: Vec<u64> = (0..4).filter(|_| random.one_in(2)).collect();
        let writes: Vec<Write> = (0..random.below(6))
            .map(|_| {
                let start = random.below(stamps);
                let span = match random.below(8) {
                    0 => Span::unanswered(start),
                    size => Span::new(start, start + size / 2).unwrap(),
                };
                Write {
                    span,
                    element: random.below(4),
                    member: random.one_in(2),
                }
            })
            .collect();
        let start = random.below(stamps);
        let span = Span::new(start, start + random.below(6)).unwrap();
        let pairs: Vec<(Span, Write)> = writes.iter().map(|write| (write.span, *write)).collect();
        let expected = brute::states(
            &BTreeSet::from_iter(initial.iter().copied()),
            &pairs,
            span,
            &|set, write: &Write| {
                if write.member {
                    set.insert(write.element)
                } else {
                    set.remove(&write.element)
                };
            },
        );
        let lists: Vec<BTreeSet<u64>> = (0..32)
            .map(|bits| (0..5).filter(|element| bits >> element & 1 == 1).collect())
            .collect();
        let seed = random.next();
        let reads: Vec<Read> = lists
            .iter()
            .map(|list| Read {
                span,
                sketch: Sketch::of(seed, 7, list.iter().copied()),
            })
            .collect();
        let verdicts = judge(seed, 7, &initial, &writes, &reads);
        let apart: Vec<BTreeSet<bool>> = (0..5)
            .map(|element| {
                let own: Vec<(Span, bool)> = writes
                    .iter()
                    .filter(|write| write.element == element)
                    .map(|write| (write.span, write.member))
                    .collect();
                brute::states(&initial.contains(&element), &own, span, &|state, member| {
                    *state = *member
                })
            })
            .collect();
        for (list, read) in lists.iter().zip(&reads) {
            let possible =
                (0..5).all(|element| apart[element as usize].contains(&list.contains(&element)));
            let verdict = judge_apart(seed, 7, &initial, &writes, *read);
            assert_eq!(
                verdict == Verdict::Acceptable,
                possible,
                "{list:?} from {initial:?}, {writes:?}, read {span:?}"
            );
        }
        for (list, verdict) in lists.iter().zip(verdicts) {
            let wanted = if expected.contains(list) {
                Verdict::Acceptable
            } else {
                Verdict::Unacceptable
            };
            assert_eq!(
                verdict, wanted,
                "{list:?} from {initial:?}, {writes:?}, read {span:?}"
            );
        }
    }
}

#[test]
fn a_hundred_writes_in_flight_are_distinguished_and_two_hundred_are_undecided() {
    let unknown = |element| Write {
        span: Span::unanswered(1),
        element,
        member: true,
    };
    let seen: Vec<u64> = (0..100).filter(|element| element % 3 == 0).collect();
    let hundred: Vec<Write> = (0..100).map(unknown).collect();
    assert_eq!(verdict(&[], &hundred, (5, 6), &seen), Verdict::Acceptable);
    assert_eq!(
        verdict(&[], &hundred, (5, 6), &[&seen[..], &[1000]].concat()),
        Verdict::Unacceptable
    );
    assert_eq!(
        verdict(&[], &hundred, (5, 6), &[&seen[..], &[3, 3]].concat()),
        Verdict::Unacceptable
    );
    let many: Vec<Write> = (0..200).map(unknown).collect();
    assert_eq!(verdict(&[], &many, (5, 6), &seen), Verdict::Undecided);
}
