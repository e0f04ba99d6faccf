//! Builds the manifests like `kubectl apply -k`, and validates them against the Kubernetes schemas.
//!
//! ```text
//!   folder ─▶ kustomization ─▶ objects ─▶ schema
//! ```
//!
//! The schemas are the types of `k8s-openapi`, which are generated from Kubernetes' OpenAPI
//! document. They pass over fields that they do not know; so an object must come back out of its
//! type as it went in.
//!
//! Not here: the rest of kustomize. A kustomization says `resources` and `patches`, and anything
//! else in it is an error.

mod kustomization;
mod merge;
mod schema;

pub use kustomization::{BuildError, build, read};
pub use merge::{differences, merge};
pub use schema::{SchemaError, check};

#[cfg(test)]
mod monitoring;
#[cfg(test)]
mod tests;
