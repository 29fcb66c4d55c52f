//! Recording the workload of a space, on all cores, while a recording is active.

use super::{add_hotels, call, create_hotels, server};
use crate::resp::Client;

fn lines<'a>(reply: &'a str, key: &str) -> Vec<&'a str> {
    let lines = reply.lines().filter(|line| line.starts_with(key));
    lines.collect()
}

#[test]
fn searches_reads_and_changes_are_recorded_as_a_workload() {
    let server = server(3);
    let mut client = Client::connect(&server);
    create_hotels(&mut client);
    add_hotels(&mut client);
    let say = |client: &mut _, line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        call(client, &words).replace('|', "\n")
    };
    assert_eq!(
        say(&mut client, "SPACE.RECORD GET hotels"),
        "-ERR no workload is being recorded: start with SPACE.RECORD START hotels"
    );
    // Commands before the start are not recorded.
    say(&mut client, "FT.SEARCH hotels @stars:[4 4]");
    assert_eq!(say(&mut client, "SPACE.RECORD START hotels"), "+OK");
    for _ in 0..4 {
        let mut other = Client::connect(&server);
        say(&mut other, "FT.SEARCH hotels @city:{rome} LIMIT 0 1");
        say(
            &mut other,
            "FT.AGGREGATE hotels @city:{paris} GROUPBY 1 @stars",
        );
    }
    call(&mut client, &["FT.SEARCH", "hotels", "@price:[100 150]"]);
    say(&mut client, "HGETALL hotel:1");
    say(&mut client, "HGETALL inn:4");
    say(&mut client, "HSET hotel:1 price 130");
    say(&mut client, "HSET hotel:1 price 140 stars 5");
    say(&mut client, "HSET inn:4 price 140");
    say(&mut client, "HSET hotel:9 city Oslo");
    say(&mut client, "DEL hotel:9");
    let recorded = say(&mut client, "SPACE.RECORD GET hotels");
    let workload = &*recorded;
    assert_eq!(lines(workload, "objects =")[0], "objects = 3", "{recorded}");
    assert_eq!(lines(workload, "gets ="), ["gets = 1.0"]);
    let mut classes = lines(workload, "frequency =");
    classes.sort_unstable();
    let one = "frequency = 1.0";
    assert_eq!(
        classes,
        [one, one, one, one, one, "frequency = 8.0"],
        "{recorded}"
    );
    assert_eq!(lines(workload, "equal ="), ["equal = [\"city\"]"]);
    assert!(
        workload.contains("[query.range]\nprice = 0.33"),
        "{recorded}"
    );
    assert!(workload.contains("changes = [\"price\"]"));
    assert!(workload.contains("changes = [\"stars\", \"price\"]"));
    assert!(workload.contains("kind = \"create\"") && workload.contains("kind = \"delete\""));
    // A new start discards the previous recording, and a stop leaves none.
    say(&mut client, "SPACE.RECORD START hotels SECONDS 60");
    let again = say(&mut client, "SPACE.RECORD GET hotels");
    assert!(!again.contains("[[query]]"), "{again}");
    assert_eq!(say(&mut client, "SPACE.RECORD STOP hotels"), "+OK");
    assert!(
        say(&mut client, "SPACE.RECORD GET hotels")
            .starts_with("-ERR no workload is being recorded")
    );
}

#[test]
fn invalid_recordings_are_rejected() {
    let server = server(2);
    let mut client = Client::connect(&server);
    create_hotels(&mut client);
    let mut say = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        call(&mut client, &words)
    };
    assert_eq!(say("SPACE.RECORD START inns"), "-ERR inns: no such index");
    for bad in [
        "SPACE.RECORD START hotels SECONDS",
        "SPACE.RECORD START hotels SECONDS 0",
        "SPACE.RECORD START hotels SECONDS x",
        "SPACE.RECORD GET hotels more",
        "SPACE.RECORD PAUSE hotels",
    ] {
        assert!(say(bad).starts_with("-ERR syntax error: "), "{bad}");
    }
    // A change of the attributes ends the recording, because it is another workload.
    assert_eq!(say("SPACE.RECORD START hotels"), "+OK");
    assert_eq!(say("FT.ALTER hotels SCHEMA ADD rooms NUMERIC"), "+OK");
    assert!(say("SPACE.RECORD GET hotels").starts_with("-ERR no workload is being recorded"));
}
