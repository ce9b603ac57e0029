//! The people of the table: every credential that the system hands out, and users with the default roles.

use apiserver::identity::{Caller, UserInfo};
use http::request::Builder;
use ocm_shared::rbac::Subject;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use std::sync::Arc;

use super::super::super::rbac;

/// The namespace of the users that have rights in one namespace.
pub(super) const TEAM: &str = "team";
/// The user whose Role in [`TEAM`] allows everything.
pub(super) const EVERYTHING: &str = "a user with a Role of everything in one namespace";
/// A user without any binding.
pub(super) const SOMEBODY: &str = "any authenticated user";

/// Whether a title is that of a client from outside the hub: an agent, or one that wants to join.
pub(super) fn is_outside_the_hub(title: &str) -> bool {
    ["agent", "bootstrap", "joining", "joins"].iter().any(|word| title.contains(word))
}

/// Whether a title is that of a user or administrator, and not of a component.
pub(super) fn is_user(title: &str) -> bool {
    title.contains("user") || title.starts_with("the administrator")
}

/// How a person proves who it is.
#[derive(Clone)]
enum Credential {
    /// Nothing.
    None,
    /// A client inside the process.
    Internal(Arc<UserInfo>),
    /// A client certificate.
    Certificate(Arc<Vec<CertificateDer<'static>>>),
    /// A bearer token.
    Token(String),
}

/// One person of the table.
#[derive(Clone)]
pub(super) struct Person {
    pub(super) title: String,
    /// Its own namespace, and the name of its own cluster-scoped object.
    pub(super) own: String,
    /// It takes part in the test of ways to write a path.
    pub(super) tries_paths: bool,
    credential: Credential,
    /// Subjects of bindings that it stands for: user names and groups.
    subjects: Vec<String>,
}

impl Person {
    fn new(title: &str, own: &str, credential: Credential, subjects: Vec<String>) -> Self {
        Self { title: title.to_owned(), own: own.to_owned(), tries_paths: false, credential, subjects }
    }

    /// A user that the transport or the process has identified.
    fn user(title: &str, own: &str, name: &str, groups: &[&str]) -> Self {
        let subjects = std::iter::once(name).chain(groups.iter().copied()).map(str::to_owned).collect();
        Self::new(title, own, Credential::Internal(Arc::new(UserInfo::internal(name, groups))), subjects)
    }

    /// An account of the OCM agents.
    fn subject(title: &str, own: &str, subject: &Subject) -> Self {
        let groups: Vec<&str> = subject.groups.iter().map(String::as_str).collect();
        Self::user(title, own, &subject.user, &groups)
    }

    /// The holder of a certificate in PEM. `subjects` are the subjects of bindings that it stands for.
    pub(super) fn certificate(title: &str, own: &str, pem: &str, subjects: &[&str]) -> Self {
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
        let credential = Credential::Certificate(Arc::new(chain.expect("PEM")));
        Self::new(title, own, credential, subjects.iter().map(ToString::to_string).collect())
    }

    /// The holder of a bearer token.
    pub(super) fn token(title: &str, own: &str, token: &str, subjects: &[&str]) -> Self {
        let subjects = subjects.iter().map(ToString::to_string).collect();
        Self::new(title, own, Credential::Token(token.to_owned()), subjects)
    }

    /// Nobody.
    pub(super) fn anonymous() -> Self {
        Self::new("without a credential", TEAM, Credential::None, vec![])
    }

    fn trying_paths(mut self) -> Self {
        self.tries_paths = true;
        self
    }

    /// Whether the credential is a real one, and not an identity inside the process.
    pub(super) fn is_real(&self) -> bool {
        matches!(self.credential, Credential::Certificate(_) | Credential::Token(_))
    }

    /// Whether a binding of this subject counts for the person.
    pub(super) fn is(&self, subject: &str) -> bool {
        self.subjects.iter().any(|own| own == subject)
    }

