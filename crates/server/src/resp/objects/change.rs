//! OBJ.CHANGE: several changes of one object, applied atomically if a condition is met (HyperDex's conditional and
//! atomic operations). SPACE.CPUT is HyperDex's conditional put.
//!
//! ```text
//! SPACE.CPUT key space query field value [field value ...]    is: OBJ.CHANGE key IF query IN space DO PUT field value [PUT field value ...]
//!
//! OBJ.CHANGE key [AS HASH | AS JSON] [condition] DO DELETE
//! OBJ.CHANGE key [AS HASH | AS JSON] [ONCE target id] [condition] DO change [change ...]
//! condition = IF ABSENT | IF PRESENT | IF query IN space [PARAMS count name value ...] | IF query SCHEMA attribute type ...
//! change = PUT target value | UNSET target | RENAME target name
//!        | ADD | SUB | MUL | DIV | MOD | AND | OR | XOR | MIN | MAX target number
//!        | APPEND | PREPEND target text | TRIMLEFT | TRIMRIGHT target bytes
//!        | LPUSH | RPUSH | SADD | SREM target json | SINTER | SUNION target json-array
//!        | MADD target name json | MREM target name
//! ```
//!
//! `IF query IN space` is met by an object that FT.SEARCH would find in the space. A target is a field of a hash, a
//! path in the JSON value of a field (`stock->$.rome`), or a path of a document (`$.stock.rome`). The reply is 1, or 0
//! if the condition is not met.
//!
//! With ONCE, the id is added to its target together with the changes. If the id is already there, the command is a
//! no-op and also returns 1.

use std::sync::Arc;

use larder_protocol::errors::Code;
use larder_protocol::resp::Request;
use larder_space::object::{
    AppliedMark, Arithmetic, Change, Object, ObjectKind, ObjectView, Path, Target, apply,
};
use larder_space::query::{Condition, Params, parse};
use larder_space::schema::Definition;
use larder_types::integer;
use serde_json::Value;

use super::super::state::ConnectionState;
use super::access::{NewState, change};
use super::hash::change_refusal;
use super::json::{document_refusal, parse_json, parse_text};
use crate::error::show;
use crate::spaces::Catalog;
use crate::tables::{NoReply, Refusal, read_object};

/// Maximum number of changes of one command.
const CHANGES_MAX: usize = 128;
/// Maximum work of a command: bytes of the object and of the arguments, times the number of changes.
const WORK_MAX: usize = 32 << 20;
/// Maximum product of the byte sizes of two sets whose elements are compared.
const COMPARED_MAX: usize = 1 << 28;

fn bad_request(message: impl Into<String>) -> Refusal {
    (Code::BadRequest, message.into())
}

/// The parsed arguments, up to the changes.
struct ObjChangeArgs<'a> {
    kind: Option<ObjectKind>,
    once: Option<OnceClause<'a>>,
    condition: Precondition<'a>,
    /// The index of the first change.
    at: usize,
}

/// The id of the request, and the target to which it is added.
#[derive(Clone, Copy)]
struct OnceClause<'a> {
    target: &'a [u8],
    id: &'a [u8],
}

/// A condition as written in the request.
enum Precondition<'a> {
    Always,
    Absent,
    Present,
    Holds {
        query: &'a [u8],
        schema: Vec<&'a [u8]>,
    },
    /// The query of a declared space, which must cover the object.
    HoldsIn {
        query: &'a [u8],
        space: &'a [u8],
        params: Params,
    },
}

/// The changes to apply to the object.
enum ObjectAction {
    Delete,
    Changes(Vec<(Target, Change)>),
}

