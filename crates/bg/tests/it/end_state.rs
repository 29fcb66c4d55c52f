//! Reads the final state of a data store after a trial, and validates it with the trace.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use larder_bg::model::item::Kind;
use larder_bg::model::population::Population;
use larder_bg::stores::contract::Store;
use larder_bg::verdict::judge;
use larder_validate::Span;
use larder_validate::record::{self, END_STATE, Encoder, Outcome, Record, RecordKind};
use larder_validate::report::Report;
use larder_validate::set::Sketch;

use crate::conformance::run;

/// Reads everything once and validates the trace with these reads.
pub fn judged(
    store: &dyn Store,
    population: &Arc<Population>,
    trace: &Path,
) -> (Vec<Record>, Report) {
    let left = run(read_all(store, population, last_moment(trace) + 1));
    fs::write(trace.join("worker-end.trace"), encoded(&left)).expect("written");
    let report = judge::report_folder(trace, 2).expect("judged");
    (left, report)
}

/// Reads every list and count.
async fn read_all(store: &dyn Store, population: &Arc<Population>, moment: u64) -> Vec<Record> {
    let client = store.connect(population.clone()).await.expect("connected");
    let mut records = Vec::new();
    let mut read = |item: u64, what: RecordKind| {
        records.push(Record {
            item,
            span: Span::new(moment, moment).expect("an instant"),
            session: u32::MAX,
            action: END_STATE,
            outcome: Outcome::Done,
            what,
        });
    };
    let list = |item, elements: &[u64]| {
        RecordKind::ReadSet(Sketch::of(population.seed, item, elements.iter().copied()))
    };
    let of_members = |members: &[u32]| -> Vec<u64> { members.iter().map(|&m| m.into()).collect() };
    for member in 0..population.members {
        let friends = Kind::Friends.item(member.into());
        let invitations = Kind::Invitations.item(member.into());
        let profile = client
            .view_profile(member, member)
            .await
            .expect("a profile");
        read(friends, RecordKind::ReadCount(profile.friends as i64));
        let waiting = profile.invitations.expect("one's own");
        read(invitations, RecordKind::ReadCount(waiting as i64));
        let found = client.list_friends(member, member).await.expect("friends");
        read(friends, list(friends, &of_members(&found.members)));
        let found = client.view_friend_requests(member).await.expect("requests");
        read(invitations, list(invitations, &of_members(&found.members)));
    }
    for resource in 0..population.resource_count() {
        let comments = Kind::Comments.item(resource);
        let found = client.view_comments(0, resource).await.expect("comments");
        read(comments, list(comments, &found.comments));
    }
    records
}

/// Returns all records of a trace.
pub fn records(trace: &Path) -> Vec<Record> {
    let files = fs::read_dir(trace)
        .expect("the trace")
        .map(|file| file.expect("a file").path());
    let traces = files.filter(|path| path.extension().is_some_and(|end| end == "trace"));
    let records = traces.flat_map(|path| {
        let bytes = fs::read(path).expect("readable");
        record::decode(&bytes).expect("a whole trace")
    });
    records.collect()
}

fn last_moment(trace: &Path) -> u64 {
    // If the end is unknown, use the start.
    let moment = |record: Record| match record.span.end() {
        u64::MAX => record.span.start(),
        end => end,
    };
    let moments = records(trace).into_iter().map(moment);
    moments.max().expect("there are records")
}

fn encoded(records: &[Record]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    let mut bytes = Encoder::header().to_vec();
    for record in records {
        bytes.extend_from_slice(&encoder.record(record));
    }
    bytes.extend_from_slice(&encoder.footer());
    bytes
}
