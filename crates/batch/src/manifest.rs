//! The manifest: what a version holds, with a digest per segment and one of its own.
//!
//! A built version is a folder with `manifest.json` and the segments it names. The manifest is
//! written last. Its own digest is that of the file with the digest's value left empty; what it
//! says of its build (`built`, from format 2 on) has another and is left out, so that the same data has the
//! same digest. A changed byte anywhere is found. From format 3 on digests are BLAKE3, before XXH3-128 (`digest.rs`).

use serde::{Deserialize, Serialize};

use larder_types::{PartitionId, SLOTS, StoreName};

use crate::built::Built;
use crate::digest::{DigestKind, SegmentDigest};
use crate::error::Error;
use crate::segment::Compression;
use crate::signature::Signature;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub store: StoreName,
    pub partitions: u32,
    pub record_count: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// Bytes of all segments together.
    pub size_bytes: u64,
    pub compression: Compression,
    pub segments: Vec<SegmentEntry>,
    /// How it was built; absent from format 1, and where who built it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
    /// From format 3 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentEntry {
    pub file: String,
    pub partition: PartitionId,
    /// First and last slot, both included.
    pub slots: (u16, u16),
    pub size_bytes: u64,
    pub record_count: u64,
    pub digest: String,
}

impl SegmentEntry {
    /// A digest of the kind that the entry has, to be compared with it.
    pub fn begin_digest(&self) -> SegmentDigest {
        let is_old = DigestKind::Xxh3.fits(&self.digest);
        SegmentDigest::new(if is_old {
            DigestKind::Xxh3
        } else {
            DigestKind::Blake3
        })
    }
}

/// The most partitions that a store may have: one a slot.
pub const PARTITIONS_MAX: u32 = SLOTS as u32;

/// The partition that holds `slot`: partitions cut the slots into ranges as equal as can be.
#[inline]
pub fn partition_of(slot: u16, partitions: u32) -> u32 {
    u32::from(slot) * partitions / u32::from(SLOTS)
}

/// The first and the last slot of a partition.
pub fn slots_of(partition: u32, partitions: u32) -> (u16, u16) {
    let first = |partition: u32| (partition * u32::from(SLOTS)).div_ceil(partitions) as u16;
    (first(partition), first(partition + 1) - 1)
}

/// The file name of a partition's segment.
pub fn segment_file(partition: u32) -> String {
    format!("p{partition:05}.segment")
}

impl Manifest {
    pub const FILE: &str = "manifest.json";
    /// What is written, unless a reader of before is to understand it.
    pub const FORMAT: u32 = 3;
    /// From which on it may be signed.
    pub const FORMAT_SIGNED_MIN: u32 = 3;
    /// No manifest is longer: 16,384 segments of some 280 bytes.
    pub const SIZE_MAX: u64 = 16 << 20;

    /// In place of one that is not known: of one partition, without records.
    pub(crate) fn unknown(store: StoreName) -> Manifest {
        let segment = SegmentEntry {
            file: segment_file(0),
            partition: PartitionId(0),
            slots: slots_of(0, 1),
            size_bytes: 0,
            record_count: 0,
            digest: String::new(),
        };
        Manifest {
            format: 1,
            store,
            partitions: 1,
            record_count: 0,
            key_bytes: 0,
            value_bytes: 0,
            size_bytes: 0,
            compression: Compression::None,
            segments: vec![segment],
            built: None,
            signature: None,
            digest: String::new(),
        }
    }

    /// The file's bytes, with the digest made anew.
    pub fn encode(&self) -> Vec<u8> {
        let sealed = Manifest {
            digest: self.digest_now(),
            built: self
                .built
                .as_ref()
                .map(|built| built.sealed(self.digest_kind())),
            ..self.clone()
        };
        sealed.text()
    }

    /// The format of a manifest whose segments are of this one, with or without what it says of its build.
    pub fn format_of(segment_format: u32, built: Option<&Built>) -> u32 {
        match (segment_format, built) {
            (1, None) => 1,
            (1, Some(_)) => 2,
            _ => Self::FORMAT,
        }
    }

    /// Of the digests of the segments, and of its own.
    pub fn digest_kind(&self) -> DigestKind {
        DigestKind::of_manifest(self.format)
    }