impl<'a> ObjChangeArgs<'a> {
    fn parse(request: Request<'a>) -> Result<ObjChangeArgs<'a>, Refusal> {
        let is = |at: usize, word: &[u8]| {
            let found = request.get(at);
            found.is_some_and(|it| it.eq_ignore_ascii_case(word))
        };
        let mut at = 2;
        let mut kind = None;
        if is(at, b"AS") {
            kind = Some(match () {
                () if is(at + 1, b"HASH") => ObjectKind::Hash,
                () if is(at + 1, b"JSON") => ObjectKind::Json,
                () => return Err(bad_request("AS must be followed by HASH or JSON")),
            });
            at += 2;
        }
        let once = parse_once(request, &mut at)?;
        let mut condition = Precondition::Always;
        if is(at, b"IF") {
            let test = request.get(at + 1).ok_or_else(usage_refusal)?;
            at += 2;
            condition = match test.to_ascii_uppercase().as_slice() {
                b"ABSENT" => Precondition::Absent,
                b"PRESENT" => Precondition::Present,
                _ if is(at, b"IN") => {
                    let space = request.get(at + 1).ok_or_else(usage_refusal)?;
                    at += 2;
                    let params = if is(at, b"PARAMS") {
                        parse_params(request, &mut at)?
                    } else {
                        Params::default()
                    };
                    Precondition::HoldsIn {
                        query: test,
                        space,
                        params,
                    }
                }
                _ => {
                    let end = (at..request.len()).find(|at| is(*at, b"DO"));
                    let end = end.ok_or_else(usage_refusal)?;
                    let schema: Vec<&[u8]> = (at..end).map(|at| request.arg(at)).collect();
                    at = end;
                    Precondition::Holds {
                        query: test,
                        schema,
                    }
                }
            };
        }
        match is(at, b"DO") {
            true if once.is_some() && is(at + 1, b"DELETE") => Err(bad_request(
                "ONCE cannot be combined with DELETE: ONCE stores its id in the object, which DELETE removes",
            )),
            true => Ok(ObjChangeArgs {
                kind,
                once,
                condition,
                at: at + 1,
            }),
            false => Err(usage_refusal()),
        }
    }
}

/// Parses `ONCE target id`, if present.
fn parse_once<'a>(request: Request<'a>, at: &mut usize) -> Result<Option<OnceClause<'a>>, Refusal> {
    let is_once = |word: &[u8]| word.eq_ignore_ascii_case(b"ONCE");
    if !request.get(*at).is_some_and(is_once) {
        return Ok(None);
    }
    let words = (request.get(*at + 1), request.get(*at + 2));
    let (Some(target), Some(id)) = words else {
        return Err(usage_refusal());
    };
    *at += 3;
    Ok(Some(OnceClause { target, id }))
}

fn build_mark(
    once: OnceClause<'_>,
    kind: ObjectKind,
) -> Result<(AppliedMark, (Target, Change)), Refusal> {
    let mark = AppliedMark {
        target: parse_target(once.target, kind)?,
        id: once.id.to_vec(),
    };
    let change = mark.change();
    let change = change.ok_or_else(|| {
        bad_request("the id of ONCE must be UTF-8 text, because its target stores JSON")
    })?;
    Ok((mark, change))
}

/// Parses the arguments from `PARAMS count` on.
fn parse_params(request: Request<'_>, at: &mut usize) -> Result<Params, Refusal> {
    let count = request.get(*at + 1).and_then(integer);
    let count = count.and_then(|count| usize::try_from(count).ok());
    let first = *at + 2;
    let count = count.filter(|count| count % 2 == 0 && *count <= request.len() - first);
    let count = count.ok_or_else(|| {
        bad_request("PARAMS must be followed by an even number and by that many names and values")
    })?;
    *at = first + count;
    let pairs = (first..*at).step_by(2);
    let pairs = pairs.map(|at| (request.arg(at).to_vec(), request.arg(at + 1).to_vec()));
    Ok(Params(pairs.collect()))
}

fn usage_refusal() -> Refusal {
    bad_request(
        "write OBJ.CHANGE key [AS HASH | AS JSON] [ONCE target id] [IF ABSENT | IF PRESENT | IF query IN space | IF query SCHEMA attribute type ...] DO DELETE, or DO change [change ...]",
    )
}

