//! The hub's controllers and registration agents with whole spaces in memory: real signing requests, real
//! certificates.

mod agents_rights;
mod delivery;
mod joining;
mod killed;
mod lasting;
mod leaving;
mod mailboxes;
mod many;
mod profiles;
mod requests;
mod rights;
mod rotation;
mod sets;
mod silence;
mod world;
