//! The URLs under which a larder server offers the files of its versions.

use serde::Deserialize;

use crate::manifest::Manifest;

/// The part of a store's status (`/v1/stores/STORE`) that is read here.
#[derive(Deserialize)]
struct ServedStore {
    versions: Vec<ServedVersion>,
}

#[derive(Deserialize)]
struct ServedVersion {
    version: u64,
    live: bool,
}

/// The maximum size of a store's status.
pub const STATUS_MAX: u64 = 16 << 20;

/// Returns the URL of the version that is live now, with its number, for the URL of a store's live version
/// (`.../v1/stores/STORE/versions/live/files`): a number always names the same files. Returns any other text unchanged, also
/// if there is no such store. `read` returns the contents of a URL, or `None` if nothing is there.
///
/// # Errors
/// `read` fails.
pub fn live_version_url<E>(
    url: &str,
    read: impl FnOnce(&str) -> Result<Option<Vec<u8>>, E>,
) -> Result<String, E> {
    let unchanged = url.to_owned();
    let url = url.trim_end_matches('/');
    let store = url.strip_suffix("/versions/live/files").filter(|store| {
        is_http(store)
            && store
                .rsplit_once('/')
                .is_some_and(|it| it.0.ends_with("/v1/stores"))
    });
    let Some(store) = store else {
        return Ok(unchanged);
    };
    let status = read(store)?.and_then(|it| serde_json::from_slice::<ServedStore>(&it).ok());
    let live = status.and_then(|it| it.versions.into_iter().find(|version| version.live));
    Ok(live.map_or(unchanged, |it| {
        format!("{store}/versions/{}/files", it.version)
    }))
}

/// Like [`Manifest::roots`] for a version at `url`, but a server has the files of all layers in one place. `has` returns
/// whether a file of a lower layer is at `url`; it is called for servers only.
///
/// # Errors
/// `has` fails: then the location of a layer is not known.
pub fn roots<E>(
    manifest: &Manifest,
    url: &str,
    mut has: impl FnMut(&str) -> Result<bool, E>,
) -> Result<Vec<String>, E> {
    if is_http(url) {
        manifest.find_roots(url, |layer| has(&layer.segments[0].file))
    } else {
        Ok(manifest.roots(url))
    }
}

/// Only a URL of HTTP can be a server's.
fn is_http(url: &str) -> bool {
    url.starts_with("http://") || url.starts_with("https://")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_live_version_of_a_store_gets_a_number() {
        let status =
            br#"{"versions":[{"version":6,"live":false},{"version":7,"live":true,"layers":2}]}"#;
        let of = |url: &str| live_version_url(url, |_| Ok::<_, ()>(Some(status.to_vec()))).unwrap();
        let store = "http://h:1/v1/stores/s";
        let live = format!("{store}/versions/live/files");
        assert_eq!(of(&live), format!("{store}/versions/7/files"));
        assert_eq!(of(&format!("{live}/")), format!("{store}/versions/7/files"));
        for other in [
            "s3://b/versions/live/files",
            "/v1/stores/s/versions/live/files",
            "http://h/versions/7/files",
        ] {
            assert_eq!(of(other), other);
        }
        assert_eq!(
            live_version_url(&live, |_| Ok::<_, ()>(None)),
            Ok(live.clone())
        );
        assert_eq!(live_version_url(&live, |_| Err("503")), Err("503"));
    }
}
