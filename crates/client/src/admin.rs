//! The operations of the HTTP API: one method each; errors are decoded into code and message.
//!
//! This module never retries. Requesting a pull of the same source twice returns the running pull, and a swap to a
//! version is idempotent, so callers may retry these.

use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use larder_protocol::http::{
    ClusterAnswer, ClusterKept, ClusterPlan, ClusterRecover, ClusterRecovery, ClusterRequest,
    ClusterStatus, DiffResult, ErrorBody, ErrorInfo, JSON_LINES, PullRequest, PullStatus,
    RollbackRequest, Sample, Settings, SettingsInForce, StoreList, StoreStatus, SwapRequest,
    SwapResult, VerifyLine, VerifyRequest, VerifyResult,
};
use larder_types::{StoreName, VersionSelector};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use ureq::http::request::Builder;
use ureq::http::{Method, Request, Response};
use ureq::{Agent, Body};

use crate::error::Error;
use crate::tls::{Tls, TlsFiles, advice, advice_on};

/// Maximum size of bodies that are read completely: lists of stores, samples.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// A client of a server's HTTP port. `Sync`, and cheap to call from many threads.
pub struct AdminClient {
    base: String,
    agent: Agent,
    /// An agent for operations whose time depends on the size of the data: verify, diff, dump, and a swap to a
    /// version that a crash left unverified.
    untimed_agent: Agent,
    timeout: Duration,
    /// The header with the server's password.
    authorization: Option<String>,
}

/// A value read over HTTP, and its version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FetchedValue {
    pub value: Vec<u8>,
    pub version: Option<u64>,
}

/// A stream of the records of a version.
pub struct Dump {
    pub version: Option<u64>,
    lines: Box<dyn Read + Send>,
}

impl Read for Dump {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.lines.read(out)
    }
}

impl AdminClient {
    /// Creates a client of `http://host:port` or `https://host:port`; a bare `host:port` means the former.
    /// Certificates are checked with the authorities that the system trusts.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the URL is invalid.
    pub fn new(url: &str) -> Result<AdminClient, Error> {
        AdminClient::with_tls(url, &TlsFiles::default())
    }

    /// Creates a client with files for TLS, which are read only for `https://`.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if the URL is invalid, [`Error::BadFile`] if a file cannot be used.
    pub fn with_tls(url: &str, files: &TlsFiles) -> Result<AdminClient, Error> {
        let bad = |detail: &str| Error::BadAddress {
            address: url.to_owned(),
            detail: detail.to_owned(),
        };
        let (scheme, authority) = match url.trim().split_once("://") {
            Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
            Some(_) => return Err(bad("write http://host:port or https://host:port")),
            None => ("http", url.trim()),
        };
        let base = format!("{scheme}://{}", authority.trim_end_matches('/'));
        let uri: Option<ureq::http::Uri> = base.parse().ok();
        if uri.is_none_or(|uri| uri.host().is_none_or(str::is_empty)) {
            return Err(bad("write http://host:port, such as http://127.0.0.1:7070"));
        }
        let tls = match scheme {
            "https" => Some(Tls::open(files)?.for_http()),
            _ => None,
        };
        let timeout = Duration::from_secs(30);
        let agent = |timeout: Option<Duration>| -> Agent {
            let config = Agent::config_builder()
                .http_status_as_error(false)
                .proxy(None)
                .timeout_connect(Some(Duration::from_secs(5)))
                .timeout_global(timeout);
            match &tls {
                Some(tls) => config.tls_config(tls.clone()).build().into(),
                None => config.build().into(),
            }
        };
        Ok(AdminClient {
            base,
            agent: agent(Some(timeout)),
            untimed_agent: agent(None),
            timeout,
            authorization: None,
        })
    }

    /// Returns the client with a password that is sent with every request.
    pub fn with_password(mut self, password: &str) -> AdminClient {
        let credentials = BASE64_STANDARD.encode(format!("default:{password}"));
        self.authorization = Some(format!("Basic {credentials}"));
        self
    }

    /// Returns `http://host:port` or `https://host:port`, without a trailing slash.
    pub fn url(&self) -> &str {
        &self.base
    }

    /// Returns whether the server runs on this machine, so that both access the same files.
    pub fn is_local(&self) -> bool {
        let uri: Option<ureq::http::Uri> = self.base.parse().ok();
        let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        bare == "localhost"
            || bare
                .parse::<std::net::IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }

