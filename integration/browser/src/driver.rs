//! A minimal WebDriver client for the browser tests. Published clients need two HTTP stacks, or
//! have a licence that this project does not accept.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// Timeout of one WebDriver command. It is long, because a browser in a busy VM may take half a
/// minute to load its first page. Waits for page content use [`PATIENCE`].
const COMMAND: Duration = Duration::from_mins(2);
/// Maximum number of attempts to start chromedriver. An attempt fails if chromedriver exits before
/// it prints its port.
const STARTS: usize = 10;
/// Pause between two runs of the script in [`Browser::until`].
const LOOK: Duration = Duration::from_millis(50);
/// Time limit of [`Browser::until`]. It is long, because the page polls less often while responses
/// are slow: in a busy VM, the second response may take ten seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// Keys without a printable character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    /// The Escape key.
    Escape,
    /// The Enter key.
    Enter,
    /// The Tab key.
    Tab,
    /// The arrow down key.
    Down,
    /// The arrow up key.
    Up,
}

impl Key {
    fn text(self) -> &'static str {
        match self {
            Self::Escape => "\u{e00c}",
            Self::Enter => "\u{e007}",
            Self::Tab => "\u{e004}",
            Self::Down => "\u{e015}",
            Self::Up => "\u{e013}",
        }
    }
}

/// Starts chromedriver, and returns its process and its port. chromedriver listens on a free port
/// of 127.0.0.1 and on the same port of `::1`. If the port of `::1` is in use, chromedriver exits,
/// and this function starts it again.
fn driver() -> Result<(Child, u16)> {
    let mut said = String::new();
    for _ in 0..STARTS {
        let mut driver = Command::new("chromedriver")
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start chromedriver: is Debian's package chromium-driver installed?")?;
        let output = driver.stdout.take().context("chromedriver has no output")?;
        said.clear();
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let port = line.split_once("started successfully on port ");
            if let Some(port) = port.and_then(|(_, port)| port.trim_end_matches('.').parse().ok()) {
                return Ok((driver, port));
            }
            said.push_str(&line);
            said.push('\n');
        }
        driver.wait()?;
    }
    bail!("chromedriver ended {STARTS} times without a port, and said: {said}")
}

