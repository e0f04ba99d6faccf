//! Tests of the page `/ui/` in a real browser: headless Chromium, controlled by WebDriver.
//!
//! ```text
//!   tests/page.rs ─▶ Browser ─WebDriver─▶ chromedriver ─▶ chromium ─HTTP─▶ Fixture, or a daemon
//! ```
//!
//! [`Fixture`] serves the page's files, and API responses that a healthy daemon never sends.
//! Examples are a stuck family, a Service whose name is HTML markup, 10,000 Services, or no
//! response.

mod driver;
mod fixture;
mod world;

pub use driver::{Browser, Key};
pub use fixture::Fixture;
pub use world::{MARKUP, World};