    pub fn stores(&self) -> Result<Vec<StoreStatus>, Error> {
        self.get::<StoreList>("/v1/stores").map(|body| body.stores)
    }

    pub fn store(&self, name: &StoreName) -> Result<StoreStatus, Error> {
        self.get(&format!("/v1/stores/{name}"))
    }

    /// Starts a pull and returns immediately; see [`AdminClient::pull_status`].
    pub fn pull(&self, name: &StoreName, request: &PullRequest) -> Result<PullStatus, Error> {
        self.send(
            Method::POST,
            &format!("/v1/stores/{name}/pull"),
            Some(request),
        )
    }

    /// Starts to compact the store's live version; its progress is reported like a pull's.
    ///
    /// # Errors
    /// [`Error::Refused`] with `REFUSED` if the version has one layer or cannot be compacted on this server.
    pub fn compact(&self, name: &StoreName) -> Result<PullStatus, Error> {
        let path = format!("/v1/stores/{name}/compact");
        self.send(Method::POST, &path, None::<&()>)
    }

    pub fn pull_status(&self, pull: &PullStatus) -> Result<PullStatus, Error> {
        self.get(&format!("/v1/pulls/{}", path_segment(pull.id.as_bytes())))
    }

    pub fn cancel_pull(&self, pull: &PullStatus) -> Result<(), Error> {
        let path = format!("/v1/pulls/{}", path_segment(pull.id.as_bytes()));
        self.request(&self.agent, Method::DELETE, &path).map(drop)
    }

    /// Makes a kept version live. Immediate, except for a version that a crash left unverified, which the server
    /// verifies first.
    ///
    /// # Errors
    /// [`Error::Refused`] with `REFUSED` if a verification found damage, or if the version is empty and the live one
    /// is not; see [`AdminClient::swap_forced`].
    pub fn swap(
        &self,
        name: &StoreName,
        version: impl Into<VersionSelector>,
    ) -> Result<SwapResult, Error> {
        self.swap_forced(name, version, false)
    }

    /// Like [`AdminClient::swap`]; with `force` also to a damaged or an empty version.
    pub fn swap_forced(
        &self,
        name: &StoreName,
        version: impl Into<VersionSelector>,
        force: bool,
    ) -> Result<SwapResult, Error> {
        let path = format!("/v1/stores/{name}/swap");
        let version = version.into();
        let body = SwapRequest { version, force };
        self.decode(self.exchange(&self.untimed_agent, Method::POST, &path, Some(&body))?)
    }

    /// Makes `version` live again or, without one, the version that was live before. Like [`AdminClient::swap`].
    pub fn rollback(
        &self,
        name: &StoreName,
        version: Option<VersionSelector>,
    ) -> Result<SwapResult, Error> {
        self.rollback_forced(name, version, false)
    }

    /// Like [`AdminClient::rollback`]; with `force` also to a damaged or an empty version.
    pub fn rollback_forced(
        &self,
        name: &StoreName,
        version: Option<VersionSelector>,
        force: bool,
    ) -> Result<SwapResult, Error> {
        let path = format!("/v1/stores/{name}/rollback");
        let body = RollbackRequest { version, force };
        self.decode(self.exchange(&self.untimed_agent, Method::POST, &path, Some(&body))?)
    }

    /// Reads and verifies every byte of a version, by default the live one. Takes time proportional to its size.
    pub fn verify(
        &self,
        name: &StoreName,
        version: Option<VersionSelector>,
    ) -> Result<VerifyResult, Error> {
        self.verify_with_progress(name, version, &|_, _| {})
    }

    /// Like [`AdminClient::verify`]; periodically calls `progress` with the bytes done and the total.
    pub fn verify_with_progress(
        &self,
        name: &StoreName,
        version: Option<VersionSelector>,
        progress: &dyn Fn(u64, u64),
    ) -> Result<VerifyResult, Error> {
        let path = format!("/v1/stores/{name}/verify");
        let body = VerifyRequest { version };
        let request = self
            .request_to(Method::POST, &path)
            .header("accept", JSON_LINES);
        let answer = self.run(&self.untimed_agent, request, Some(&body))?;
        let protocol_error = |detail: String| Error::Protocol {
            address: self.base.clone(),
            detail,
        };
        for line in BufReader::new(answer.into_body().into_reader()).lines() {
            let line = line.map_err(|error| Error::Broken {
                address: self.base.clone(),
                detail: error.to_string(),
            })?;
            let line = serde_json::from_str(&line).map_err(|error| {
                protocol_error(format!("its reply is not the expected JSON: {error}"))
            })?;
            match line {
                VerifyLine::Progress {
                    bytes_done,
                    bytes_total,
                } => progress(bytes_done, bytes_total),
                VerifyLine::Done(result) => return Ok(result),
                VerifyLine::Error(error) => return Err(refused(error)),
            }
        }
        Err(protocol_error(
            "its reply ended before the result".to_owned(),
        ))
    }

