//! The work agent and the status agent with whole spaces in memory: a hub with one mailbox, and its cluster.

mod applying;
mod executor;
mod finished;
mod hub;
mod input;
mod kill;
mod leaving;
mod measures;
mod reports;
mod sharing;
mod status;
mod strategies;
mod world;
