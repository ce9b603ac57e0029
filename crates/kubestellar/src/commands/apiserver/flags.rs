//! The flags of kube-apiserver that this server takes, so that it can stand in for it in tests (envtest).
//!
//! A flag is taken if the server does what it says. A value that the server cannot obey is refused by name, as is every other
//! flag.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use apiserver::ServiceNetwork;
use apiserver::authn::Anonymous;

use crate::commands::components::{KlogFlags, boolean};

/// Parses a flag of which only one value can be obeyed.
fn only<const WANTED: bool>(raw: &str) -> Result<bool, String> {
    match boolean(raw)? {
        value if value == WANTED => Ok(value),
        value => Err(format!("{value} is not supported")),
    }
}

fn zero(raw: &str) -> Result<u16, String> {
    if raw == "0" { Ok(0) } else { Err("there is no port without TLS".to_owned()) }
}

fn mode(raw: &str) -> Result<String, String> {
    match raw {
        "AlwaysAllow" | "Node" | "RBAC" => Ok(raw.to_owned()),
        _ => Err("it is not supported; there are AlwaysAllow, Node and RBAC".to_owned()),
    }
}

/// The admission plugins of kube-apiserver whose work this server does, always.
const BUILT_IN: [&str; 9] = [
    "CertificateApproval",
    "CertificateSigning",
    "CertificateSubjectRestriction",
    "DefaultStorageClass",
    "DefaultTolerationSeconds",
    "LimitRanger",
    "NamespaceLifecycle",
    "Priority",
    "StorageObjectInUseProtection",
];

/// The plugin that can be switched off.
const SERVICE_ACCOUNT: &str = "ServiceAccount";

/// The other admission plugins of kube-apiserver 1.36. This server does nothing of what they do.
const ABSENT: [&str; 21] = [
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "ClusterTrustBundleAttest",
    "DefaultIngressClass",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "NamespaceAutoProvision",
    "NodeRestriction",
    "OwnerReferencesPermissionEnforcement",
    "PersistentVolumeClaimResize",
    "PodNodeSelector",
    "PodSecurity",
    "PodTolerationRestriction",
    "ResourceQuota",
    "RuntimeClass",
    "TaintNodesByCondition",
];

fn disabled_plugin(raw: &str) -> Result<String, String> {
    match raw {
        SERVICE_ACCOUNT => Ok(raw.to_owned()),
        _ if ABSENT.contains(&raw)
            || matches!(raw, "ValidatingAdmissionPolicy" | "ValidatingAdmissionWebhook") =>
        {
            Ok(raw.to_owned())
        }
        _ if BUILT_IN.contains(&raw) => Err("what it does cannot be switched off".to_owned()),
        _ => Err("there is no such plugin".to_owned()),
    }
}

fn enabled_plugin(raw: &str) -> Result<String, String> {
    match raw {
        SERVICE_ACCOUNT => Ok(raw.to_owned()),
        _ if BUILT_IN.contains(&raw) => Ok(raw.to_owned()),
        _ => Err(format!("it is not supported; there are {SERVICE_ACCOUNT}, {}", BUILT_IN.join(", "))),
    }
}