/// A headless Chromium with one window. Dropping it ends the browser.
#[derive(Debug)]
pub struct Browser {
    runtime: Runtime,
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts chromedriver and a browser with an empty profile in `profile`.
    ///
    /// # Errors
    ///
    /// Fails if chromedriver or Chromium is not installed or does not start.
    pub fn start(profile: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (driver, port) = driver()?;
        let mut browser = Self {
            runtime,
            driver,
            port,
            session: String::new(),
        };
        let profile = format!("--user-data-dir={}", profile.display());
        let arguments = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--window-size=1280,900",
            &profile,
        ];
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": arguments},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = browser.send("POST", "/session", &wanted)?;
        let id = session.get("sessionId").and_then(Value::as_str);
        id.context("no session")?.clone_into(&mut browser.session);
        Ok(browser)
    }

    /// Loads a URL in the browser's window.
    ///
    /// # Errors
    ///
    /// Fails if the browser cannot load the page.
    pub fn go(&self, to: &str) -> Result<()> {
        self.command("url", &json!({ "url": to })).map(drop)
    }

    /// Runs JavaScript in the page with `arguments`, and returns the script's result.
    ///
    /// # Errors
    ///
    /// Fails if the script throws.
    pub fn run(&self, script: &str, arguments: &[Value]) -> Result<Value> {
        let body = json!({"script": script, "args": arguments});
        self.command("execute/sync", &body)
    }

    /// Returns all visible text of the page.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn text(&self) -> Result<String> {
        let text = self.run("return document.body.innerText", &[])?;
        Ok(text.as_str().unwrap_or_default().to_owned())
    }

    /// Types characters into the focused element.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn write(&self, text: &str) -> Result<()> {
        let strokes: Vec<Value> = text
            .chars()
            .flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({"type": kind, "value": key})))
            .collect();
        let body = json!({"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]});
        self.command("actions", &body).map(drop)
    }

    /// Presses a key.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn press(&self, key: Key) -> Result<()> {
        self.write(key.text())
    }

    /// Runs JavaScript repeatedly until it returns a true value, and returns this value.
    ///
    /// # Errors
    ///
    /// Fails after 30 s. The error quotes the page's visible text.
    pub fn until(&self, awaited: &str, script: &str) -> Result<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let result = self.run(script, &[])?;
            let is_true = match &result {
                Value::Null => false,
                Value::Bool(is_true) => *is_true,
                Value::String(text) => !text.is_empty(),
                _ => true,
            };
            if is_true {
                return Ok(result);
            }
            if Instant::now() > deadline {
                bail!(
                    "no {awaited} within {PATIENCE:?}. The page shows:\n{}",
                    self.text()?
                );
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until the page's visible text contains `text`.
    ///
    /// # Errors
    ///
    /// Fails like [`until`](Self::until).
    pub fn sees(&self, text: &str) -> Result<()> {
        let quoted = Value::from(text);
        let script = format!("return document.body.innerText.includes({quoted})");
        self.until(&format!("the text {quoted}"), &script).map(drop)
    }

    /// Waits for each of `texts` in turn, like [`sees`](Self::sees).
    ///
    /// # Errors
    ///
    /// Fails like [`until`](Self::until).
    pub fn sees_all(&self, texts: &[&str]) -> Result<()> {
        texts.iter().try_for_each(|text| self.sees(text))
    }

    /// Sets the size of the page's viewport, in CSS pixels.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn size(&self, width: u32, height: u32) -> Result<()> {
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            &json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        )
    }

    /// Sets the preferred colour scheme of the browser: `light` or `dark`.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn scheme(&self, scheme: &str) -> Result<()> {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.devtools("Emulation.setEmulatedMedia", &json!({"features": features}))
    }

    /// Returns the console errors since the previous call: failed scripts and requests, and loads
    /// that the page's content security policy blocked.
    ///
    /// # Errors
    ///
    /// Fails if the browser does not respond.
    pub fn complaints(&self) -> Result<Vec<String>> {
        let log = self.command("se/log", &json!({"type": "browser"}))?;
        let entries = log.as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(entries
            .iter()
            .filter(|entry| entry.get("level").is_some_and(|level| level == "SEVERE"))
            .filter_map(|entry| entry.get("message")?.as_str().map(str::to_owned))
            .collect())
    }

    /// Writes a screenshot to `$BROWSER_SHOTS/NAME.png` if this environment variable is set.
    ///
    /// # Errors
    ///
    /// Fails if the picture cannot be taken or written.
    pub fn picture(&self, name: &str) -> Result<()> {
        let Some(folder) = std::env::var_os("BROWSER_SHOTS") else {
            return Ok(());
        };
        let path = format!("/session/{}/screenshot", self.session);
        let picture = self.send("GET", &path, &Value::Null)?;
        let picture = STANDARD.decode(picture.as_str().unwrap_or_default())?;
        let file = Path::new(&folder).join(format!("{name}.png"));
        std::fs::create_dir_all(&folder)?;
        std::fs::write(&file, picture).with_context(|| format!("cannot write {}", file.display()))
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Result<()> {
        let body = json!({"cmd": command, "params": parameters});
        self.command("goog/cdp/execute", &body).map(drop)
    }

    fn command(&self, command: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{command}", self.session);
        self.send("POST", &path, body)
    }

    fn send(&self, method: &str, path: &str, body: &Value) -> Result<Value> {
        let answered = async {
            let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            let body = if body.is_null() {
                String::new()
            } else {
                body.to_string()
            };
            let request = http::Request::builder()
                .method(method)
                .uri(path)
                .header(http::header::HOST, "127.0.0.1")
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body)))?;
            let exchanged = async {
                let answer = sender.send_request(request).await?;
                let status = answer.status();
                anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
            };
            tokio::select! {
                answer = exchanged => answer,
                ended = connection => bail!("chromedriver hung up: {ended:?}"),
            }
        };
        let (status, answer) = self
            .runtime
            .block_on(async { tokio::time::timeout(COMMAND, answered).await })
            .with_context(|| format!("{method} {path}: no answer in {COMMAND:?}"))??;
        let answer: Value = serde_json::from_slice(&answer)?;
        ensure!(status.is_success(), "{method} {path}: {answer}");
        Ok(answer.get("value").cloned().unwrap_or_default())
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Ends the WebDriver session, and with it the browser, which would outlive a killed
        // chromedriver.
        if !self.session.is_empty() {
            let path = format!("/session/{}", self.session);
            drop(self.send("DELETE", &path, &Value::Null));
        }
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}
