//! CompositeController and DecoratorController: one hook call decides about a parent and everything that
//! belongs to it (MC-113 to MC-149, MC-170 to MC-176).
//!
//! [`decide`], [`rolling`] and [`rules`] are pure; [`related`] follows the objects that customize hooks
//! request; [`composite`] and [`decorator`] are the two kinds; [`shell`] is what they share. [`undeclared`]
//! creates the children that no rule declares.
//!
//! Cost of one event: each affected parent is synced as a whole, O(its children) and one hook call.

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
