//! Runs the fuzz targets over their seeds and some thousands of mutations, without libFuzzer.
//!
//! A failure prints its number. `Mutations` reproduces the same bytes for it.

use std::fs;
use std::path::Path;

use fuzz::Mutations;
use larder_journal::format::FileKind;

mod allocator;

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("seeds")
        .map(|entry| entry.expect("entry").path())
        .collect();
    paths.sort();
    assert!(
        !paths.is_empty(),
        "no seeds in {}; run `cargo run -p fuzz --example seeds`",
        folder.display()
    );
    paths
        .iter()
        .map(|path| fs::read(path).expect("seed"))
        .collect()
}

/// Runs `target` over every seed and this many mutations; over fifty times as many in slow mode.
fn check(name: &str, target: fn(&[u8]), mutations: usize) {
    check_over(name, name, target, mutations);
}

/// Like [`check`], over the seeds of another target.
fn check_over(name: &str, of: &str, target: fn(&[u8]), mutations: usize) {
    /// Prints the number of the mutation if the target panics.
    struct ReportInput<'a>(&'a str, usize);
    impl Drop for ReportInput<'_> {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("{}: mutation {}", self.0, self.1);
            }
        }
    }

    let times = match std::env::var_os("LARDER_SLOW_TESTS") {
        Some(_) => 50,
        None => 1,
    };
    let mutations = mutations * times;
    let seeds = seeds(of);
    seeds.iter().for_each(|seed| target(seed));
    for (number, bytes) in Mutations::new(&seeds).take(mutations).enumerate() {
        let input = ReportInput(name, number);
        target(&bytes);
        std::mem::forget(input);
    }
}

#[test]
fn the_resp_decoder_handles_any_bytes() {
    check("resp", fuzz::resp, 200_000);
}

#[test]
fn the_dump_decoder_handles_any_bytes() {
    check("dump", fuzz::dump, 100_000);
}

/// Mutations that are rejected at their first byte would test little.
#[test]
fn mutated_dumps_with_a_valid_checksum_are_decoded() {
    let seeds = seeds("dump");
    let decoded = Mutations::new(&seeds)
        .take(2_000)
        .filter(|bytes| fuzz::is_dump(bytes))
        .count();
    assert!(decoded > 200, "{decoded} of 2000 were decoded");
}

#[test]
fn the_reply_reader_handles_any_bytes() {
    check("reply", fuzz::reply, 100_000);
}

/// Mutations that are rejected at their first byte would test little.
#[test]
fn mutated_replies_still_contain_replies() {
    let seeds = seeds("reply");
    let read = Mutations::new(&seeds)
        .take(2_000)
        .filter(|bytes| fuzz::complete_replies(bytes) > 0)
        .count();
    assert!(read > 500, "{read} of 2000 held a reply");
}

#[test]
fn the_segment_reader_handles_any_bytes() {
    check("segment", fuzz::segment, 200_000);
}

/// Mutations alone do not produce segments with such a dictionary.
#[test]
fn an_invalid_dictionary_is_damage() {
    let seeds = seeds("segment");
    let spoiled = seeds.iter().filter_map(|seed| {
        let sealed = fuzz::reseal_segment(seed).expect("a segment");
        fuzz::with_dictionary(&sealed, &[1; 200])
    });
    let mut tried = 0;
    for bytes in spoiled {
        let error = fuzz::read_segment(&bytes).expect_err("it is damaged");
        let error = error.to_string();
        assert!(error.contains("its zstd dictionary is invalid"), "{error}");
        tried += 1;
    }
    assert!(tried >= 4, "{tried} segments are compressed with zstd");
}

#[test]
fn the_version_reader_handles_any_segment() {
    check_over("version", "segment", fuzz::version, 4_000);
}

/// The test above compares lookups only in versions that pass verification.
#[test]
fn versions_of_seeds_and_of_many_mutations_pass_verification() {
    let seeds = seeds("segment");
    for (number, seed) in seeds.iter().enumerate() {
        fuzz::verify_version(seed).unwrap_or_else(|error| panic!("seed {number}: {error}"));
    }
    let mutations = Mutations::new(&seeds).take(1_000);
    let verified = mutations.filter(|bytes| fuzz::verify_version(bytes).is_ok());
    let verified = verified.count();
    assert!(verified > 50, "{verified} of 1000 passed");
}

#[test]
fn the_manifest_decoder_handles_any_bytes() {
    check("manifest", fuzz::manifest, 50_000);
}

#[test]
fn the_journal_reader_handles_any_bytes() {
    check("journal", fuzz::journal, 100_000);
}

#[test]
fn a_peer_connection_handles_any_bytes() {
    check("peer", fuzz::peer, 20_000);
}

/// Mutations that are rejected at their first byte would test little.
#[test]
fn mutated_frames_still_contain_frames() {
    let seeds = seeds("peer");
    let read = Mutations::new(&seeds)
        .take(2_000)
        .filter(|bytes| fuzz::complete_frames(bytes) > 1)
        .count();
    assert!(read > 500, "{read} of 2000 held frames");
}

#[test]
fn owners_and_replicas_handle_any_bytes() {
    check("replication", fuzz::replication, 100_000);
}

/// Mutations that are rejected at their first byte would test little.
#[test]
fn mutated_replication_messages_are_still_decoded() {
    let seeds = seeds("replication");
    let mutations = Mutations::new(&seeds).take(2_000);
    let read = mutations.filter(|bytes| fuzz::replication_pieces(bytes) > 3);
    let read = read.count();
    assert!(read > 500, "{read} of 2000 held messages");
}

