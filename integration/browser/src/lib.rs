//! The page `/ui/` in a real browser: headless Chromium, driven by WebDriver.
//!
//! ```text
//!   tests/page.rs ──▶ Browser ──WebDriver──▶ chromedriver ──▶ chromium ──HTTP──▶ Fixture, or a daemon
//! ```
//!
//! [`Fixture`] serves the page's files and answers the API as no healthy daemon does: with a stuck family,
//! a Service whose name is markup, 10,000 Services, or not at all.

mod driver;
mod fixture;
mod world;

pub use driver::{Browser, Key};
pub use fixture::Fixture;
pub use world::{MARKUP, World};
