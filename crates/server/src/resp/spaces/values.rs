//! FT.TAGVALS: returns all values of a tag.

use std::collections::BTreeSet;
use std::rc::Rc;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::Encoder;
use larder_space::schema::{AttributeId, Kind};
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::aside::{Patience, ROWS_BETWEEN_CHECKS, aside};
use super::parts::Depth;
use super::reach::{Asker, Reach, again, altered, damaged};
use super::run::Order;
use super::text;
use crate::tables::{Refusal, Tables};

/// Number of values read from an index per step.
const CHUNK: usize = 1024;

pub(super) async fn tag_values(
    asker: &mut Asker,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let refused = |message: &str| (Code::BadRequest, message.to_owned());
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(1))?;
        let attribute = declared.definition.by_name(text(command.arg(2))?);
        let attribute = attribute.ok_or_else(|| refused("No such field"))?;
        if !matches!(attribute.kind, Kind::Tag { .. }) {
            return Err(refused("Not a tag field"));
        }
        let bytes_max = asker.core.clients.limits.answer();
        let order = asker.order(&declared, None, Depth::Found);
        let patience = order.patience.clone();
        // Dropped when the client disconnects.
        let _waiting = patience.waiting();
        let found = match asker.reach {
            Reach::Nodes => Found::Encoded(asker.parts_of_nodes(command, &declared).await?),
            _ => {
                let id = attribute.id;
                let of_core = move |tables| of_core(tables, order.clone(), id, bytes_max);
                Found::Values(asker.on_cores(of_core).await?)
            }
        };
        let (is_part, proto) = (matches!(asker.reach, Reach::Part { .. }), asker.proto);
        let own = patience.clone();
        let answered = aside(&patience, found.bytes(), move || {
            let all = found.merged(&own)?;
            let mut out = Vec::new();
            if is_part {
                put_count(&mut out, all.len());
                all.iter().for_each(|value| put_bytes(&mut out, value));
            } else {
                let mut encoder = Encoder {
                    out: &mut out,
                    proto,
                };
                encoder.set(all.len());
                all.iter().for_each(|value| encoder.bulk(value));
            }
            Ok(out)
        });
        let answer = answered.await?;
        Ok(if is_part {
            asker.part(&declared, &answer)
        } else {
            answer
        })
    })
    .await
}

/// Returns the values in the index of one core, sorted.
async fn of_core(
    tables: Rc<Tables>,
    order: Order,
    id: AttributeId,
    bytes_max: usize,
) -> Result<Vec<Vec<u8>>, Refusal> {
    super::run::begin(&tables, order.epoch, order.ticket).await?;
    let (mut values, mut bytes) = (Vec::<Vec<u8>>::new(), 0);
    loop {
        {
            let spaces = tables.spaces().read();
            let space = spaces.spaces.get(&order.declared.definition.name);
            let space = space
                .filter(|space| space.declared.version == order.declared.version)
                .ok_or_else(altered)?;
            let after = values.last().map(Vec::as_slice);
            let more = space.index.tag_values(id, after, CHUNK);
            if more.is_empty() {
                break;
            }
            bytes += bytes_of(&more);
            values.extend(more);
        }
        if bytes > bytes_max {
            let message = "the tag has more values than one answer may have; FT.AGGREGATE with GROUPBY and WITHCURSOR reads any number";
            return Err((Code::OutOfMemory, message.to_owned()));
        }
        order.patience.ensure()?;
        tokio::task::yield_now().await;
        tables.wait_while_paused(order.ticket).await;
    }
    super::run::end(&tables, order.epoch).await?;
    Ok(values)
}

/// Returns the approximate memory of the values.
fn bytes_of(values: &[Vec<u8>]) -> usize {
    values.iter().map(|value| value.len() + 32).sum()
}

/// The values of all cores, or of all nodes.
enum Found {
    Values(Vec<Vec<Vec<u8>>>),
    Encoded(Vec<Vec<u8>>),
}

impl Found {
    fn bytes(&self) -> usize {
        match self {
            Found::Values(parts) => parts.iter().map(|part| bytes_of(part)).sum(),
            Found::Encoded(parts) => parts.iter().map(Vec::len).sum(),
        }
    }

    /// Returns all values without duplicates.
    fn merged(self, patience: &Patience) -> Result<BTreeSet<Vec<u8>>, Refusal> {
        let parts = match self {
            Found::Values(parts) => parts,
            Found::Encoded(parts) => {
                let opened = parts.iter().map(|part| opened(part));
                let opened: Result<_, Malformed> = opened.collect();
                opened.map_err(|_| damaged())?
            }
        };
        let mut all = BTreeSet::new();
        for (at, value) in parts.into_iter().flatten().enumerate() {
            if at % ROWS_BETWEEN_CHECKS == 0 {
                patience.ensure()?;
            }
            all.insert(value);
        }
        Ok(all)
    }
}

fn opened(part: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut reader = WireReader::new(part);
    let mut values = Vec::new();
    for _ in 0..reader.count(4)? {
        values.push(reader.bytes()?.to_vec());
    }
    reader.end()?;
    Ok(values)
}
