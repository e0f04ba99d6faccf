//! HTTPS and authentication: certificates created at run time, client certificates, and bearer
//! tokens.
//!
//! Like a real API server, this server requests a certificate from each client. It authenticates a
//! client without a certificate by its bearer token. It aborts the TLS handshake if another CA
//! issued the client's certificate, where a real API server returns 401. It announces only HTTP/1.1
//! by ALPN.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

/// Certificates for HTTPS.
#[derive(Debug, Clone)]
pub struct Tls {
    /// Certificate and private key of the server.
    pub identity: Identity,
    /// CA certificate for client certificates, in PEM. A client with a certificate of this CA needs
    /// no bearer token.
    pub clients: Option<String>,
}

/// A certificate and its private key, both in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Certificate, in PEM.
    pub certificate: String,
    /// Private key in PEM, as PKCS#8.
    pub key: String,
}

/// A certificate authority (CA) with a newly generated key.
#[derive(Debug)]
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    /// Creates a CA whose certificate has the common name `name`.
    pub fn new(name: &str) -> io::Result<Self> {
        let mut params = named(&[], name)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let issuer = CertifiedIssuer::self_signed(params, key);
        issuer.map(Self).map_err(io::Error::other)
    }

    /// Returns the CA's certificate, in PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// Issues a certificate for a server with these host names and IP addresses.
    pub fn server(&self, names: &[&str]) -> io::Result<Identity> {
        let mut params = named(names, "kube-apiserver")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(&params)
    }

    /// Issues a server certificate that expired in the year 2000.
    pub fn expired_server(&self, names: &[&str]) -> io::Result<Identity> {
        let mut params = named(names, "kube-apiserver")?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(2000, 12, 31);
        self.sign(&params)
    }

    /// Issues a client certificate for the user `name`.
    pub fn client(&self, name: &str) -> io::Result<Identity> {
        let mut params = named(&[], name)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(&params)
    }

    fn sign(&self, params: &CertificateParams) -> io::Result<Identity> {
        let key = KeyPair::generate().map_err(io::Error::other)?;
        let certificate = params.signed_by(&key, &self.0).map_err(io::Error::other)?;
        Ok(Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        })
    }
}

fn named(names: &[&str], common: &str) -> io::Result<CertificateParams> {
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    let mut params = CertificateParams::new(names).map_err(io::Error::other)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    Ok(params)
}

/// Converts certificates into the configuration of the TLS library (rustls). An error names the
/// unusable certificate or key.
pub(crate) fn config(tls: &Tls) -> io::Result<Arc<ServerConfig>> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?;
    let builder = match &tls.clients {
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(authority)? {
                roots.add(certificate).map_err(io::Error::other)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            let verifier = verifier.allow_unauthenticated().build();
            builder.with_client_cert_verifier(verifier.map_err(io::Error::other)?)
        }
        None => builder.with_no_client_auth(),
    };
    let key = PrivateKeyDer::from_pem_slice(tls.identity.key.as_bytes());
    let chain = certificates(&tls.identity.certificate)?;
    let config = builder.with_single_cert(chain, key.map_err(io::Error::other)?);
    let mut config = config.map_err(io::Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(pem: &str) -> io::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(io::Error::other)
}

/// Returns true if the server authorizes a request: by a bearer token in `tokens`, or by a client
/// certificate. If the server requires neither, it authorizes every request.
pub(crate) fn is_allowed(
    tokens: Option<&BTreeSet<String>>,
    by_certificate: bool,
    has_certificate: bool,
    authorization: &str,
) -> bool {
    let has_token = || {
        let token = authorization.strip_prefix("Bearer ");
        tokens.is_some_and(|tokens| token.is_some_and(|token| tokens.contains(token)))
    };
    has_certificate || (tokens.is_none() && !by_certificate) || has_token()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clients_with_credentials_are_authorized() {
        let tokens = BTreeSet::from(["secret".to_owned()]);
        assert!(is_allowed(None, false, false, ""));
        assert!(!is_allowed(None, true, false, ""));
        assert!(is_allowed(None, true, true, ""));
        assert!(is_allowed(Some(&tokens), false, false, "Bearer secret"));
        for wrong in ["", "secret", "Bearer old", "Basic secret"] {
            assert!(!is_allowed(Some(&tokens), true, false, wrong), "{wrong}");
        }
        assert!(is_allowed(Some(&tokens), true, true, "Bearer old"));
        assert!(!is_allowed(Some(&BTreeSet::new()), false, false, "Bearer "));
    }
}