/// The flags.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Flags of kube-apiserver")]
pub(super) struct KubeFlags {
    /// Port to listen on; 0 picks a free one [default: 6443]
    #[arg(long, value_name = "PORT", conflicts_with = "listen")]
    pub(super) secure_port: Option<u16>,
    /// Address to listen on [default: 127.0.0.1, not all interfaces]
    #[arg(long, value_name = "IP", conflicts_with = "listen")]
    pub(super) bind_address: Option<IpAddr>,
    /// Address that discovery tells clients [default: the one listened on]
    #[arg(long, value_name = "IP")]
    advertise_address: Option<IpAddr>,
    /// Another name of this server: in a certificate that is made, and in the address of the token keys
    #[arg(long, value_name = "HOST")]
    pub(super) external_hostname: Option<String>,
    /// Serve with apiserver.crt and apiserver.key of this directory; they are made if absent, with the CA in apiserver.crt. Not used with
    /// --tls-cert-file
    #[arg(long, value_name = "DIR")]
    pub(super) cert_dir: Option<PathBuf>,
    /// Serve with this certificate chain (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_private_key_file")]
    pub(super) tls_cert_file: Option<PathBuf>,
    /// The key of that certificate (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    pub(super) tls_private_key_file: Option<PathBuf>,
    /// Who may do what: RBAC, AlwaysAllow, and Node, which adds nothing because there is no node authorizer [default: RBAC]
    #[arg(long, value_name = "MODES", value_delimiter = ',', value_parser = mode)]
    authorization_mode: Vec<String>,
    /// Whether requests without credentials count as system:anonymous [default: true; with AlwaysAllow for health and version only]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = boolean)]
    anonymous_auth: Option<bool>,
    /// Issuer of service-account tokens; the first signs, all are accepted [default: the URL of this server]
    #[arg(long, value_name = "URL")]
    pub(super) service_account_issuer: Vec<String>,
    /// Private key that signs service-account tokens (PEM; RSA or EC P-256) [default: one is made]
    #[arg(long, value_name = "FILE")]
    pub(super) service_account_signing_key_file: Option<PathBuf>,
    /// Keys or certificates that verify service-account tokens besides the signing key (PEM)
    #[arg(long, value_name = "FILE")]
    pub(super) service_account_key_file: Vec<PathBuf>,
    /// Audiences that tokens may be for [default: the issuer]
    #[arg(long, value_name = "AUDIENCES", value_delimiter = ',')]
    pub(super) api_audiences: Vec<String>,
    /// Network of the Services' addresses: IPv4, /12 to /29
    #[arg(long, value_name = "CIDR", default_value_t)]
    pub(super) service_cluster_ip_range: ServiceNetwork,
    /// Of the plugins that this server has, only ServiceAccount can be switched off: then Pods need no service account
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',', value_parser = disabled_plugin)]
    disable_admission_plugins: Vec<String>,
    /// Plugins that must be there; refused if this server has not got them
    #[arg(long, value_name = "PLUGINS", value_delimiter = ',', value_parser = enabled_plugin)]
    enable_admission_plugins: Vec<String>,
    /// Not used: objects are kept in memory or in --store-dir. Taken, with a warning, because envtest always gives it
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    etcd_servers: Vec<String>,
    /// Privileged containers are always accepted: only true is taken
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = only::<true>)]
    allow_privileged: Option<bool>,
    /// Tokens of deleted service accounts are never accepted: only true is taken
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = only::<true>, hide = true)]
    service_account_lookup: Option<bool>,
    /// There is no port without TLS: only 0 is taken, with a warning. kube-apiserver has the flag no more; older tests give it
    #[arg(long, value_name = "PORT", value_parser = zero, hide = true)]
    insecure_port: Option<u16>,
    #[command(flatten)]
    pub(super) logging: KlogFlags,
}

impl KubeFlags {
    /// The address to listen on.
    pub(super) fn address(&self) -> SocketAddr {
        let ip = self.bind_address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        SocketAddr::new(ip, self.secure_port.unwrap_or(6443))
    }

    /// The address for discovery, of a server that listens on `listening`.
    pub(super) fn advertised(&self, listening: SocketAddr) -> SocketAddr {
        SocketAddr::new(self.advertise_address.unwrap_or(listening.ip()), listening.port())
    }

    /// Whether everybody may do everything.
    pub(super) fn allows_all(&self) -> bool {
        self.authorization_mode.iter().any(|mode| mode == "AlwaysAllow")
    }

