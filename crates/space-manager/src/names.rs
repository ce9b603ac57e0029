//! Names that other programs see; those of KubeFlex unless marked otherwise (SP-029, SP-030, SP-049).

/// Finalizer of a ControlPlane.
pub const FINALIZER: &str = "kflex.kubestellar.org/finalizer";
/// Field manager of objects that hooks make.
pub const HOOK_MANAGER: &str = "kubeflex";
/// Component in whose name Events are written.
pub const EVENT_SOURCE: &str = "kubeflex-controlplane-controller";
/// Namespace with the configuration of the installation (SP-032).
pub const SYSTEM_NAMESPACE: &str = "kubeflex-system";
/// ConfigMap in it.
pub const SYSTEM_CONFIG: &str = "kubeflex-config";
/// Lease of the one space manager that works (SP-048).
pub const LEASE: &str = "c6f71c85.kflex.kubestellar.org";
/// Label of cluster-scoped objects that hooks make; its value is `Helm`.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Annotation of cluster-scoped objects that hooks make; its value is the namespace of the ControlPlane.
pub const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";
/// Annotation of objects that Helm itself made. Hooks do not set it.
pub const RELEASE_NAME: &str = "meta.helm.sh/release-name";
/// Label of everything that the installation itself owns in the host space (SP-037). Ours.
pub const SYSTEM_LABEL: &str = "kubestellar.io/system";
/// Annotation of a ControlPlane: its address from outside (SP-033). Ours.
pub const URL: &str = "space.kubestellar.io/url";
/// Annotation of a ControlPlane: `"true"` stops its space and keeps the data (SP-050). Ours.
pub const SUSPENDED: &str = "space.kubestellar.io/suspended";
/// Annotation of a ControlPlane: another value runs all hooks once more (SP-021). Ours.
pub const REAPPLY: &str = "space.kubestellar.io/reapply-hooks";
/// Annotation of a ControlPlane: the value of [`REAPPLY`] that was handled last. Ours.
pub const REAPPLIED: &str = "space.kubestellar.io/reapplied-hooks";
/// Annotation of a PostCreateHook: built-in components that take the place of its templates. Ours.
pub const COMPONENT: &str = "space.kubestellar.io/component";
/// Annotation of a PostCreateHook: `space` applies its templates in the new space (SP-018). Ours.
pub const APPLY_TO: &str = "space.kubestellar.io/apply-to";

/// The namespace of a ControlPlane in the hosting cluster.
pub fn namespace_of(control_plane: &str) -> String {
    format!("{control_plane}-system")
}

/// The ControlPlane whose namespace this is.
pub fn control_plane_of(namespace: &str) -> Option<&str> {
    namespace.strip_suffix("-system").filter(|name| !name.is_empty())
}

/// What kind of space a ControlPlane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// `k8s`
    K8s,
    /// `ocm`
    Ocm,
    /// `vcluster`
    VCluster,
    /// `k3s`
    K3s,
    /// `host`
    Host,
    /// `external`
    External,
}

impl Type {
    /// Reads `spec.type`; `None` for a type of a later version (SP-006).
    pub fn of(text: &str) -> Option<Self> {
        Some(match text {
            "k8s" => Self::K8s,
            "ocm" => Self::Ocm,
            "vcluster" => Self::VCluster,
            "k3s" => Self::K3s,
            "host" => Self::Host,
            "external" => Self::External,
            _ => return None,
        })
    }

    /// Whether the original runs pods for it, and we an embedded space.
    pub fn is_embedded(self) -> bool {
        !matches!(self, Self::Host | Self::External)
    }

    /// The Secret with the kubeconfig: its name, the key for use from outside, the key for use in the hosting cluster.
    pub fn secret(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::K8s | Self::Host | Self::External => {
                ("admin-kubeconfig", "kubeconfig", "kubeconfig-incluster")
            }
            Self::Ocm => ("multicluster-controlplane-kubeconfig", "kubeconfig", "kubeconfig-incluster"),
            Self::VCluster => ("vc-vcluster", "config", "config-incluster"),
            Self::K3s => ("k3s-config", "config", "config-incluster"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-029: names and keys that charts and scripts rely on.
    #[test]
    fn sp_029_secrets_of_each_type() {
        for (text, secret) in [
            ("k8s", ("admin-kubeconfig", "kubeconfig", "kubeconfig-incluster")),
            ("host", ("admin-kubeconfig", "kubeconfig", "kubeconfig-incluster")),
            ("external", ("admin-kubeconfig", "kubeconfig", "kubeconfig-incluster")),
            ("ocm", ("multicluster-controlplane-kubeconfig", "kubeconfig", "kubeconfig-incluster")),
            ("vcluster", ("vc-vcluster", "config", "config-incluster")),
            ("k3s", ("k3s-config", "config", "config-incluster")),
        ] {
            assert_eq!(Type::of(text).map(Type::secret), Some(secret), "{text}");
        }
    }

    /// SP-006, SP-030.
    #[test]
    fn sp_006_a_later_type_is_unknown() {
        assert_eq!(Type::of("kcp"), None);
        assert_eq!(namespace_of("wds1"), "wds1-system");
        assert_eq!(control_plane_of("wds1-system"), Some("wds1"));
        assert_eq!(control_plane_of("-system"), None);
        assert_eq!(control_plane_of("kube-public"), None);
    }
}
