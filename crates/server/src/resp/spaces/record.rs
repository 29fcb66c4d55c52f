//! SPACE.RECORD: records the workload of a space, for `larder space plan`.
//!
//! ```text
//!  START ─► every core scans the values of its objects ─► merged for each node ─► every core records
//!  GET ─► every core's recorder ─► merged for each node, then for all ─► TOML
//! ```
//!
//! Cores start with the values of all objects of their node, so that each can compute the selectivity of a range.

use std::sync::Arc;

use larder_protocol::commands::Command;
use larder_protocol::errors::Code;
use larder_space::plan::Recorder;
use larder_space::query::Predicate;
use larder_types::integer;
use larder_types::wire::{Malformed, WireReader, put_bytes, put_count};

use super::context::{
    QueryContext, QueryScope, altered_refusal, retry_on_schema_change, unreadable_part,
};
use super::run::{begin_search, finish_search};
use crate::spaces::DeclaredSpace;
use crate::spaces::recording::{ObjectValues, Recording, ValueWalk};
use crate::tables::Refusal;

/// Number of objects read per step.
const STEP_OBJECTS: usize = 256;
/// Default and maximum duration of a recording in seconds. It then ends automatically.
const SECONDS_DEFAULT: i64 = 3600;
const SECONDS_MAX: i64 = 7 * 86_400;

