//! Tables, joins and spaces: each command from its bytes to the bytes of its reply.
//!
//! The paths consist of the parts below the server: the RESP decoder, the command table, the engine, objects, indexes
//! and the encoder. Sessions, routing and sockets are not counted.

use std::ops::ControlFlow;
use std::sync::Arc;

use larder_join::{Engine, Limits, ReadOutcome};
use larder_protocol::commands::{Command, Id};
use larder_protocol::resp::{self, Decoder, Encoder, Proto, Step};
use larder_space::index::{SpaceIndex, effort};
use larder_space::object::{Hash, Object};
use larder_space::schema::Definition;
use larder_space::search::Search;
use larder_space::search::content::put_content;
use larder_types::{Random, object_row};

use crate::{Result, count};

const CALLS: u64 = 1_000;
const NOW: u64 = 1_700_000_000_000;

pub fn count_tables() -> Result<()> {
    let mut session = Session::new();
    let value = "v".repeat(100);
    for number in 0..10_000 {
        session.execute(&request(&["SET", &row(number), &value]));
    }
    let mut random = Random::new(3);
    let mut count_command = |name, arguments: &dyn Fn(&str) -> Vec<u8>| {
        let requests: Vec<_> = (0..=CALLS)
            .map(|_| arguments(&row(random.below(10_000))))
            .collect();
        count(name, CALLS, 1, &mut |call| {
            session.execute(&requests[call as usize])
        });
    };
    count_command("GET of a row", &|key| request(&["GET", key]));
    count_command("SET of a row", &|key| request(&["SET", key, &value]));
    count_command("HSET of 3 fields", &|key| {
        request(&["HSET", key, "city", "Rome", "price", "120", "stars", "4"])
    });
    count_timelines(session)?;
    count_spaces()
}

fn row(number: u64) -> String {
    format!("user|{number:08}")
}

/// Posts into the timelines of 100 followers, and reads of one.
fn count_timelines(mut session: Session) -> Result<()> {
    const FOLLOWERS: u64 = 100;
    session.engine.create(
        "timeline",
        "t|<user:8>|<time:10>|<poster:8> = push check s|<user>|<poster> copy p|<poster>|<time>",
        NOW,
    )?;
    for user in 0..FOLLOWERS {
        session.execute(&request(&["SET", &format!("s|{user:08}|00000007"), "1"]));
    }
    let range = |user: u64| {
        let (lo, hi) = (format!("t|{user:08}|"), format!("t|{user:08}}}"));
        request(&["RANGE", &lo, &hi])
    };
    // A read fills a timeline; from then on posts are added to it.
    (0..FOLLOWERS).for_each(|user| session.execute(&range(user)));
    let post = |number: u64| {
        let key = format!("p|00000007|{number:010}");
        request(&["SET", &key, "a post of fourty characters, more or less"])
    };
    let posts: Vec<_> = (0..20).map(post).collect();
    count("fan-out of a post to 100 timelines", 19, 1, &mut |call| {
        session.execute(&posts[call as usize]);
    });
    let ranges: Vec<_> = (0..FOLLOWERS).map(range).collect();
    count("RANGE of 20 rows", FOLLOWERS - 1, 1, &mut |call| {
        session.execute(&ranges[call as usize]);
    });
    Ok(())
}