    /// # Errors
    /// [`Error::Corrupted`] if the bytes are not a manifest, are damaged, or say what cannot be.
    pub fn decode(place: &str, bytes: &[u8]) -> Result<Manifest, Error> {
        let damaged = |detail: String| Error::corrupted(format!("manifest {place}"), detail);
        // Where, and not what: the file may be another than its reader means, and none of theirs.
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| {
            damaged(format!(
                "it is not as larder writes manifests, from line {}, column {} on",
                error.line(),
                error.column()
            ))
        })?;
        let is_known = match manifest.format {
            1 => manifest.built.is_none(),
            2 => manifest.built.is_some(),
            format => format == Self::FORMAT,
        };
        if !is_known {
            return Err(damaged(format!(
                "it is of format {}, this larder reads 1 to {}",
                manifest.format,
                Self::FORMAT
            )));
        }
        if manifest.signature.is_some() && manifest.format < Self::FORMAT_SIGNED_MIN {
            return Err(damaged(format!(
                "format {} has no signatures",
                manifest.format
            )));
        }
        let kind = manifest.digest_kind();
        let is_intact = |built: &Built| built.digest == built.digest_now(kind);
        if manifest.digest != manifest.digest_now()
            || !manifest.built.as_ref().is_none_or(is_intact)
            || manifest.text() != bytes
        {
            return Err(damaged("its digest does not fit its contents".to_owned()));
        }
        if let Some(signature) = &manifest.signature
            && !manifest.has_fitting_signature(signature)
        {
            return Err(damaged(format!(
                "its signature by {} does not fit its contents",
                signature.key
            )));
        }
        manifest
            .check()
            .map_err(|detail| damaged(detail.to_owned()))?;
        Ok(manifest)
    }

    /// The digest as it should be. Two versions with one digest hold the same bytes.
    pub fn digest_now(&self) -> String {
        let open = Manifest {
            format: if self.format == 2 { 1 } else { self.format },
            built: None,
            signature: None,
            digest: String::new(),
            ..self.clone()
        };
        self.digest_kind().of(&open.text())
    }

    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest is always JSON");
        text.push(b'\n');
        text
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !(1..=PARTITIONS_MAX).contains(&self.partitions)
            || self.segments.len() != self.partitions as usize
        {
            return Err("the number of segments is not the number of partitions");
        }
        for (partition, segment) in (0..).zip(&self.segments) {
            if segment.file != segment_file(partition)
                || segment.partition != PartitionId(partition)
            {
                return Err("a segment's file or partition is not the one in its place");
            }
            if !self.digest_kind().fits(&segment.digest) {
                return Err("a segment's digest is not one of its format");
            }
            if segment.slots != slots_of(partition, self.partitions) {
                return Err("a segment's slots are not those of its partition");
            }
        }
        let sum = |of: fn(&SegmentEntry) -> u64| {
            self.segments.iter().map(of).try_fold(0, u64::checked_add)
        };
        if sum(|s| s.size_bytes) != Some(self.size_bytes)
            || sum(|s| s.record_count) != Some(self.record_count)
        {
            return Err("its sums do not add up");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::SecretKey;

    pub fn example(partitions: u32, format: u32) -> Manifest {
        let segment = |partition| SegmentEntry {
            file: segment_file(partition),
            partition: PartitionId(partition),
            slots: slots_of(partition, partitions),
            size_bytes: 10,
            record_count: 1,
            digest: DigestKind::of_manifest(format).of(b""),
        };
        Manifest {
            format,
            store: "pymk".parse().expect("name"),
            partitions,
            record_count: u64::from(partitions),
            key_bytes: 3,
            value_bytes: 4,
            size_bytes: 10 * u64::from(partitions),
            compression: Compression::None,
            segments: (0..partitions).map(segment).collect(),
            built: None,
            signature: None,
            digest: String::new(),
        }
    }

    #[test]
    fn partitions_cover_every_slot_once() {
        for partitions in [1, 2, 3, 7, 8, 100, 16_384] {
            let mut next = 0u32;
            for partition in 0..partitions {
                let (first, last) = slots_of(partition, partitions);
                assert_eq!(u32::from(first), next);
                assert!((first..=last).all(|slot| partition_of(slot, partitions) == partition));
                next = u32::from(last) + 1;
            }
            assert_eq!(next, u32::from(SLOTS));
        }
    }

    #[test]
    fn every_flipped_bit_of_a_manifest_is_found() {
        let told_too = |format| told(example(2, format), "recs.parquet");
        let signed = signed(told_too(3), 1);
        for manifest in [
            example(2, 1),
            told_too(2),
            example(2, 3),
            told_too(3),
            signed,
        ] {
            let bytes = manifest.encode();
            assert_eq!(Manifest::decode("m", &bytes).expect("intact").partitions, 2);
            for bit in 0..bytes.len() * 8 {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Manifest::decode("m", &damaged).is_err(), "bit {bit}");
            }
        }
    }

    fn key(number: u8) -> SecretKey {
        SecretKey::from_seed([number; 32])
    }

    fn signed(mut manifest: Manifest, number: u8) -> Manifest {
        manifest.sign(&key(number));
        manifest
    }

    #[test]
    fn a_signature_is_of_one_key_and_of_all_that_the_manifest_says() {
        let trusted = [key(1).public(), key(2).public()];
        let plain = Manifest::decode("m", &example(2, 3).encode()).expect("intact");
        let told_of = |error: Result<(), String>| error.expect_err("refused");
        assert!(told_of(plain.check_signature(&trusted)).contains("not signed"));
        for manifest in [plain.clone(), told(plain.clone(), "recs.parquet")] {
            let read = signed(manifest, 2).encode();
            let read = Manifest::decode("m", &read).expect("intact");
            assert_eq!(
                read.digest, plain.digest,
                "a signature does not change what it is"
            );
            assert_eq!(read.check_signature(&trusted), Ok(()));
            assert!(told_of(read.check_signature(&trusted[..1])).contains("none of the keys"));
            let changes: [fn(&mut Manifest); 4] = [
                |it| it.store = "other".parse().expect("a name"),
                |it| it.segments[1].digest = DigestKind::Blake3.of(b"another"),
                |it| it.built = Some(Built::default()),
                |it| it.signature.as_mut().expect("signed").key = key(1).public(),
            ];
            for change in changes {
                let mut changed = read.clone();
                change(&mut changed);
                assert!(told_of(changed.check_signature(&trusted)).contains("does not fit"));
                let decoded = Manifest::decode("m", &changed.encode());
                let told = decoded.expect_err("refused").to_string();
                assert!(told.contains("does not fit"), "{told}");
            }
        }
        let mut old = signed(example(1, 3), 1);
        (old.format, old.segments[0].digest) = (1, DigestKind::Xxh3.of(b""));
        assert!(
            Manifest::decode("m", &old.encode()).is_err(),
            "format 1 has none"
        );
    }

    fn told(manifest: Manifest, input: &str) -> Manifest {
        Manifest {
            built: Some(Built {
                by: "larder 0.1.0".to_owned(),
                at: 1_700_000_000,
                inputs: vec![input.to_owned()],
                key: vec!["member".to_owned()],
                value: "json".to_owned(),
                ..Built::default()
            }),
            ..manifest
        }
    }

    #[test]
    fn how_it_was_built_does_not_change_what_it_is() {
        for (plain_format, told_format) in [(1, 2), (3, 3)] {
            let plain = example(2, plain_format).encode();
            let plain = Manifest::decode("m", &plain).expect("intact");
            assert!(plain.built.is_none());
            for input in ["recs.parquet", "s3://lake/recs.parquet"] {
                let told = told(example(2, told_format), input);
                let read = Manifest::decode("m", &told.encode()).expect("intact");
                assert_eq!(read.digest, plain.digest);
                assert_eq!(read.built.expect("told").inputs, [input]);
            }
        }
    }

    #[test]
    fn what_is_no_manifest_is_not_shown() {
        for secret in [
            "root:x:0:0",
            "\"s3cret\"",
            "{\"s3cret\": 1}",
            "{\"format\": \"s3cret\"}",
        ] {
            let error = Manifest::decode("m", secret.as_bytes()).expect_err("refused");
            let shown = error.to_string();
            assert!(
                shown.contains("line 1") && !shown.contains("s3cret") && !shown.contains("root"),
                "{shown}"
            );
        }
    }

    #[test]
    fn a_segment_named_outside_the_folder_is_refused() {
        let mut manifest = example(1, 3);
        manifest.segments[0].file = "../x".to_owned();
        assert!(Manifest::decode("m", &manifest.encode()).is_err());
    }

    #[test]
    fn a_digest_of_another_kind_is_refused() {
        for format in [1, 3] {
            let mut manifest = example(1, format);
            manifest.segments[0].digest = DigestKind::of_manifest(4 - format).of(b"");
            assert!(Manifest::decode("m", &manifest.encode()).is_err());
        }
    }
}
