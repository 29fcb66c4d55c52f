//! Random commands on hashes and strings over several connections, compared with a model, with restarts and with keys
//! and fields that expire.

use std::collections::BTreeMap;

use larder_protocol::config::Fsync;
use larder_types::Random;

use crate::resp::{Client, request};
use crate::support::TestServer;

/// The value of a key.
#[derive(Debug, Clone, PartialEq)]
enum StoredValue {
    Text(String),
    /// The fields in the order of their creation.
    Hash(Vec<(String, String)>),
}

#[derive(Default)]
struct Model {
    keys: BTreeMap<String, StoredValue>,
}

const WRONG: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

fn bulk(text: &str) -> String {
    format!("${}|{text}", text.len())
}

fn bulk_or_nil(text: Option<&String>) -> String {
    text.map_or_else(|| "$-1".to_owned(), |text| bulk(text))
}

impl Model {
    fn hash(&self, key: &str) -> Result<&[(String, String)], String> {
        match self.keys.get(key) {
            None => Ok(&[]),
            Some(StoredValue::Hash(fields)) => Ok(fields),
            Some(StoredValue::Text(_)) => Err(WRONG.to_owned()),
        }
    }

    fn field(&self, key: &str, field: &str) -> Result<Option<String>, String> {
        let fields = self.hash(key)?;
        let found = fields.iter().find(|(name, _)| name == field);
        Ok(found.map(|(_, value)| value.clone()))
    }

    fn set(&mut self, key: &str, field: &str, value: &str) -> bool {
        let kept = self.keys.entry(key.to_owned());
        let StoredValue::Hash(fields) = kept.or_insert_with(|| StoredValue::Hash(Vec::new()))
        else {
            unreachable!("it was looked at before")
        };
        match fields.iter_mut().find(|(name, _)| name == field) {
            Some((_, before)) => {
                *before = value.to_owned();
                false
            }
            None => {
                fields.push((field.to_owned(), value.to_owned()));
                true
            }
        }
    }

    fn remove(&mut self, key: &str, field: &str) -> bool {
        let Some(StoredValue::Hash(fields)) = self.keys.get_mut(key) else {
            return false;
        };
        let before = fields.len();
        fields.retain(|(name, _)| name != field);
        let is_gone = fields.len() < before;
        if fields.is_empty() {
            self.keys.remove(key);
        }
        is_gone
    }

    /// Applies a command to the model and returns its reply.
    fn answer(&mut self, words: &[String]) -> Result<String, String> {
        let key = &words[1];
        let count = |is: bool| format!(":{}", u8::from(is));
        Ok(match words[0].as_str() {
            "HSET" => {
                self.hash(key)?;
                let pairs = words[2..].chunks(2);
                let mut new = 0;
                for pair in pairs {
                    new += u32::from(self.set(key, &pair[0], &pair[1]));
                }
                format!(":{new}")
            }
            "HSETNX" => match self.field(key, &words[2])? {
                Some(_) => ":0".to_owned(),
                None => count(self.set(key, &words[2], &words[3])),
            },
            "HDEL" => {
                self.hash(key)?;
                let gone = words[2..].iter().filter(|&field| self.remove(key, field));
                format!(":{}", gone.count())
            }
            "HGETDEL" => {
                let value = self.field(key, &words[4])?;
                self.remove(key, &words[4]);
                format!("*1|{}", bulk_or_nil(value.as_ref()))
            }
            "HPEXPIREAT" => {
                let is_there = self.field(key, &words[5])?.is_some();
                self.remove(key, &words[5]);
                format!("*1|:{}", if is_there { 2 } else { -2 })
            }
            "HGET" => bulk_or_nil(self.field(key, &words[2])?.as_ref()),
            "HGETALL" => {
                let fields = self.hash(key)?;
                let mut all = format!("*{}", fields.len() * 2);
                for (name, value) in fields {
                    all += &format!("|{}|{}", bulk(name), bulk(value));
                }
                all
            }
            "HINCRBY" => {
                let before = self
                    .field(key, &words[2])?
                    .unwrap_or_else(|| "0".to_owned());
                let Ok(before) = before.parse::<i64>() else {
                    return Err("-ERR hash value is not an integer".to_owned());
                };
                let sum = before + words[3].parse::<i64>().expect("a number");
                self.set(key, &words[2], &sum.to_string());
                format!(":{sum}")
            }
            "SET" => {
                self.keys
                    .insert(key.clone(), StoredValue::Text(words[2].clone()));
                "+OK".to_owned()
            }
            "GET" => match self.keys.get(key) {
                Some(StoredValue::Hash(_)) => return Err(WRONG.to_owned()),
                Some(StoredValue::Text(text)) => bulk(text),
                None => "$-1".to_owned(),
            },
            "APPEND" => match self.keys.get_mut(key) {
                Some(StoredValue::Hash(_)) => return Err(WRONG.to_owned()),
                Some(StoredValue::Text(text)) => {
                    text.push_str(&words[2]);
                    format!(":{}", text.len())
                }
                None => {
                    self.keys
                        .insert(key.clone(), StoredValue::Text(words[2].clone()));
                    format!(":{}", words[2].len())
                }
            },
            "DEL" | "PEXPIREAT" => count(self.keys.remove(key).is_some()),
            "TYPE" => match self.keys.get(key) {
                None => "+none".to_owned(),
                Some(StoredValue::Text(_)) => "+string".to_owned(),
                Some(StoredValue::Hash(_)) => "+hash".to_owned(),
            },
            "EXISTS" => {
                let there = words[1..].iter().filter(|&key| self.keys.contains_key(key));
                format!(":{}", there.count())
            }
            "RENAME" | "COPY" => {
                let is_rename = words[0] == "RENAME";
                let Some(kept) = self.keys.get(key).cloned() else {
                    return if is_rename {
                        Err("-ERR no such key".to_owned())
                    } else {
                        Ok(":0".to_owned())
                    };
                };
                if *key == words[2] {
                    return if is_rename {
                        Ok("+OK".to_owned())
                    } else {
                        Err("-ERR source and destination objects are the same".to_owned())
                    };
                }
                self.keys.insert(words[2].clone(), kept);
                if is_rename {
                    self.keys.remove(key);
                    "+OK".to_owned()
                } else {
                    ":1".to_owned()
                }
            }
            "DBSIZE" => format!(":{}", self.keys.len()),
            other => unreachable!("{other}"),
        })
    }
}