    pub fn diff(
        &self,
        name: &StoreName,
        from: impl Into<VersionSelector>,
        to: impl Into<VersionSelector>,
        limit: u64,
    ) -> Result<DiffResult, Error> {
        let (from, to) = (from.into(), to.into());
        let path = format!("/v1/stores/{name}/diff?from={from}&to={to}&limit={limit}");
        self.decode(self.request(&self.untimed_agent, Method::GET, &path)?)
    }

    pub fn sample(
        &self,
        name: &StoreName,
        count: u64,
        version: Option<VersionSelector>,
    ) -> Result<Sample, Error> {
        let version = version
            .map(|id| format!("&version={id}"))
            .unwrap_or_default();
        self.get(&format!("/v1/stores/{name}/sample?n={count}{version}"))
    }

    /// Returns a stream of all records as JSON lines. A stream that ends early yields an error.
    pub fn dump(&self, name: &StoreName, version: Option<VersionSelector>) -> Result<Dump, Error> {
        let version = version
            .map(|id| format!("?version={id}"))
            .unwrap_or_default();
        let path = format!("/v1/stores/{name}/dump{version}");
        let response = self.request(&self.untimed_agent, Method::GET, &path)?;
        Ok(Dump {
            version: version_of(&response),
            lines: Box::new(response.into_body().into_reader()),
        })
    }

    /// Returns the value of `key` (without the store's name) and its version: `version`, or the live one.
    ///
    /// # Errors
    /// [`Error::Refused`] with `ABSENT_KEY`, `NO_SUCH_STORE` or `CORRUPTED`.
    pub fn key(
        &self,
        name: &StoreName,
        key: &[u8],
        version: Option<VersionSelector>,
    ) -> Result<FetchedValue, Error> {
        let version = version
            .map(|id| format!("?version={id}"))
            .unwrap_or_default();
        let path = format!("/v1/stores/{name}/keys/{}{version}", path_segment(key));
        let mut response = self.request(&self.untimed_agent, Method::GET, &path)?;
        let version = version_of(&response);
        let limit = larder_types::VALUE_BYTES_MAX + 1;
        let body = response.body_mut().with_config().limit(limit).read_to_vec();
        Ok(FetchedValue {
            value: body.map_err(|error| self.failed(error))?,
            version,
        })
    }

    /// Returns the bytes of a version's manifest file.
    ///
    /// # Errors
    /// [`Error::Refused`] with `NO_SUCH_STORE`, `NO_SUCH_VERSION` or `NO_LIVE_VERSION`.
    pub fn manifest(&self, name: &StoreName, version: VersionSelector) -> Result<Vec<u8>, Error> {
        let path = format!("/v1/stores/{name}/versions/{version}/files/manifest.json");
        let mut response = self.request(&self.agent, Method::GET, &path)?;
        let body = response.body_mut().with_config().limit(BODY_BYTES_MAX);
        body.read_to_vec().map_err(|error| self.failed(error))
    }

    pub fn remove_store(&self, name: &StoreName) -> Result<(), Error> {
        self.request(&self.agent, Method::DELETE, &format!("/v1/stores/{name}"))
            .map(drop)
    }

    /// Removes a version that is not live. Returns its number, if the server reports it.
    pub fn remove_version(
        &self,
        name: &StoreName,
        version: impl Into<VersionSelector>,
    ) -> Result<Option<u64>, Error> {
        let version = version.into();
        let path = format!("/v1/stores/{name}/versions/{version}");
        let response = self.request(&self.agent, Method::DELETE, &path)?;
        Ok(version_of(&response))
    }

    /// Returns the settings that can change at run time.
    pub fn settings(&self) -> Result<SettingsInForce, Error> {
        self.get("/v1/settings")
    }

