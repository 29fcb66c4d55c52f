//! The manifest: the contents of a version, with a digest per segment and one of its own.
//!
//! A built version is a folder with `manifest.json` and the segments that it names. The manifest is written last. Its
//! own digest is that of the file with an empty digest value. The description of the build (`built`, since format 2)
//! has a separate digest and is excluded, so that the same data has the same digest. A changed byte anywhere is
//! detected. Since format 3 digests are BLAKE3; earlier formats use XXH3-128 (`digest.rs`).
//!
//! A *delta*, which has format 4, lists the differences from a base: `segments` are its own, `layers` those of the
//! versions below it, lowest first. It therefore names every file that a lookup may read, with its digest, and needs
//! no other manifest.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

use larder_types::{PartitionId, SLOTS, StoreName};

use crate::built::Built;
use crate::digest::{DigestKind, SegmentDigest};
use crate::error::Error;
use crate::profile::Profile;
use crate::segment::Compression;
use crate::signature::Signature;
use crate::version::resolve_place;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: u32,
    pub store: StoreName,
    pub partitions: u32,
    pub record_count: u64,
    pub key_bytes: u64,
    pub value_bytes: u64,
    /// The total size of all segments in bytes.
    pub size_bytes: u64,
    pub compression: Compression,
    pub segments: Vec<SegmentEntry>,
    /// The versions below a delta, lowest first. The lowest one is complete; the others are deltas.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<Layer>,
    /// The description of the build. Absent from format 1, and if the builder did not provide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub built: Option<Built>,
    /// Present only since format 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
    pub digest: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SegmentEntry {
    pub file: String,
    pub partition: PartitionId,
    /// First and last slot, both inclusive.
    pub slots: (u16, u16),
    pub size_bytes: u64,
    pub record_count: u64,
    pub digest: String,
}

/// A version below a delta.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layer {
    /// The digest of its manifest.
    pub digest: String,
    pub segments: Vec<SegmentEntry>,
}

impl SegmentEntry {
    /// Starts a digest of the same kind as the entry's, to compare with it.
    pub fn begin_digest(&self) -> SegmentDigest {
        let is_old = DigestKind::Xxh3.is_valid(&self.digest);
        SegmentDigest::new(if is_old {
            DigestKind::Xxh3
        } else {
            DigestKind::Blake3
        })
    }

