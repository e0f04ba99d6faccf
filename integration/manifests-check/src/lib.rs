//! Builds the manifests like `kubectl apply -k`, and validates them against the Kubernetes schemas.
//!
//! ```text
//!   directory ─▶ kustomization ─▶ objects ─▶ schema
//! ```
//!
//! The schemas are the types of `k8s-openapi`, which are generated from Kubernetes' OpenAPI
//! document. These types ignore unknown fields. To find unknown fields, the check parses an object
//! into its type, encodes it again, and compares the result with the object.
//!
//! This crate supports only the fields `resources` and `patches` of a kustomization. Other fields
//! are errors.

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
