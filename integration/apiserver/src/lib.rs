//! An API server fixture that lists and watches over HTTP.
