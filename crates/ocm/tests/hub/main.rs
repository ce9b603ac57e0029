//! The hub's controllers and registration agents, over whole spaces in memory: real signing requests, real certificates.

mod joining;
mod leaving;
mod requests;
mod rights;
mod sets;
mod silence;
mod world;
