//! FT.TAGVALS: returns all values of a tag.

use std::collections::BTreeSet;
use std::rc::Rc;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_protocol::resp::Encoder;
use larder_space::schema::{AttributeId, AttributeKind};
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::context::{
    QueryContext, QueryScope, altered_refusal, retry_on_schema_change, unreadable_part,
};
use super::offload::{ROWS_BETWEEN_CHECKS, SearchDeadline, run_offloaded};
use super::parse_name;
use super::run::ShardRequest;
use super::scatter_gather::ResultDetail;
use crate::tables::{Refusal, Tables};

/// Number of values read from an index per step.
const CHUNK: usize = 1024;

pub(in crate::resp) async fn tag_values(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    let refused = |message: &str| (Code::BadRequest, message.to_owned());
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = context.find_space(command.arg(1))?;
        let attribute = declared.definition.by_name(parse_name(command.arg(2))?);
        let attribute = attribute.ok_or_else(|| refused("No such field"))?;
        if !matches!(attribute.kind, AttributeKind::Tag { .. }) {
            return Err(refused("Not a tag field"));
        }
        let bytes_max = context.core.clients.limits.reply_bytes();
        let request = context.shard_request(&declared, None, ResultDetail::Objects);
        let deadline = request.deadline.clone();
        // Dropped when the client disconnects.
        let _abandon_guard = deadline.abandon_guard();
        let found = match context.scope {
            QueryScope::Nodes => TagValues::Encoded(context.query_nodes(command, &declared).await?),
            _ => {
                let id = attribute.id;
                let read = move |tables| read_core_values(tables, request.clone(), id, bytes_max);
                TagValues::Values(context.run_on_cores(read).await?)
            }
        };
        let (is_part, proto) = (
            matches!(context.scope, QueryScope::Part { .. }),
            context.proto,
        );
        let own = deadline.clone();
        let encoded = run_offloaded(&deadline, found.bytes(), move || {
            let all = found.merge(&own)?;
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
        let answer = encoded.await?;
        Ok(if is_part {
            context.encode_part(&declared, &answer)
        } else {
            answer
        })
    })
    .await
}

/// Returns the values in the index of one core, sorted.
async fn read_core_values(
    tables: Rc<Tables>,
    request: ShardRequest,
    id: AttributeId,
    bytes_max: usize,
) -> Result<Vec<Vec<u8>>, Refusal> {
    super::run::begin_search(&tables, request.epoch, request.ticket).await?;
    let (mut values, mut bytes) = (Vec::<Vec<u8>>::new(), 0);
    loop {
        {
            let spaces = tables.spaces().read();
            let space = spaces.spaces.get(&request.declared.definition.name);
            let space = space
                .filter(|space| space.declared.version == request.declared.version)
                .ok_or_else(altered_refusal)?;
            let after = values.last().map(Vec::as_slice);
            let more = space.index.tag_values(id, after, CHUNK);
            if more.is_empty() {
                break;
            }
            bytes += bytes_of(&more);
            values.extend(more);
        }
        if bytes > bytes_max {
            let message = "the values of the tag exceed the maximum size of a reply: read them with FT.AGGREGATE, GROUPBY and WITHCURSOR";
            return Err((Code::OutOfMemory, message.to_owned()));
        }
        request.deadline.check()?;
        tokio::task::yield_now().await;
        tables.wait_while_paused(request.ticket).await;
    }
    super::run::finish_search(&tables, request.epoch).await?;
    Ok(values)
}

/// Returns the approximate memory of the values.
fn bytes_of(values: &[Vec<u8>]) -> usize {
    values.iter().map(|value| value.len() + 32).sum()
}

/// The values of all cores, or of all nodes.
enum TagValues {
    Values(Vec<Vec<Vec<u8>>>),
    Encoded(Vec<Vec<u8>>),
}

impl TagValues {
    fn bytes(&self) -> usize {
        match self {
            TagValues::Values(parts) => parts.iter().map(|part| bytes_of(part)).sum(),
            TagValues::Encoded(parts) => parts.iter().map(Vec::len).sum(),
        }
    }

    /// Returns all values without duplicates.
    fn merge(self, deadline: &SearchDeadline) -> Result<BTreeSet<Vec<u8>>, Refusal> {
        let parts = match self {
            TagValues::Values(parts) => parts,
            TagValues::Encoded(parts) => {
                let decoded = parts.iter().map(|part| decode_values(part));
                let decoded: Result<_, Malformed> = decoded.collect();
                decoded.map_err(|_| unreadable_part())?
            }
        };
        let mut all = BTreeSet::new();
        for (at, value) in parts.into_iter().flatten().enumerate() {
            if at % ROWS_BETWEEN_CHECKS == 0 {
                deadline.check()?;
            }
            all.insert(value);
        }
        Ok(all)
    }
}

fn decode_values(part: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let mut reader = WireReader::new(part);
    let mut values = Vec::new();
    for _ in 0..reader.count(4)? {
        values.push(reader.bytes()?.to_vec());
    }
    reader.end()?;
    Ok(values)
}
