//! CompositeController and DecoratorController: one hook call decides about a parent and all that belongs to it
//! (MC-113 to MC-149, MC-170 to MC-176).
//!
//! [`decide`], [`rolling`] and [`rules`] are pure; [`related`] follows what customize hooks ask for; [`composite`] and
//! [`decorator`] are the two kinds; [`shell`] is what they share. [`undeclared`] makes what no rule declares.
//!
//! Cost of one event: the parents it concerns, each of which is synced as a whole: O(its children) and one hook call.

pub mod composite;
pub mod decide;
pub mod decorator;
mod followed;
pub mod related;
pub mod rolling;
pub mod rules;
pub mod setup;
pub mod shell;
pub mod undeclared;
