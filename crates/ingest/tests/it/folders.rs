//! Tables in folders, in the layout of Hive and Spark.

use larder_ingest::ValueSpec;

use crate::support::{column, options, texts};

fn table(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    folder
}

#[test]
fn the_folders_of_a_table_are_columns_of_its_rows() {
    let folder = table(&[
        ("_SUCCESS", ""),
        (".part-0.csv.crc", "crc"),
        ("day=2024-01-02/at=10%3A30/part-0.csv", "id,v\n1,a\n"),
        (
            "day=2024-01-02/at=__HIVE_DEFAULT_PARTITION__/part-0.csv",
            "id,v\n2,b\n",
        ),
        ("day=2024-01-03/at=/_SUCCESS", ""),
        ("day=2024-01-03/at=/part-0.csv", "id,v\n3,c\n"),
    ]);
    let path = folder.path();
    assert_eq!(
        texts(&options(path, "id", ValueSpec::Json)).unwrap(),
        [
            r#"1={"v":"a","day":"2024-01-02","at":"10:30"}"#,
            r#"2={"v":"b","day":"2024-01-02","at":null}"#,
            r#"3={"v":"c","day":"2024-01-03","at":""}"#,
        ]
    );
    assert_eq!(
        texts(&options(path, "day,id", column("v"))).unwrap(),
        ["2024-01-02:1=a", "2024-01-02:2=b", "2024-01-03:3=c"]
    );
    // Columns come from the first wildcard on, not from the path before it.
    let pattern = path.join("day=2024-01-0[23]/at=*/*.csv");
    assert_eq!(
        texts(&options(&pattern, "day,id", column("v")))
            .unwrap()
            .len(),
        3
    );
    let one = path.join("day=2024-01-02/at=10%3A30");
    assert_eq!(
        texts(&options(&one, "id", ValueSpec::Json)).unwrap(),
        [r#"1={"v":"a"}"#]
    );
}

#[test]
fn every_format_has_the_columns_of_its_folders() {
    let folder = table(&[("day=1/a.jsonl", "{\"id\":1,\"day\":\"own\",\"v\":[1]}\n")]);
    assert_eq!(
        texts(&options(folder.path(), "id", ValueSpec::Json)).unwrap(),
        [r#"1={"v":[1],"day":"1"}"#],
        "the folder's column takes the place of the file's"
    );
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for file in ["pyarrow_uuid.parquet", "pyarrow.arrow", "fastavro.avro"] {
        let folder = table(&[("day=x%20y/none.csv", "")]);
        let part = folder.path().join("day=x%20y");
        std::fs::remove_file(part.join("none.csv")).unwrap();
        std::fs::copy(golden.join(file), part.join(file)).unwrap();
        assert_eq!(
            texts(&options(folder.path(), "day,id", column("day"))).unwrap(),
            ["x y:00112233-4455-6677-8899-aabbccddeeff=x y"],
            "{file}"
        );
        let packed = texts(&options(folder.path(), "id", ValueSpec::MessagePack)).unwrap();
        assert!(
            packed[0].contains("\u{fffd}day\u{fffd}x y"),
            "{file}: {packed:?}"
        );
    }
}

#[test]
fn folders_with_different_columns_are_rejected() {
    let folder = table(&[
        ("day=1/a.csv", "id\n1\n"),
        ("day=1/hour=2/b.csv", "id\n1\n"),
    ]);
    let error = texts(&options(folder.path(), "id", ValueSpec::Json)).unwrap_err();
    assert!(
        error.contains("a.csv name the columns [day]") && error.contains("b.csv name [day, hour]"),
        "{error}"
    );
}