fn command(random: &mut Random) -> Vec<String> {
    const KEYS: u64 = 12;
    let key = |random: &mut Random| {
        let tables = ["h:", "s|"];
        format!("{}{}", tables[random.index(2)], random.below(KEYS))
    };
    let field = |random: &mut Random| format!("f{}", random.below(5));
    let value = |random: &mut Random| random.below(1000).to_string();
    let kinds = [
        "HSET",
        "HSET",
        "HSET",
        "HSETNX",
        "HDEL",
        "HGETDEL",
        "HPEXPIREAT",
        "HGET",
        "HGETALL",
        "HINCRBY",
        "SET",
        "GET",
        "APPEND",
        "DEL",
        "PEXPIREAT",
        "TYPE",
        "EXISTS",
        "RENAME",
        "COPY",
        "DBSIZE",
    ];
    let kind = kinds[random.index(kinds.len())];
    let mut words = vec![kind.to_owned(), key(random)];
    match kind {
        "HSET" => {
            // Occasionally uses more fields than are looked up one by one.
            for _ in 0..1 + random.below(2) * random.below(12) {
                words.extend([field(random), value(random)]);
            }
        }
        "HSETNX" => words.extend([field(random), value(random)]),
        "HDEL" => words.extend((0..1 + random.below(12)).map(|_| format!("f{}", random.below(5)))),
        "HGETDEL" => words.extend(["FIELDS".to_owned(), "1".to_owned(), field(random)]),
        "HPEXPIREAT" => {
            words.extend(["1", "FIELDS", "1"].map(str::to_owned));
            words.push(field(random));
        }
        "HGET" => words.push(field(random)),
        "HINCRBY" => words.extend([field(random), value(random)]),
        "SET" | "APPEND" => words.push(value(random)),
        "PEXPIREAT" => words.push("1".to_owned()),
        "EXISTS" => words.push(key(random)),
        "RENAME" => words.push(key(random)),
        "COPY" => words.extend([key(random), "REPLACE".to_owned()]),
        "DBSIZE" => words.truncate(1),
        _ => {}
    }
    words
}

#[test]
fn commands_on_hashes_and_texts_match_a_model() {
    for (threads, seed) in [(1, 11), (2, 12), (3, 13)] {
        let mut server = TestServer::with(|config| {
            config.server.threads = threads;
            config.tables.fsync = Fsync::No;
        });
        let mut random = Random::new(seed);
        let mut model = Model::default();
        for round in 0..4 {
            if round > 0 {
                server.restart(|_| {});
            }
            let mut clients: Vec<Client> = (0..3).map(|_| Client::connect(&server)).collect();
            for step in 0..600 {
                let words = command(&mut random);
                let client = &mut clients[random.index(3)];
                let sent: Vec<&str> = words.iter().map(String::as_str).collect();
                client.send(&request(&sent));
                let reply = client.reply();
                let mut padded = words.clone();
                padded.resize(padded.len().max(2), String::new());
                let expected = model.answer(&padded).unwrap_or_else(|error| error);
                assert_eq!(
                    reply, expected,
                    "seed {seed}, round {round}, step {step}: {words:?}"
                );
            }
        }
    }
}
