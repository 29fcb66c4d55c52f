//! A client for the members of etcd over HTTP/1.1. It uses one member while that member answers, and switches to the next
//! immediately when it does not.
//!
//! ```text
//!  post ──► the current member ──► answered ───────────────────────────► done
//!              ▲        │
//!              │        └─ rejected, broken, or silent for `attempt_timeout`: the next member becomes current
//!              └─ after a round of all members: attempt_timeout doubles, a short pause; until `request_timeout` has passed
//! ```
//!
//! Timeouts are short because a member whose leader has died holds a change for 7 seconds before it reports failure, while a new
//! leader exists after one. They start at 0.2 s and grow, so that a slow service is tolerated too. An attempt that timed out may
//! have been executed ([`Failure::Unknown`]), so all requests sent here must be idempotent.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use url::Url;

use super::EtcdConfig;
use super::wire::{Login, Token};
use crate::coordination::Error;

/// The timeout of the first attempt.
const ATTEMPT_TIMEOUT_FIRST: Duration = Duration::from_millis(200);
const ATTEMPT_TIMEOUT_MAX: Duration = Duration::from_secs(2);
/// No attempt is started with less time left than this.
const ATTEMPT_TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// The default total time for one request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
const PAUSE_FIRST: Duration = Duration::from_millis(25);
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// The timeout for the start of a stream.
const STREAM_START_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of idle connections per member.
const IDLE_MAX: usize = 2;
/// etcd's default port.
const PORT: u16 = 2379;
/// Maximum number of token refreshes per request.
const LOGINS_MAX: usize = 2;

/// The reason why a request has no answer.
#[derive(Debug)]
pub enum Failure {
    Refused(String),
    NotDone(String),
    Unknown(String),
    NoLease,
}

type Sender = SendRequest<Full<Bytes>>;

struct EtcdMember {
    url: String,
    host: String,
    port: u16,
    authority: String,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Mutex<Vec<Sender>>,
}

pub struct EtcdMembers {
    members: Vec<EtcdMember>,
    current: AtomicUsize,
    user: Option<(String, String)>,
    token: Mutex<Option<HeaderValue>>,
    requests: AtomicU64,
    tried_for: Duration,
}

/// The failure of an attempt at one member.
enum AttemptError {
    /// Try the next member. Contains a description.
    TryNext(String),
    /// The token is missing or outdated.
    InvalidToken(String),
    /// No member would answer differently.
    Final(Failure),
}

