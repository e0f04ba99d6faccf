//! Explains why a client or server does not trust its peer's certificate, with advice for the
//! operator.

use std::path::PathBuf;

use rustls::{AlertDescription, CertificateError};

/// Error of a server or client that does not trust its peer's certificate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(super) struct Untrusted {
    pub(super) why: String,
    /// Next step for the operator, such as a certificate to renew.
    pub(super) advice: String,
}

/// Returns the TLS error behind this failure, if any.
pub(super) fn tls<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref() {
        return Some(error);
    }
    // Checks the inner error of an I/O error first, because the I/O error's `source` skips it.
    let within = error.downcast_ref::<std::io::Error>();
    let within = within.and_then(std::io::Error::get_ref);
    tls(match within {
        Some(within) => within,
        None => error.source()?,
    })
}

/// CAs that the client trusts, by their origin.
#[derive(Debug, Clone)]
pub(super) enum Authorities {
    /// The CA certificates in this file.
    Of(PathBuf),
    /// The CA certificates in the kubeconfig.
    Inline,
    /// The CA certificates of the operating system.
    System,
}

/// Peer of a TLS connection: the API server or an HTTPS proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    Server,
    Proxy,
}

impl std::fmt::Display for Authorities {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Of(file) => write!(formatter, "certificate-authority {}", file.display()),
            Self::Inline => formatter.write_str("certificate-authority-data of the kubeconfig"),
            Self::System => {
                formatter.write_str("the authorities of this system (none is configured)")
            }
        }
    }
}

impl Authorities {
    /// Explains a TLS error on a connection to `peer`, with advice for the operator.
    pub(super) fn untrusted(&self, error: &rustls::Error, peer: Peer) -> Untrusted {
        use rustls::Error::{AlertReceived, InvalidCertificate};
        let (why, advice) = match error {
            InvalidCertificate(
                CertificateError::UnknownIssuer | CertificateError::BadSignature,
            ) => (
                format!("its certificate is not signed by {self}"),
                match (peer, self) {
                    (_, Self::System) => "give certificate-authority in the kubeconfig",
                    (Peer::Server, _) => {
                        "put the cluster's CA there; kubeadm has it in /etc/kubernetes/pki/ca.crt"
                    }
                    (Peer::Proxy, _) => {
                        "put the proxy's CA there, behind the cluster's: as in Go programs, they count for both"
                    }
                },
            ),
            InvalidCertificate(
                reason @ (CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. }),
            ) => (
                format!("its certificate: {reason}"),
                match peer {
                    Peer::Server => {
                        "renew it on the server (kubeadm certs renew apiserver), or set this node's clock"
                    }
                    Peer::Proxy => "renew it on the proxy, or set this node's clock",
                },
            ),
            InvalidCertificate(
                reason @ (CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. }),
            ) => (
                format!("its certificate: {reason}"),
                match peer {
                    Peer::Server => {
                        "use one of its names as the server, or give tls-server-name in the kubeconfig"
                    }
                    Peer::Proxy => "use one of its names in the proxy's URL",
                },
            ),
            InvalidCertificate(reason) => (
                format!("its certificate: {reason}"),
                match peer {
                    Peer::Server => "give the server another certificate",
                    Peer::Proxy => "give the proxy another certificate",
                },
            ),
            AlertReceived(
                alert @ (AlertDescription::BadCertificate
                | AlertDescription::UnsupportedCertificate
                | AlertDescription::CertificateRevoked
                | AlertDescription::CertificateExpired
                | AlertDescription::CertificateUnknown
                | AlertDescription::CertificateRequired
                | AlertDescription::UnknownCA
                | AlertDescription::DecryptError
                | AlertDescription::AccessDenied),
            ) => (
                format!("it does not take this client's certificate: {alert:?}"),
                "renew or correct client-certificate and client-key in the kubeconfig",
            ),
            other => (
                format!("TLS fails: {other}"),
                match peer {
                    Peer::Server => "check that this is the URL of a Kubernetes API server",
                    Peer::Proxy => {
                        "check that the proxy speaks TLS there; if not, its URL begins with http://"
                    }
                },
            ),
        };
        Untrusted {
            why,
            advice: advice.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tls_error_is_found_in_its_wrapping_errors() {
        use std::io::Error;
        let reason = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        let carried = Error::other(Error::other(reason.clone()));
        assert_eq!(tls(&carried), Some(&reason));
        assert_eq!(tls(&Error::other("something else")), None);
        assert_eq!(tls(&Error::from_raw_os_error(111)), None);
        let said = Authorities::Of("/ca.crt".into()).untrusted(&reason, Peer::Server);
        assert_eq!(
            said.why,
            "its certificate is not signed by certificate-authority /ca.crt"
        );
        let said = Authorities::System.untrusted(&reason, Peer::Server);
        assert!(said.advice.contains("give certificate-authority"));
    }
}