    /// Adds the credential to a request.
    pub(super) fn sign(&self, request: Builder) -> Builder {
        match &self.credential {
            Credential::None => request.extension(Caller::Plain),
            Credential::Internal(user) => request.extension(Caller::Internal(user.clone())),
            Credential::Certificate(chain) => request.extension(Caller::Certificate(chain.clone())),
            Credential::Token(token) => {
                request.extension(Caller::Plain).header("authorization", format!("Bearer {token}"))
            }
        }
    }
}

/// The default roles for users, which the tests bind.
pub(super) const DEFAULT_ROLES: [&str; 3] = ["admin", "edit", "view"];

/// Whom every space has.
pub(super) fn of_every_space(admin_certificate: &str) -> Vec<Person> {
    let mut people = vec![
        Person::anonymous().trying_paths(),
        Person::user(SOMEBODY, TEAM, "somebody", &[]),
        Person::certificate("the administrator of the space", TEAM, admin_certificate, &["system:masters"]),
        Person::user(EVERYTHING, TEAM, "everything", &[]).trying_paths(),
    ];
    for role in DEFAULT_ROLES {
        people.push(Person::user(&format!("a user with the role {role} in one namespace"), TEAM, role, &[]));
        let everywhere = format!("{role}-everywhere");
        people.push(Person::user(&format!("a user with the role {role} everywhere"), TEAM, &everywhere, &[]));
    }
    people
}

/// The controllers of a WDS, in the WDS and in its ITS.
pub(super) fn controllers() -> Vec<Person> {
    vec![
        component("the controller manager", "kubestellar:controller-manager"),
        component("the transport controller", "kubestellar:transport-controller"),
    ]
}

/// What can be switched on in a WDS.
pub(super) fn options_of_wds() -> Vec<Person> {
    vec![
        component("Metacontroller", "kubestellar:metacontroller"),
        component("the component that labels Helm releases", "kubestellar:helm-releases"),
    ]
}

fn component(title: &str, user: &str) -> Person {
    Person::user(title, TEAM, user, &[])
}

/// The agents of a cluster on the hub, and whoever is bound beside them. They have the certificate `pem`, or none where
/// nobody signs.
pub(super) fn agents_on_hub(cluster: &str, pem: Option<&str>) -> Vec<Person> {
    let group = format!("system:open-cluster-management:{cluster}");
    let other = format!("open-cluster-management:{cluster}");
    let title = format!("the registration and work agents of {cluster}");
    let agents = match pem {
        Some(pem) => Person::certificate(&title, cluster, pem, &[&group]),
        None => Person::subject(&title, cluster, &Subject::klusterlet(cluster, "work-agent")),
    };
    vec![
        agents.trying_paths(),
        Person::user(&format!("the agents of {cluster} by another authenticator"), cluster, "x", &[&other]),
        Person::subject(&format!("the status agent of {cluster}"), cluster, &Subject::status_addon(cluster)),
    ]
}

/// Clients that want to join. `account` is a token of the service account, `token` a bootstrap token.
pub(super) fn joining(account: &str, token: &str) -> Vec<Person> {
    let asking = format!("{}cluster1", rbac::VOUCHED);
    let user = "system:serviceaccount:open-cluster-management:agent-registration-bootstrap";
    vec![
        Person::token("a bootstrap token", "cluster1", token, &[ocm_shared::bootstrap::GROUP]).trying_paths(),
        Person::token("the service account for joining", "cluster1", account, &[user]),
        Person::user("an embedded cluster that joins", "cluster1", &asking, &[ocm_shared::bootstrap::GROUP]),
    ]
}

/// The agents in their cluster.
pub(super) fn agents_in_cluster() -> Vec<Person> {
    let (agents, addons) = (apis::constants::OCM_AGENT_NAMESPACE, apis::constants::OCM_ADDON_NAMESPACE);
    vec![
        Person::subject("the registration agent", agents, &Subject::registration_account()).trying_paths(),
        Person::subject("the work agent", agents, &Subject::work_agent_account()),
        Person::subject("the status agent", addons, &Subject::status_agent_account()),
    ]
}