impl QueryContext {
    /// Records a client's search, if the space is being recorded.
    pub(super) fn note_query(
        &self,
        declared: &DeclaredSpace,
        predicate: &Predicate,
        found: Option<u64>,
        answered: u64,
    ) {
        let tables = &self.core.tables;
        let spaces = tables.spaces();
        if spaces.is_recording() && !matches!(self.scope, QueryScope::Part { .. }) {
            spaces.record_query(declared, predicate, found, answered, tables.now());
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Action {
    Start { seconds: u64 },
    Stop,
    Get,
}

/// The recording of one node, or of several.
#[derive(Default)]
struct RecordedWorkload {
    /// `None` if nothing is recorded.
    recorder: Option<Recorder>,
    objects: u64,
    /// Number of objects whose size is included in `bytes`.
    measured: u64,
    bytes: u64,
}

pub(in crate::resp) async fn record(
    context: &mut QueryContext,
    command: Command<'_>,
) -> Result<Vec<u8>, Refusal> {
    let context = &*context;
    let action = parse_action(command)?;
    retry_on_schema_change(&context.core, context.scope, async || {
        let declared = context.find_space(command.arg(2))?;
        let mut recorded = RecordedWorkload::default();
        match context.scope {
            QueryScope::Nodes => {
                for part in context.query_nodes(command, &declared).await? {
                    recorded.add(RecordedWorkload::decode(&part).map_err(|_| unreadable_part())?);
                }
            }
            _ => {
                match action {
                    Action::Start { seconds } => start(context, &declared, seconds).await?,
                    Action::Stop => stop(context, &declared).await?,
                    Action::Get => {}
                }
                for part in collect_recordings(context, &declared).await? {
                    recorded.add(part);
                }
            }
        }
        if let QueryScope::Part { .. } = context.scope {
            return Ok(context.encode_part(&declared, &recorded.encode()));
        }
        match action {
            Action::Get => {
                let workload = recorded.to_toml(&declared)?;
                Ok(context.encode(|encoder| encoder.text(&workload)))
            }
            _ => Ok(context.encode(|encoder| encoder.ok())),
        }
    })
    .await
}

fn parse_action(command: Command<'_>) -> Result<Action, Refusal> {
    let syntax = |message: &str| Err((Code::Syntax, format!("syntax error: {message}")));
    let word = command.arg(1).to_ascii_uppercase();
    let options: Vec<&[u8]> = command.args().skip(3).collect();
    let action = match (&word[..], &options[..]) {
        (b"START", []) => Action::Start {
            seconds: SECONDS_DEFAULT as u64,
        },
        (b"START", [option, seconds]) if option.eq_ignore_ascii_case(b"SECONDS") => {
            let seconds = integer(seconds).filter(|it| (1..=SECONDS_MAX).contains(it));
            match seconds {
                Some(seconds) => Action::Start {
                    seconds: seconds as u64,
                },
                None => return syntax(&format!("SECONDS must be from 1 to {SECONDS_MAX}")),
            }
        }
        (b"STOP", []) => Action::Stop,
        (b"GET", []) => Action::Get,
        (b"START", _) => return syntax("SPACE.RECORD START index [SECONDS seconds]"),
        _ => return syntax("SPACE.RECORD START | STOP | GET, and the name of a space"),
    };
    Ok(action)
}

/// Reads the values of all objects of this node, and then starts recording on its cores.
async fn start(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
    seconds: u64,
) -> Result<(), Refusal> {
    let (own, epoch) = (declared.clone(), context.epoch());
    let walked = context.run_on_cores(move |tables| async move {
        begin_search(&tables, epoch, None).await?;
        let definition = own.definition.clone();
        let mut walk = tables.read(|engine, _| ValueWalk::new(engine, &definition, tables.index));
        while !tables.read(|engine, _| walk.step(engine, &definition, STEP_OBJECTS)) {
            tokio::task::yield_now().await;
            tables.wait_while_paused(None).await;
        }
        finish_search(&tables, epoch).await?;
        Ok(walk.values)
    });
    let mut all: Option<ObjectValues> = None;
    for core_values in walked.await? {
        match &mut all {
            Some(all) => all.merge(&core_values),
            None => all = Some(core_values),
        }
    }
    let Some(all) = all else {
        return Ok(());
    };
    let until_ms = context.core.tables.now() + 1000 * seconds;
    let own = declared.clone();
    let started = context.run_on_cores(move |tables| async move {
        let begin =
            |index: &larder_space::index::SpaceIndex| Some(Recording::new(all, index, until_ms));
        if tables.spaces().set_recording(&own, begin) {
            Ok(())
        } else {
            Err(altered_refusal())
        }
    });
    started.await.map(drop)
}

async fn stop(context: &QueryContext, declared: &Arc<DeclaredSpace>) -> Result<(), Refusal> {
    let own = declared.clone();
    let stopped = context.run_on_cores(move |tables| async move {
        if tables.spaces().set_recording(&own, |_| None) {
            Ok(())
        } else {
            Err(altered_refusal())
        }
    });
    stopped.await.map(drop)
}

/// Returns the recording of each core of this node.
async fn collect_recordings(
    context: &QueryContext,
    declared: &Arc<DeclaredSpace>,
) -> Result<Vec<RecordedWorkload>, Refusal> {
    let own = declared.clone();
    let recordings = context.run_on_cores(move |tables| async move {
        let spaces = tables.spaces().read();
        let space = spaces.spaces.get(&own.definition.name);
        let space = space
            .filter(|space| space.declared.version == own.version)
            .ok_or_else(altered_refusal)?;
        let mut recorded = RecordedWorkload {
            objects: space.index.len(),
            ..RecordedWorkload::default()
        };
        let recording = space.recording.as_ref();
        if let Some(recording) = recording.filter(|it| !it.is_expired(tables.now())) {
            recorded.recorder = Some(recording.recorder().clone());
            (recorded.measured, recorded.bytes) = recording.measured();
        }
        Ok(recorded)
    });
    recordings.await
}

impl RecordedWorkload {
    fn add(&mut self, other: RecordedWorkload) {
        self.objects += other.objects;
        self.measured += other.measured;
        self.bytes += other.bytes;
        match (&mut self.recorder, other.recorder) {
            (Some(own), Some(theirs)) => own.merge(&theirs),
            (None, theirs) => self.recorder = theirs,
            (Some(_), None) => {}
        }
    }

    /// Returns the workload as TOML.
    fn to_toml(&self, declared: &DeclaredSpace) -> Result<String, Refusal> {
        let Some(recorder) = &self.recorder else {
            let name = &declared.definition.name;
            let message =
                format!("no workload is being recorded: start with SPACE.RECORD START {name}");
            return Err((Code::BadRequest, message));
        };
        let object_bytes = self.bytes.checked_div(self.measured).unwrap_or(0);
        let mut workload = recorder.workload(self.objects, object_bytes.max(1));
        for profile in &mut workload.attributes {
            let mut attributes = declared.definition.attributes.iter();
            let attribute = attributes.find(|it| it.name == profile.name);
            profile.lists = attribute.is_some_and(|it| !it.is_single_valued());
        }
        Ok(workload.to_toml())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for number in [self.objects, self.measured, self.bytes] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        put_count(&mut out, self.recorder.iter().count());
        if let Some(recorder) = &self.recorder {
            put_bytes(&mut out, &recorder.encode());
        }
        out
    }

    fn decode(bytes: &[u8]) -> Result<RecordedWorkload, Malformed> {
        let mut reader = WireReader::new(bytes);
        let mut recorded = RecordedWorkload {
            objects: reader.u64()?,
            measured: reader.u64()?,
            bytes: reader.u64()?,
            recorder: None,
        };
        if reader.count(4)? > 0 {
            recorded.recorder = Some(Recorder::decode(reader.bytes()?)?);
        }
        reader.end()?;
        Ok(recorded)
    }
}
