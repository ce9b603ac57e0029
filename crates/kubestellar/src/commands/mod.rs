//! One file per command.

pub(crate) mod apiserver;
pub(crate) mod background;
pub(crate) mod cluster;
pub(crate) mod completion;
pub(crate) mod components;
pub(crate) mod demo;
pub(crate) mod down;
pub(crate) mod explain;
pub(crate) mod get;
pub(crate) mod manifests;
pub(crate) mod serve;
pub(crate) mod space;
pub(crate) mod status;
pub(crate) mod up;
pub(crate) mod version;
