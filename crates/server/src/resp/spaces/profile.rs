//! FT.PROFILE: a search or an aggregation, and what each core did for it.

use std::time::Instant;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::{Encoder, Proto};
use larder_space::index::Profile;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::reach::{Asker, Reach, again, damaged};
use super::{aggregate, search};
use crate::tables::Refusal;

/// What one core did.
pub(super) struct Told {
    /// Of which node, and which of its cores.
    pub core: String,
    pub plan: String,
    pub candidates: u64,
    pub found: u64,
    pub objects_read: u64,
    pub steps: u64,
    pub took_us: u64,
}

impl Told {
    pub fn of(core: usize, profile: &Profile, begun: Instant) -> Told {
        Told {
            core: format!("core {core}"),
            plan: profile.plan.to_string(),
            candidates: profile.candidates,
            found: profile.found,
            objects_read: profile.objects_read,
            steps: profile.steps,
            took_us: begun.elapsed().as_micros() as u64,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_bytes(out, self.core.as_bytes());
        put_bytes(out, self.plan.as_bytes());
        for number in self.numbers() {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn numbers(&self) -> [u64; 5] {
        [
            self.candidates,
            self.found,
            self.objects_read,
            self.steps,
            self.took_us,
        ]
    }

    fn decode(reader: &mut WireReader<'_>) -> Result<Told, Malformed> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Told {
            core: text(reader.bytes()?),
            plan: text(reader.bytes()?),
            candidates: reader.u64()?,
            found: reader.u64()?,
            objects_read: reader.u64()?,
            steps: reader.u64()?,
            took_us: reader.u64()?,
        })
    }
}

/// What is profiled, and where the query is among the arguments.
fn asked(command: Command<'_>) -> Result<(bool, usize), Refusal> {
    let refused = |message: &str| Err((Code::BadRequest, message.to_owned()));
    let is_search = match command.arg(2).to_ascii_uppercase().as_slice() {
        b"SEARCH" => true,
        b"AGGREGATE" => false,
        _ => return refused("No `SEARCH` or `AGGREGATE` provided"),
    };
    let limited = usize::from(command.arg(3).eq_ignore_ascii_case(b"LIMITED"));
    match command.request.get(3 + limited) {
        Some(word) if word.eq_ignore_ascii_case(b"QUERY") => Ok((is_search, 4 + limited)),
        _ => refused("The QUERY keyword is expected"),
    }
}

pub(super) async fn profile(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let (is_search, first) = asked(command)?;
    let arguments: Vec<&[u8]> = command.args().skip(first).collect();
    again(&asker.core, asker.reach, async || {
        let begun = Instant::now();
        let declared = asker.declared(command.arg(1))?;
        let mut told = Vec::new();
        // Of each part: what it found, as bytes.
        let mut parts = Vec::new();
        if asker.reach == Reach::Nodes {
            for part in asker.parts_of_nodes(command, &declared).await? {
                let (more, found) = opened(&part).map_err(|_| damaged())?;
                told.extend(more);
                parts.push(found);
            }
        } else {
            let (own, found) = match is_search {
                true => search::profiled(asker, &declared, &arguments, first).await?,
                false => aggregate::profiled(asker, &declared, &arguments, first).await?,
            };
            told = own;
            parts.push(found);
        }
        if let Reach::Part { .. } = asker.reach {
            let node = &asker.core.shared.config.cluster.node;
            for one in &mut told {
                one.core = format!("{node} {}", one.core);
            }
            return Ok(asker.part(&declared, &closed(&told, &parts.concat())));
        }
        let reply = match is_search {
            true => search::reply_of(asker, &declared, &arguments, first, &parts)?,
            false => aggregate::reply_of(asker, &declared, &arguments, first, &parts)?,
        };
        Ok(asker.encoded(|encoder| describe(encoder, &reply, &told, begun)))
    })
    .await
}

fn closed(told: &[Told], found: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_count(&mut out, told.len());
    told.iter().for_each(|one| one.encode(&mut out));
    put_bytes(&mut out, found);
    out
}

fn opened(part: &[u8]) -> Result<(Vec<Told>, Vec<u8>), Malformed> {
    let mut reader = WireReader::new(part);
    let mut told = Vec::new();
    for _ in 0..reader.count(48)? {
        told.push(Told::decode(&mut reader)?);
    }
    let found = reader.bytes()?.to_vec();
    reader.end()?;
    Ok((told, found))
}

fn describe(encoder: &mut Encoder<'_>, reply: &[u8], told: &[Told], begun: Instant) {
    match encoder.proto {
        Proto::Resp2 => encoder.array(2),
        Proto::Resp3 => {
            encoder.map(2);
            encoder.text("Results");
        }
    }
    encoder.out.extend_from_slice(reply);
    if encoder.proto == Proto::Resp3 {
        encoder.text("Profile");
    }
    encoder.map(2);
    encoder.text("Shards");
    encoder.array(told.len());
    for one in told {
        encoder.map(7);
        encoder.text("Shard");
        encoder.text(&one.core);
        for (name, time) in [
            ("Total profile time", one.took_us as f64 / 1000.0),
            ("Parsing time", 0.0),
            ("Pipeline creation time", 0.0),
        ] {
            encoder.text(name);
            encoder.double(time);
        }
        encoder.text("Warning");
        encoder.text("None");
        encoder.text("Iterators profile");
        encoder.map(6);
        encoder.text("Type");
        encoder.text(&one.plan);
        let names = ["Candidates", "Found", "Objects read", "Steps", "Time (us)"];
        for (name, number) in names.into_iter().zip(one.numbers()) {
            encoder.text(name);
            encoder.count(number);
        }
        encoder.text("Result processors profile");
        encoder.array(0);
    }
    encoder.text("Coordinator");
    match encoder.proto {
        Proto::Resp2 => encoder.array(0),
        Proto::Resp3 => {
            encoder.map(1);
            encoder.text("Total Coordinator time");
            encoder.double(begun.elapsed().as_secs_f64() * 1000.0);
        }
    }
}
