//! Adds the token of a service account to requests. The token is in a file that the kubelet
//! rotates.
//!
//! This module reads the file for each request. Requests are few, because a watch lasts for
//! minutes. So the source uses a new token immediately, even after the server has rejected the old
//! token (401). No token is cached, so none can be stale. As in client-go, the file has precedence
//! over a token in the kubeconfig, which is sent only while the file has no token.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fs, io};

use futures::future::BoxFuture;
use http::Request;
use http::header::{AUTHORIZATION, HeaderValue, InvalidHeaderValue};
use kube::config::AuthInfo;
use tower::{BoxError, Layer, Service};

/// Layer that adds the token from a file to each request. Without a file, the layer adds nothing.
/// If the file has no token, a request keeps the token that it has.
#[derive(Debug, Clone)]
pub(super) struct FromFile<S = ()> {
    inner: S,
    file: Option<Arc<Path>>,
}

/// Error of reading a token from its file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no token in {}: {why}", file.display())]
pub(super) struct TokenError {
    file: PathBuf,
    why: String,
}

impl FromFile {
    /// Removes the token file from the user's settings, and returns the layer that reads this file.
    pub(super) fn take(user: &mut AuthInfo) -> Self {
        let file = user.token_file.take();
        Self {
            inner: (),
            file: file.map(|file| PathBuf::from(file).into()),
        }
    }
}

impl<S> Layer<S> for FromFile {
    type Service = FromFile<S>;

    fn layer(&self, inner: S) -> Self::Service {
        FromFile {
            inner,
            file: self.file.clone(),
        }
    }
}

impl<S, B> Service<Request<B>> for FromFile<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError> + 'static,
    S::Response: 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if let Some(file) = &self.file {
            match bearer(file) {
                Ok(bearer) => drop(request.headers_mut().insert(AUTHORIZATION, bearer)),
                Err(_) if request.headers().contains_key(AUTHORIZATION) => {}
                Err(why) => {
                    let file = file.to_path_buf();
                    return Box::pin(async { Err(TokenError { file, why }.into()) });
                }
            }
        }
        let answer = self.inner.call(request);
        Box::pin(async { answer.await.map_err(Into::into) })
    }
}

fn bearer(file: &Path) -> Result<HeaderValue, String> {
    // Blocks this thread only briefly: the token has a few hundred bytes, usually on a tmpfs.
    let token = fs::read_to_string(file).map_err(|error: io::Error| error.to_string())?;
    let token = token.trim();
    if token.is_empty() {
        return Err("it is empty".to_owned());
    }
    let value = HeaderValue::try_from(format!("Bearer {token}"));
    let mut value = value.map_err(|error: InvalidHeaderValue| error.to_string())?;
    value.set_sensitive(true);
    Ok(value)
}
