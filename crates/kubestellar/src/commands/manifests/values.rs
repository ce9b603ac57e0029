//! The values of the core chart that matter here. The others are for programs that this one replaces.

use serde::Deserialize;

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Values {
    verbosity: Verbosity,
    pub(super) transport_controller: Transport,
    #[serde(rename = "ITSes", deserialize_with = "null_is_empty")]
    pub(super) itses: Vec<Its>,
    #[serde(rename = "WDSes", deserialize_with = "null_is_empty")]
    pub(super) wdses: Vec<Wds>,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

impl Values {
    pub(super) fn controller_manager_verbosity(&self) -> u8 {
        self.verbosity.kubestellar.or(self.verbosity.default).unwrap_or(2)
    }

    pub(super) fn transport_verbosity(&self) -> u8 {
        self.verbosity.transport.or(self.verbosity.default).unwrap_or(2)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Verbosity {
    default: Option<u8>,
    kubestellar: Option<u8>,
    transport: Option<u8>,
}

/// The settings of the transport controller.
#[derive(Debug, Deserialize)]
#[serde(default)]
pub(super) struct Transport {
    pub(super) metrics_bind_addr: String,
    pub(super) pprof_bind_addr: String,
    #[serde(rename = "transport_qps")]
    pub(super) its_qps: f64,
    #[serde(rename = "transport_burst")]
    pub(super) its_burst: u32,
    pub(super) wds_qps: f64,
    pub(super) wds_burst: u32,
    pub(super) max_num_wrapped: u32,
    pub(super) max_size_wrapped: u32,
}

impl Default for Transport {
    fn default() -> Self {
        Self {
            metrics_bind_addr: ":8090".into(),
            pprof_bind_addr: ":8092".into(),
            its_qps: 5.0,
            its_burst: 10,
            wds_qps: 5.0,
            wds_burst: 10,
            max_num_wrapped: 1,
            max_size_wrapped: 512_000,
        }
    }
}

/// An inventory and transport space.
#[derive(Debug, Deserialize)]
pub(super) struct Its {
    pub(super) name: String,
    #[serde(rename = "type", default = "vcluster")]
    pub(super) kind: String,
    #[serde(rename = "bootstrapSecret")]
    pub(super) bootstrap_secret: Option<BootstrapSecret>,
}

fn vcluster() -> String {
    "vcluster".into()
}

/// The Secret with the credentials of an external space.
#[derive(Debug, Deserialize)]
pub(super) struct BootstrapSecret {
    pub(super) name: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) key: Option<String>,
}

/// A workload description space.
#[derive(Debug, Deserialize)]
pub(super) struct Wds {
    pub(super) name: String,
    #[serde(rename = "type", default = "k8s")]
    pub(super) kind: String,
    #[serde(rename = "APIGroups", default)]
    pub(super) api_groups: Option<String>,
    #[serde(rename = "ITSName", default)]
    pub(super) its_name: Option<String>,
}

fn k8s() -> String {
    "k8s".into()
}