/// Returns the condition, and the definition with the attributes of its predicate.
fn resolve_precondition(
    precondition: &Precondition<'_>,
    kind: ObjectKind,
    spaces: &Catalog,
) -> Result<(Condition, Arc<Definition>), Refusal> {
    if let Precondition::HoldsIn {
        query,
        space,
        params,
    } = precondition
    {
        let definition = find_definition(space, spaces)?;
        return Ok((parse_predicate(query, &definition, params)?, definition));
    }
    let on: &[u8] = match kind {
        ObjectKind::Hash => b"HASH",
        ObjectKind::Json => b"JSON",
    };
    let mut arguments: Vec<&[u8]> = vec![b"object", b"ON", on];
    match precondition {
        Precondition::Holds { schema, .. } => arguments.extend(schema),
        _ => arguments.extend([&b"SCHEMA"[..], b"any", b"TAG"]),
    }
    let definition = Definition::parse_create(&arguments)
        .map_err(|error| bad_request(format!("the SCHEMA of IF is invalid: {}", error.message)))?;
    let condition = match precondition {
        Precondition::Always => Condition::Always,
        Precondition::Absent => Condition::Absent,
        Precondition::Present => Condition::Present,
        Precondition::Holds { query, .. } | Precondition::HoldsIn { query, .. } => {
            parse_predicate(query, &definition, &Params::default())?
        }
    };
    Ok((condition, Arc::new(definition)))
}

fn find_definition(space: &[u8], spaces: &Catalog) -> Result<Arc<Definition>, Refusal> {
    let declared = std::str::from_utf8(space)
        .ok()
        .and_then(|name| spaces.space(name));
    let declared =
        declared.ok_or_else(|| bad_request(format!("{}: no such index", show(space))))?;
    Ok(declared.definition.clone())
}

fn parse_predicate(
    query: &[u8],
    definition: &Definition,
    params: &Params,
) -> Result<Condition, Refusal> {
    let predicate = parse(query, definition, params);
    let predicate =
        predicate.map_err(|error| bad_request(format!("the query of IF is invalid: {error}")))?;
    Ok(Condition::Holds(predicate))
}

pub fn run(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    let args = ObjChangeArgs::parse(request)?;
    let at = args.at;
    change_object(state, request, args, |kind| parse_action(request, at, kind))
}

/// Executes SPACE.CPUT.
pub fn put(state: &mut ConnectionState, request: Request<'_>) -> Result<(), NoReply> {
    const FIELDS: usize = 4;
    let args = ObjChangeArgs {
        kind: None,
        once: None,
        condition: Precondition::HoldsIn {
            space: request.arg(2),
            query: request.arg(3),
            params: Params::default(),
        },
        at: FIELDS,
    };
    if (request.len() - FIELDS) % 2 == 1 {
        let what = "a value is missing: SPACE.CPUT key space query field value [field value ...]";
        return Err(bad_request(what).into());
    }
    let puts = |kind| {
        let pairs = (FIELDS..request.len()).step_by(2);
        let put = |at| {
            let change = Change::Put(request.arg(at + 1).to_vec());
            Ok((parse_target(request.arg(at), kind)?, change))
        };
        let puts = pairs.map(put).collect::<Result<Vec<_>, Refusal>>()?;
        if puts.len() > CHANGES_MAX {
            Err(too_many_changes())
        } else {
            Ok(ObjectAction::Changes(puts))
        }
    };
    change_object(state, request, args, puts)
}

