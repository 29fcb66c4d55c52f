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

use super::reach::{Asker, Reach, again, altered, damaged};
use super::run::{begin, end};
use crate::spaces::Declared;
use crate::spaces::recording::{Recording, ValueWalk, Values};
use crate::tables::Refusal;

/// Number of objects read per step.
const STEP_OBJECTS: usize = 256;
/// Default and maximum duration of a recording in seconds. It then ends automatically.
const SECONDS_DEFAULT: i64 = 3600;
const SECONDS_MAX: i64 = 7 * 86_400;

impl Asker {
    /// Records a client's search, if the space is being recorded.
    pub(super) fn note_query(
        &self,
        declared: &Declared,
        predicate: &Predicate,
        found: Option<u64>,
        answered: u64,
    ) {
        let tables = &self.core.tables;
        let spaces = tables.spaces();
        if spaces.is_recording() && !matches!(self.reach, Reach::Part { .. }) {
            spaces.note_query(declared, predicate, found, answered, tables.now());
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
struct Seen {
    /// `None` if nothing is recorded.
    recorder: Option<Recorder>,
    objects: u64,
    /// Number of objects whose size is included in `bytes`.
    measured: u64,
    bytes: u64,
}

pub(super) async fn record(asker: &mut Asker, command: Command<'_>) -> Result<Vec<u8>, Refusal> {
    let asker = &*asker;
    let action = action(command)?;
    again(&asker.core, asker.reach, async || {
        let declared = asker.declared(command.arg(2))?;
        let mut seen = Seen::default();
        match asker.reach {
            Reach::Nodes => {
                for part in asker.parts_of_nodes(command, &declared).await? {
                    seen.add(Seen::decode(&part).map_err(|_| damaged())?);
                }
            }
            _ => {
                match action {
                    Action::Start { seconds } => start(asker, &declared, seconds).await?,
                    Action::Stop => stop(asker, &declared).await?,
                    Action::Get => {}
                }
                for part in collect(asker, &declared).await? {
                    seen.add(part);
                }
            }
        }
        if let Reach::Part { .. } = asker.reach {
            return Ok(asker.part(&declared, &seen.encode()));
        }
        match action {
            Action::Get => {
                let workload = seen.told(&declared)?;
                Ok(asker.encoded(|encoder| encoder.text(&workload)))
            }
            _ => Ok(asker.encoded(|encoder| encoder.ok())),
        }
    })
    .await
}

fn action(command: Command<'_>) -> Result<Action, Refusal> {
    let syntax = |message: &str| Err((Code::Syntax, format!("syntax error: {message}")));
    let word = command.arg(1).to_ascii_uppercase();
    let more: Vec<&[u8]> = command.args().skip(3).collect();
    let action = match (&word[..], &more[..]) {
        (b"START", []) => Action::Start {
            seconds: SECONDS_DEFAULT as u64,
        },
        (b"START", [option, seconds]) if option.eq_ignore_ascii_case(b"SECONDS") => {
            let seconds = integer(seconds).filter(|it| (1..=SECONDS_MAX).contains(it));
            match seconds {
                Some(seconds) => Action::Start {
                    seconds: seconds as u64,
                },
                None => return syntax(&format!("SECONDS is from 1 to {SECONDS_MAX}")),
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
async fn start(asker: &Asker, declared: &Arc<Declared>, seconds: u64) -> Result<(), Refusal> {
    let (own, epoch) = (declared.clone(), asker.epoch());
    let walked = asker.on_cores(move |tables| async move {
        begin(&tables, epoch, None).await?;
        let definition = own.definition.clone();
        let mut walk = tables.read(|engine, _| ValueWalk::new(engine, &definition, tables.index));
        while !tables.read(|engine, _| walk.step(engine, &definition, STEP_OBJECTS)) {
            tokio::task::yield_now().await;
            tables.wait_while_paused(None).await;
        }
        end(&tables, epoch).await?;
        Ok(walk.known)
    });
    let mut all: Option<Values> = None;
    for known in walked.await? {
        match &mut all {
            Some(all) => all.merge(&known),
            None => all = Some(known),
        }
    }
    let Some(all) = all else {
        return Ok(());
    };
    let until_ms = asker.core.tables.now() + 1000 * seconds;
    let own = declared.clone();
    let begun = asker.on_cores(move |tables| async move {
        let begin =
            |index: &larder_space::index::SpaceIndex| Some(Recording::begin(all, index, until_ms));
        if tables.spaces().record(&own, begin) {
            Ok(())
        } else {
            Err(altered())
        }
    });
    begun.await.map(drop)
}

async fn stop(asker: &Asker, declared: &Arc<Declared>) -> Result<(), Refusal> {
    let own = declared.clone();
    let stopped = asker.on_cores(move |tables| async move {
        if tables.spaces().record(&own, |_| None) {
            Ok(())
        } else {
            Err(altered())
        }
    });
    stopped.await.map(drop)
}

/// Returns the recording of each core of this node.
async fn collect(asker: &Asker, declared: &Arc<Declared>) -> Result<Vec<Seen>, Refusal> {
    let own = declared.clone();
    let of_core = asker.on_cores(move |tables| async move {
        let spaces = tables.spaces().read();
        let space = spaces.spaces.get(&own.definition.name);
        let space = space
            .filter(|space| space.declared.version == own.version)
            .ok_or_else(altered)?;
        let mut seen = Seen {
            objects: space.index.len(),
            ..Seen::default()
        };
        let recording = space.recording.as_ref();
        if let Some(recording) = recording.filter(|it| !it.is_over(tables.now())) {
            seen.recorder = Some(recording.recorder().clone());
            (seen.measured, seen.bytes) = recording.measured();
        }
        Ok(seen)
    });
    of_core.await
}

impl Seen {
    fn add(&mut self, other: Seen) {
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
    fn told(&self, declared: &Declared) -> Result<String, Refusal> {
        let Some(recorder) = &self.recorder else {
            let name = &declared.definition.name;
            let message = format!("nothing is recorded: SPACE.RECORD START {name} begins it");
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

    fn decode(bytes: &[u8]) -> Result<Seen, Malformed> {
        let mut reader = WireReader::new(bytes);
        let mut seen = Seen {
            objects: reader.u64()?,
            measured: reader.u64()?,
            bytes: reader.u64()?,
            recorder: None,
        };
        if reader.count(4)? > 0 {
            seen.recorder = Some(Recorder::decode(reader.bytes()?)?);
        }
        reader.end()?;
        Ok(seen)
    }
}
