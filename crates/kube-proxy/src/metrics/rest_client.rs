//! Counts requests to the API server, under client-go's metric names.
//!
//! - A watch is counted without duration and size, because it has no natural end.
//! - This client has no rate limiter. The rate limiter's metric exists and is always zero, because
//!   dashboards add its time to the requests' duration.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use http_body_util::combinators::MapFrame;
use hyper::body::{Body, Bytes, Frame};
use tower::{Layer, Service};

use super::{Metrics, VerbLabels};

/// Value of `code` that client-go uses for a request without a response.
const NO_ANSWER: &str = "<error>";

/// Middleware around a client's transport that counts requests.
#[derive(Debug, Clone)]
pub(crate) struct CountRequests<S = ()> {
    inner: S,
    metrics: Metrics,
    /// Host and port of the API server. The requests that this middleware receives do not contain
    /// the host.
    host: Arc<str>,
}

impl CountRequests {
    /// Creates the middleware. `host` is the API server's host and port.
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

type OnFrame = Box<dyn FnMut(Frame<Bytes>) -> Frame<Bytes> + Send>;

impl<S, B, R> Service<Request<B>> for CountRequests<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    B: Body,
    R: Body<Data = Bytes>,
{
    type Response = Response<MapFrame<R, OnFrame>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let began = Instant::now();
        let host = Arc::clone(&self.host);
        let method = request.method().clone();
        let metrics = self.metrics.clone();
        let asked = (!is_watch(&request)).then(|| VerbLabels {
            host: host.to_string(),
            verb: method.to_string(),
        });
        if let Some(of) = &asked {
            metrics.request_wait.get_or_create(of).observe(0.0);
            if let Some(bytes @ 1..) = request.body().size_hint().exact() {
                metrics
                    .request_size
                    .get_or_create(of)
                    .observe(double(bytes));
            }
        }
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await;
            let code = match &answer {
                Ok(answer) => answer.status().as_u16().to_string(),
                Err(_) => NO_ANSWER.to_owned(),
            };
            metrics.requested(&host, method.as_str(), &code);
            if let Some(of) = &asked {
                let took = began.elapsed().as_secs_f64();
                metrics.request_duration.get_or_create(of).observe(took);
            }
            let (head, body) = answer?.into_parts();
            let size = asked.map(|of| Size {
                metrics,
                of,
                bytes: 0,
            });
            Ok(Response::from_parts(head, body.map_frame(measured(size))))
        })
    }
}

fn is_watch<B>(request: &Request<B>) -> bool {
    let query = request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with("watch="))
}

fn measured(mut size: Option<Size>) -> OnFrame {
    Box::new(move |frame| {
        if let (Some(size), Some(data)) = (&mut size, frame.data_ref()) {
            size.bytes += data.len() as u64;
        }
        frame
    })
}

/// Size of a response body in bytes. Dropping this value records the size in the metrics.
struct Size {
    metrics: Metrics,
    of: VerbLabels,
    bytes: u64,
}

impl Drop for Size {
    fn drop(&mut self) {
        let size = self.metrics.answer_size.get_or_create(&self.of);
        size.observe(double(self.bytes));
    }
}

#[allow(clippy::cast_precision_loss, reason = "metrics are doubles")]
fn double(bytes: u64) -> f64 {
    bytes as f64
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use tower::service_fn;

    use super::*;

    #[tokio::test]
    async fn api_responses_and_failed_requests_are_counted() {
        let metrics = Metrics::new();
        let transport = service_fn(async |request: Request<Full<Bytes>>| {
            if request.uri().path() == "/away" {
                return Err("away");
            }
            let body = Full::new(Bytes::from_static(&[b' '; 300]));
            Ok(Response::builder().status(404).body(body).unwrap())
        });
        let mut client = CountRequests::new(metrics.clone(), "10.0.0.1:6443").layer(transport);
        for target in ["/away", "/a?limit=1", "/a?x=1", "/a?limit=1&watch=true"] {
            let request = Request::post(target).body(Full::from("to be")).unwrap();
            match client.call(request).await {
                Ok(answer) => drop(answer.into_body().collect().await.unwrap()),
                Err(_) => assert_eq!(target, "/away"),
            }
        }
        let text = metrics.classic();
        let has = |sample: &str| assert!(text.contains(&format!("{sample}\n")), "{sample}\n{text}");
        for (code, count) in [("404", 3), (NO_ANSWER, 1)] {
            has(&format!(
                r#"rest_client_requests_total{{code="{code}",host="10.0.0.1:6443",method="POST"}} {count}"#
            ));
        }
        let of = r#"{host="10.0.0.1:6443",verb="POST"}"#;
        for (name, value) in [
            ("request_duration_seconds_count", "3"),
            ("rate_limiter_duration_seconds_count", "3"),
            ("rate_limiter_duration_seconds_sum", "0.0"),
            ("request_size_bytes_sum", "15.0"),
            ("response_size_bytes_count", "2"),
            ("response_size_bytes_sum", "600.0"),
        ] {
            has(&format!("rest_client_{name}{of} {value}"));
        }
    }
}
