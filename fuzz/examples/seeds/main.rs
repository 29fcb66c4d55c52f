//! Writes `fuzz/seeds`: `cargo run -p fuzz --example seeds`. Run it when a format changes, and keep the seeds of the
//! old format in addition to the new ones, because old segments must stay readable.

mod nodes;

use std::fs;
use std::path::{Path, PathBuf};

use larder_batch::profile::{Collector, Shape};
use larder_batch::segment::{SegmentOptions, SegmentPlan, SegmentWriter};
use larder_batch::{Built, Compression, DigestKind, Layer, Manifest, SecretKey, SegmentEntry};
use larder_journal::Entry;
use larder_journal::format::{FileHeader, FileKind, Totals};
use larder_types::{PartitionId, key_hash};
use larder_validate::Span;
use larder_validate::record::{Encoder, Outcome, Record, RecordKind};
use larder_validate::set::Sketch;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    segments()?;
    manifests()?;
    resp()?;
    replies()?;
    journals()?;
    traces()?;
    joins()?;
    csv()?;
    json_lines()?;
    bundles()?;
    collected()?;
    nodes::peers()?;
    nodes::replication()?;
    nodes::wire()?;
    spaces()?;
    Ok(())
}

fn folder(target: &str) -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Small segments that contain every part: several blocks, a large value, each compression, with and without a filter.
fn segments() -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder("segment")?;
    let compressions = [
        ("none", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd { level: 3 }),
    ];
    let some = |value: &dyn Fn(u32) -> String| -> Vec<(Vec<u8>, Vec<u8>)> {
        (0..12)
            .map(|number| {
                (
                    format!("key{number}").into_bytes(),
                    value(number).into_bytes(),
                )
            })
            .collect()
    };
    for format in [1, 2] {
        for (name, compression) in compressions {
            for filter in [false, true] {
                let mut records = some(&|number| format!("value {number} ").repeat(5));
                if !filter {
                    // Longer than a block allows, so it continues in an extent.
                    records.push((b"large".to_vec(), vec![b'x'; 66_000]));
                }
                let options = SegmentOptions {
                    compression,
                    block_size: 256,
                    filter,
                    format,
                    is_delta: false,
                };
                let filtered = if filter { "filter" } else { "large" };
                // The uncompressed large value would make a seed of 66 kB. The compressed ones cover the same code.
                if filter || name != "none" {
                    let bytes = segment(options, records, None)?;
                    fs::write(
                        folder.join(format!("{name}-{filtered}-{format}.seed")),
                        bytes,
                    )?;
                }
            }
        }
    }
    let plain = SegmentOptions {
        compression: Compression::None,
        block_size: 256,
        filter: false,
        format: 2,
        is_delta: false,
    };
    // Includes a value that one flipped bit turns into the reference to a large value.
    let mut records = some(&|number| "v".repeat(number as usize));
    records.push((b"k".to_vec(), vec![0; 32]));
    fs::write(
        folder.join("none-varied-2.seed"),
        segment(plain.clone(), records, None)?,
    )?;
    let records = some(&|_| "twelve bytes".into()).split_off(10);
    fs::write(
        folder.join("none-uniform-2.seed"),
        segment(plain.clone(), records, Some((5, 12)))?,
    )?;
    // A delta. Each value ends with a mark that encodes the kind of change.
    let delta = SegmentOptions {
        filter: true,
        is_delta: true,
        ..plain.clone()
    };
    let mut records = some(&|number| ["vv", "v", ""][number as usize % 3].to_owned() + "\0");
    records.push((b"removed".to_vec(), vec![1]));
    fs::write(
        folder.join("delta-varied-2.seed"),
        segment(delta.clone(), records, None)?,
    )?;
    let records = some(&|_| "\x01".to_owned()).split_off(10);
    fs::write(
        folder.join("delta-removed-2.seed"),
        segment(delta, records, Some((5, 1)))?,
    )?;
    // Many more records in a block than its size allows.
    let crowd = (0..50)
        .map(|number| (format!("{number:02}").into_bytes(), vec![b'v']))
        .collect();
    let plain = SegmentOptions {
        block_size: 1 << 20,
        ..plain
    };
    fs::write(
        folder.join("none-crowd-2.seed"),
        segment(plain, crowd, Some((2, 1)))?,
    )?;
    Ok(())
}

