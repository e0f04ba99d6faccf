//! Lists objects in one of three ways: at the beginning of a watch, in one response, or in pages.

use proxy::Event;
use tokio::time::Instant;

use super::{ListWatch, UNSTREAMED, WATCH_SECONDS};
use crate::api::backoff::any_of;
use crate::api::end::End;
use crate::api::list::List;
use crate::api::messages::Messages;
use crate::api::outage::Failure;
use crate::api::request::{Age, Paging};
use crate::settings::Lists;

impl ListWatch {
    /// Reports whether the next list is requested as a stream.
    pub(super) fn streams(&self) -> bool {
        let is_refused = |since: Instant| since.elapsed() < UNSTREAMED;
        self.lists == Lists::Streamed && !self.unstreamed.is_some_and(is_refused)
    }

    /// Requests a streamed list: a watch that begins with all objects.
    pub(super) async fn list_streamed(&mut self) -> Result<(), End> {
        let target = self.resource.streamed_list(any_of(WATCH_SECONDS));
        let answer = match self.ask(&target).await {
            // A server without streamed lists replies 422 (Invalid), but a proxy in front of it may
            // reply any status. Excludes statuses with which a plain list would fail as well.
            Err(End::Failed(Failure::Refused { code, message }))
                if !matches!(code, 401 | 403 | 429 | 500..) =>
            {
                return Err(End::Unstreamed(message));
            }
            answer => answer?,
        };
        self.send(Event::ListStarted(self.resource.kind)).await?;
        self.follow(Messages::new(answer), Some(Listing::default()))
            .await
    }

    /// Lists all objects in one response, or in pages if the server returns pages.
    pub(super) async fn list(&mut self) -> Result<(), End> {
        let kind = self.resource.kind;
        let age = self.next_list.clone();
        let mut listing = Listing::default();
        let mut is_begun = false;
        let mut position: Option<String> = None;
        loop {
            let paging = match &position {
                Some(token) => Paging::After(token),
                None if age == Age::Any || self.has_pages => Paging::First,
                None => Paging::Whole,
            };
            let answer = self.ask(&self.resource.list(&age, paging)).await?;
            let mut list = List::new(kind, answer);
            loop {
                let object = list.next().await?;
                if !is_begun {
                    is_begun = true;
                    self.begin(&age, list.meta().version.as_deref()).await?;
                }
                let Some(object) = object else { break };
                listing.is_whole &= self.tell(object).await?.is_named;
            }
            let meta = list.meta();
            match meta.continue_token.clone() {
                Some(token) if position.as_ref() == Some(&token) => {
                    return Err(End::nonsense("a list that goes on for ever"));
                }
                Some(token) => {
                    self.has_pages = true;
                    position = Some(token);
                }
                None => {
                    let version = meta.version.clone();
                    let version =
                        version.ok_or_else(|| End::nonsense("a list without a resourceVersion"))?;
                    self.is_no_step_back(&age, Some(&version))?;
                    self.complete(listing).await?;
                    self.reached(version);
                    self.progressed();
                    return Ok(());
                }
            }
        }
    }

    /// Checks the list's `version`, if it is known already, and announces the list to the receiver.
    async fn begin(&mut self, age: &Age, version: Option<&str>) -> Result<(), End> {
        self.is_no_step_back(age, version)?;
        // If this list breaks off, the next list must not be older.
        if let (Age::Any, Some(version)) = (age, version) {
            self.next_list = Age::NotOlderThan(version.to_owned());
        }
        self.send(Event::ListStarted(self.resource.kind)).await
    }

    /// Checks that a list is at least as new as requested. Fails if the server ignored the
    /// requested version. The next list then requests the newest version.
    fn is_no_step_back(&mut self, age: &Age, version: Option<&str>) -> Result<(), End> {
        if !is_older(age, version) {
            return Ok(());
        }
        self.next_list = Age::Newest;
        let version = version.unwrap_or_default();
        Err(End::nonsense(format!(
            "a list of resource version {version}, which is older than the last one"
        )))
    }

    pub(super) async fn complete(&mut self, list: Listing) -> Result<(), End> {
        self.listed = Some(Instant::now());
        self.is_in_doubt = false;
        self.send(Event::ListComplete {
            kind: self.resource.kind,
            is_whole: list.is_whole,
        })
        .await
    }
}

/// State of a list while its objects are sent to the receiver.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) is_whole: bool,
}

impl Default for Listing {
    fn default() -> Self {
        Self { is_whole: true }
    }
}

/// Reports whether a list is older than requested. A version that is not a number counts as new
/// enough.
pub(super) fn is_older(age: &Age, version: Option<&str>) -> bool {
    let number = |version: &str| version.parse::<u128>().ok();
    match (age, version) {
        (Age::NotOlderThan(seen), Some(version)) => number(seen)
            .zip(number(version))
            .is_some_and(|(seen, version)| version < seen),
        _ => false,
    }
}
