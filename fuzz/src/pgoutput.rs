//! PostgreSQL's replication stream. Each message is preceded by its length in two bytes.
//!
//! The seeds are from PostgreSQL 15: the output of replication slots for the statements in `fuzz/seeds/pgoutput.sql`.

use bytes::{BufMut, Bytes};
use larder_postgres::pgoutput::{Cell, Message, Old, decode};
use larder_postgres::{Change, Mapping, SlotKind, Translator, ValueKind};
use larder_protocol::config::ServerConfig;

const TABLES: &str = "
[tables.post]
pattern = 'post|<author>|<time:10>'
table = 'posts'
value = 'body'
[tables.thing]
pattern = 'thing:<id>'
table = 'things'
value = ['a', 'b', 'c']
";

/// Any bytes are messages or an error. A message survives encoding and decoding, and changes only keys of its table.
pub fn pgoutput(bytes: &[u8]) {
    let messages: Vec<Message> = messages(bytes).collect();
    for message in &messages {
        let again = decode(Bytes::from(encode(message)));
        assert_eq!(again.as_ref(), Ok(message));
    }
    let mappings = mappings();
    let mut translator = translator(&messages, &mappings);
    for message in &messages {
        let mut each = |change: Change| check(&mappings, &change);
        // A change that does not match the mapping is described in words. A mapping that no longer matches its table is
        // excluded.
        let _ = translator.translate(message, &mut each, &mut |_, why| {
            assert!(!why.to_string().is_empty());
        });
    }
}

/// Returns the number of row changes in these bytes.
pub fn changes_of(bytes: &[u8]) -> usize {
    let (mut count, mappings) = (0, mappings());
    let messages: Vec<Message> = messages(bytes).collect();
    let mut translator = translator(&messages, &mappings);
    for message in &messages {
        let _ = translator.translate(message, &mut |_| count += 1, &mut |_, _| {});
    }
    count
}

/// Each table has the numbers that the messages assign to it.
fn translator(messages: &[Message], mappings: &[Mapping]) -> Translator {
    let numbered = messages.iter().filter_map(|message| match message {
        Message::Relation(relation) => {
            let mut mappings = mappings.iter();
            let mapping = mappings.find(|mapping| mapping.table == relation.table)?;
            Some((relation.oid, mapping.clone().into()))
        }
        _ => None,
    });
    Translator::new(numbered)
}

/// Returns the messages that can be decoded.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Message> + '_ {
    std::iter::from_fn(move || {
        let (len, rest) = bytes.split_first_chunk::<2>()?;
        let len = usize::from(u16::from_be_bytes(*len)).min(rest.len());
        let (message, rest) = rest.split_at(len);
        bytes = rest;
        Some(decode(Bytes::copy_from_slice(message)))
    })
    .filter_map(Result::ok)
}

fn mappings() -> Vec<Mapping> {
    let mut config = ServerConfig::default();
    config.apply_toml(TABLES, "the fuzz target").expect("right");
    let mut mappings: Vec<Mapping> = config.mapped.iter().map(Mapping::new).collect();
    mappings.sort_by(|a, b| a.name.cmp(&b.name));
    mappings[0].slots[1].kind = SlotKind::Integer { max: i64::MAX };
    mappings[1].slots[0].kind = SlotKind::Uuid;
    let kinds = [ValueKind::Integer, ValueKind::Json, ValueKind::Text];
    for (value, kind) in mappings[1].values.iter_mut().zip(kinds) {
        value.kind = kind;
    }
    mappings
}

fn check(mappings: &[Mapping], change: &Change) {
    let of_table = |bytes: &[u8]| mappings.iter().find(|m| bytes.starts_with(&m.prefix));
    match change {
        Change::Put { key, .. } | Change::Patch { key, .. } | Change::Remove { key } => {
            let mapping = of_table(key).expect("a key of a mapped table");
            let columns = mapping.columns_of(key).expect("a key has its columns");
            let cells: Vec<Cell> = columns
                .into_iter()
                .map(|column| Cell::Text(Bytes::from(column)))
                .collect();
            assert_eq!(mapping.key_of(&cells).as_ref(), Ok(key));
            if let Change::Patch { patch, .. } = change {
                for before in [&b"{\"a\":1,\"b\":[],\"c\":\"x\"}"[..], b"", b"{}"] {
                    let _ = patch.apply(before);
                }
            }
        }
        Change::Clear { prefix } => assert!(of_table(prefix).is_some()),
        Change::Forget { range } => assert!(of_table(&range.lo).is_some()),
    }
}

/// Encodes a message like PostgreSQL, except for the parts that a message does not retain.
fn encode(message: &Message) -> Vec<u8> {
    let mut out = Vec::new();
    let text = |out: &mut Vec<u8>, text: &str| {
        out.extend_from_slice(text.as_bytes());
        out.push(0);
    };
    match message {
        Message::Relation(relation) => {
            out.push(b'R');
            out.put_u32(relation.oid);
            text(&mut out, &relation.schema);
            text(&mut out, &relation.table);
            out.push(b'd');
            out.put_u16(relation.columns.len() as u16);
            for column in &relation.columns {
                out.push(u8::from(column.is_identity));
                text(&mut out, &column.name);
                out.put_u32(column.type_oid);
                out.put_u32(u32::MAX);
            }
        }
        Message::Insert { relation, new } => {
            out.push(b'I');
            out.put_u32(*relation);
            row(&mut out, b'N', new);
        }
        Message::Update { relation, old, new } => {
            out.push(b'U');
            out.put_u32(*relation);
            old_row(&mut out, old);
            row(&mut out, b'N', new);
        }
        Message::Delete { relation, old } => {
            out.push(b'D');
            out.put_u32(*relation);
            old_row(&mut out, old);
        }
        Message::Truncate { relations } => {
            out.push(b'T');
            out.put_u32(relations.len() as u32);
            out.push(0);
            relations.iter().for_each(|relation| out.put_u32(*relation));
        }
        Message::Other => out.push(b'Y'),
    }
    out
}

fn old_row(out: &mut Vec<u8>, old: &Old) {
    match old {
        Old::Same => {}
        Old::Key(cells) => row(out, b'K', cells),
        Old::Row(cells) => row(out, b'O', cells),
    }
}

fn row(out: &mut Vec<u8>, tag: u8, cells: &[Cell]) {
    out.push(tag);
    out.put_u16(cells.len() as u16);
    for cell in cells {
        match cell {
            Cell::Null => out.push(b'n'),
            Cell::Unchanged => out.push(b'u'),
            Cell::Text(text) => {
                out.push(b't');
                out.put_u32(text.len() as u32);
                out.extend_from_slice(text);
            }
        }
    }
}
