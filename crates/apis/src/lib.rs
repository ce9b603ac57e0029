//! Every API kind that KubeStellar defines or shares, as Rust types.
//!
//! * [`control`]: `control.kubestellar.io/v1alpha1`, the API between users and controllers.
//! * [`ocm`]: the parts of Open Cluster Management's API groups that KubeStellar uses.
//! * [`tenancy`]: KubeFlex' `tenancy.kflex.kubestellar.org/v1alpha1`.
//! * [`metacontroller`]: Metacontroller's `metacontroller.k8s.io/v1alpha1`.
//! * [`constants`]: labels, annotations, finalizers, field managers and namespaces (KS-019).
//! * [`crds`]: the CustomResourceDefinitions, generated from these types; the same as YAML in `crds/`.
//!
//! Decoding is lenient: it accepts every object that an API server accepts under one of these schemas, and
//! every object that older programs stored. The schemas decide what is rejected, not serde.

pub mod condition;
pub mod constants;
pub mod control;
pub mod crds;
mod kind;
pub mod metacontroller;
pub mod ocm;
mod schema;
pub mod tenancy;

pub use condition::Condition;