fn change_object(
    state: &mut ConnectionState,
    request: Request<'_>,
    args: ObjChangeArgs<'_>,
    parse_action: impl FnOnce(ObjectKind) -> Result<ObjectAction, Refusal>,
) -> Result<(), NoReply> {
    let key = request.arg(1);
    let stored = state.tables().read(|engine, now| {
        read_object(engine, key, now, |bytes| {
            (ObjectView::kind_of(bytes), bytes.len())
        })
    });
    let (found, bytes) = stored.unzip();
    let spaces = state.core.shared.tables.spaces.load();
    let own = match &args.condition {
        Precondition::HoldsIn { space, .. } => Some(find_definition(space, &spaces)?.on),
        _ => None,
    };
    let kind = args.kind.or(own).or(found).unwrap_or(ObjectKind::Hash);
    let (condition, definition) = resolve_precondition(&args.condition, kind, &spaces)?;
    let action = parse_action(kind)?;
    let once = args.once.map(|once| build_mark(once, kind)).transpose()?;
    let changes: &[(Target, Change)] = match &action {
        ObjectAction::Delete => &[],
        ObjectAction::Changes(changes) => changes,
    };
    check_work(request, changes.len(), bytes.unwrap_or(0))?;
    if own.is_some() && found.is_some_and(|found| found != kind) {
        // The object does not belong to the space.
        state.encoder().count(0);
        return Ok(());
    }
    let is_met = change(state, key, kind, |before, _| {
        if let (Some((mark, _)), Some(before)) = (&once, &before)
            && mark.is_in(before)
        {
            return Ok((true, NewState::Unchanged));
        }
        let is_of_space = |object: &Object| own.is_none() || definition.covers(key, object);
        if !before.as_ref().is_none_or(is_of_space)
            || !condition.is_met(&definition, before.as_ref())
        {
            return Ok((false, NewState::Unchanged));
        }
        Ok(match (&action, &before) {
            (ObjectAction::Delete, None) => (false, NewState::Unchanged),
            (ObjectAction::Delete, Some(_)) => (true, NewState::Removed),
            (ObjectAction::Changes(changes), before) => {
                let mut after = apply(before.as_ref(), kind, changes).map_err(change_refusal)?;
                if let Some((_, put)) = &once {
                    let put = std::slice::from_ref(put);
                    after = apply(Some(&after), kind, put).map_err(change_refusal)?;
                }
                (true, NewState::Replaced(after))
            }
        })
    })?;
    state.encoder().count(u64::from(is_met));
    Ok(())
}

/// Checks the syntax of a command for objects of this kind.
///
/// # Errors
/// The first invalid part.
pub(in crate::resp) fn check(request: Request<'_>, on: ObjectKind) -> Result<(), Refusal> {
    let args = ObjChangeArgs::parse(request)?;
    args.once.map(|once| build_mark(once, on)).transpose()?;
    parse_action(request, args.at, on).map(drop)
}

/// Rejects a command with too much work: each change scans the object, and sets are compared element by element.
fn check_work(request: Request<'_>, changes: usize, bytes: usize) -> Result<(), Refusal> {
    let argument_bytes: usize = request.args().map(<[u8]>::len).sum();
    let total_bytes = bytes + argument_bytes;
    let compares = |word: &[u8]| {
        let is = |name: &[u8]| word.eq_ignore_ascii_case(name);
        is(b"SUNION") || is(b"SINTER")
    };
    let is_too_much = total_bytes.saturating_mul(changes) > WORK_MAX
        || request.args().any(compares)
            && total_bytes.saturating_mul(argument_bytes) > COMPARED_MAX;
    if is_too_much {
        Err(bad_request(format!(
            "{changes} changes of an object of {bytes} bytes, with arguments of {argument_bytes} bytes, exceed the work limit of a command: send fewer changes per command"
        )))
    } else {
        Ok(())
    }
}

