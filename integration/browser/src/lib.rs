//! The page `/ui/` in a real browser: headless Chromium, driven by WebDriver.
//!
//! ```text
//!   tests/page.rs ──▶ Browser ──WebDriver──▶ chromedriver ──▶ chromium ──HTTP──▶ Fixture, or a daemon
//! ```
//!
//! [`Fixture`] serves the page's own files, and answers the API with what no healthy daemon says: a family
//! that is stuck, a Service that is named with markup, 10,000 Services, no answer at all.

mod driver;
mod fixture;
mod world;

pub use driver::{Browser, Key};
pub use fixture::Fixture;
pub use world::{MARKUP, World};