    /// Why these flags cannot be used together.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let modes = &self.authorization_mode;
        let only_nodes = !modes.is_empty() && modes.iter().all(|mode| mode == "Node");
        only_nodes
            .then_some("there is no node authorizer: --authorization-mode Node alone would allow nothing")
    }

    /// As kube-apiserver, requests without credentials are nobody's where everything is allowed. Health and version stay readable.
    pub(super) fn anonymous(&self) -> Anonymous {
        match self.anonymous_auth {
            Some(false) => Anonymous::Off,
            _ if self.allows_all() => Anonymous::Paths,
            _ => Anonymous::On,
        }
    }

    /// Whether a Pod needs a service account.
    pub(super) fn pod_accounts(&self) -> bool {
        !self.disable_admission_plugins.iter().any(|plugin| plugin == SERVICE_ACCOUNT)
    }

    /// Logs what is taken but does less than a user may expect.
    pub(super) fn warn(&self, in_memory: bool) {
        self.logging.warn();
        if !self.etcd_servers.is_empty() {
            let place = if in_memory { "in memory, until this process ends" } else { "in --store-dir" };
            tracing::warn!(etcd = self.etcd_servers.join(","), "etcd is not used; objects are kept {place}");
        }
        if self.insecure_port.is_some() {
            tracing::warn!(
                "--insecure-port has no effect: there is no port without TLS, and kube-apiserver has the flag no more"
            );
        }
        if let (Some(dir), Some(file)) = (&self.cert_dir, &self.tls_cert_file) {
            tracing::warn!("--cert-dir {} is not used: --tls-cert-file is {}", dir.display(), file.display());
        }
        if self.authorization_mode.iter().any(|mode| mode == "Node") {
            tracing::warn!("there is no node authorizer: kubelets have only the rights that RBAC gives them");
        }
        if self.allows_all() && self.anonymous_auth == Some(true) {
            tracing::warn!(
                "with AlwaysAllow, requests without credentials are refused but for health and version"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Program {
        #[arg(long)]
        listen: Option<SocketAddr>,
        #[command(flatten)]
        flags: KubeFlags,
    }

    fn parsed(line: &str) -> Result<KubeFlags, String> {
        let words = std::iter::once("kube-apiserver").chain(line.split_whitespace());
        Program::try_parse_from(words).map(|program| program.flags).map_err(|error| error.to_string())
    }

    /// SP-126: the flags that envtest of controller-runtime 0.24 gives.
    #[test]
    fn sp_126_the_flags_of_envtest_are_taken() {
        let flags = parsed(
            "--allow-privileged=true --authorization-mode=RBAC --bind-address=127.0.0.1 --cert-dir=/tmp/c --client-ca=",
        );
        assert!(flags.unwrap_err().contains("--client-ca"), "an unknown flag is named");
        let flags = parsed(
            "--allow-privileged=true --authorization-mode=RBAC --bind-address=127.0.0.1 --cert-dir=/tmp/c \
             --disable-admission-plugins=ServiceAccount --etcd-servers=http://127.0.0.1:2379 --secure-port=1234 \
             --service-account-issuer=https://127.0.0.1:1234/ --service-account-key-file=/tmp/c/sa-signer.crt \
             --service-account-signing-key-file=/tmp/c/sa-signer.key --service-cluster-ip-range=10.0.0.0/24",
        )
        .unwrap();
        assert_eq!(flags.address(), "127.0.0.1:1234".parse().unwrap());
        assert!(!flags.pod_accounts() && !flags.allows_all());
        assert_eq!(flags.service_cluster_ip_range.to_string(), "10.0.0.0/24");
        assert_eq!((flags.anonymous(), flags.contradiction()), (Anonymous::On, None));
    }

    /// SP-126: what the server cannot do is refused, and the answer names the flag and the value.
    #[test]
    fn sp_126_what_cannot_be_obeyed_is_refused_by_name() {
        for (line, named) in [
            ("--allow-privileged=false", "--allow-privileged"),
            ("--service-account-lookup=false", "--service-account-lookup"),
            ("--insecure-port=8080", "--insecure-port"),
            ("--authorization-mode=RBAC,Webhook", "Webhook"),
            ("--disable-admission-plugins=NamespaceLifecycle", "NamespaceLifecycle"),
            ("--disable-admission-plugins=NoSuchPlugin", "NoSuchPlugin"),
            ("--enable-admission-plugins=NamespaceLifecycle,NodeRestriction", "NodeRestriction"),
            ("--service-cluster-ip-range=fd00::/108", "--service-cluster-ip-range"),
            ("--audit-log-path=/tmp/log", "--audit-log-path"),
            ("--etcd-cafile=/tmp/ca", "--etcd-cafile"),
            ("--tls-cert-file=/tmp/crt", "--tls-private-key-file"),
            ("--listen=127.0.0.1:1 --secure-port=2", "--secure-port"),
        ] {
            let said = parsed(line).map(|_| ()).unwrap_err();
            assert!(said.contains(named), "{line}: {said}");
        }
        for line in [
            "--insecure-port=0",
            "--cert-dir=/tmp/c --tls-cert-file=/tmp/crt --tls-private-key-file=/tmp/key",
            "--disable-admission-plugins=PodSecurity",
            "--enable-admission-plugins=Priority",
        ] {
            assert!(parsed(line).is_ok(), "{line}");
        }
        assert!(parsed("--authorization-mode=Node").unwrap().contradiction().is_some());
        assert!(parsed("--authorization-mode=Node,RBAC").unwrap().contradiction().is_none());
    }

    /// AS-061: where everything is allowed, nobody is anonymous.
    #[test]
    fn as_061_always_allow_is_not_for_everybody() {
        let anonymous = |line: &str| parsed(line).unwrap().anonymous();
        assert_eq!(anonymous(""), Anonymous::On);
        assert_eq!(anonymous("--anonymous-auth=false"), Anonymous::Off);
        assert_eq!(anonymous("--authorization-mode=AlwaysAllow"), Anonymous::Paths);
        assert_eq!(anonymous("--authorization-mode=AlwaysAllow --anonymous-auth"), Anonymous::Paths);
    }
}
