//! Add-ons with whole spaces in memory: a hub with its add-on manager, clusters with their agents, real
//! signing requests and real certificates.

mod health;
mod identities;
mod installing;
mod placements;
mod templates;
mod world;
