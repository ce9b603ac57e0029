//! Kubernetes semantics as pure functions on JSON: selectors, names, quantities, patches, schemas, field ownership.
//!
//! * [`schema`]: the types of objects, one graph for built-in kinds and custom resources: decode, prune, default,
//!   validate.
//! * [`managed`]: field ownership and server-side apply. [`patch`]: JSON, merge and strategic merge patches.
//! * [`rules`]: CEL rules of custom resources, compiled once, with a cost limit.
//! * [`cel`]: other CEL expressions of users, with a cost limit.
//! * [`selector`], [`quantity`], [`jsonpath`], [`names`], [`metadata`], [`time`], [`duration`], [`number`]: small
//!   languages and checks.
//! * [`conditions`]: when the time of a condition moves.
//! * [`template`]: Go templates over a map of strings, with limits.
//! * [`field`]: paths and errors. [`json`], [`yaml`]: parsing and printing.
//!
//! No I/O, no clock, no client: equal input gives equal output. Error texts are those of Kubernetes, because clients
//! and tests of other programs compare them. Input comes from outside: nothing here panics on it, and depth and work
//! are bounded.

pub mod cel;
pub mod conditions;
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
