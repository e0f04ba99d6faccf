//! Tests of the API source over HTTPS: trust, client certificates, and the rotation of certificates
//! and tokens.

#![allow(clippy::restriction, reason = "a test stops at the first surprise")]

#[expect(dead_code, reason = "the server that is scripted is for other tests")]
mod common;

use std::net::{Ipv6Addr, SocketAddr};
use std::path::Path;

use apiserver::{Authority, Cluster, Identity, Options, Server, Tls};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::{Folder, Log, ReceivedState, services, until_said};
use serde_json::{Value, json};
use source::StartError;
use source::api::Server as Source;

/// Names in the certificates of the fixture's servers.
const NAMES: [&str; 3] = ["127.0.0.1", "::1", "kubernetes"];

fn write_pair(folder: &Folder, identity: &Identity) {
    folder.write("crt", &identity.certificate);
    folder.write("key", &identity.key);
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
           "spec": {"clusterIP": "10.96.0.10", "ports": [{"port": 80, "protocol": "TCP"}]}})
}

fn with(authority: &Authority) -> Options {
    let tls = Tls {
        identity: authority.server(&NAMES).unwrap(),
        clients: None,
    };
    Options {
        tls: Some(tls),
        ..Options::default()
    }
}

/// Starts a server with a Service `web`.
async fn serve(options: Options) -> Server {
    let server = Server::start(options).await.unwrap();
    server.apply(service("web")).unwrap();
    server
}

/// Restarts a stopped server at the same address.
async fn serve_again(cluster: Cluster, address: SocketAddr, options: Options) -> Server {
    let options = Options { address, ..options };
    Server::start_on(cluster, options).await.unwrap()
}

async fn source(kubeconfig: &Path) -> Result<Source, StartError> {
    common::server(Some(kubeconfig), None).await
}

async fn told(kubeconfig: &Path) -> ReceivedState {
    ReceivedState::of(&source(kubeconfig).await.ok().unwrap(), "node1")
}

async fn is_served(kubeconfig: &Path) {
    told(kubeconfig).await.until_services(&["web"]).await;
}

#[tokio::test]
async fn the_kubeadm_kubeconfig_with_a_rotating_token_works() {
    let (authority, folder) = (Authority::new("kubernetes").unwrap(), Folder::new());
    let tokens = Some(vec!["first".to_owned()]);
    let options = with(&authority);
    let server = serve(Options { tokens, ..options }).await;
    folder.write("ca.crt", &authority.certificate());
    folder.write("token", "first\n");
    // A relative path in a kubeconfig begins at the directory of the kubeconfig.
    let cluster = json!({"certificate-authority": "ca.crt"});
    let user = json!({"tokenFile": folder.0.join("token")});
    let (log, _guard) = Log::start();
    let mut told = told(&folder.kubeconfig(&server.url(), cluster, &user)).await;
    told.until_services(&["web"]).await;
    told.until_watched(&server).await;

    server.set_tokens(&["second"]);
    server.apply(service("new")).unwrap();
    told.until_services(&["new", "web"]).await;
    server.faults().cut();
    let line = until_said(&mut told, &log, "(401)").await;
    assert!(line.contains("check the credentials"), "{line}");
    assert_eq!(services(&told.model), ["new", "web"].into());
    folder.write("token", "second\n");
    server.apply(service("newer")).unwrap();
    told.until_services(&["new", "newer", "web"]).await;
    until_said(&mut told, &log, "all is watched again").await;
    assert!(!log.text().contains("first") && !log.text().contains("second"));
}

#[tokio::test]
async fn ca_and_client_certificates_work_inline_and_from_files() {
    let authority = Authority::new("kubernetes").unwrap();
    let mut options = with(&authority);
    options.tls.as_mut().unwrap().clients = Some(authority.certificate());
    let (server, folder) = (serve(options).await, Folder::new());
    let client = authority.client("system:kube-proxy").unwrap();
    let ca = folder.write("ca.crt", &authority.certificate());
    write_pair(&folder, &client);
    let inline = |text: &str| json!(STANDARD.encode(text));
    let files = json!({"client-certificate": "crt", "client-key": folder.0.join("key")});
    let data = json!({
        "client-certificate-data": inline(&client.certificate), "client-key-data": inline(&client.key),
        // Inline data takes precedence over files.
        "client-certificate": "/nowhere/crt", "client-key": "/nowhere/key",
    });
    let named = json!({"certificate-authority": ca});
    let written = json!({
        "certificate-authority-data": inline(&authority.certificate()), "certificate-authority": "/nowhere/ca",
    });
    for (cluster, user) in [(&named, &data), (&written, &files)] {
        is_served(&folder.kubeconfig(&server.url(), cluster.clone(), user)).await;
    }
    // The server rejects clients without a certificate, and clients with a certificate of another
    // CA.
    let (log, _guard) = Log::start();
    let nobody = folder.kubeconfig(&server.url(), named.clone(), &json!({}));
    let mut unknown = told(&nobody).await;
    until_said(&mut unknown, &log, "(401)").await;
    write_pair(
        &folder,
        &Authority::new("another").unwrap().client("me").unwrap(),
    );
    let mut other = told(&folder.kubeconfig(&server.url(), named, &files)).await;
    let line = until_said(&mut other, &log, "this client's certificate").await;
    assert!(line.contains("client-certificate and client-key"), "{line}");
    assert_eq!((&unknown.log, &other.log), (&vec![], &vec![]));
}

