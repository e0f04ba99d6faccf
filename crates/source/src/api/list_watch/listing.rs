//! Lists: streamed, or of their own, in one answer or in pages.

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
    /// Whether the next list is to be streamed.
    pub(super) fn streams(&self) -> bool {
        let is_refused = |since: Instant| since.elapsed() < UNSTREAMED;
        self.lists == Lists::Streamed && !self.unstreamed.is_some_and(is_refused)
    }

    /// A watch that begins with all objects, and goes on.
    pub(super) async fn list_streamed(&mut self) -> Result<(), End> {
        let target = self.resource.streamed_list(any_of(WATCH_SECONDS));
        let answer = match self.ask(&target).await {
            // A server that does not know the option says Invalid; what stands before it may say
            // anything else. Only what another list would meet as well is no reason to try one.
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

    /// A list of its own.
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

    /// A list begins, which is of this version, if that is known yet.
    async fn begin(&mut self, age: &Age, version: Option<&str>) -> Result<(), End> {
        self.is_no_step_back(age, version)?;
        // A list after this one, if this one breaks off, must not be from before it.
        if let (Age::Any, Some(version)) = (age, version) {
            self.next_list = Age::NotOlderThan(version.to_owned());
        }
        self.send(Event::ListStarted(self.resource.kind)).await
    }

    /// Checks that a list is as new as was asked for. A server that does not heed that is asked for
    /// the newest.
    fn is_no_step_back(&mut self, age: &Age, version: Option<&str>) -> Result<(), End> {
        if !is_older(age, version) {
            return Ok(());
        }
        self.next_list = Age::Newest;
        let version = version.unwrap_or_default();
        Err(End::nonsense(format!(
            "a list of resource version {version}, which is from before the last one that was told"
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

/// What is noted of a list while it is told.
#[derive(Debug)]
pub(super) struct Listing {
    pub(super) is_whole: bool,
}

impl Default for Listing {
    fn default() -> Self {
        Self { is_whole: true }
    }
}

/// Whether a list is from before what was asked for. Versions that are no numbers cannot be
/// compared.
pub(super) fn is_older(age: &Age, version: Option<&str>) -> bool {
    let number = |version: &str| version.parse::<u128>().ok();
    match (age, version) {
        (Age::NotOlderThan(seen), Some(version)) => number(seen)
            .zip(number(version))
            .is_some_and(|(seen, version)| version < seen),
        _ => false,
    }
}
