use std::io::{Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net as std_unix;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use http::StatusCode;
use http::request::Parts;
use http_server::text;

use super::*;

/// Socket locations that only one test uses. Dropping the value removes their directory.
struct Own {
    root: PathBuf,
    places: SocketLocations,
}

impl Own {
    fn new(of: &str) -> Self {
        let name = format!("kube-proxy-ipvs-test-{}-{of}", std::process::id());
        let root = env::temp_dir().join(&name);
        fs::create_dir_all(&root).unwrap();
        let places = SocketLocations::of(&root.join("inspect"), &name);
        Self { root, places }
    }

    /// Returns locations whose directory cannot be created, so that only the abstract name works.
    fn abstract_only(of: &str) -> Self {
        let mut own = Self::new(of);
        fs::write(own.root.join("file"), "").unwrap();
        own.places = SocketLocations::of(&own.root.join("file/inspect"), &own.name());
        own
    }

    fn name(&self) -> String {
        let name = self.root.file_name().unwrap();
        name.to_string_lossy().into_owned()
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn echo(head: &Parts) -> http_server::Answer {
    text(StatusCode::OK, head.uri.path().to_owned())
}

/// Sends a request on a separate thread, and returns the whole response.
async fn ask(places: &SocketLocations, path: &str) -> io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let places = places.clone();
    let asked = tokio::task::spawn_blocking(move || {
        let mut stream = places.connect()?.ok_or(io::ErrorKind::NotConnected)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    });
    asked.await.unwrap()
}

#[tokio::test]
async fn a_client_with_the_daemons_user_id_gets_a_response() {
    let own = Own::new("answered");
    assert!(own.places.connect().unwrap().is_none());
    let _server = start(own.places.clone(), echo);
    let answer = ask(&own.places, "/a").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
}

#[tokio::test]
async fn a_symlink_as_socket_directory_is_rejected_and_the_abstract_socket_is_used() {
    let own = Own::new("link");
    fs::create_dir(own.root.join("elsewhere")).unwrap();
    let link = own.root.join("inspect");
    std::os::unix::fs::symlink(own.root.join("elsewhere"), link).unwrap();
    assert!(own.places.connect().is_err());
    let _server = start(own.places.clone(), echo);
    let answer = ask(&own.places, "/a").await.unwrap();
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
}

#[tokio::test]
async fn without_a_socket_directory_the_abstract_socket_is_used() {
    let own = Own::abstract_only("abstract");
    let _server = start(own.places.clone(), echo);
    // The client of an abstract socket accepts only a server that runs the client's own program.
    // Here, client and server are one process.
    let places = SocketLocations::of(&own.root.join("none"), &own.name());
    let answer = ask(&places, "/a").await.unwrap();
    assert!(answer.ends_with("\r\n\r\n/a"), "{answer}");
}

#[tokio::test]
async fn the_error_for_an_abstract_socket_in_use_names_its_process() {
    let own = Own::abstract_only("impostor");
    let address = std_unix::SocketAddr::from_abstract_name(own.name()).unwrap();
    let listener = std_unix::UnixListener::bind_addr(&address).unwrap();
    // Lets a perl process call `listen`, because the kernel reports the credentials of the process
    // that called `listen` last.
    rustix::io::fcntl_setfd(&listener, rustix::io::FdFlags::empty()).unwrap();
    let listen = "open(my $s, '+<&=', $ARGV[0]); listen($s, 1); $| = 1; print qq(\\n); sleep 60";
    let fd = std::os::fd::AsRawFd::as_raw_fd(&listener).to_string();
    let mut impostor = Command::new("perl")
        .args(["-e", listen, &fd])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    impostor
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut [0])
        .unwrap();
    let places = SocketLocations::of(&own.root.join("none"), &own.name());
    let refused = places.connect().unwrap_err().to_string();
    // A daemon that cannot bind the abstract name must not call the perl process a kube-proxy.
    let taken = listen_words(&own.places);
    // A daemon with a socket directory ignores the process that has the abstract name.
    let with_folder = SocketLocations::of(&own.root.join("inspect"), &own.name());
    let server = start(with_folder.clone(), echo);
    let answer = ask(&with_folder, "/a").await;
    drop(server);
    let who = format!("process {} (", impostor.id());
    impostor.kill().unwrap();
    impostor.wait().unwrap();
    assert!(refused.contains(&who), "{refused}");
    assert!(
        refused.contains("perl") && refused.contains("is not asked"),
        "{refused}"
    );
    assert!(taken.contains(&who), "{taken}");
    assert!(answer.unwrap().ends_with("\r\n\r\n/a"));
}

fn listen_words(places: &SocketLocations) -> String {
    listen(places).map(drop).unwrap_err().to_string()
}

#[tokio::test]
async fn a_world_writable_socket_directory_is_rejected() {
    use std::os::unix::fs::PermissionsExt as _;
    let own = Own::new("folder");
    let _server = start(own.places.clone(), echo);
    let folder = own.root.join("inspect");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
    let error = own.places.connect().unwrap_err().to_string();
    assert!(error.contains("others may write"), "{error}");
    // The daemon also accepts an existing directory, such as a volume of its pod. It restores mode
    // 0700.
    let file = own.places.file().unwrap();
    fs::remove_file(&file).unwrap();
    let _other = start(own.places.clone(), echo);
    assert_eq!(mode(&folder), 0o700);
    assert!(ask(&own.places, "/a").await.unwrap().ends_with("/a"));
}

#[tokio::test]
async fn the_socket_file_of_a_killed_daemon_is_replaced() {
    let own = Own::new("killed");
    drop(listen(&own.places).unwrap());
    drop(std_unix::UnixListener::bind(own.places.file().unwrap()).unwrap());
    assert!(own.places.connect().unwrap().is_none());
    let _server = start(own.places.clone(), echo);
    assert!(ask(&own.places, "/a").await.unwrap().ends_with("/a"));
}

#[tokio::test]
async fn a_user_without_access_gets_an_error() {
    let own = Own::new("refused");
    // The user of this daemon is neither root nor the client's user.
    let mut local = listen(&own.places).unwrap();
    local.own = geteuid().as_raw().wrapping_add(1);
    assert_eq!(refusal(Some(0), 7), None);
    assert_eq!(refusal(Some(7), 7), None);
    assert!(refusal(None, 7).is_some());
    let why = refusal(Some(8), 7).unwrap();
    assert!(why.contains("user 8 may not ask"), "{why}");
    if geteuid().is_root() {
        // Root may always connect, so a test that runs as root pretends that the client has another
        // user.
        struct Other(Local);
        impl Listen for Other {
            type Stream = UnixStream;
            async fn accept(&self) -> io::Result<AcceptedConnection<UnixStream>> {
                let AcceptedConnection { stream, .. } = self.0.accept().await?;
                Ok(accepted(stream, Some(1000), self.0.own))
            }
        }
        tokio::spawn(http_server::serve(Other(local), "tests", Arc::new(echo)));
    } else {
        tokio::spawn(http_server::serve(local, "tests", Arc::new(echo)));
    }
    let answer = ask(&own.places, "/a").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 Forbidden"), "{answer}");
    assert!(answer.contains("may not ask: only root"), "{answer}");
}

#[tokio::test]
async fn a_second_daemon_responds_after_the_first_daemon_has_ended() {
    let own = Own::new("two");
    let answers = |what: &'static str| move |_: &Parts| text(StatusCode::OK, what);
    let first = start(own.places.clone(), answers("first"));
    let words = listen_words(&own.places);
    assert!(
        words.contains(&format!("process {}", std::process::id())),
        "{words}"
    );
    let _second = start(own.places.clone(), answers("second"));
    let answer = ask(&own.places, "/").await.unwrap();
    assert!(answer.ends_with("first"));
    drop(first);
    let deadline = std::time::Instant::now() + Duration::from_secs(5);
    loop {
        match ask(&own.places, "/").await {
            Ok(answer) if answer.ends_with("second") => break,
            other => assert!(std::time::Instant::now() < deadline, "{other:?}"),
        }
        sleep(RETRY_PERIOD).await;
    }
}