fn segment(
    options: SegmentOptions,
    mut records: Vec<(Vec<u8>, Vec<u8>)>,
    sizes: Option<(u32, u32)>,
) -> std::io::Result<Vec<u8>> {
    records.sort_by_key(|(key, _)| key_hash(key));
    let inline = |(key, value): &(Vec<u8>, Vec<u8>)| key.len() as u64 + value.len().min(100) as u64;
    let plan = SegmentPlan {
        partition: 0,
        partitions: 1,
        // Puts all records of the crowded seed into one block.
        record_count: records.len().min(13) as u64,
        inline_bytes: records.iter().map(inline).sum(),
        sizes,
    };
    let mut writer = SegmentWriter::new(Vec::new(), options, plan)?;
    for (key, value) in &records {
        writer.push(key_hash(key), key, value)?;
    }
    Ok(writer.finish()?.0)
}

fn manifests() -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder("manifest")?;
    let built = Built {
        by: "larder 0.1.0".to_owned(),
        at: 1_700_000_000,
        inputs: vec!["day/*.csv".to_owned()],
        key: vec!["sku".to_owned()],
        value: "column".to_owned(),
        value_column: Some("price".to_owned()),
        options: [("on-duplicate".to_owned(), "last".to_owned())].into(),
        ..Built::default()
    };
    let built_on = Built {
        on: vec!["../monday".to_owned(), "s3://bucket/tuesday".to_owned()],
        ..built.clone()
    };
    for (name, format, partitions, built) in [
        ("1-partitions", 1, 1u32, None),
        ("3-partitions", 1, 3, None),
        ("built", 2, 1, Some(built.clone())),
        ("blake3", 3, 2, None),
        ("blake3-built", 3, 1, Some(built)),
        ("delta", 4, 1, Some(built_on)),
        ("delta-untold", 4, 2, None),
    ] {
        let below = if format == 4 { 2 } else { 0 };
        let segment = |partition: u32, layer: usize| SegmentEntry {
            file: larder_batch::manifest::layer_file(partition, layer),
            partition: PartitionId(partition),
            slots: larder_batch::manifest::slots_of(partition, partitions),
            size_bytes: 1234,
            record_count: 5,
            digest: DigestKind::for_manifest(format).of(b""),
        };
        let segments = |layer| -> Vec<SegmentEntry> {
            let all = 0..partitions;
            all.map(|partition| segment(partition, layer)).collect()
        };
        let manifest = Manifest {
            format,
            store: "pymk".parse()?,
            partitions,
            record_count: 5 * u64::from(partitions),
            key_bytes: 20,
            value_bytes: 400,
            size_bytes: 1234 * u64::from(partitions) * (below as u64 + 1),
            compression: Compression::Zstd { level: 3 },
            segments: segments(below),
            layers: (0..below)
                .map(|layer| Layer {
                    digest: DigestKind::Blake3.of(&[layer as u8]),
                    segments: segments(layer),
                })
                .collect(),
            built,
            signature: None,
            digest: String::new(),
        };
        fs::write(folder.join(format!("{name}.seed")), manifest.encode())?;
        if format >= 3 {
            let mut manifest = manifest;
            manifest.sign(&SecretKey::from_seed([7; 32]));
            fs::write(
                folder.join(format!("{name}-signed.seed")),
                manifest.encode(),
            )?;
        }
    }
    Ok(())
}