impl EtcdMembers {
    pub fn new(config: EtcdConfig) -> Result<EtcdMembers, Error> {
        let members = config
            .endpoints
            .iter()
            .map(|url| EtcdMember::new(url, &config));
        let members: Vec<EtcdMember> = members.collect::<Result<_, _>>()?;
        if members.is_empty() {
            return Err(Error::Refused(
                "etcd: no address of a member is given".to_owned(),
            ));
        }
        Ok(EtcdMembers {
            current: AtomicUsize::new(config.first % members.len()),
            members,
            user: config.user,
            token: Mutex::new(None),
            requests: AtomicU64::new(0),
            tried_for: config.request_timeout.unwrap_or(REQUEST_TIMEOUT),
        })
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sends a request, and retries until there is an answer.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Bytes, Failure> {
        let body = Bytes::from(body.to_string());
        let end = Instant::now() + self.tried_for;
        let (mut attempt_timeout, mut pause) = (ATTEMPT_TIMEOUT_FIRST, PAUSE_FIRST);
        let mut failures = vec![None; self.members.len()];
        let (mut may_be_executed, mut logins) = (false, 0);
        loop {
            for _ in 0..self.members.len() {
                let at = self.current();
                let left = end.saturating_duration_since(Instant::now());
                if left < ATTEMPT_TIMEOUT_MIN {
                    return Err(self.timeout_failure(&failures, may_be_executed));
                }
                let attempt_timeout = attempt_timeout.min(left);
                let mut sent = false;
                let attempt =
                    timeout(attempt_timeout, self.attempt(at, path, &body, &mut sent)).await;
                let outcome = attempt.unwrap_or_else(|_| {
                    Err(AttemptError::TryNext(format!(
                        "no answer in {:.1} s",
                        attempt_timeout.as_secs_f64()
                    )))
                });
                match outcome {
                    Ok(answer) => return Ok(answer),
                    Err(AttemptError::Final(Failure::Refused(why) | Failure::NotDone(why)))
                        if may_be_executed =>
                    {
                        return Err(Failure::Unknown(format!(
                            "etcd {}: {why}",
                            self.members[at].url
                        )));
                    }
                    Err(AttemptError::Final(failure)) => return Err(failure),
                    Err(AttemptError::InvalidToken(why)) if logins == LOGINS_MAX => {
                        return Err(Failure::Refused(format!(
                            "etcd {}: {why}",
                            self.members[at].url
                        )));
                    }
                    Err(AttemptError::InvalidToken(_)) => {
                        logins += 1;
                        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    }
                    Err(AttemptError::TryNext(why)) => {
                        may_be_executed |= sent;
                        failures[at] = Some(why);
                        self.advance_from(at);
                    }
                }
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
            attempt_timeout = (attempt_timeout * 2).min(ATTEMPT_TIMEOUT_MAX);
        }
    }

    /// Starts a stream at the current member, on a separate connection; `None` if that failed.
    pub async fn stream(&self, path: &str, body: &Value) -> Option<Incoming> {
        let at = self.current();
        let body = Bytes::from(body.to_string());
        let begun = timeout(STREAM_START_TIMEOUT, async {
            let token = self.token(at).await.ok()?;
            let mut sender = self.members[at].connect().await.ok()?;
            let response = self.send(at, &mut sender, path, body, token).await.ok()?;
            (response.status() == StatusCode::OK).then(|| response.into_body())
        });
        let begun = begun.await.ok().flatten();
        if begun.is_none() {
            self.advance_from(at);
        }
        begun
    }

    fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// Makes the next member current, unless another task has already done so.
    fn advance_from(&self, at: usize) {
        let next = (at + 1) % self.members.len();
        let _ = self
            .current
            .compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn timeout_failure(&self, failures: &[Option<String>], may_be_executed: bool) -> Failure {
        let each = self
            .members
            .iter()
            .zip(failures)
            .filter_map(|(member, why)| why.as_ref().map(|why| format!("{}: {why}", member.url)));
        let each: Vec<String> = each.collect();
        let why = format!(
            "etcd did not answer within {} s ({})",
            self.tried_for.as_secs_f64(),
            each.join("; ")
        );
        if may_be_executed {
            Failure::Unknown(why)
        } else {
            Failure::NotDone(why)
        }
    }

    async fn attempt(
        &self,
        at: usize,
        path: &str,
        body: &Bytes,
        sent: &mut bool,
    ) -> Result<Bytes, AttemptError> {
        let token = self.token(at).await?;
        let mut sender = self.members[at].sender().await?;
        *sent = true;
        let sending = self.send(at, &mut sender, path, body.clone(), token);
        let (status, answer) = read_response(sending.await?).await?;
        self.members[at].return_idle(sender);
        if status == StatusCode::OK && !answer.starts_with(b"{\"error\"") {
            Ok(answer)
        } else {
            Err(classify_error(status, &answer))
        }
    }

    async fn send(
        &self,
        at: usize,
        sender: &mut Sender,
        path: &str,
        body: Bytes,
        token: Option<HeaderValue>,
    ) -> Result<Response<Incoming>, AttemptError> {
        let mut request = Request::post(format!("/v3/{path}"))
            .header(HOST, &self.members[at].authority)
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| AttemptError::Final(Failure::Refused(error.to_string())))?;
        if let Some(token) = token {
            request.headers_mut().insert(AUTHORIZATION, token);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        sender
            .send_request(request)
            .await
            .map_err(|error| connection_error(&error))
    }

    /// Returns the authentication token, if a user is configured.
    async fn token(&self, at: usize) -> Result<Option<HeaderValue>, AttemptError> {
        let Some((name, password)) = &self.user else {
            return Ok(None);
        };
        let known = self
            .token
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        if known.is_some() {
            return Ok(known);
        }
        let body =
            serde_json::to_vec(&Login { name, password }).expect("strings are always serializable");
        let mut sender = self.members[at].sender().await?;
        let sending = self.send(at, &mut sender, "auth/authenticate", body.into(), None);
        let (status, answer) = read_response(sending.await?).await?;
        if status != StatusCode::OK {
            return Err(classify_error(status, &answer));
        }
        let token: Token = serde_json::from_slice(&answer).unwrap_or_default();
        let token = HeaderValue::from_str(&token.token)
            .map_err(|error| AttemptError::TryNext(format!("its token cannot be used: {error}")))?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(Some(token))
    }
}

/// Reads a complete response.
async fn read_response(response: Response<Incoming>) -> Result<(StatusCode, Bytes), AttemptError> {
    let status = response.status();
    let body = response.into_body().collect().await;
    Ok((
        status,
        body.map_err(|error| connection_error(&error))?.to_bytes(),
    ))
}

fn connection_error(error: &dyn std::error::Error) -> AttemptError {
    AttemptError::TryNext(format!("the connection broke: {error}"))
}

/// Classifies an error response by its gRPC code.
fn classify_error(status: StatusCode, answer: &[u8]) -> AttemptError {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    // For a stream, the error is an object.
    let of_stream = &answer["error"];
    let code = answer["code"]
        .as_u64()
        .or_else(|| of_stream["grpc_code"].as_u64());
    let text = of_stream.as_str().or_else(|| of_stream["message"].as_str());
    let text = text.map_or_else(|| format!("it answered {status}"), str::to_owned);
    let refused = |text: String| {
        AttemptError::Final(Failure::Refused(format!(
            "etcd rejected the request: {text}"
        )))
    };
    match code {
        Some(5) if text.contains("lease not found") => AttemptError::Final(Failure::NoLease),
        Some(16) => AttemptError::InvalidToken(text),
        Some(3) if text.contains("user name is empty") || text.contains("auth store is old") => {
            AttemptError::InvalidToken(text)
        }
        Some(8) if text.contains("space exceeded") => refused(format!(
            "{text}; compact and defragment etcd, then disarm its alarm"
        )),
        Some(3 | 5 | 6 | 7 | 9 | 11 | 12) => refused(text),
        None if status == StatusCode::NOT_FOUND => {
            refused(format!("{text} to /v3/; larder needs etcd 3.4 or newer"))
        }
        _ => AttemptError::TryNext(text),
    }
}

impl EtcdMember {
    fn new(url: &str, config: &EtcdConfig) -> Result<EtcdMember, Error> {
        let refused = |why: &str| Error::Refused(format!("etcd: the address {url:?} {why}"));
        let parsed =
            Url::parse(url).map_err(|error| refused(&format!("cannot be read: {error}")))?;
        let is_tls = match parsed.scheme() {
            "http" => false,
            "https" => true,
            _ => return Err(refused("must begin with http:// or https://")),
        };
        let has_more = !matches!(parsed.path(), "" | "/") || !parsed.username().is_empty();
        let (Some(host), false) = (parsed.host_str(), has_more) else {
            return Err(refused(
                "must be like http://HOST:2379, without a path or a user",
            ));
        };
        let host = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        let tls = if is_tls {
            let name = ServerName::try_from(host.clone())
                .map_err(|error| refused(&format!("has no usable host: {error}")))?;
            Some((config.tls.connector()?, name))
        } else {
            None
        };
        Ok(EtcdMember {
            url: url.trim_end_matches('/').to_owned(),
            // The parser drops the port if it is the scheme's default.
            port: (url.trim_end_matches('/').rsplit_once(':'))
                .and_then(|(_, port)| port.parse().ok())
                .unwrap_or(PORT),
            authority: parsed.authority().to_owned(),
            host,
            tls,
            idle: Mutex::new(Vec::new()),
        })
    }

    /// Returns an idle connection, or opens one.
    async fn sender(&self) -> Result<Sender, AttemptError> {
        loop {
            let idle = self
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            match idle {
                Some(sender) if sender.is_closed() => {}
                Some(mut sender) => {
                    if sender.ready().await.is_ok() {
                        return Ok(sender);
                    }
                }
                None => return self.connect().await,
            }
        }
    }

    fn return_idle(&self, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(sender);
        }
    }

    async fn connect(&self) -> Result<Sender, AttemptError> {
        let failed =
            |error: std::io::Error| AttemptError::TryNext(format!("cannot connect: {error}"));
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        match &self.tls {
            None => handshake(stream).await,
            Some((connector, name)) => {
                let secured = connector
                    .connect(name.clone(), stream)
                    .await
                    .map_err(failed)?;
                handshake(secured).await
            }
        }
    }
}

async fn handshake<S>(stream: S) -> Result<Sender, AttemptError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let shaken = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = shaken.map_err(|error| connection_error(&error))?;
    // The task ends when the sender is dropped or the member closes the connection.
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_without_a_port_uses_the_default_port_of_etcd() {
        let port = |url: &str| {
            let member = EtcdMember::new(url, &EtcdConfig::default()).expect("it can be used");
            (member.host, member.port)
        };
        for (url, host, expected) in [
            ("http://h:2379", "h", 2379),
            ("http://h:80/", "h", 80),
            ("http://h", "h", PORT),
            ("http://[::1]:1234", "::1", 1234),
            ("http://[::1]", "::1", PORT),
        ] {
            assert_eq!(port(url), (host.to_owned(), expected), "{url}");
        }
    }

    #[test]
    fn final_errors_are_distinguished_from_retryable_errors() {
        let describe = |status: u16, answer: &str| match classify_error(
            StatusCode::from_u16(status).expect("a status"),
            answer.as_bytes(),
        ) {
            AttemptError::TryNext(why) => format!("next: {why}"),
            AttemptError::InvalidToken(why) => format!("token: {why}"),
            AttemptError::Final(Failure::NoLease) => "no lease".to_owned(),
            AttemptError::Final(Failure::Refused(why)) => why,
            AttemptError::Final(failure) => format!("{failure:?}"),
        };
        for (status, answer, expected) in [
            (
                503,
                r#"{"error":"etcdserver: no leader","code":14}"#,
                "next: etcdserver: no leader",
            ),
            (
                500,
                r#"{"error":"context deadline exceeded","code":2}"#,
                "next: context deadline exceeded",
            ),
            (
                200,
                r#"{"error":{"grpc_code":14,"message":"etcdserver: no leader"}}"#,
                "next: etcdserver: no leader",
            ),
            (
                404,
                r#"{"error":"etcdserver: requested lease not found","code":5}"#,
                "no lease",
            ),
            (
                401,
                r#"{"error":"etcdserver: invalid auth token","code":16}"#,
                "token: etcdserver: invalid auth token",
            ),
            (
                403,
                r#"{"error":"etcdserver: permission denied","code":7}"#,
                "etcd rejected the request: etcdserver: permission denied",
            ),
            (
                429,
                r#"{"error":"etcdserver: too many requests","code":8}"#,
                "next: etcdserver: too many requests",
            ),
            (
                404,
                "Not Found",
                "etcd rejected the request: it answered 404 Not Found to /v3/; larder needs etcd 3.4 or newer",
            ),
            (502, "<html>", "next: it answered 502 Bad Gateway"),
        ] {
            assert_eq!(describe(status, answer), expected);
        }
    }
}