#[tokio::test]
async fn the_tls_server_name_can_be_overridden_and_verification_can_be_skipped() {
    let (authority, folder) = (Authority::new("kubernetes").unwrap(), Folder::new());
    let tls = Tls {
        identity: authority.server(&["api.example"]).unwrap(),
        clients: None,
    };
    let tls = Some(tls);
    let server = serve(Options {
        tls,
        ..Options::default()
    })
    .await;
    let ca = folder.write("ca.crt", &authority.certificate());
    let (log, _guard) = Log::start();
    let cluster = json!({"certificate-authority": ca});
    let mut strict = told(&folder.kubeconfig(&server.url(), cluster, &json!({}))).await;
    let line = until_said(&mut strict, &log, "cannot be talked to").await;
    assert!(
        line.contains("api.example") && line.contains("tls-server-name"),
        "{line}"
    );
    let named = json!({"certificate-authority": ca, "tls-server-name": "api.example"});
    is_served(&folder.kubeconfig(&server.url(), named, &json!({}))).await;
    let unchecked = json!({"insecure-skip-tls-verify": true});
    is_served(&folder.kubeconfig(&server.url(), unchecked, &json!({}))).await;
}

#[tokio::test]
async fn an_untrusted_api_server_is_logged_and_retried() {
    let (authority, folder) = (Authority::new("kubernetes").unwrap(), Folder::new());
    // Tries a CA of the same name with another key, and a CA of another name.
    for name in ["kubernetes", "another"] {
        let other = Authority::new(name).unwrap();
        let server = serve(with(&authority)).await;
        let ca = folder.write("ca.crt", &authority.certificate());
        let cluster = json!({"certificate-authority": ca});
        let (log, _guard) = Log::start();
        let mut told = told(&folder.kubeconfig(&server.url(), cluster, &json!({}))).await;
        told.until_listed().await;
        let known = told.log.len();

        let (objects, address) = (server.cluster().clone(), server.address());
        server.stop().await;
        objects
            .delete(apiserver::Kind::Service, "default", "web")
            .unwrap();
        let server = serve_again(objects.clone(), address, with(&other)).await;
        let line = until_said(&mut told, &log, "not signed by").await;
        for part in [
            &format!("certificate-authority {}", ca.display()),
            "serving the last known state, and retrying",
            "put the cluster's CA there",
        ] {
            assert!(line.contains(part), "{line}");
        }
        assert_eq!((told.log.len(), server.requests().len()), (known, 0));
        server.stop().await;
        let _server = serve_again(objects, address, with(&authority)).await;
        told.until_services(&[]).await;
        until_said(&mut told, &log, "all is watched again").await;
    }
}

#[tokio::test]
async fn an_expired_certificate_is_named_in_the_log() {
    let (authority, folder) = (Authority::new("kubernetes").unwrap(), Folder::new());
    let mut options = with(&authority);
    options.tls.as_mut().unwrap().identity = authority.expired_server(&NAMES).unwrap();
    let server = serve(options).await;
    let data = STANDARD.encode(authority.certificate());
    let cluster = json!({"certificate-authority-data": data});
    let (log, _guard) = Log::start();
    let mut told = told(&folder.kubeconfig(&server.url(), cluster, &json!({}))).await;
    let line = until_said(&mut told, &log, "cannot be talked to").await;
    assert!(
        line.contains("expired") && line.contains("this node's clock"),
        "{line}"
    );
    assert_eq!(told.log, []);
}

#[tokio::test]
async fn a_rotated_ca_is_used() {
    let [old, new] = ["old", "new"].map(|name| Authority::new(name).unwrap());
    let folder = Folder::new();
    let server = serve(with(&old)).await;
    let ca = folder.write("ca.crt", &old.certificate());
    let cluster = json!({"certificate-authority": ca});
    let (log, _guard) = Log::start();
    let mut told = told(&folder.kubeconfig(&server.url(), cluster, &json!({}))).await;
    told.until_services(&["web"]).await;
    told.until_watched(&server).await;
    // While the file is not a certificate, the source logs an error and keeps the last certificate.
    folder.write("ca.crt", "half of a certif");
    server.faults().cut();
    until_said(&mut told, &log, "cannot be used").await;
    server.apply(service("meanwhile")).unwrap();
    told.until_services(&["meanwhile", "web"]).await;

    folder.write("ca.crt", &(old.certificate() + &new.certificate()));
    let (objects, address) = (server.cluster().clone(), server.address());
    server.stop().await;
    let server = serve_again(objects, address, with(&new)).await;
    server.apply(service("new")).unwrap();
    told.until_services(&["meanwhile", "new", "web"]).await;
    until_said(&mut told, &log, "are used from now on").await;
}