/// Every kind of entry, in logs with each kind of end, and a snapshot.
fn journals() -> std::io::Result<()> {
    let folder = folder("journal")?;
    let entries = [
        Entry::Put {
            key: b"post|bob|1",
            value: &[b'v'; 200],
            deadline_ms: None,
        },
        Entry::Put {
            key: b"post|bob|2",
            value: b"",
            deadline_ms: Some(1_700_000_000_000),
        },
        Entry::Expire {
            key: b"post|bob|1",
            deadline_ms: Some(1),
        },
        Entry::Expire {
            key: b"post|bob|2",
            deadline_ms: None,
        },
        Entry::Remove { key: b"post|bob|3" },
        Entry::RemoveRange {
            lo: b"post|a",
            hi: Some(b"post|b"),
        },
        Entry::RemoveRange { lo: b"z", hi: None },
        Entry::Define {
            name: b"n",
            text: b"n|<p> = count post|<p>|<t>",
        },
        Entry::Drop { name: b"n" },
        Entry::Position {
            source: b"pg",
            position: b"0/16B3748",
        },
    ];
    let body = |entries: &[Entry<'_>]| {
        let mut body = Vec::new();
        entries.iter().for_each(|entry| entry.encode(&mut body));
        body
    };
    let (all, first) = (body(&entries), body(&entries[..2]));
    let header = |kind| FileHeader {
        kind,
        journal: 0x1234_5678_9abc_def0,
        number: 7,
        first_sequence: if kind == FileKind::Log { 100 } else { 0 },
        id: 0x0fed_cba9_8765_4321,
    };
    let log = header(FileKind::Log);
    let open = fuzz::journal_file(&log, &[(false, 64, &first), (false, 64, &all)]);
    let sealed = fuzz::journal_file(&log, &[(false, 64, &all), (true, 200, b"")]);
    let totals = Totals {
        log_first_sequence: 100,
        seen_sequence: 99,
        ..Totals::default()
    };
    let snapshot = fuzz::journal_file(
        &header(FileKind::Snapshot),
        &[
            (false, 64, &first),
            (false, 64, &body(&entries[7..8])),
            (true, 64, &totals.encode()),
        ],
    );
    fs::write(folder.join("log-torn-1.seed"), &open[..open.len() - 20])?;
    fs::write(folder.join("log-open-1.seed"), open)?;
    fs::write(folder.join("log-sealed-1.seed"), sealed)?;
    fs::write(folder.join("snapshot-1.seed"), snapshot)
}

fn resp() -> std::io::Result<()> {
    let folder = folder("resp")?;
    let seeds: [(&str, &[u8]); 8] = [
        ("get", b"*2\r\n$3\r\nGET\r\n$7\r\npymk:42\r\n"),
        ("mget-pipelined", b"*3\r\n$4\r\nMGET\r\n$3\r\na:1\r\n$3\r\nb:2\r\n*1\r\n$4\r\nPING\r\n"),
        ("hello", b"*7\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n$1\r\np\r\n$7\r\nSETNAME\r\n$1\r\nx\r\n"),
        ("inline", b"PING\r\nGET pymk:42\nSET \"a \\x41\" 'b'\r\n"),
        ("empty", b"*0\r\n\r\n*1\r\n$4\r\nQUIT\r\n"),
        ("null", b"*-1\r\n$-1\r\n*2\r\n$3\r\nGET\r\n$-1\r\n"),
        ("binary", b"*2\r\n$6\r\nSTRLEN\r\n$5\r\na:\x00\r\n\r\n"),
        ("too-many", b"*1048577\r\n$536870913\r\n"),
    ];
    for (name, bytes) in seeds {
        fs::write(folder.join(format!("{name}.seed")), bytes)?;
    }
    Ok(())
}

