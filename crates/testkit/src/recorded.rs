//! A client whose requests are written down.

use kube::{Client, client::Body};
use tokio::sync::watch;

/// The requests that somebody made, in order: `who PUT /api/v1/...`.
#[derive(Clone)]
pub struct Requests(pub watch::Sender<Vec<String>>);

impl Requests {
    pub fn new() -> Self {
        Self(watch::Sender::new(Vec::new()))
    }

    /// The same client, whose requests are written down in the name of `who`.
    pub fn of(&self, who: &str, client: Client) -> Client {
        let (log, who) = (self.0.clone(), who.to_owned());
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.send_modify(|all| all.push(format!("{who} {} {}", request.method(), request.uri())));
            let client = client.clone();
            async move { client.send(request).await.map_err(tower::BoxError::from) }
        });
        Client::new(service, namespace)
    }

    /// How many there are so far.
    pub fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// Those since a mark.
    pub fn since(&self, mark: usize) -> Vec<String> {
        self.0.borrow()[mark..].to_vec()
    }
}
