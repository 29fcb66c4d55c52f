//! Writes `fuzz/seeds`: `cargo run -p fuzz --example seeds`. Run it when a format changes, and keep
//! the seeds of the old format beside the new ones: old segments stay readable.

use std::fs;
use std::path::{Path, PathBuf};

use larder_batch::segment::{SegmentOptions, SegmentPlan, SegmentWriter};
use larder_batch::{Compression, Manifest, SegmentDigest, SegmentEntry};
use larder_types::{PartitionId, key_hash};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    segments()?;
    manifests()?;
    resp()?;
    Ok(())
}

fn folder(target: &str) -> std::io::Result<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Small, but with every part: several blocks, a large value, each compression, with and without filter.
fn segments() -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder("segment")?;
    let compressions = [
        ("none", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd { level: 3 }),
    ];
    for (name, compression) in compressions {
        for filter in [false, true] {
            let mut records: Vec<(Vec<u8>, Vec<u8>)> = (0..12)
                .map(|number: u32| {
                    (
                        format!("key{number}").into_bytes(),
                        format!("value {number} ").repeat(5).into_bytes(),
                    )
                })
                .collect();
            if !filter {
                // Longer than a block may hold: it runs over into an extent.
                records.push((b"large".to_vec(), vec![b'x'; 66_000]));
            }
            records.sort_by_key(|(key, _)| key_hash(key));
            let inline = records
                .iter()
                .map(|(key, value)| key.len() as u64 + value.len().min(100) as u64)
                .sum();
            let plan = SegmentPlan {
                partition: 0,
                partitions: 1,
                record_count: records.len() as u64,
                inline_bytes: inline,
            };
            let options = SegmentOptions {
                compression,
                block_size: 256,
                filter,
            };
            let mut writer = SegmentWriter::new(Vec::new(), options, plan)?;
            for (key, value) in &records {
                writer.push(key_hash(key), key, value)?;
            }
            let (bytes, _) = writer.finish()?;
            let filtered = if filter { "filter" } else { "large" };
            // The uncompressed large value would make a seed of 66 kB; the compressed ones show as much.
            if filter || name != "none" {
                fs::write(folder.join(format!("{name}-{filtered}-1.seed")), bytes)?;
            }
        }
    }
    Ok(())
}

fn manifests() -> Result<(), Box<dyn std::error::Error>> {
    let folder = folder("manifest")?;
    for partitions in [1u32, 3] {
        let segment = |partition: u32| SegmentEntry {
            file: larder_batch::manifest::segment_file(partition),
            partition: PartitionId(partition),
            slots: larder_batch::manifest::slots_of(partition, partitions),
            size_bytes: 1234,
            record_count: 5,
            digest: SegmentDigest::new().finish_hex(),
        };
        let manifest = Manifest {
            format: Manifest::FORMAT,
            store: "pymk".parse()?,
            partitions,
            record_count: 5 * u64::from(partitions),
            key_bytes: 20,
            value_bytes: 400,
            size_bytes: 1234 * u64::from(partitions),
            compression: Compression::Zstd { level: 3 },
            segments: (0..partitions).map(segment).collect(),
            digest: String::new(),
        };
        fs::write(
            folder.join(format!("{partitions}-partitions.seed")),
            manifest.encode(),
        )?;
    }
    Ok(())
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
