//! A space of a cluster through the command line: loaded, recorded, dumped and loaded back, each through another
//! node.

use larder_client::Reply;

use crate::cluster_local::Local;
use crate::support::run_ok;

const HOTELS: usize = 3000;

#[test]
fn a_space_of_a_cluster_is_loaded_recorded_dumped_and_loaded_back() {
    let folder = tempfile::tempdir().unwrap();
    let threads = ["--set", "server.threads=2"];
    let Some(local) = Local::start_with(&folder.path().join("data"), 3, &threads) else {
        return;
    };
    let ask = |at: usize, line: &str| local.send(at, line).expect(line);
    let space = |at: usize, words: &[&str]| {
        run_ok([&["space"], words, &["--server", local.http(at)]].concat())
    };
    let find_all = || {
        for at in 0..3 {
            let found = |query: &str| ask(at, &format!("FT.SEARCH hotels {query} LIMIT 0 0"));
            let count = |count: usize| Reply::Array(vec![Reply::Integer(count as i64)]);
            assert_eq!(found("*"), count(HOTELS));
            assert_eq!(found("@city:{c7}"), count(HOTELS / 50));
            assert_eq!(found("@price<=99"), count(100));
        }
    };
    let mut lines = "id,city,price\n".to_owned();
    for number in 0..HOTELS {
        lines += &format!("{number},c{},{number}\n", number % 50);
    }
    let file = folder.path().join("hotels.csv");
    std::fs::write(&file, lines).unwrap();
    let file = file.to_str().unwrap();
    let into = [
        "load", file, "--space", "hotels", "--prefix", "hotel:", "--create",
    ];
    let output = space(0, &into);
    assert!(
        output.contains("loaded 3,000 objects into hotels"),
        "{output}"
    );
    find_all();
    // Each search and write is recorded once, whichever node received it.
    ask(1, "SPACE.RECORD START hotels SECONDS 600");
    for number in 0..60 {
        ask(number % 3, &format!("FT.SEARCH hotels @city:{{c{number}}}"));
        let price = format!("HSET hotel:{number} price {}", 5000 + number);
        ask((number + 1) % 3, &price);
    }
    let Reply::Bulk(recorded) = ask(2, "SPACE.RECORD GET hotels") else {
        panic!("a file");
    };
    let recorded = String::from_utf8(recorded.to_vec()).unwrap();
    assert!(recorded.contains("objects = 3000\n"), "{recorded}");
    assert_eq!(recorded.matches("frequency = 60").count(), 2, "{recorded}");
    let plan = space(0, &["plan", "--workload", "recorded", "--space", "hotels"]);
    assert!(
        plan.contains("by city") && plan.contains("price changes"),
        "{plan}"
    );
    ask(0, "SPACE.RECORD STOP hotels");
    for number in 0..60 {
        ask(0, &format!("HSET hotel:{number} price {number}"));
    }
    let dumped = folder.path().join("hotels.parquet");
    let dumped = dumped.to_str().unwrap();
    let output = space(1, &["dump", "--space", "hotels", "-o", dumped]);
    assert!(
        output.starts_with("dumped 3,000 objects of hotels"),
        "{output}"
    );
    ask(2, "FT.DROPINDEX hotels DD");
    let output = space(2, &["load", dumped, "--space", "hotels", "--create"]);
    assert!(
        output.contains("loaded 3,000 objects into hotels"),
        "{output}"
    );
    find_all();
    assert_eq!(local.end("-TERM"), Some(0));
}