/// Replies of each type, nested ones, and one for each rejection.
fn replies() -> std::io::Result<()> {
    let folder = folder("reply")?;
    let seeds: [(&str, &[u8]); 9] = [
        ("lines", b"+OK\r\n-ERR no such thing\r\n:-42\r\n:9223372036854775807\r\n"),
        ("strings", b"$5\r\nhello\r\n$0\r\n\r\n$-1\r\n$4\r\na\r\nb\r\n"),
        ("rows", b"*4\r\n$10\r\npost|bob|1\r\n$2\r\nhi\r\n$10\r\npost|bob|2\r\n$-1\r\n*0\r\n*-1\r\n"),
        ("nested", b"*2\r\n*2\r\n:1\r\n*1\r\n$1\r\na\r\n*1\r\n*1\r\n+OK\r\n+PONG\r\n"),
        ("request", b"*3\r\n$3\r\nSET\r\n$3\r\nt|a\r\n$12\r\n0123456789ab\r\n"),
        ("version-3", b"_\r\n#t\r\n#f\r\n,1.5\r\n,-inf\r\n(123456789012345678901234567890\r\n=6\r\ntxt:hi\r\n!5\r\nERR x\r\n"),
        ("holders", b"%2\r\n+a\r\n:1\r\n+b\r\n~2\r\n:1\r\n:2\r\n>2\r\n+message\r\n_\r\n|1\r\n+ttl\r\n:9\r\n+OK\r\n"),
        ("deep", &b"*1\r\n".repeat(40)),
        ("too-much", b"*16777217\r\n$1073741825\r\n"),
    ];
    for (name, bytes) in seeds {
        fs::write(folder.join(format!("{name}.seed")), bytes)?;
    }
    Ok(())
}

/// Records of each kind with each outcome, with correct and incorrect reads; and a log with each kind of line.
fn traces() -> Result<(), Box<dyn std::error::Error>> {
    let mut records = Vec::new();
    let sketch = |elements: &[u64]| Sketch::of(1, 1 << 56, elements.iter().copied());
    let whats = [
        RecordKind::AddCount(1),
        RecordKind::ReadCount(1),
        RecordKind::SetCount(-3),
        RecordKind::ReadCount(0),
        RecordKind::PutElement(7),
        RecordKind::ReadSet(sketch(&[7])),
        RecordKind::RemoveElement(7),
        RecordKind::ReadSet(sketch(&[7, 8])),
        RecordKind::WriteContent(5),
        RecordKind::ReadContent(5),
        RecordKind::ReadContent(0),
    ];
    for (number, what) in whats.into_iter().enumerate() {
        let start = number as u64 * 8;
        for (outcome, kind) in [
            (Outcome::Done, 1),
            (Outcome::Unknown, 2),
            (Outcome::NotDone, 1),
        ] {
            records.push(Record {
                item: kind << 56,
                span: Span::new(start, start + 10).ok_or("ascending")?,
                session: 1,
                action: 2,
                outcome,
                what,
            });
        }
    }
    let done: Vec<Record> = records
        .iter()
        .copied()
        .filter(|record| record.outcome == Outcome::Done)
        .collect();
    for (name, records) in [("all", &records[..]), ("done", &done), ("none", &[])] {
        let mut encoder = Encoder::default();
        let mut bytes = Encoder::header().to_vec();
        for record in records {
            bytes.extend_from_slice(&encoder.record(record));
        }
        bytes.extend_from_slice(&encoder.footer());
        fs::write(folder("trace")?.join(name), bytes)?;
    }
    let log = "\
UPDATE,ACCEPTFRND,0,0,7,1,3,1,D,THAW
UPDATE,POSTCOMMENT,1,0,7,-9223372036854775808,4,2,I,ACCEPT
READ,PENDFRND,2,1,4294967295,0,9223372036854775807,100,PROFILE
READ,PENDFRND,3,1,8,5,10,null,PROFILE
READ,GRPSHORTEST,4,1,8,5,10,3#3,SHORTEST
";
    fs::write(folder("bg_text")?.join("lines"), log)?;
    Ok(())
}

