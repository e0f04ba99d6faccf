//! Reasons why a list or a watch ended early.

use std::time::Duration;

use super::cause::root_cause;
use super::connection;
use super::outage::Failure;
use crate::decode::Status;

/// Largest number of characters that an error quotes from the server's message.
const LONGEST_MESSAGE: usize = 200;

/// Reason why a request or a watch ended early.
#[derive(Debug)]
pub(super) enum End {
    /// The receiver of the events was dropped, so no event is needed any more.
    Closed,
    /// The server no longer has the requested resource version.
    Expired,
    /// The server has not reached the requested resource version.
    Ahead(String),
    /// The server does not support streamed lists.
    Unstreamed(String),
    Failed(Failure),
}

impl End {
    pub(super) fn nonsense(what: impl Into<String>) -> Self {
        Self::Failed(Failure::Nonsense(what.into()))
    }

    pub(super) fn unreachable(error: &(dyn std::error::Error + 'static)) -> Self {
        let causes = std::iter::successors(Some(error), |error| error.source());
        let told = causes.into_iter().find_map(|cause| {
            let untrusted = cause.downcast_ref().cloned().map(Failure::Untrusted);
            let proxied = || cause.downcast_ref().cloned().map(Failure::Proxied);
            let untold = || cause.downcast_ref().cloned().map(Failure::WithoutToken);
            untrusted.or_else(proxied).or_else(untold)
        });
        Self::Failed(match told {
            Some(failure) => failure,
            None if connection::is_none(error) => Failure::Unreachable(root_cause(error)),
            None => Failure::Unanswered(root_cause(error)),
        })
    }

    pub(super) fn silent(limit: Duration) -> Self {
        Self::Failed(Failure::Unanswered(format!("no answer for {limit:?}")))
    }
}

impl From<kube::Error> for End {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from(Status {
                code: status.code,
                message: status.message.clone(),
                details: None,
            }),
            other => Self::unreachable(&other),
        }
    }
}

impl From<Status> for End {
    fn from(status: Status) -> Self {
        let is_ahead = status.is_ahead();
        let words: Vec<&str> = status.message.split_whitespace().collect();
        let mut message = words.join(" ");
        if message.starts_with('<') {
            "it sent a web page".clone_into(&mut message);
        }
        let message = message.chars().take(LONGEST_MESSAGE).collect();
        match status.code {
            410 => Self::Expired,
            _ if is_ahead => Self::Ahead(message),
            code => Self::Failed(Failure::Refused { code, message }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::json;

    #[test]
    fn the_message_of_a_server_becomes_one_line_without_markup() {
        for (given, wanted) in [
            ("404\n page  not found\n", "404 page not found"),
            ("\n<!DOCTYPE HTML>\n<html>\n", "it sent a web page"),
        ] {
            let end = End::from(Status {
                code: 404,
                message: given.to_owned(),
                ..Status::default()
            });
            let End::Failed(Failure::Refused { message, .. }) = end else {
                panic!("{end:?}");
            };
            assert_eq!(message, wanted);
        }
    }

    #[test]
    fn a_too_large_resource_version_is_distinguished_from_timeouts() {
        let is_ahead = |code: u16, rest: &str| {
            let text = format!(r#"{{"kind":"Status","code":{code},"reason":"Timeout",{rest}}}"#);
            let status = json::status(text.as_bytes()).unwrap();
            matches!(End::from(status), End::Ahead(_))
        };
        let cause = r#""message":"no","details":{"causes":[{"reason":"ResourceVersionTooLarge"}]}"#;
        assert!(is_ahead(504, cause));
        assert!(is_ahead(
            504,
            r#""message":"Too large resource version: 7, current: 5""#
        ));
        assert!(!is_ahead(500, cause));
        for other in [
            r#""message":"Timeout: request did not complete within the allotted timeout""#,
            r#""message":"no","details":null"#,
            r#""message":"no","details":{"causes":null}"#,
            r#""message":"no","details":{"causes":[{"message":"no"},{"reason":"FieldValueInvalid"}]}"#,
        ] {
            assert!(!is_ahead(504, other), "{other}");
        }
    }
}
