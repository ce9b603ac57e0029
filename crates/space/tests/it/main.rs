//! The controllers of a space, and the workload controllers of a simulated cluster, over whole spaces in memory.

mod controllers;
mod workloads;
