//! Tests of the page `/ui/` in a real browser: headless Chromium, controlled by WebDriver.

mod driver;
mod fixture;
mod world;

pub use driver::{Browser, Key};
pub use fixture::Fixture;
pub use world::{MARKUP, World};