#[tokio::test]
async fn a_rotated_client_certificate_is_used_for_new_connections() {
    let [old, new] = ["old", "new"].map(|name| Authority::new(name).unwrap());
    let folder = Folder::new();
    let taking = |clients: &Authority| {
        let mut options = with(&old);
        options.tls.as_mut().unwrap().clients = Some(clients.certificate());
        options
    };
    let server = serve(taking(&old)).await;
    let ca = folder.write("ca.crt", &old.certificate());
    write_pair(&folder, &old.client("node").unwrap());
    let cluster = json!({"certificate-authority": ca});
    let user = json!({"client-certificate": "crt", "client-key": "key"});
    let (log, _guard) = Log::start();
    let mut told = told(&folder.kubeconfig(&server.url(), cluster, &user)).await;
    told.until_listed().await;
    let (objects, address) = (server.cluster().clone(), server.address());
    server.stop().await;
    let server = serve_again(objects, address, taking(&new)).await;
    server.apply(service("new")).unwrap();
    until_said(&mut told, &log, "this client's certificate").await;
    // The test replaces one file, waits for a connection attempt, and then replaces the other file.
    let next = new.client("node").unwrap();
    folder.write("crt", &next.certificate);
    until_said(&mut told, &log, "cannot be used").await;
    folder.write("key", &next.key);
    told.until_services(&["new", "web"]).await;
    let line = until_said(&mut told, &log, "cannot be used").await;
    assert!(line.contains("client-key"), "{line}");
}

#[tokio::test]
async fn unusable_certificates_fail_the_start_of_the_source() {
    let folder = Folder::new();
    let url = "https://192.0.2.1:6443";
    let nothing = folder.write("nothing", "");
    let garbage = folder.write("garbage", "-----BEGIN CERTIFICATE-----\n%\n");
    for (cluster, user, parts) in [
        (
            json!({"certificate-authority": "/nowhere/ca.crt"}),
            json!({}),
            ["/nowhere/ca.crt", "No such file", "certificate-authority"],
        ),
        (
            json!({"certificate-authority": garbage}),
            json!({}),
            ["kubeconfig", "no certificate", "certificate-authority"],
        ),
        (
            json!({"certificate-authority": nothing}),
            json!({}),
            ["kubeconfig", "no certificate", "certificate-authority"],
        ),
        (
            json!({"certificate-authority-data": "%"}),
            json!({}),
            ["kubeconfig", "base64", "certificate-authority-data"],
        ),
        (
            json!({"insecure-skip-tls-verify": true}),
            json!({"client-certificate": "/nowhere/crt", "client-key": "/nowhere/key"}),
            ["/nowhere/crt", "No such file", "certificates"],
        ),
    ] {
        let kubeconfig = folder.kubeconfig(url, cluster, &user);
        let error = source(&kubeconfig).await.err().unwrap().to_string();
        for part in parts {
            assert!(error.contains(part), "{error:?} lacks {part:?}");
        }
    }
}

#[tokio::test]
async fn the_master_flag_overrides_the_kubeconfig_with_an_ipv6_url() {
    let (authority, folder) = (Authority::new("kubernetes").unwrap(), Folder::new());
    let address = (Ipv6Addr::LOCALHOST, 0).into();
    let tokens = Some(vec!["secret".to_owned()]);
    let server = serve(Options {
        address,
        tokens,
        ..with(&authority)
    })
    .await;
    assert!(server.url().starts_with("https://[::1]:"));
    let ca = folder.write("ca.crt", &authority.certificate());
    let (cluster, user) = (
        json!({"certificate-authority": ca}),
        json!({"token": "secret"}),
    );
    is_served(&folder.kubeconfig(&server.url(), cluster.clone(), &user)).await;
    // `master` replaces the kubeconfig's URL, but not its credentials.
    let elsewhere = folder.kubeconfig("https://192.0.2.1:6443", cluster, &user);
    let source = common::server(Some(&elsewhere), Some(&server.url())).await;
    let mut told = ReceivedState::of(&source.ok().unwrap(), "node1");
    told.until_services(&["web"]).await;
    let tokens = server.requests();
    assert!(
        tokens
            .iter()
            .all(|one| one.authorization.reveal() == "Bearer secret")
    );
    // The sources reuse connections, so a few connections are enough.
    assert!(server.connections() <= 6, "{}", server.connections());
}
