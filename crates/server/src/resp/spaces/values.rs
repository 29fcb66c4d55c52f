//! FT.TAGVALS: all values that a tag has.

use std::collections::BTreeSet;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_space::schema::Kind;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::parts::Depth;
use super::reach::{Asker, Reach, again, altered, damaged};
use super::text;
use crate::tables::Refusal;

/// Values that are taken from an index at once.
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
        let mut all = BTreeSet::new();
        if asker.reach == Reach::Nodes {
            for part in asker.parts_of_nodes(command, &declared).await? {
                all.extend(opened(&part).map_err(|_| damaged())?);
            }
        } else {
            let (order, id) = (asker.order(&declared, None, Depth::Found), attribute.id);
            let of_core = asker.on_cores(move |tables| async move {
                super::run::begin(&tables, order.epoch, None).await?;
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
                        bytes += more.iter().map(|value| value.len() + 32).sum::<usize>();
                        values.extend(more);
                    }
                    if bytes > bytes_max {
                        let message = "the tag has more values than one answer may have; FT.AGGREGATE with GROUPBY and WITHCURSOR reads any number";
                        return Err((Code::OutOfMemory, message.to_owned()));
                    }
                    order.patience.ensure()?;
                    tokio::task::yield_now().await;
                    tables.wait_while_paused(None).await;
                }
                super::run::end(&tables, order.epoch).await?;
                Ok(values)
            });
            all.extend(of_core.await?.into_iter().flatten());
        }
        if let Reach::Part { .. } = asker.reach {
            let mut out = Vec::new();
            put_count(&mut out, all.len());
            all.iter().for_each(|value| put_bytes(&mut out, value));
            return Ok(asker.part(&declared, &out));
        }
        Ok(asker.encoded(|encoder| {
            encoder.set(all.len());
            all.iter().for_each(|value| encoder.bulk(value));
        }))
    })
    .await
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
