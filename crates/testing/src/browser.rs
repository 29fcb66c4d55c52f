//! A headless Chromium for one test, controlled by the DevTools protocol.
//!
//! It communicates over two pipes (`--remote-debugging-pipe`) with zero-terminated JSON messages, and needs neither a
//! port nor a driver.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::report_missing;
use serde_json::{Value, json};

pub struct Browser {
    child: Child,
    // Closed to end the browser.
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    session: Option<String>,
    sent: u64,
    _profile: tempfile::TempDir,
}

impl Browser {
    /// Starts a browser with one empty page; `None` if none is installed.
    pub fn start() -> Option<Browser> {
        let Some(program) = program() else {
            report_missing("Chromium");
            return None;
        };
        let profile = tempfile::tempdir().expect("a folder");
        // Disables background network access. As root, which is usual in containers, it starts only without its
        // sandbox.
        let flags = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking \
             --disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars --remote-debugging-pipe";
        // It reads from descriptor 3 and writes to 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh"])
            .arg(program)
            .args(flags.split_whitespace())
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a browser starts");
        let mut browser = Browser {
            to: child.stdin.take(),
            from: BufReader::new(child.stdout.take().expect("piped")),
            child,
            session: None,
            sent: 0,
            _profile: profile,
        };
        let page = browser.send_command("Target.createTarget", json!({"url": "about:blank"}));
        let attached = browser.send_command(
            "Target.attachToTarget",
            json!({"targetId": page["targetId"], "flatten": true}),
        );
        browser.session = Some(attached["sessionId"].as_str().expect("a text").to_owned());
        Some(browser)
    }

    /// Navigates to a URL.
    pub fn open(&mut self, url: &str) {
        self.send_command("Page.enable", json!({}));
        let navigation = self.send_command("Page.navigate", json!({"url": url}));
        assert_eq!(navigation.get("errorText"), None, "{url}: {navigation}");
    }

    /// Evaluates an expression on the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let parameters =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let answer = self.send_command("Runtime.evaluate", parameters);
        assert_eq!(
            answer.get("exceptionDetails"),
            None,
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Waits until an expression is true; evaluates it on every frame.
    pub fn wait_until(&mut self, expression: &str) {
        let seen = self.value(&format!(
            "new Promise(done => {{
               const end = performance.now() + 30000;
               const look = () => {{
                 let is = false;
                 try {{ is = {expression}; }} catch (error) {{}}
                 if (is) done('true');
                 else if (performance.now() > end) done(document.body.innerText);
                 else setTimeout(look, 16);
               }};
               look();
             }})"
        ));
        assert_eq!(
            seen, "true",
            "the expression was not true within 30 s: {expression}\n{seen}"
        );
    }

    /// Returns the text of all elements that match a selector, one line each.
    pub fn text(&mut self, selector: &str) -> String {
        let all = self.value(&format!(
            "[...document.querySelectorAll({selector:?})].map(node => node.textContent).join('\\n')"
        ));
        all.as_str().expect("a text").to_owned()
    }

    /// Clicks an element like a person: a button that is hidden, covered or disabled is not clicked.
    pub fn click(&mut self, selector: &str) {
        let at = self.value(&format!(
            "(() => {{
               const node = document.querySelector({selector:?});
               node.scrollIntoView({{ block: 'center' }});
               const box = node.getBoundingClientRect();
               const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
               return {{ x, y, free: node.contains(document.elementFromPoint(x, y)) && !node.disabled }};
             }})()"
        ));
        assert_eq!(at["free"], true, "{selector} cannot be clicked: {at}");
        for kind in ["mousePressed", "mouseReleased"] {
            self.send_command("Input.dispatchMouseEvent", json!({"type": kind, "x": at["x"], "y": at["y"], "button": "left", "clickCount": 1}));
        }
    }

    /// Clicks a field and replaces its contents.
    pub fn fill(&mut self, selector: &str, text: &str) {
        self.click(selector);
        self.value(&format!("document.querySelector({selector:?}).select()"));
        self.send_command("Input.insertText", json!({"text": text}));
    }

    /// Selects a file in a file input.
    pub fn select_file(&mut self, selector: &str, file: &Path) {
        let expression = format!("document.querySelector({selector:?})");
        let field = self.send_command("Runtime.evaluate", json!({"expression": expression}));
        let field = &field["result"]["objectId"];
        assert!(field.is_string(), "no element matches {selector}");
        self.send_command(
            "DOM.setFileInputFiles",
            json!({"files": [file], "objectId": field}),
        );
    }

    /// Sets the width of the window and the color scheme.
    pub fn set_viewport(&mut self, width: u32, dark: bool) {
        self.send_command(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false}),
        );
        let scheme = if dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.send_command(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    fn send_command(&mut self, method: &str, parameters: Value) -> Value {
        self.sent += 1;
        let mut message = json!({"id": self.sent, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let to = self.to.as_mut().expect("open until it ends");
        write!(to, "{message}\0").expect("the browser listens");
        to.flush().expect("the browser listens");
        loop {
            let mut answer = Vec::new();
            self.from
                .read_until(0, &mut answer)
                .expect("the browser answers");
            assert_eq!(answer.pop(), Some(0), "the browser ended during {method}");
            let mut answer: Value = serde_json::from_slice(&answer).expect("JSON");
            if answer["id"] == self.sent {
                assert_eq!(answer.get("error"), None, "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The browser ends when its pipe is closed.
        self.to = None;
        let _ = self.child.wait();
    }
}

fn program() -> Option<&'static Path> {
    let known = [
        "/usr/bin/chromium",
        "/usr/bin/chromium-browser",
        "/usr/bin/google-chrome",
    ];
    known.into_iter().map(Path::new).find(|path| path.exists())
}
