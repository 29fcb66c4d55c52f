//! Reads over HTTP from a server with scripted responses.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};

use futures::StreamExt;
use larder_remote::{Error, Location};

use crate::wait;

/// Serves the given responses, one per connection, and reports each request's first line and `Range`.
struct Server {
    address: String,
    requests: Receiver<(String, String)>,
}

impl Server {
    fn start_server<A: Into<Vec<u8>>>(answers: impl IntoIterator<Item = A>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (seen, requests) = channel();
        let answers: Vec<Vec<u8>> = answers.into_iter().map(Into::into).collect();
        std::thread::spawn(move || {
            for (stream, answer) in listener.incoming().zip(answers) {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let lines: Vec<String> = lines
                    .map_while(Result::ok)
                    .take_while(|line| !line.is_empty())
                    .collect();
                let range = lines.iter().find_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    name.eq_ignore_ascii_case("range").then(|| value.to_owned())
                });
                let first = lines[0].trim_end_matches(" HTTP/1.1").to_owned();
                seen.send((first, range.unwrap_or_default())).unwrap();
                // The client may close the connection early.
                let _ = stream.write_all(&answer);
            }
        });
        Server { address, requests }
    }

    fn file(&self) -> Location {
        Location::parse(&format!("http://ann:secret@{}/f?sig=abc", self.address)).unwrap()
    }

    /// Returns the requests so far: first line and range.
    fn requests(&self) -> Vec<(String, String)> {
        self.requests.try_iter().collect()
    }
}

