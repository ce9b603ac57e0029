//! Adapts objects for delivery: once for all destinations by CustomTransforms ([`transforms`], [`path`]), and
//! for each destination by template expansion ([`expand`]) with the properties of the WEC ([`properties`]).
//!
//! All of it is pure. The controller updates the caches from its watches and enqueues the Bindings that they
//! return.

pub mod catalogue;
pub mod expand;
pub mod path;
pub mod properties;
pub mod transforms;
