//! The listener, the controllers of a space, and the workload controllers of a simulated cluster, in whole spaces in memory.

mod controllers;
mod front;
mod nodes;
mod volumes;
mod warnings;
mod workloads;