fn answer(status: &str, headers: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n{headers}Connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the partial response for `text` from `offset` on.
fn part(text: &str, offset: usize) -> String {
    let range = format!(
        "Content-Range: bytes {offset}-{}/{}\r\n",
        text.len() - 1,
        text.len()
    );
    answer("206 Partial Content", &range, &text[offset..])
}

/// Reads the bytes from `offset` on, up to the first error.
fn read_from(location: &Location, offset: u64) -> (String, Option<Error>) {
    wait(async {
        let mut text = Vec::new();
        let mut stream = match location.stream(offset).await {
            Ok(stream) => stream,
            Err(error) => return (String::new(), Some(error)),
        };
        while let Some(part) = stream.next().await {
            match part {
                Ok(part) => text.extend_from_slice(&part),
                Err(error) => return (String::from_utf8(text).unwrap(), Some(error)),
            }
        }
        (String::from_utf8(text).unwrap(), None)
    })
}

const TEXT: &str = "0123456789abcdef";

#[test]
fn a_read_from_an_offset_requests_a_range() {
    let server = Server::start_server([part(TEXT, 10)]);
    let (text, error) = read_from(&server.file(), 10);
    assert_eq!(
        (text.as_str(), error.map(|e| e.to_string())),
        ("abcdef", None)
    );
    let requests = server.requests();
    assert_eq!(
        requests,
        [("GET /f?sig=abc".to_owned(), "bytes=10-".to_owned())]
    );
}

#[test]
fn a_response_for_another_range_is_refused() {
    let complete = answer("200 OK", "", TEXT);
    let no_range = answer("206 Partial Content", "", "abcdef");
    for (wrong, words) in [
        (part(TEXT, 9), "the response begins at 9"),
        (complete, "it does not support ranges"),
        (no_range, "without a Content-Range header"),
        (
            answer("416 Range Not Satisfiable", "", ""),
            "the file ends before",
        ),
    ] {
        let server = Server::start_server([wrong]);
        let (text, error) = read_from(&server.file(), 10);
        let error = error.expect(words);
        assert!(error.to_string().contains(words), "{error}");
        assert!(text.is_empty() && !error.is_retryable(), "{error}");
    }
}

#[test]
fn redirects_are_followed_with_the_range_and_only_to_http() {
    let target = Server::start_server([part(TEXT, 10), part(TEXT, 10)]);
    for status in ["302 Found", "307 Temporary Redirect"] {
        let to = format!("Location: http://{}/moved\r\n", target.address);
        let server = Server::start_server([answer(status, &to, "")]);
        let (text, error) = read_from(&server.file(), 10);
        assert!(error.is_none(), "{status}: {error:?}");
        assert_eq!(text, "abcdef");
        let requests = target.requests();
        assert_eq!(
            requests,
            [("GET /moved".to_owned(), "bytes=10-".to_owned())]
        );
    }
    let home = answer("302 Found", "Location: file:///etc/passwd\r\n", "");
    let (text, error) = read_from(&Server::start_server([home]).file(), 0);
    assert!(text.is_empty() && error.is_some(), "{text}");

    let round = answer("302 Found", "Location: /f\r\n", "");
    let circle = Server::start_server(vec![round; 50]);
    let (_, error) = read_from(&circle.file(), 0);
    assert!(error.is_some());
    let requests = circle.requests().len();
    assert!(
        (2..50).contains(&requests),
        "a redirect loop is cut off, not only after {requests} rounds"
    );
}

#[test]
fn statuses_determine_whether_a_retry_may_help() {
    for (status, retry) in [
        ("500 Internal Server Error", true),
        ("503 Slow Down", true),
        ("429 Too Many Requests", true),
        ("403 Forbidden", false),
        ("404 Not Found", false),
    ] {
        let server = Server::start_server([answer(status, "", "<html>")]);
        let (_, error) = read_from(&server.file(), 0);
        let error = error.expect(status);
        assert_eq!(error.is_retryable(), retry, "{status}: {error}");
        assert_eq!(
            matches!(error, Error::NotFound { .. }),
            status.starts_with("404")
        );
        let shown = format!("{error} {error:?}");
        assert!(
            !shown.contains("secret") && !shown.contains("sig="),
            "{shown}"
        );
    }
}

#[test]
fn a_truncated_body_is_an_error_with_the_resume_offset() {
    let short = answer("200 OK", "", TEXT).replace(&TEXT[9..], "");
    let server = Server::start_server([short]);
    let (text, error) = read_from(&server.file(), 0);
    let error = error.expect("nine bytes are not sixteen");
    assert_eq!(text, "012345678");
    assert!(error.is_retryable(), "{error}");
}

#[test]
fn a_blocking_reader_retries_after_500s_and_short_bodies() {
    let short = answer("200 OK", "", TEXT).replace(&TEXT[4..], "");
    let server = Server::start_server([
        answer("500 Internal Server Error", "", ""),
        short,
        answer("503 Service Unavailable", "", ""),
        part(TEXT, 4).replace(&TEXT[10..], ""),
        part(TEXT, 10),
    ]);
    let mut text = String::new();
    let mut reader = server.file().reader().unwrap();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, TEXT);
    let ranges: Vec<String> = server
        .requests()
        .into_iter()
        .map(|(_, range)| range)
        .collect();
    assert_eq!(ranges, ["", "", "bytes=4-", "bytes=4-", "bytes=10-"]);
}

#[test]
fn a_file_whose_size_changed_is_not_mixed() {
    let short = answer("200 OK", "", TEXT).replace(&TEXT[4..], "");
    let longer = format!("{TEXT}!");
    let server = Server::start_server([short, part(&longer, 4)]);
    let mut text = String::new();
    let error = server
        .file()
        .reader()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap_err();
    assert!(
        error.to_string().contains("it has 17 bytes, expected 16"),
        "{error}"
    );
}

#[test]
fn a_size_is_requested_with_head_or_found_by_reading() {
    let server = Server::start_server(["HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n".to_owned()]);
    assert_eq!(server.file().size_blocking().unwrap(), 16);
    assert_eq!(server.requests()[0].0, "HEAD /f?sig=abc");
    let server = Server::start_server([
        answer("405 Method Not Allowed", "", ""),
        answer("200 OK", "", TEXT),
    ]);
    assert_eq!(server.file().size_blocking().unwrap(), 16);
    let server = Server::start_server([answer("404 Not Found", "", "")]);
    let error = server.file().size_blocking().unwrap_err();
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[test]
fn writing_and_removing_over_http_is_refused() {
    let server = Server::start_server([String::new()]);
    let local = tempfile::NamedTempFile::new().unwrap();
    let put = wait(server.file().put_file(local.path(), &|_| {})).unwrap_err();
    let removed = wait(server.file().remove()).unwrap_err();
    for error in [put, removed] {
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    }
    assert_eq!(server.requests(), []);
}
