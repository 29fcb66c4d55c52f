//! Objects are written, changed and removed at random over several connections. Searches must find exactly the
//! objects that a scan with the query's predicate finds.

use std::collections::BTreeMap;

use larder_space::object::{Hash, Object};
use larder_space::query::{Params, matches, parse};
use larder_space::schema::Definition;
use larder_space::value::Row;
use larder_types::Random;

use super::{call, call_all, search_keys, server};
use crate::resp::Client;

const SCHEMA: &str = "things PREFIX 1 thing: SCHEMA color TAG size NUMERIC note TEXT";

/// The same schema, with copies in regions by color and by size.
const WITH_SUBSPACES: &str = "things PREFIX 1 thing: SUBSPACES 2 color size REGIONS 16 SCHEMA color TAG size NUMERIC note TEXT";

const QUERIES: [&str; 12] = [
    "*",
    "@color:{red}",
    "@color:{red|blue}",
    "-@color:{red}",
    "@size:[3 7]",
    "@size:[(3 (7] @color:{green}",
    "@size>5 | @color:{blue}",
    "@note:large",
    "lar*",
    "@color:{b*} -@size:[0 4]",
    "@note:(small | large) @size:[-inf 5]",
    "@size:[5 5]",
];

/// Returns random fields of an object.
fn fields(random: &mut Random) -> Vec<(&'static str, String)> {
    let mut fields = Vec::new();
    let colors = ["red", "blue", "green,red", "", "black"];
    if random.below(8) > 0 {
        fields.push(("color", colors[random.below(5) as usize].to_owned()));
    }
    if random.below(8) > 0 {
        fields.push(("size", random.below(10).to_string()));
    }
    let notes = ["a large thing", "small", "largely small"];
    fields.push(("note", notes[random.below(3) as usize].to_owned()));
    fields
}

#[test]
fn searches_match_a_full_scan() {
    for seed in 0..4 {
        walk(seed, 1 + seed as usize % 3, SCHEMA, 0, None);
    }
}

#[test]
fn searches_in_regions_match_a_full_scan() {
    let mut answers = 0;
    for seed in 10..14 {
        answers += walk(seed, 2 + seed as usize % 2, WITH_SUBSPACES, 0, None);
    }
    assert!(answers > 50, "{answers} answers from regions");
}

#[test]
fn searches_match_a_full_scan_while_subspaces_are_recut() {
    let answers = walk(12, 2, WITH_SUBSPACES, 1100, None);
    assert!(answers > 10, "{answers} answers from regions");
}

#[test]
fn searches_match_a_full_scan_while_subspaces_change() {
    let (mut answers, mut switches) = (0, 0);
    for (seed, filled) in [(20, 0), (21, 0), (22, 1100)] {
        let schema = if seed == 21 { SCHEMA } else { WITH_SUBSPACES };
        let threads = 2 + seed as usize % 2;
        answers += walk(seed, threads, schema, filled, Some(&mut switches));
    }
    assert!(answers > 50, "{answers} answers from regions");
    assert!(switches > 10, "{switches} switches");
}

/// Starts a random change of subspaces, cancels one, or switches to it. Returns whether searches switched.
fn alter(client: &mut Client, random: &mut Random) -> bool {
    let lists = [
        "SUBSPACES 2 color size",
        "SUBSPACES 1 size:3,color:1",
        "SUBSPACES 3 note color size REGIONS 64",
        "SUBSPACES 0",
        "SUBSPACES CANCEL",
        "SUBSPACES SWITCH",
        "SUBSPACES SWITCH",
        "SUBSPACES SWITCH",
        "SUBSPACES SWITCH",
    ];
    let list = lists[random.below(lists.len() as u64) as usize];
    let line = format!("FT.ALTER things {list}");
    let reply = call(client, &line.split(' ').collect::<Vec<_>>());
    let is_refused = [
        "already has these subspaces",
        "are already being changed",
        "are being filled",
        "regions are complete: send the command again",
    ];
    assert!(
        reply == "+OK" || is_refused.iter().any(|why| reply.contains(why)),
        "{line}: {reply}"
    );
    reply == "+OK" && list.ends_with("SWITCH")
}

/// Writes many objects in pipelines, all with one color, and with sizes from `sizes` on.
fn fill(client: &mut Client, model: &mut BTreeMap<String, Hash>, count: u64, sizes: u64) {
    let things = (0..count).map(|number| {
        let size = sizes + number % 7;
        (format!("thing:x{number}"), size.to_string())
    });
    let mut requests = Vec::new();
    for (key, size) in things {
        let hash = model.entry(key.clone()).or_default();
        hash.set(b"color", "green");
        hash.set(b"size", size.as_bytes());
        requests.push(
            ["HSET", &key, "color", "green", "size", &size]
                .map(str::to_owned)
                .to_vec(),
        );
    }
    let replies = call_all(client, &requests);
    assert!(replies.iter().all(|reply| reply.starts_with(':')));
}

