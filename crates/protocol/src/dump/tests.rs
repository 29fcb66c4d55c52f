use super::*;

const LIMITS: DumpLimits = DumpLimits {
    text_bytes: 1 << 20,
    object_bytes: 1 << 20,
};

fn field(name: &str, value: &str, expires_at_ms: Option<u64>) -> DumpedField {
    DumpedField {
        name: name.into(),
        value: value.into(),
        expires_at_ms,
    }
}

fn sealed(body: &[u8]) -> Vec<u8> {
    let mut payload = [body, &VERSION.to_le_bytes(), &[0; 8]].concat();
    reseal(&mut payload);
    payload
}

#[test]
fn the_checksum_is_that_of_redis() {
    assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
}

#[test]
fn encoded_values_are_decoded_unless_a_bit_flips() {
    let long = "x".repeat(20_000);
    for dumped in [
        DumpValue::Text(Vec::new()),
        DumpValue::Text(b"123".to_vec()),
        DumpValue::Json(b"[1]".to_vec()),
        DumpValue::Text(long.clone().into_bytes()),
        DumpValue::Hash(vec![field("f", "v", None), field("", &long, None)]),
        DumpValue::Hash(vec![
            field("f", "v", Some(1_800_000_000_000)),
            field("g", "w", None),
            field("h", "x", Some(1_700_000_000_000)),
        ]),
    ] {
        let encoded = dumped.encode();
        assert_eq!(DumpValue::decode(&encoded, LIMITS), Ok(dumped));
        for at in 0..encoded.len().min(64) {
            let mut damaged = encoded.clone();
            damaged[at] ^= 1;
            assert_eq!(DumpValue::decode(&damaged, LIMITS), Err(DumpError::Footer));
        }
    }
}

#[test]
fn other_redis_string_encodings_are_decoded() {
    let lzf = "ab".repeat(100);
    for (text, payload) in [
        (
            "123",
            &include_bytes!("../../../../fuzz/seeds/dump/redis-int8.seed")[..],
        ),
        (
            "-3000",
            include_bytes!("../../../../fuzz/seeds/dump/redis-int16.seed"),
        ),
        (
            "12345678",
            include_bytes!("../../../../fuzz/seeds/dump/redis-int32.seed"),
        ),
        (
            &lzf,
            include_bytes!("../../../../fuzz/seeds/dump/redis-lzf.seed"),
        ),
    ] {
        let text = DumpValue::Text(text.into());
        assert_eq!(DumpValue::decode(payload, LIMITS), Ok(text));
    }
}

#[test]
fn small_hashes_of_redis_are_decoded() {
    let (long, longer) = ("x".repeat(60), "x".repeat(300));
    let listpack = [
        ("f", "v"),
        ("n", "-5"),
        ("m", "70000"),
        ("k", "123456789012"),
        ("long", &long),
        ("s", "300"),
        ("t", "8000000"),
        ("neg", "-40000"),
    ];
    let ziplist = [
        ("f", "v"),
        ("imm", "7"),
        ("i8", "-5"),
        ("i16", "-300"),
        ("i24", "-70000"),
        ("i32", "1073741824"),
        ("i64", "-1099511627776"),
        ("long", &longer),
        ("", "end"),
    ];
    for (fields, payload) in [
        (
            &listpack[..],
            &include_bytes!("../../../../fuzz/seeds/dump/redis-listpack.seed")[..],
        ),
        (
            &ziplist,
            include_bytes!("../../../../fuzz/seeds/dump/redis-ziplist.seed"),
        ),
    ] {
        let fields = fields.iter().map(|(name, value)| field(name, value, None));
        let hash = DumpValue::Hash(fields.collect());
        assert_eq!(DumpValue::decode(payload, LIMITS), Ok(hash));
    }
}

#[test]
fn values_beyond_a_limit_are_refused() {
    let payload = sealed(&[HASH, 1, 2, b'f', b'f', 2, b'v', b'v']);
    let limit = |object_bytes| DumpLimits {
        object_bytes,
        ..LIMITS
    };
    assert!(DumpValue::decode(&payload, limit(4)).is_ok());
    assert_eq!(
        DumpValue::decode(&payload, limit(3)),
        Err(DumpError::Malformed)
    );
}

/// Empty fields count towards the limit, too, because each takes memory.
#[test]
fn a_hash_has_no_more_empty_fields_than_its_limit_has_bytes() {
    let mut body = vec![HASH, 5];
    body.extend([0; 10]);
    let limits = DumpLimits {
        object_bytes: 3,
        ..LIMITS
    };
    let decoded = DumpValue::decode(&sealed(&body), limits);
    assert_eq!(decoded, Err(DumpError::Malformed));
}

/// The checksum of each payload is valid.
#[test]
fn damaged_values_are_refused() {
    for body in [
        &[TEXT, 5, b'a'][..],
        &[TEXT, 1, b'a', b'b'],
        &[TEXT, 0xc3, 2, 60, 0, b'a'],
        &[
            TEXT, 0xc3, 3, 0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, b'a', b'b',
        ],
        &[TEXT, 0xc3, 2, 5, 0xe0, 0],
        &[HASH, 0],
        &[HASH, 1, 1, b'f'],
        &[HASH_LISTPACK, 7, 7, 0, 0, 0, 0, 0, 0xff],
        &[HASH_LISTPACK, 9, 9, 0, 0, 0, 1, 0, 1, 1, 0xff],
        &[HASH_LISTPACK, 7, 9, 0, 0, 0, 1, 0, 0x85],
        &[HASH_ZIPLIST, 11, 11, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0xff],
        &[HASH_ZIPLIST, 11, 12, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0xff],
        &[],
    ] {
        let decoded = DumpValue::decode(&sealed(body), LIMITS);
        assert_eq!(decoded, Err(DumpError::Malformed), "{body:?}");
    }
    let list = DumpValue::decode(&sealed(&[1, 0]), LIMITS);
    assert_eq!(list, Err(DumpError::Type(1)));
    assert_eq!(DumpValue::decode(b"short", LIMITS), Err(DumpError::Footer));
}

#[test]
fn newer_versions_of_the_format_are_refused() {
    let mut payload = sealed(&[TEXT, 1, b'a']);
    let version = payload.len() - FOOTER_BYTES;
    payload[version] = VERSION_MAX as u8;
    reseal(&mut payload);
    assert!(DumpValue::decode(&payload, LIMITS).is_ok());
    payload[version] += 1;
    reseal(&mut payload);
    assert_eq!(DumpValue::decode(&payload, LIMITS), Err(DumpError::Footer));
}
