//! Kubernetes semantics as pure functions on JSON: selectors, names, quantities, patches, schemas, field ownership.
//!
//! * [`schema`]: the types of objects, one graph for built-in kinds and custom resources: decode, prune, default, validate.
//! * [`managed`]: who owns which field; server-side apply. [`patch`]: JSON, merge and strategic merge patches.
//! * [`rules`]: CEL rules of custom resources, compiled once, bounded in cost.
//! * [`cel`]: CEL expressions of users elsewhere, stopped when they need too much.
//! * [`selector`], [`quantity`], [`jsonpath`], [`names`], [`metadata`], [`time`], [`duration`], [`number`]: the small
//!   languages and checks.
//! * [`template`]: Go templates over a map of texts, bounded in cost.
//! * [`field`]: paths and errors. [`json`], [`yaml`]: texts in, texts out.
//!
//! No I/O, no clock, no client: equal input gives equal output. Texts of errors are those of Kubernetes, since clients
//! and tests of other programs compare them. Input is whatever came from outside: nothing here panics on it, and depth
//! and work are bounded.

pub mod cel;
pub mod duration;
pub mod field;
pub mod json;
pub mod jsonpath;
pub mod managed;
pub mod metadata;
pub mod names;
pub mod number;
pub mod patch;
pub mod quantity;
pub mod rules;
pub mod schema;
pub mod selector;
pub mod template;
pub mod time;
pub mod yaml;
