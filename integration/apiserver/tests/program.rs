//! Tests the program `apiserver`, which runs the API server fixture.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data");

fn apiserver(objects: &Path, kubeconfig: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apiserver"));
    command
        .arg("--objects")
        .arg(objects)
        .arg("--kubeconfig-out")
        .arg(kubeconfig);
    command
}

#[test]
fn the_program_serves_a_directory_of_objects_until_terminated() {
    let kubeconfig = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubeconfig");
    let mut child = apiserver(Path::new(DATA), &kubeconfig)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut address)
        .unwrap();
    let address = address.trim();
    assert!(
        std::fs::read_to_string(&kubeconfig)
            .unwrap()
            .contains(&format!("server: http://{address}\n"))
    );

    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /api/v1/namespaces/shop/services HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    assert!(
        answer.contains(r#""name":"a","namespace":"shop""#),
        "{answer}"
    );

    let ended = Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    assert!(ended.success());
    assert!(child.wait().unwrap().success(), "SIGTERM ends it in order");
}

#[test]
fn errors_name_the_invalid_file_and_object() {
    let broken = Path::new(env!("CARGO_TARGET_TMPDIR")).join("broken.yaml");
    std::fs::write(
        &broken,
        "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {type: Some}}\n",
    )
    .unwrap();
    let output = apiserver(&broken, Path::new("unused")).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    for named in ["broken.yaml", "Service web", "spec.type"] {
        assert!(text.contains(named), "{named} in {text}");
    }
}