/// Hotels, found by city and price, in the order of their prices.
fn count_spaces() -> Result<()> {
    const HOTELS: u64 = 5_000;
    let words =
        "hotels PREFIX 1 hotel: SCHEMA city TAG SORTABLE price NUMERIC SORTABLE stars NUMERIC";
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    let definition = Arc::new(Definition::parse_create(&words)?);
    let mut index = SpaceIndex::new(definition.clone());
    let mut random = Random::new(4);
    let hotels: Vec<(String, Object)> = (0..HOTELS)
        .map(|number| {
            let mut hash = Hash::default();
            hash.set(b"city", format!("city{}", random.below(20)));
            hash.set(b"price", random.below(500).to_string());
            hash.set(b"stars", random.below(6).to_string());
            (format!("hotel:{number:06}"), Object::Hash(hash))
        })
        .collect();
    for (key, object) in &hotels {
        index.put(key.as_bytes(), object);
    }
    let encoded: Vec<Vec<u8>> = hotels.iter().map(|(_, object)| object.encode()).collect();
    let arguments = [
        "@city:{city7} @price:[100 500]",
        "SORTBY",
        "price",
        "LIMIT",
        "0",
        "50",
    ];
    let arguments = arguments.map(str::as_bytes);
    let mut reply = Vec::new();
    count("search of 50 rows", 20, 1, &mut |_| {
        let search = Search::parse(&arguments, &definition).expect("the query is valid");
        let found = index.search_in_one_step(&search, effort(4096));
        let found = found.expect("the search is short");
        assert_eq!(found.len(), 50);
        reply.clear();
        for key in found.keys() {
            let mut encoder = Encoder {
                out: &mut reply,
                proto: Proto::Resp3,
            };
            encoder.bulk(key);
            let number: usize = std::str::from_utf8(&key[6..])
                .expect("digits")
                .parse()
                .expect("digits");
            let map = |out: &mut Vec<u8>, fields| {
                Encoder {
                    out,
                    proto: Proto::Resp3,
                }
                .map(fields)
            };
            put_content(&search, &definition, &encoded[number], NOW, &mut reply, map)
                .expect("the object is intact");
        }
    });
    count("index update of an object", CALLS, 1, &mut |call| {
        let (key, object) = (&hotels[call as usize].0, &hotels[call as usize + 1].1);
        index.put(key.as_bytes(), object);
    });
    Ok(())
}

fn request(arguments: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len());
    for argument in arguments {
        bytes += &format!("${}\r\n{argument}\r\n", argument.len());
    }
    bytes.into_bytes()
}

/// The parts of a connection's session that need no server.
struct Session {
    engine: Engine,
    decoder: Decoder,
    reply: Vec<u8>,
}

impl Session {
    fn new() -> Session {
        Session {
            engine: Engine::new(),
            decoder: Decoder::new(resp::Limits::default()),
            reply: Vec::new(),
        }
    }

    fn execute(&mut self, bytes: &[u8]) {
        assert_eq!(self.decoder.decode(bytes), Ok(Step::Request(bytes.len())));
        let command = Command::parse(self.decoder.request(bytes)).expect("the command is valid");
        self.reply.clear();
        let mut encoder = Encoder {
            out: &mut self.reply,
            proto: Proto::Resp3,
        };
        let engine = &mut self.engine;
        match command.id() {
            Id::Get => {
                let read = engine.get(command.arg(1), NOW, &mut |value| encoder.bulk(value));
                assert_eq!(read, Ok(ReadOutcome::Done(())));
            }
            Id::Set => {
                engine
                    .put(command.arg(1), command.arg(2), NOW)
                    .expect("the key names a table");
                encoder.ok();
            }
            Id::HSet => {
                let row = object_row(command.arg(1));
                let mut object = None;
                let read = engine.get(&row, NOW, &mut |bytes| object = Some(Object::decode(bytes)));
                assert_eq!(read, Ok(ReadOutcome::Done(())));
                let mut hash = match object {
                    Some(Ok(Object::Hash(hash))) => hash,
                    _ => Hash::default(),
                };
                let pairs = (2..command.len()).step_by(2);
                let new = hash.set_all(pairs.map(|at| (command.arg(at), command.arg(at + 1))));
                let object = Object::Hash(hash).encode();
                engine
                    .put(&row, &object, NOW)
                    .expect("the key names a table");
                encoder.count(new as u64);
            }
            Id::Range => {
                let mut each = |key: &[u8], value: &[u8]| {
                    encoder.bulk(key);
                    encoder.bulk(value);
                    ControlFlow::Continue(())
                };
                let (lo, hi) = (command.arg(1), command.arg(2));
                let read = engine.range(lo, hi, Limits::default(), NOW, &mut each);
                assert_eq!(read, Ok(ReadOutcome::Done(())));
            }
            _ => unreachable!("not a command of this benchmark"),
        }
    }
}
