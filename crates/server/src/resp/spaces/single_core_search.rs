//! FT.SEARCH on a server with one core: answers a search that fits into one step within the turn of its connection, and
//! copies rows directly from the engine.
//!
//! All other searches, including those with errors, are executed by `search` in steps.

use larder_protocol::resp::Request;
use larder_space::index::effort;
use larder_space::search::content::put_content;
use larder_space::search::{Content, Search};
use larder_types::wire::Malformed;

use super::super::pending::Work;
use super::super::state::ConnectionState;
use super::reply::SearchReply;
use super::run::read_objects;
use super::search::QUERY;
use crate::spaces::Backlog;
use crate::tables::NoReply;

/// The maximum effort of a search that is executed here.
const EFFORT_MAX: usize = effort(4096);
const BYTES_MAX: usize = 1024 * 1024;

/// Executes the search within this turn if possible, and otherwise leaves it to the coordinator.
pub(in crate::resp) fn search(
    state: &mut ConnectionState,
    request: Request<'_>,
    atomic: bool,
) -> Result<Option<Work>, NoReply> {
    let is_executed = !atomic && try_search(state, request);
    Ok((!is_executed).then(super::coordinate))
}

/// Tries to execute the search. Returns whether it was executed.
fn try_search(state: &mut ConnectionState, request: Request<'_>) -> bool {
    let (tables, shared) = (state.tables(), state.core.shared.clone());
    let has_single_core =
        state.core.nodes.is_none() && tables.shard().is_none() && !state.executes_part;
    if !has_single_core || tables.is_paused() || tables.index_step() != Backlog::Empty {
        return false;
    }
    let catalog = shared.tables.spaces.load();
    let name = std::str::from_utf8(request.arg(1)).ok();
    let Some(declared) = name.and_then(|name| catalog.space(name)) else {
        return false;
    };
    let definition = &declared.definition;
    let arguments: Vec<&[u8]> = request.args().skip(QUERY).collect();
    let Ok(search) = Search::parse(&arguments, definition) else {
        return false;
    };
    if shared.config.spaces.refuse_full_scans && search.ensure_no_full_scan(definition).is_err() {
        return false;
    }
    let (mark, proto) = (state.output.mark(), state.proto);
    let found = tables.read(|engine, now| {
        if engine.has_expired_rows() {
            return None;
        }
        let all = tables.spaces().read();
        let space = all.spaces.get(&definition.name)?;
        if space.declared.version != declared.version {
            return None;
        }
        let found = space.index.search_in_one_step(&search, EFFORT_MAX)?;
        tables.spaces().record_work(found.work);
        let out = &mut state.output.tail;
        let begin = out.len();
        let mut reply = SearchReply::start(out, proto, &search, found.total, found.len());
        let (keys, mut is_complete) = (found.keys(), true);
        let mut row = |at: usize, key: &[u8], bytes: Option<&[u8]>| {
            let sorted_by = || found.first_sort_value(at, &search.order);
            let written = reply.push_row(key, sorted_by, |out, head| match bytes {
                // Even a few objects may be large; such searches are executed in steps.
                _ if out.len() - begin > BYTES_MAX => Err(Malformed("the reply is too long")),
                Some(bytes) => put_content(&search, definition, bytes, now, out, head),
                None => Err(Malformed("the object does not exist")),
            });
            is_complete &= written.is_ok();
        };
        match search.content {
            Content::Nothing => keys.enumerate().for_each(|(at, key)| row(at, key, None)),
            _ => {
                let mut row_keys = found.keys();
                read_objects(engine, keys, &mut |at, bytes| {
                    row(at, row_keys.next().unwrap_or_default(), bytes);
                });
            }
        }
        reply.finish(found.total);
        is_complete.then_some((found.total, found.len() as u64))
    });
    let is_short = state.output.len() <= state.core.clients.limits.reply_bytes();
    match found.filter(|_| is_short) {
        Some((total, answered)) => {
            let spaces = tables.spaces();
            if spaces.is_recording() {
                let predicate = &search.predicate;
                spaces.record_query(declared, predicate, Some(total), answered, tables.now());
            }
            true
        }
        None => {
            state.output.rewind(mark);
            false
        }
    }
}