/// Every operator, mode and condition, and every notation of patterns.
fn joins() -> std::io::Result<()> {
    let seeds = [
        (
            "timeline",
            "tline|<user>|<time>|<author> = check sub|<user>|<author> copy post|<author>|<time>",
        ),
        (
            "top",
            "best|<user>|<rank:3> = push check friend|<user>|<who> top 10 asc score|<who>|<game> where value >= 10 and value != 'n a'",
        ),
        (
            "count",
            "karma|<author> = count vote|<article>|<author>|<voter> else 0",
        ),
        (
            "average",
            "mean:<item:4> = auto avg rate:<item>:<who>, where <who> > b",
        ),
        (
            "snapshot",
            "page|<id>|<part> = snapshot 2.5 copy article|<id>|<part> check live|<id>",
        ),
        (
            "quoted",
            "\"a b|<x>\" = pull distinct 'c, d|<x>|<<|<y:2>' else \"no, none\"",
        ),
        (
            "spread",
            "low|<a>|<b> = min x|<a>|<b>|<c> where <c> <= 'z' and value < 9 check y|<b>",
        ),
        ("sum", "all|sum = sum one|<n:10> where value = 1"),
    ];
    for (name, text) in seeds {
        fs::write(folder("join")?.join(format!("{name}.seed")), text)?;
    }
    Ok(())
}

/// The first byte selects the options: see `fuzz/src/ingest.rs`.
fn csv() -> std::io::Result<()> {
    let seeds = [
        ("column", "@k,v\na,1\nb,2\n\nc,\n"),
        (
            "quoted",
            "@\"k\";\"v\"\r\n\"a;b\";\"x\ny\"\r\nb;\"q\"\"q\"\r\n\"c\";5\" pipe\r\n",
        ),
        (
            "comment",
            "E# made on \"Monday\nk\tv\tw\n# more, \"\na\t1\t\n",
        ),
        ("escape", "`k,v\na,\"x\\\"y\"\nb,\"\\\\\"\n\"c\\n\",C:\\d\n"),
        ("no-header", "H\u{feff}a|1\nb|\"2|3\"\n"),
        (
            "types",
            "Qk,int,float,bool,json,text\na,-7,1.5e3,t,\"{\"\"x\"\":[1,null]}\",\nb,18446744073709551615,nan,FALSE,[],t\u{e9}xt\n",
        ),
        (
            "message-pack",
            "Rk,int,float,bool,json\na,,inf,0,\"\"\"deep\"\"\"\nb,1,-0,1,{}\n",
        ),
    ];
    for (name, text) in seeds {
        fs::write(folder("csv")?.join(format!("{name}.seed")), text)?;
    }
    Ok(())
}

/// As for CSV.
fn json_lines() -> std::io::Result<()> {
    let seeds = [
        (
            "column",
            "@{\"k\":\"a\",\"v\":1.50}\n\n{\"v\":[1,{\"x\":null}],\"k\":2}\r\n{\"k\":true,\"v\":\"\\u00e9\\n\"}",
        ),
        (
            "json",
            "A{\"k\":\"\\ud83d\\ude00\",\"a\":1e400,\"b\":{\"c\":[]}}\n{\"k\":\"x\"}\n",
        ),
        (
            "message-pack",
            "B{\"k\":\"a\",\"n\":-9223372036854775808,\"m\":18446744073709551615,\"d\":0.1,\"t\":\"\\\"\\u0000\",\"l\":[true,false,null,{\"x\":[[]]}]}\n",
        ),
        (
            "skipped",
            "D{\"k\":null,\"v\":1}\n{\"v\":2}\n{\"k\":\"a\",\"v\":null}\n{\"k\":\"b\",\"v\":\"\"}\n",
        ),
        (
            "two-keys",
            "I{\"k\":\"a:b\",\"w\":\"%\",\"x\":1}\n{\"w\":7,\"k\":0.0}\n",
        ),
    ];
    for (name, text) in seeds {
        fs::write(folder("json_lines")?.join(format!("{name}.seed")), text)?;
    }
    Ok(())
}

