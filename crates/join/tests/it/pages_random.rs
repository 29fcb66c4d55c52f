//! A page of several joins: after any writes, evictions and other reads, it equals the result of the same joins in a
//! new engine with the same rows.

use std::ops::ControlFlow;

use larder_join::{Engine, Limits, ReadOutcome};

use crate::random::Random;

/// A news site's article: its text, its score, its comments and their number, and the karma of each commenter.
const JOINS: [&str; 7] = [
    "score|<author:2>|<seq:2> = count vote|<author>|<seq>|<voter:2>",
    "karma|<author:2> = count vote|<author>|<seq:2>|<voter:2>",
    "page|<author:2>|<seq:2>|a = copy article|<author>|<seq>",
    "page|<author:2>|<seq:2>|b = copy score|<author>|<seq>",
    "page|<author:2>|<seq:2>|d = count comment|<author>|<seq>|<number:2>|<by:2>",
    "page|<author:2>|<seq:2>|c|<number:2>|<by:2> = copy comment|<author>|<seq>|<number>|<by>",
    "page|<author:2>|<seq:2>|k|<number:2>|<by:2> = check comment|<author>|<seq>|<number>|<by> copy karma|<by>",
];

type Rows = Vec<(String, String)>;

fn read(engine: &mut Engine, lo: &str, hi: &str, limits: Limits) -> Rows {
    let mut rows = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let outcome = engine.range(
        lo.as_bytes(),
        hi.as_bytes(),
        limits,
        0,
        &mut |key, value| {
            rows.push((text(key), text(value)));
            ControlFlow::Continue(())
        },
    );
    assert_eq!(outcome, Ok(ReadOutcome::Done(())));
    rows
}

fn declare(engine: &mut Engine) {
    for (number, definition) in JOINS.iter().enumerate() {
        engine
            .create(&format!("j{number}"), definition, 0)
            .expect("create");
    }
}

fn run(seed: u64) -> u64 {
    let mut random = Random::new(seed);
    let (mut engine, mut model) = (Engine::new(), Engine::new());
    declare(&mut engine);
    declare(&mut model);
    let mut log = vec![format!("seed {seed}")];
    let id = |random: &mut Random| ["aa", "ab", "b1"][random.below(3)].to_owned();
    for _ in 0..150 {
        let page = format!("{}|{}", id(&mut random), id(&mut random));
        let key = match random.below(4) {
            0 => format!("article|{page}"),
            1 => format!("vote|{page}|{}", id(&mut random)),
            _ => format!("comment|{page}|{}|{}", id(&mut random), id(&mut random)),
        };
        match random.below(20) {
            0..=4 => {
                let value = format!("value {}", random.below(10));
                log.push(format!("put {key} {value}"));
                for engine in [&mut engine, &mut model] {
                    engine
                        .put(key.as_bytes(), value.as_bytes(), 0)
                        .expect("put");
                }
            }
            5..=7 => {
                log.push(format!("remove {key}"));
                for engine in [&mut engine, &mut model] {
                    engine.remove(key.as_bytes(), 0).expect("remove");
                }
            }
            8 if random.chance(20) => {
                log.push("evict".into());
                engine.evict_all();
            }
            9 if random.chance(20) => {
                let dropped = random.below(JOINS.len());
                log.push(format!("drop and create {dropped}"));
                for engine in [&mut engine, &mut model] {
                    let name = format!("j{dropped}");
                    // The joins that read it are dropped with what they computed, and filled again.
                    engine.drop_join(&name).expect("there");
                    engine.create(&name, JOINS[dropped], 0).expect("create");
                }
            }
            at => {
                let (lo, hi) = match at {
                    10 => ("page|".to_owned(), "page}".to_owned()),
                    11 => (
                        format!("page|{}|", &page[..2]),
                        format!("page|{}}}", &page[..2]),
                    ),
                    12 => (format!("page|{page}|c|"), format!("page|{page}|c}}")),
                    13 => (format!("page|{page}|b"), format!("page|{page}|k|ab")),
                    14 | 15 => {
                        let ends = ["", "a", "b", "b|", "c", "c|ab", "c}", "d", "k", "k}", "z"];
                        let end = ends[random.below(ends.len())];
                        (format!("page|{page}|"), format!("page|{page}|{end}"))
                    }
                    _ => (format!("page|{page}|"), format!("page|{page}}}")),
                };
                let limits = Limits {
                    limit: random.chance(20).then(|| random.below(4) as u64),
                    reverse: random.chance(30),
                    keys_only: random.chance(10),
                    ..Limits::default()
                };
                let limits = Limits {
                    total_limit: limits.limit.filter(|_| random.chance(50)),
                    ..limits
                };
                log.push(format!("read {lo} {hi} {limits:?}"));
                model.evict_all();
                let expected = read(&mut model, &lo, &hi, limits);
                let got = read(&mut engine, &lo, &hi, limits);
                assert_eq!(got, expected, "{}", log.join("\n"));
                let count = engine.count(lo.as_bytes(), hi.as_bytes(), 0);
                let all = read(&mut model, &lo, &hi, Limits::default());
                let expected = Ok(ReadOutcome::Done(all.len() as u64));
                assert_eq!(count, expected, "{}", log.join("\n"));
            }
        }
    }
    engine.pages_read()
}

#[test]
fn a_page_of_several_joins_equals_the_recomputed_rows() {
    let pages: u64 = (0..150).map(run).sum();
    assert!(pages > 2_000, "{pages} pages were read by their groups");
}