fn parse_action(
    request: Request<'_>,
    mut at: usize,
    kind: ObjectKind,
) -> Result<ObjectAction, Refusal> {
    let is_delete = |word: &[u8]| word.eq_ignore_ascii_case(b"DELETE");
    if request.get(at).is_some_and(is_delete) {
        return if request.len() == at + 1 {
            Ok(ObjectAction::Delete)
        } else {
            Err(bad_request("DELETE must be the only word after DO"))
        };
    }
    let mut changes = Vec::new();
    while let Some(word) = request.get(at) {
        if changes.len() == CHANGES_MAX {
            return Err(too_many_changes());
        }
        let name = String::from_utf8_lossy(word).to_ascii_uppercase();
        let count = match name.as_str() {
            "UNSET" => 1,
            "MADD" => 3,
            _ => 2,
        };
        let argument = |number: usize| {
            request.get(at + number).ok_or_else(|| {
                let message = format!(
                    "{} is missing an argument: see COMMAND DOCS OBJ.CHANGE",
                    show(word)
                );
                (Code::Syntax, message)
            })
        };
        argument(count)?;
        let target = parse_target(argument(1)?, kind)?;
        let value = || argument(2);
        let change = match name.as_str() {
            "PUT" => Change::Put(value()?.to_vec()),
            "UNSET" => Change::Unset,
            "RENAME" => Change::Rename(value()?.to_vec()),
            "APPEND" => Change::Append(value()?.to_vec()),
            "PREPEND" => Change::Prepend(value()?.to_vec()),
            "TRIMLEFT" => Change::TrimLeft(parse_size(value()?)?),
            "TRIMRIGHT" => Change::TrimRight(parse_size(value()?)?),
            "LPUSH" => Change::PushLeft(parse_json(value()?)?),
            "RPUSH" => Change::PushRight(parse_json(value()?)?),
            "SADD" => Change::SetAdd(parse_json(value()?)?),
            "SREM" => Change::SetRemove(parse_json(value()?)?),
            "SINTER" => Change::SetIntersect(parse_elements(value()?)?),
            "SUNION" => Change::SetUnion(parse_elements(value()?)?),
            "MADD" => Change::MapAdd(parse_text(value()?)?.to_owned(), parse_json(argument(3)?)?),
            "MREM" => Change::MapRemove(parse_text(value()?)?.to_owned()),
            name => match parse_arithmetic(name) {
                Some(operation) => Change::Number(operation, value()?.to_vec()),
                None => {
                    return Err(bad_request(format!(
                        "'{}' is not a change (argument {at}): the changes are PUT UNSET RENAME ADD SUB MUL DIV MOD AND OR XOR MIN MAX APPEND PREPEND TRIMLEFT TRIMRIGHT LPUSH RPUSH SADD SREM SINTER SUNION MADD MREM",
                        show(word)
                    )));
                }
            },
        };
        changes.push((target, change));
        at += 1 + count;
    }
    if changes.is_empty() {
        Err(bad_request(
            "DO must be followed by a change, such as ADD price 10",
        ))
    } else {
        Ok(ObjectAction::Changes(changes))
    }
}

fn too_many_changes() -> Refusal {
    bad_request(format!("a command can make at most {CHANGES_MAX} changes"))
}

fn parse_arithmetic(name: &str) -> Option<Arithmetic> {
    Some(match name {
        "ADD" => Arithmetic::Add,
        "SUB" => Arithmetic::Subtract,
        "MUL" => Arithmetic::Multiply,
        "DIV" => Arithmetic::Divide,
        "MOD" => Arithmetic::Remainder,
        "AND" => Arithmetic::And,
        "OR" => Arithmetic::Or,
        "XOR" => Arithmetic::Xor,
        "MIN" => Arithmetic::Min,
        "MAX" => Arithmetic::Max,
        _ => return None,
    })
}

fn parse_target(word: &[u8], kind: ObjectKind) -> Result<Target, Refusal> {
    let path = |word: &[u8]| Path::parse(parse_text(word)?).map_err(document_refusal);
    if kind == ObjectKind::Json {
        return Ok(Target {
            field: None,
            path: Some(path(word)?),
        });
    }
    let arrow = word.windows(3).position(|three| three == b"->$");
    Ok(match arrow {
        None => Target {
            field: Some(word.to_vec()),
            path: None,
        },
        Some(arrow) => Target {
            field: Some(word[..arrow].to_vec()),
            path: Some(path(&word[arrow + 2..])?),
        },
    })
}

fn parse_size(word: &[u8]) -> Result<usize, Refusal> {
    let size = integer(word).and_then(|size| usize::try_from(size).ok());
    size.ok_or_else(|| bad_request(format!("'{}' is not a number of bytes", show(word))))
}

fn parse_elements(word: &[u8]) -> Result<Vec<Value>, Refusal> {
    match parse_json(word)? {
        Value::Array(elements) => Ok(elements),
        _ => Err(bad_request("a set must be a JSON array, such as [1,2]")),
    }
}