#[test]
fn the_command_and_engine_message_decoders_handle_any_bytes() {
    check("wire", fuzz::wire, 100_000);
}

/// Mutations that are rejected at their first byte would test little.
#[test]
fn mutated_commands_and_engine_messages_are_still_decoded() {
    let seeds = seeds("wire");
    let mutations = Mutations::new(&seeds).take(2_000);
    let read = mutations.filter(|bytes| fuzz::is_wire(bytes)).count();
    assert!(read > 300, "{read} of 2000 were read");
}

#[test]
fn the_pgoutput_reader_handles_any_bytes() {
    check("pgoutput", fuzz::pgoutput, 100_000);
}

/// The output of a real PostgreSQL is decoded, and many of its mutations still change rows.
#[test]
fn replication_seeds_and_their_mutations_change_rows() {
    let seeds = seeds("pgoutput");
    for seed in &seeds {
        assert!(fuzz::changes_of(seed) >= 5);
    }
    let mutations = Mutations::new(&seeds).take(2_000);
    let with_changes = mutations
        .filter(|bytes| fuzz::changes_of(bytes) > 0)
        .count();
    assert!(
        with_changes > 500,
        "{with_changes} of 2000 inputs contained changes"
    );
}

#[test]
fn the_trace_decoder_and_the_validator_handle_any_bytes() {
    check("trace", fuzz::trace, 20_000);
}

#[test]
fn the_text_log_parser_handles_any_bytes() {
    check("bg_text", fuzz::bg_text, 100_000);
}

#[test]
fn the_join_parser_handles_any_text() {
    check("join", fuzz::join, 100_000);
}

/// Most mutations are not joins. Enough of them must be, so that the test above is meaningful.
#[test]
fn mutated_joins_are_often_valid() {
    let seeds = seeds("join");
    let mutations = Mutations::new(&seeds).take(2_000);
    let joins = mutations.filter(|bytes| fuzz::is_join(bytes)).count();
    assert!(joins > 200, "{joins} of 2000 parsed");
}

#[test]
fn the_csv_reader_handles_any_bytes() {
    check("csv", fuzz::csv, 50_000);
}

#[test]
fn the_json_lines_reader_handles_any_bytes() {
    check("json_lines", fuzz::json_lines, 50_000);
}

#[test]
fn the_bundle_reader_handles_any_bytes() {
    check("bundle", fuzz::bundle, 100_000);
}

#[test]
fn the_reader_of_collected_entries_handles_any_bytes() {
    check("collected", fuzz::collected, 20_000);
}

/// Mutations that are all rejected would test little.
#[test]
fn mutated_collected_entries_are_still_read() {
    let seeds = seeds("collected");
    let mutations = Mutations::new(&seeds).take(2_000);
    let read = mutations.filter(|bytes| fuzz::is_collected(bytes)).count();
    assert!(read > 100, "{read} of 2000 were read");
}

/// Mutations that are rejected at their first row would test little.
#[test]
fn mutated_bundles_still_contain_rows() {
    let seeds = seeds("bundle");
    let mutations = Mutations::new(&seeds).take(2_000);
    let read = mutations.filter(|bytes| fuzz::rows_in_bundle(bytes) > 1);
    let read = read.count();
    assert!(read > 500, "{read} of 2000 held rows");
}

#[test]
fn resealed_traces_get_past_the_checksum() {
    let seeds = seeds("trace");
    let read = Mutations::new(&seeds)
        .take(2_000)
        .filter_map(|bytes| fuzz::reseal_trace(&bytes))
        .filter(|sealed| fuzz::holds_records(sealed))
        .count();
    assert!(read > 500, "{read}");
}

/// As below: damaged contents with correct checksums must reach the code behind the check.
#[test]
fn resealed_journals_get_past_the_checksums() {
    let seeds = seeds("journal");
    for kind in [FileKind::Log, FileKind::Snapshot] {
        let read = Mutations::new(&seeds)
            .take(2_000)
            .filter_map(|bytes| fuzz::reseal_journal(&bytes, kind))
            .filter(|sealed| fuzz::read_journal(sealed, kind).is_ok_and(|entries| entries > 0))
            .count();
        assert!(read > 100, "{read} of 2000 were read as {kind:?}");
    }
}

/// The seeds are also golden files: segments of formats 1 and 2 that every later version must read.
#[test]
fn segments_of_every_format_are_read_completely() {
    for (number, seed) in seeds("segment").iter().enumerate() {
        let records =
            fuzz::read_segment(seed).unwrap_or_else(|error| panic!("seed {number}: {error}"));
        assert!(records > 0, "seed {number} holds records");
    }
}

/// The test above would be of little use if checksums rejected every mutation.
#[test]
fn resealed_mutations_get_past_the_checksums() {
    let seeds = seeds("segment");
    let opened = Mutations::new(&seeds)
        .take(2_000)
        .filter_map(|bytes| fuzz::reseal_segment(&bytes))
        .filter(|sealed| fuzz::read_segment(sealed).is_ok())
        .count();
    assert!(opened > 200, "{opened} of 2000 were read");
}

#[test]
fn indexed_searches_equal_full_scans_for_any_text() {
    check("space", fuzz::space, 5_000);
}

/// Mutations that are rejected in their first line would test little.
#[test]
fn mutated_spaces_still_search() {
    let seeds = seeds("space");
    let mutations = Mutations::new(&seeds).take(1_000);
    let searched = mutations.filter(|bytes| fuzz::searches(bytes) > 1).count();
    assert!(searched > 300, "{searched} of 1000 searched");
}