    /// Changes the given settings, and returns the new values of all.
    pub fn change_settings(&self, changes: &Settings) -> Result<SettingsInForce, Error> {
        self.send(Method::PATCH, "/v1/settings", Some(changes))
    }

    /// Returns the server's view of the cluster to which it belongs.
    ///
    /// # Errors
    /// [`Error::Refused`] with `BAD_REQUEST` if it is not part of a cluster.
    pub fn cluster(&self) -> Result<ClusterStatus, Error> {
        self.get("/v1/cluster")
    }

    /// Returns the moves that would follow if nodes joined (`NAME[:ZONE[:WEIGHT]]`) or left, or if the number of
    /// replicas changed. Changes nothing.
    ///
    /// # Errors
    /// Like [`AdminClient::cluster`], and [`Error::Refused`] if a node is not in the expected state.
    pub fn cluster_plan(
        &self,
        add: &[String],
        remove: &[String],
        replicas: Option<u8>,
    ) -> Result<ClusterPlan, Error> {
        let list = |nodes: &[String]| path_segment(nodes.join(",").as_bytes());
        let replicas = replicas
            .map(|it| format!("&replicas={it}"))
            .unwrap_or_default();
        let (add, remove) = (list(add), list(remove));
        let path = format!("/v1/cluster/plan?add={add}&remove={remove}{replicas}");
        self.decode(self.request(&self.untimed_agent, Method::GET, &path)?)
    }

    /// Sends a request to the controller, and returns its reply after it has accepted. The operation itself may take
    /// longer.
    ///
    /// # Errors
    /// [`Error::Refused`] with `CONFLICT` if it rejects the request, with `CLUSTER_DOWN` if it does not respond.
    pub fn cluster_request(&self, request: &ClusterRequest) -> Result<String, Error> {
        let answer = self.exchange(
            &self.untimed_agent,
            Method::POST,
            "/v1/cluster/asks",
            Some(request),
        )?;
        self.decode::<ClusterAnswer>(answer).map(|it| it.answer)
    }

    /// Returns the server's copy of the cluster's state, for a recovery of the map.
    ///
    /// # Errors
    /// Like [`AdminClient::cluster`].
    pub fn cluster_kept(&self) -> Result<ClusterKept, Error> {
        self.get("/v1/cluster/kept")
    }

    /// Plans a recovery of the cluster map, and writes it if the request specifies that.
    ///
    /// # Errors
    /// [`Error::Refused`] with `CONFLICT` if the map cannot be recovered, or need not be.
    pub fn cluster_recover(&self, request: &ClusterRecover) -> Result<ClusterRecovery, Error> {
        let path = "/v1/cluster/recover";
        self.decode(self.exchange(&self.untimed_agent, Method::POST, path, Some(request))?)
    }

    /// Returns the `host:port` of this server's RESP port. If the server listens on all addresses, the host is that
    /// of this client's URL. With TLS it is always that host, because certificates name it.
    ///
    /// # Errors
    /// [`Error::Protocol`] if the server does not report it, because it is an earlier version.
    pub fn resp_address(&self) -> Result<String, Error> {
        #[derive(serde::Deserialize)]
        struct ServerInfo {
            resp: Option<SocketAddr>,
        }
        let info: ServerInfo = self.get("/v1/stats")?;
        let at = info.resp.ok_or_else(|| Error::Protocol {
            address: self.base.clone(),
            detail:
                "its reply has no RESP address; upgrade the server to the version of this program"
                    .to_owned(),
        })?;
        if !at.ip().is_unspecified() && !self.base.starts_with("https") {
            return Ok(at.to_string());
        }
        let uri: Option<ureq::http::Uri> = self.base.parse().ok();
        let host = uri.as_ref().and_then(|uri| uri.host()).unwrap_or_default();
        Ok(format!("{host}:{}", at.port()))
    }

    /// Returns whether the server is running and has opened its stores.
    pub fn is_ready(&self) -> bool {
        self.request(&self.agent, Method::GET, "/readyz").is_ok()
    }

    fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.decode(self.request(&self.agent, Method::GET, path)?)
    }

    fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, Error> {
        self.decode(self.exchange(&self.agent, method, path, body)?)
    }

    /// Sends a request without a body.
    fn request(&self, agent: &Agent, method: Method, path: &str) -> Result<Response<Body>, Error> {
        self.exchange(agent, method, path, None::<&()>)
    }

    fn exchange(
        &self,
        agent: &Agent,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Body>, Error> {
        self.run(agent, self.request_to(method, path), body)
    }

    /// Returns a request with the common headers.
    fn request_to(&self, method: Method, path: &str) -> Builder {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            // Shows the server that no web page made a browser send this request.
            .header("x-larder", "1");
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        request
    }

    fn run(
        &self,
        agent: &Agent,
        request: Builder,
        body: Option<&impl Serialize>,
    ) -> Result<Response<Body>, Error> {
        let invalid = |error: ureq::http::Error| Error::BadAddress {
            address: self.base.clone(),
            detail: error.to_string(),
        };
        let outcome = match body {
            Some(body) => {
                let request = request.header("content-type", "application/json");
                let text = serde_json::to_string(body).expect("texts and numbers become JSON");
                agent.run(request.body(text).map_err(invalid)?)
            }
            None => agent.run(request.body(()).map_err(invalid)?),
        };
        let mut response = outcome.map_err(|error| self.failed(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let text = response.body_mut().read_to_string().unwrap_or_default();
        Err(self.decode_error(status.as_u16(), &text))
    }

    fn decode<T: DeserializeOwned>(&self, mut response: Response<Body>) -> Result<T, Error> {
        let body = response
            .body_mut()
            .with_config()
            .limit(BODY_BYTES_MAX)
            .read_to_vec();
        let bytes = body.map_err(|error| self.failed(error))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::Protocol {
            address: self.base.clone(),
            detail: format!("its reply is not the expected JSON: {error}"),
        })
    }

    fn decode_error(&self, status: u16, text: &str) -> Error {
        match serde_json::from_str::<ErrorBody>(text) {
            Ok(ErrorBody { error }) => refused(error),
            Err(_) => Error::Protocol {
                address: self.base.clone(),
                detail: format!(
                    "status {status}: {}",
                    text.trim().chars().take(200).collect::<String>()
                ),
            },
        }
    }

    fn failed(&self, error: ureq::Error) -> Error {
        let address = self.base.clone();
        match error {
            ureq::Error::ConnectionFailed => Error::NoServer { address },
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                Error::NoServer { address }
            }
            ureq::Error::Rustls(error) => Error::Tls {
                address,
                detail: advice_on(&error),
            },
            ureq::Error::Io(error) if advice(&error).is_some() => Error::Tls {
                address,
                detail: advice(&error).unwrap_or_default(),
            },
            ureq::Error::HostNotFound => Error::BadAddress {
                address,
                detail: "no host has that name".into(),
            },
            ureq::Error::Timeout(_) => Error::TimedOut {
                address,
                seconds: self.timeout.as_secs_f64(),
            },
            ureq::Error::Protocol(error) => Error::Protocol {
                address,
                detail: error.to_string(),
            },
            other => Error::Broken {
                address,
                detail: other.to_string(),
            },
        }
    }
}

/// Returns the version in a response.
fn version_of(response: &Response<Body>) -> Option<u64> {
    let header = response.headers().get("x-larder-version");
    header.and_then(|value| value.to_str().ok()?.parse().ok())
}

fn refused(error: ErrorInfo) -> Error {
    Error::Refused {
        code: error.code,
        message: error.message,
        retry: error.retry,
    }
}

/// The characters that are escaped in a segment of a path: all but the unreserved ones, and the dot, because `..` has
/// a meaning of its own.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// Escapes a segment of a path, so that a key may contain a slash or any other byte.
fn path_segment(bytes: &[u8]) -> String {
    percent_encode(bytes, ESCAPED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_accepted_in_common_forms() {
        for (written, base, local) in [
            ("http://127.0.0.1:7070/", "http://127.0.0.1:7070", true),
            ("localhost:7070", "http://localhost:7070", true),
            ("http://[::1]:7070", "http://[::1]:7070", true),
            (
                "http://larder.example:7070",
                "http://larder.example:7070",
                false,
            ),
        ] {
            let client = AdminClient::new(written).unwrap();
            assert_eq!(
                (client.url(), client.is_local()),
                (base, local),
                "{written}"
            );
        }
        for bad in ["", "http://", "https://", "ftp://h"] {
            assert!(
                matches!(AdminClient::new(bad), Err(Error::BadAddress { .. })),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_key_with_any_bytes_is_escaped_in_a_path() {
        assert_eq!(path_segment(b"a/b?c d\xff.."), "a%2Fb%3Fc%20d%FF%2E%2E");
    }
}