fn bundles() -> std::io::Result<()> {
    let long = vec![b'x'; 300];
    let rows: [(&[u8], &[u8]); 5] = [
        (b"m1", b"{\"score\":1.5}"),
        (b"m2", b""),
        (b"a:b", b"value\0"),
        (b"gone", &[1]),
        (&long, &long),
    ];
    for (name, count) in [("one", 1), ("some", 4), ("long", 5)] {
        let bundle = larder_ingest::bundle_of(rows[..count].iter().copied());
        fs::write(folder("bundle")?.join(format!("{name}.seed")), bundle)?;
    }
    Ok(())
}

fn collected() -> std::io::Result<()> {
    for (name, rows) in [("none", 0), ("some", 9)] {
        let mut collector = Collector::new(Shape::Json);
        for row in 0..rows {
            let value = match row % 3 {
                0 => format!("{{\"price\":{row}.5,\"city\":\"rome\",\"flag\":true}}"),
                1 => format!("{{\"price\":null,\"city\":\"\",\"tags\":[{row}]}}"),
                _ => "no object".to_owned(),
            };
            collector.add(format!("k{row}").as_bytes(), value.as_bytes());
        }
        fs::write(
            folder("collected")?.join(format!("{name}.seed")),
            collector.encode(),
        )?;
    }
    Ok(())
}

fn spaces() -> std::io::Result<()> {
    let seeds = [
        (
            "hotels",
            "hotels PREFIX 1 h: SCHEMA city TAG SORTABLE stars NUMERIC INDEXMISSING name TEXT SORTABLE at TIMESTAMP where GEO pets BOOLEAN\n\
             +h:1\tcity\tRome,Oslo\tstars\t3\tname\tThe old inn\twhere\t12.5,41.9\tpets\ttrue\n\
             +h:2\tcity\trome\tstars\t4.5\tname\tInn by the sea\tat\t2024-02-29\n\
             +h:3\tcity\tBergen\tstars\t9007199254740993\tname\t\twhere\there\n\
             +h:4\tname\told old sea\twhere\t-179.9,10\tpets\t0\n\
             ?@city:{rome|b*} @stars:[3 (5]\tSORTBY\tstars\tDESC\tLIMIT\t0\t2\n\
             ?(inn | \"old sea\") -@pets==true\tRETURN\t1\tname\n\
             ?@where:[12 42 100 km] | ismissing(@stars)\tNOCONTENT\n\
             -h:2\n\
             ?*\tSORTBY\tcity\tLIMIT\t1\t1\tWITHOUTCOUNT\n\
             !@stars>=3\tGROUPBY\t1\t@city\tREDUCE\tAVG\t1\t@stars\tAS\tmean\n\
             !*\tLOAD\t2\t@name\t@at\tAPPLY\tupper(@name)\tAS\tU\tSORTBY\t2\t@U\tDESC\n",
        ),
        (
            "documents",
            "d ON JSON INDEX 2 a,b t SCHEMA $.a AS a NUMERIC $.b AS b NUMERIC SORTABLE $.t AS t TAG $.x AS x TEXT\n\
             +1\t{\"a\":1,\"b\":2,\"t\":[\"p\",\"q\"],\"x\":\"sun\"}\n\
             +2\t{\"a\":[1,5],\"b\":null,\"t\":\"P\"}\n\
             +3\t{\"a\":1,\"b\":7,\"x\":[\"rain\",\"sun\"]}\n\
             ?@a==1 @b:[2 7]\tSORTBY\tb\tASC\ta\tDESC\n\
             ?@t:{p*} | @x:*un\tINKEYS\t2\t1\t3\n\
             +1\t{\"a\":8}\n\
             ?-@a:[1 5]\tLIMIT\t0\t0\n\
             !@a:[-inf +inf]\tGROUPBY\t1\t@t\tREDUCE\tCOUNT\t0\tAS\tn\n",
        ),
    ];
    for (name, text) in seeds {
        fs::write(folder("space")?.join(format!("{name}.seed")), text)?;
    }
    Ok(())
}