    /// Copies the segment. Returns whether the bytes have the entry's digest; if they do not, the copy is useless.
    ///
    /// # Errors
    /// A read or a write fails.
    pub fn copy(&self, from: impl Read, mut to: impl Write) -> io::Result<bool> {
        let mut digest = self.begin_digest();
        // One byte more than the size is enough to detect a longer file.
        let mut from = from.take(self.size_bytes.saturating_add(1));
        let mut buffer = vec![0; 256 << 10];
        loop {
            match from.read(&mut buffer) {
                Ok(0) => return Ok(digest.finish_hex() == self.digest),
                Ok(count) => {
                    digest.update(&buffer[..count]);
                    to.write_all(&buffer[..count])?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Maximum number of partitions of a store: one per slot.
pub const PARTITIONS_MAX: u32 = SLOTS as u32;

/// Returns the partition of `slot`. Partitions divide the slots into ranges of almost equal size.
#[inline]
pub fn partition_of(slot: u16, partitions: u32) -> u32 {
    u32::from(slot) * partitions / u32::from(SLOTS)
}

/// Returns the first and the last slot of a partition.
pub fn slots_of(partition: u32, partitions: u32) -> (u16, u16) {
    let first = |partition: u32| (partition * u32::from(SLOTS)).div_ceil(partitions) as u16;
    (first(partition), first(partition + 1) - 1)
}

/// Returns the file name of a partition's segment in a version that is not a delta.
pub fn segment_file(partition: u32) -> String {
    layer_file(partition, 0)
}

/// Returns the file name of a partition's segment in a layer (0 is the lowest). All layers fit into one folder.
pub fn layer_file(partition: u32, layer: usize) -> String {
    match layer {
        0 => format!("p{partition:05}.segment"),
        _ => format!("p{partition:05}.{layer}.segment"),
    }
}

impl Manifest {
    pub const FILE: &str = "manifest.json";
    /// The format of a complete version, unless an earlier reader must understand it.
    pub const FORMAT: u32 = 3;
    /// The format of a delta.
    pub const FORMAT_DELTA: u32 = 4;
    /// Maximum number of layers of a version. A version on a base with this many is built complete, or the base is
    /// compacted first.
    pub const LAYERS_MAX: usize = 8;
    /// The first format that can be signed.
    pub const FORMAT_SIGNED_MIN: u32 = 3;
    /// Maximum size of a manifest: eight layers of 16,384 segments of about 310 bytes each.
    pub const SIZE_MAX: u64 = 64 << 20;

    /// Returns a placeholder for an unknown manifest: one partition without records.
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
            layers: Vec::new(),
            built: None,
            signature: None,
            digest: String::new(),
        }
    }

    /// Returns the bytes of the file, with a new digest.
    pub fn encode(&self) -> Vec<u8> {
        let sealed = Manifest {
            digest: self.compute_digest(),
            built: self
                .built
                .as_ref()
                .map(|built| built.with_digest(self.digest_kind())),
            ..self.clone()
        };
        sealed.text()
    }

    /// Returns the manifest format for segments of this format, with or without a description of the build.
    pub fn format_of(segment_format: u32, built: Option<&Built>) -> u32 {
        match (segment_format, built) {
            (1, None) => 1,
            (1, Some(_)) => 2,
            _ => Self::FORMAT,
        }
    }

    /// Returns the kind of the manifest's own digest and of the segments' digests.
    pub fn digest_kind(&self) -> DigestKind {
        DigestKind::for_manifest(self.format)
    }

    /// # Errors
    /// [`Error::Corrupted`] if the bytes are not a manifest, are damaged or inconsistent, or if the signature is
    /// invalid.
    pub fn decode(place: &str, bytes: &[u8]) -> Result<Manifest, Error> {
        let manifest = Manifest::decode_any_signature(place, bytes)?;
        match manifest.check_own_signature() {
            Ok(()) => Ok(manifest),
            Err(why) => Err(Error::corrupted(
                format!("manifest {place}"),
                format!("it {why}"),
            )),
        }
    }

    /// Like [`Manifest::decode`], for callers that check the signature with [`Manifest::check_own_signature`] and
    /// return an error of their own.
    ///
    /// # Errors
    /// Like [`Manifest::decode`], except for the signature.
    pub fn decode_any_signature(place: &str, bytes: &[u8]) -> Result<Manifest, Error> {
        let damaged = |detail: String| Error::corrupted(format!("manifest {place}"), detail);
        // The message has the position but not the content: the caller may have named a file that its reader should
        // not see.
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(|error| {
            damaged(format!(
                "it is not a valid manifest at line {}, column {}",
                error.line(),
                error.column()
            ))
        })?;
        let is_known = match manifest.format {
            1 => manifest.built.is_none(),
            2 => manifest.built.is_some(),
            format => format == Self::FORMAT || format == Self::FORMAT_DELTA,
        };
        if !is_known {
            return Err(damaged(format!(
                "it is of format {}, this larder reads 1 to {}",
                manifest.format,
                Self::FORMAT_DELTA
            )));
        }
        if manifest.signature.is_some() && manifest.format < Self::FORMAT_SIGNED_MIN {
            return Err(damaged(format!(
                "format {} has no signatures",
                manifest.format
            )));
        }
        let kind = manifest.digest_kind();
        let is_intact = |built: &Built| built.digest == built.compute_digest(kind);
        if manifest.digest != manifest.compute_digest()
            || !manifest.built.as_ref().is_none_or(is_intact)
            || manifest.text() != bytes
        {
            return Err(damaged("its digest does not fit its contents".to_owned()));
        }
        manifest
            .check()
            .map_err(|detail| damaged(detail.to_owned()))?;
        Ok(manifest)
    }

    /// Returns the digest of the current contents. Two versions with the same digest have the same bytes.
    pub fn compute_digest(&self) -> String {
        let open = Manifest {
            format: if self.format == 2 { 1 } else { self.format },
            built: None,
            signature: None,
            digest: String::new(),
            ..self.clone()
        };
        self.digest_kind().of(&open.text())
    }

    /// Returns the statistics of the columns, if the build collected them.
    pub fn profile(&self) -> Option<&Profile> {
        self.built.as_ref()?.profile.as_ref()
    }

    fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).expect("a manifest is always JSON");
        text.push(b'\n');
        text
    }

    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if !(1..=PARTITIONS_MAX).contains(&self.partitions) {
            return Err("the number of segments is not the number of partitions");
        }
        if self.is_delta() != (self.format == Self::FORMAT_DELTA) {
            return Err("only a delta has layers below it, and its format is 4");
        }
        if self.layer_count() > Self::LAYERS_MAX {
            return Err("it has more layers than a version may");
        }
        for (layer, below) in self.layers.iter().enumerate() {
            self.check_layer(layer, &below.segments)?;
            if !self.digest_kind().is_valid(&below.digest) {
                return Err("the digest of a version below it is not one of its format");
            }
        }
        self.check_layer(self.layers.len(), &self.segments)?;
        let sum =
            |of: fn(&SegmentEntry) -> u64| self.entries().map(of).try_fold(0, u64::checked_add);
        let records = sum(|s| s.record_count);
        let fits = |records: u64| {
            if self.is_delta() {
                records >= self.record_count
            } else {
                records == self.record_count
            }
        };
        if sum(|s| s.size_bytes) != Some(self.size_bytes) || !records.is_some_and(fits) {
            return Err("its sums do not add up");
        }
        Ok(())
    }

