//! Counts what is asked of the API server, under client-go's names.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use tower::{Layer, Service};

use super::Metrics;

/// What the code is where no answer came, as client-go's.
const NO_ANSWER: &str = "<error>";

/// Around a client's transport.
#[derive(Debug, Clone)]
pub(crate) struct CountRequests<S = ()> {
    inner: S,
    metrics: Metrics,
    /// Of the API server: the client's requests name it only further inside.
    host: Arc<str>,
}

impl CountRequests {
    /// `host` is the API server's, with its port.
    pub(crate) fn new(metrics: Metrics, host: &str) -> Self {
        Self {
            inner: (),
            metrics,
            host: host.into(),
        }
    }
}

impl<S> Layer<S> for CountRequests {
    type Service = CountRequests<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CountRequests {
            inner,
            metrics: self.metrics.clone(),
            host: Arc::clone(&self.host),
        }
    }
}

impl<S, B, R> Service<Request<B>> for CountRequests<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let began = Instant::now();
        let host = Arc::clone(&self.host);
        let method = request.method().clone();
        let metrics = self.metrics.clone();
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(_) => NO_ANSWER.to_owned(),
            };
            metrics.requested(&host, method.as_str(), &code, began.elapsed());
            answer
        })
    }
}

#[cfg(test)]
mod tests {
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn answers_and_their_absence_are_counted() {
        let metrics = Metrics::new();
        let transport = service_fn(async |request: Request<()>| match request.uri().path() {
            "/away" => Err("away"),
            _ => Ok(Response::builder().status(404).body(()).unwrap()),
        });
        let mut client = CountRequests::new(metrics.clone(), "10.0.0.1:6443").layer(transport);
        for path in ["away", "a", "a"] {
            let uri = format!("/{path}?watch=1");
            let request = Request::post(uri).body(()).unwrap();
            let answer = client.call(request).await;
            assert_eq!(answer.is_err(), path == "away");
        }
        let text = metrics.classic();
        for (code, count) in [("404", 2), (NO_ANSWER, 1)] {
            let labels = format!(r#"code="{code}",host="10.0.0.1:6443",method="POST""#);
            let sample = format!("rest_client_requests_total{{{labels}}} {count}\n");
            assert!(text.contains(&sample), "{sample}{text}");
        }
        let sample =
            r#"rest_client_request_duration_seconds_count{host="10.0.0.1:6443",verb="POST"} 3"#;
        assert!(text.contains(sample), "{text}");
    }
}
