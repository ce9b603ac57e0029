//! How objects are adapted on their way: once for all destinations by CustomTransforms ([`transforms`], [`path`]), and
//! for each destination by template expansion ([`expand`]) with the properties of the WEC ([`properties`]).
//!
//! All of it is pure. The controller feeds the caches from its watches and enqueues the Bindings they name.

pub mod catalogue;
pub mod expand;
pub mod path;
pub mod properties;
pub mod transforms;