    fn check_layer(&self, layer: usize, segments: &[SegmentEntry]) -> Result<(), &'static str> {
        if segments.len() != self.partitions as usize {
            return Err("the number of segments is not the number of partitions");
        }
        for (partition, segment) in (0..).zip(segments) {
            if segment.file != layer_file(partition, layer)
                || segment.partition != PartitionId(partition)
            {
                return Err("a segment's file or partition is not the one in its place");
            }
            if !self.digest_kind().is_valid(&segment.digest) {
                return Err("a segment's digest is not one of its format");
            }
            if segment.slots != slots_of(partition, self.partitions) {
                return Err("the slots of a segment do not match its partition");
            }
        }
        Ok(())
    }

    /// Returns whether the version has only the differences from another.
    pub fn is_delta(&self) -> bool {
        !self.layers.is_empty()
    }

    /// Returns a rejection message for a delta that removes all records. `allow` is the option that permits it.
    pub fn reject_empty_delta(&self, allow: &str) -> Option<String> {
        let is_refused = self.is_delta() && self.record_count == 0;
        is_refused.then(|| format!("nothing would be left of the version that is built on; a version without records is built only with {allow}"))
    }

    /// Returns the number of versions that a lookup may have to read: this one and those below it.
    pub fn layer_count(&self) -> usize {
        self.layers.len() + 1
    }

    /// Returns the segments of all layers, lowest layer first: every file of the version.
    pub fn entries(&self) -> impl Iterator<Item = &SegmentEntry> {
        let below = self.layers.iter().flat_map(|layer| &layer.segments);
        below.chain(&self.segments)
    }

    /// Returns the segments of one partition, lowest layer first.
    pub fn partition_entries(&self, partition: u32) -> impl Iterator<Item = &SegmentEntry> {
        let at = partition as usize;
        let below = self.layers.iter().map(move |layer| &layer.segments[at]);
        below.chain(std::iter::once(&self.segments[at]))
    }

    /// Returns the path or URL of each layer's segments, lowest first, for a version at `place`.
    pub fn roots(&self, place: &str) -> Vec<String> {
        let recorded = self.built.as_ref().map_or(&[][..], |built| &built.on);
        let below = (0..self.layers.len()).map(|at| match recorded.get(at) {
            Some(recorded) => resolve_place(place, recorded),
            None => place.to_owned(),
        });
        below.chain([place.to_owned()]).collect()
    }

    /// Like [`Manifest::roots`], but with `place` for each layer whose files are there: a server's version has the files
    /// of all its layers.
    ///
    /// # Errors
    /// `has` fails: then the location of a layer is not known.
    pub fn find_roots<E>(
        &self,
        place: &str,
        mut has: impl FnMut(&Layer) -> Result<bool, E>,
    ) -> Result<Vec<String>, E> {
        let roots = self.roots(place).into_iter().enumerate();
        let found = roots.map(|(at, root)| match self.layers.get(at) {
            Some(layer) if root != place && has(layer)? => Ok(place.to_owned()),
            _ => Ok(root),
        });
        found.collect()
    }

    /// Returns whether `layer` is one of this version's lower layers and its files are in `folder`.
    pub(crate) fn has_layer_in(&self, folder: &std::path::Path, layer: &Layer) -> bool {
        let own = self.layers.iter().find(|own| own.digest == layer.digest);
        own.is_some_and(|own| own.segments.iter().all(|it| folder.join(&it.file).exists()))
    }

    /// Returns the size of the version's own segments, without those of lower layers.
    pub fn own_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.size_bytes).sum()
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
            digest: DigestKind::for_manifest(format).of(b""),
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
            layers: Vec::new(),
            built: None,
            signature: None,
            digest: String::new(),
        }
    }

    /// Returns a delta with `below` layers below it.
    pub fn delta(partitions: u32, below: usize) -> Manifest {
        let mut manifest = example(partitions, Manifest::FORMAT_DELTA);
        let of_layer = |layer: usize| -> Vec<SegmentEntry> {
            let mut segments = manifest.segments.clone();
            for (partition, segment) in (0..).zip(&mut segments) {
                segment.file = layer_file(partition, layer);
            }
            segments
        };
        let layer = |at: usize| Layer {
            digest: DigestKind::Blake3.of(&[at as u8]),
            segments: of_layer(at),
        };
        let (layers, segments) = ((0..below).map(layer).collect(), of_layer(below));
        manifest.size_bytes *= below as u64 + 1;
        (manifest.layers, manifest.segments) = (layers, segments);
        manifest
    }

    #[test]
    fn a_delta_names_every_file_and_has_a_bounded_number_of_layers() {
        let decode = |manifest: &Manifest| Manifest::decode("m", &manifest.encode());
        let most = delta(2, Manifest::LAYERS_MAX - 1);
        let read = decode(&most).expect("intact");
        assert_eq!(read.layer_count(), 8);
        let files = |partition| -> Vec<String> {
            let entries = read.partition_entries(partition);
            entries.map(|entry| entry.file.clone()).collect()
        };
        assert_eq!(
            files(1)[..3],
            ["p00001.segment", "p00001.1.segment", "p00001.2.segment"]
        );
        assert_eq!(read.entries().count(), 16);
        assert!(
            decode(&delta(2, Manifest::LAYERS_MAX)).is_err(),
            "one too many"
        );
        let wrong: [fn(&mut Manifest); 6] = [
            |it| it.format = 3,
            |it| it.layers.clear(),
            |it| it.layers.swap(0, 1),
            |it| it.layers[0].digest.push('0'),
            |it| it.layers[1].segments[0].size_bytes += 1,
            |it| drop(it.layers[0].segments.pop()),
        ];
        for change in wrong {
            let mut changed = delta(2, 2);
            change(&mut changed);
            assert!(decode(&changed).is_err());
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
        let described = |format| with_built(example(2, format), "recs.parquet");
        let signed = signed(described(3), 1);
        for manifest in [
            example(2, 1),
            described(2),
            example(2, 3),
            described(3),
            signed,
            delta(2, 2),
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
    fn a_signature_names_its_key_and_covers_the_complete_manifest() {
        let trusted = [key(1).public(), key(2).public()];
        let plain = Manifest::decode("m", &example(2, 3).encode()).expect("intact");
        let rejection = |error: Result<(), String>| error.expect_err("refused");
        assert!(rejection(plain.check_signature(&trusted)).contains("not signed"));
        for manifest in [plain.clone(), with_built(plain.clone(), "recs.parquet")] {
            let read = signed(manifest, 2).encode();
            let read = Manifest::decode("m", &read).expect("intact");
            assert_eq!(
                read.digest, plain.digest,
                "a signature does not change what it is"
            );
            assert_eq!(read.check_signature(&trusted), Ok(()));
            assert!(rejection(read.check_signature(&trusted[..1])).contains("not one of the keys"));
            let changes: [fn(&mut Manifest); 4] = [
                |it| it.store = "other".parse().expect("a name"),
                |it| it.segments[1].digest = DigestKind::Blake3.of(b"another"),
                |it| it.built = Some(Built::default()),
                |it| it.signature.as_mut().expect("signed").key = key(1).public(),
            ];
            for change in changes {
                let mut changed = read.clone();
                change(&mut changed);
                assert!(rejection(changed.check_signature(&trusted)).contains("does not fit"));
                let decoded = Manifest::decode("m", &changed.encode());
                let message = decoded.expect_err("refused").to_string();
                assert!(message.contains("does not fit"), "{message}");
            }
        }
        let mut old = signed(example(1, 3), 1);
        (old.format, old.segments[0].digest) = (1, DigestKind::Xxh3.of(b""));
        assert!(
            Manifest::decode("m", &old.encode()).is_err(),
            "format 1 has none"
        );
    }

    fn with_built(manifest: Manifest, input: &str) -> Manifest {
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
    fn the_build_description_does_not_change_the_digest() {
        for (plain_format, described_format) in [(1, 2), (3, 3)] {
            let plain = example(2, plain_format).encode();
            let plain = Manifest::decode("m", &plain).expect("intact");
            assert!(plain.built.is_none());
            for input in ["recs.parquet", "s3://lake/recs.parquet"] {
                let described = with_built(example(2, described_format), input);
                let read = Manifest::decode("m", &described.encode()).expect("intact");
                assert_eq!(read.digest, plain.digest);
                assert_eq!(read.built.expect("a description").inputs, [input]);
            }
        }
    }

    #[test]
    fn errors_do_not_quote_a_file_that_is_no_manifest() {
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
            manifest.segments[0].digest = DigestKind::for_manifest(4 - format).of(b"");
            assert!(Manifest::decode("m", &manifest.encode()).is_err());
        }
    }
}