/// Executes random writes, changes, removals and searches. Returns the number of replies that came from regions.
///
/// `filled` is the number of objects that exist from the start. If it is not 0, the walk continues until subspaces
/// were cut by these objects, and again after all of them have changed. With `switches`, subspaces change meanwhile,
/// and completed switches are added to it.
fn walk(
    seed: u64,
    threads: usize,
    schema: &str,
    filled: u64,
    mut switches: Option<&mut u64>,
) -> u64 {
    let mut answers = 0;
    let mut random = Random::new(seed);
    let mut server = server(threads);
    let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
    let words: Vec<&str> = schema.split(' ').collect();
    let definition = words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>();
    let definition = Definition::parse_create(&definition).expect("it fits");
    let mut model: BTreeMap<String, Hash> = BTreeMap::new();
    let declared_at = random.below(100);
    fill(&mut clients[0], &mut model, filled, 0);
    let (mut cuts, mut sizes) = (0.0, 0);
    for step in 0.. {
        // Filling new subspaces takes time, more so on a busy machine.
        let steps = if switches.is_some() { 1500 } else { 600 };
        if step >= steps && (filled == 0 || cuts >= 2.0 || switches.is_some()) {
            break;
        }
        assert!(step < 100_000, "seed {seed}: cut {cuts} times");
        if filled > 0 && step > declared_at && step % 10 == 0 {
            let text = super::info_number(&mut clients[0], "things", "cuts");
            // Without subspaces, FT.INFO does not report the number of cuts.
            assert!(text.is_some() || switches.is_some());
            cuts = text.unwrap_or(cuts);
            if sizes == 0 && cuts > 0.0 {
                sizes = 100;
                fill(&mut clients[0], &mut model, filled, sizes);
            }
        }
        if step == declared_at {
            let create: Vec<&str> = ["FT.CREATE"].into_iter().chain(words.clone()).collect();
            assert_eq!(call(&mut clients[0], &create), "+OK");
            super::wait_until_indexed(&mut clients[0], "things");
        }
        if let Some(switches) = switches
            .as_mut()
            .filter(|_| step > declared_at && step % 5 == 0)
        {
            **switches += u64::from(alter(&mut clients[random.below(3) as usize], &mut random));
        }
        let client = &mut clients[random.below(3) as usize];
        let prefix = if random.below(10) == 0 {
            "other"
        } else {
            "thing"
        };
        let key = format!("{prefix}:{}", random.below(60));
        match random.below(10) {
            0..=5 => {
                let fields = fields(&mut random);
                let mut words = vec!["HSET", &key];
                let hash = model.entry(key.clone()).or_default();
                for (name, value) in &fields {
                    words.extend([name, value.as_str()]);
                    hash.set(name.as_bytes(), value.as_bytes());
                }
                assert!(call(client, &words).starts_with(':'));
            }
            6 => {
                let reply = call(client, &["HDEL", &key, "size", "color"]);
                assert!(reply.starts_with(':'), "{reply}");
                if let Some(hash) = model.get_mut(&key) {
                    hash.fields.retain(|field| field.name == b"note");
                }
            }
            7 => {
                let was_there = model.remove(&key).is_some();
                assert_eq!(
                    call(client, &["DEL", &key]),
                    format!(":{}", u8::from(was_there))
                );
            }
            _ if step < declared_at => {}
            _ => {
                let query = QUERIES[random.below(QUERIES.len() as u64) as usize];
                let predicate = parse(query.as_bytes(), &definition, &Params::default());
                let predicate = predicate.expect("a query");
                let objects = model.iter().filter(|(key, hash)| {
                    let object = Object::Hash((*hash).clone());
                    let (row, _) = Row::of(&definition, &object);
                    definition.covers(key.as_bytes(), &object) && matches(&predicate, &row)
                });
                let expected: Vec<&str> = objects.map(|(key, _)| key.as_str()).collect();
                let is_found = search_keys(client, "things", query);
                assert_eq!(
                    is_found,
                    expected.join(" "),
                    "seed {seed} step {step}: {query}"
                );
                let (count, rows) = (random.below(20) + 1 + filled / 4, rows_of(client, query));
                assert_eq!(rows, expected, "seed {seed} step {step}: rows of {query}");
                let read = read_in_parts(client, query, count);
                assert_eq!(read, expected, "seed {seed} step {step}: {query} in parts");
            }
        }
        if step == 400 {
            answers += region_answers(&mut clients[0]);
            clients.clear();
            server.restart_with(|config| config.server.threads = 3 - seed as u32 % 3);
            clients.extend((0..3).map(|_| Client::connect(&server)));
        }
    }
    answers + region_answers(&mut clients[0])
}

/// Returns the keys that an aggregation finds.
fn rows_of(client: &mut Client, query: &str) -> Vec<String> {
    let words = ["FT.AGGREGATE", "things", query, "GROUPBY", "1", "@__key"];
    let mut keys = keys_of(&call(client, &words));
    keys.sort();
    keys
}

/// Returns the keys that an aggregation finds through a cursor, `count` per read.
fn read_in_parts(client: &mut Client, query: &str, count: u64) -> Vec<String> {
    let count = count.to_string();
    let first = ["FT.AGGREGATE", "things", query, "LOAD", "1", "@__key"];
    let words: Vec<&str> = first
        .into_iter()
        .chain(["WITHCURSOR", "COUNT", &count])
        .collect();
    let mut reply = call(client, &words);
    let mut keys = Vec::new();
    loop {
        keys.extend(keys_of(&reply));
        let (_, cursor) = reply.rsplit_once("|:").expect("a cursor");
        if cursor == "0" {
            return keys;
        }
        let cursor = cursor.to_owned();
        reply = call(client, &["FT.CURSOR", "READ", "things", &cursor]);
    }
}

fn keys_of(reply: &str) -> Vec<String> {
    assert!(reply.starts_with('*'), "{reply}");
    let keys = reply.split('|').filter(|part| part.starts_with("thing:"));
    keys.map(str::to_owned).collect()
}

fn region_answers(client: &mut Client) -> u64 {
    let info = call(client, &["FT.INFO", "things"]);
    let answers = info.split("|region_answers|:").nth(1);
    let digits = answers.map(|rest| rest.split('|').next().unwrap_or_default());
    digits.map_or(0, |digits| digits.parse().expect("a number"))
}
