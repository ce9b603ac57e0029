//! The server: every space of an installation and the components between them, in one process.

pub(crate) mod admission;
mod clock;
mod components;
mod control_socket;
mod hosted;
mod installation;
mod overview;
mod rbac;
mod reporter;
mod wiring;

pub(crate) use components::{Components, Elsewhere};
pub(crate) use installation::{Options, run};
pub(crate) use reporter::Reporter;
