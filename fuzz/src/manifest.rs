//! Manifests: bytes that arrive with a pull, and that name files.

use larder_batch::Manifest;

/// An accepted manifest encodes to the same bytes, and names only plain files.
pub fn manifest(bytes: &[u8]) {
    check(bytes);
    if let Some(sealed) = reseal(bytes) {
        check(&sealed);
    }
}

fn check(bytes: &[u8]) {
    let Ok(manifest) = Manifest::decode("fuzz", bytes) else {
        return;
    };
    assert_eq!(
        manifest.encode(),
        bytes,
        "an accepted manifest is written as it was read"
    );
    for segment in manifest.entries() {
        let plain = segment
            .file
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        assert!(
            plain && !segment.file.starts_with('.'),
            "a segment's file lies in the version's folder: {:?}",
            segment.file
        );
        assert!(
            segment.slots.0 <= segment.slots.1,
            "slots are a range: {:?}",
            segment.slots
        );
    }
    if let Some(signature) = &manifest.signature {
        // The check must terminate, whatever its result.
        let _ = manifest.check_signature(&[signature.key]);
    }
    assert_eq!(manifest.segments.len(), manifest.partitions as usize);
    assert!(manifest.layer_count() <= Manifest::LAYERS_MAX);
    let files: std::collections::BTreeSet<&str> =
        manifest.entries().map(|entry| &entry.file[..]).collect();
    assert_eq!(
        files.len(),
        manifest.layer_count() * manifest.partitions as usize,
        "all layers fit into one folder"
    );
    let records: u64 = manifest.entries().map(|entry| entry.record_count).sum();
    if manifest.is_delta() {
        assert!(records >= manifest.record_count)
    } else {
        assert_eq!(records, manifest.record_count)
    }
    if let Some(built) = &manifest.built {
        for location in &built.on {
            larder_batch::version::resolve_place("/built/tuesday", location);
        }
    }
}

/// Returns the same manifest, as far as it can be parsed, with the digest of its contents.
fn reseal(bytes: &[u8]) -> Option<Vec<u8>> {
    let manifest: Manifest = serde_json::from_slice(bytes).ok()?;
    Some(manifest.encode())
}
