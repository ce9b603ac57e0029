//! A client whose requests are recorded.

use kube::{Client, client::Body};
use tokio::sync::watch;

/// Recorded requests, in order: `who PUT /api/v1/...`.
#[derive(Clone)]
pub(crate) struct Requests(pub(crate) watch::Sender<Vec<String>>);

impl Requests {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }

    /// The same client, whose requests are recorded under the name `who`.
    pub(crate) fn of(&self, who: &str, client: Client) -> Client {
        let (log, who) = (self.0.clone(), who.to_owned());
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.send_modify(|all| all.push(format!("{who} {} {}", request.method(), request.uri())));
            let client = client.clone();
            async move { client.send(request).await.map_err(tower::BoxError::from) }
        });
        Client::new(service, namespace)
    }

    /// Number of requests so far.
    pub(crate) fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// The requests since a mark.
    pub(crate) fn since(&self, mark: usize) -> Vec<String> {
        self.0.borrow()[mark..].to_vec()
    }
}
