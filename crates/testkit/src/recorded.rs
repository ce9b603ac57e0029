//! A client whose requests are recorded.

use std::time::Duration;

use kube::{Client, client::Body};
use tokio::sync::watch;

/// Longest wait for an event that should happen at once.
const DEADLINE: Duration = Duration::from_secs(60);

/// Recorded requests, in order: `who PUT /api/v1/...`.
#[derive(Clone, Default)]
pub struct Requests(pub watch::Sender<Vec<String>>);

impl Requests {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the same client, whose requests are recorded under the name `who`.
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

    /// Returns the number of requests so far.
    pub fn mark(&self) -> usize {
        self.0.borrow().len()
    }

    /// Returns the requests since a mark.
    pub fn since(&self, mark: usize) -> Vec<String> {
        self.0.borrow()[mark..].to_vec()
    }

    /// Returns the number of requests for which `such` is true.
    pub fn count(&self, such: impl Fn(&str) -> bool) -> usize {
        self.since(0).iter().filter(|line| such(line)).count()
    }

    /// Waits for `number` more requests for which `such` is true.
    ///
    /// # Panics
    ///
    /// If they do not come within a minute.
    pub async fn more(&self, number: usize, such: impl Fn(&str) -> bool) {
        let (mark, mut news) = (self.mark(), self.0.subscribe());
        let enough = news.wait_for(|all| all[mark..].iter().filter(|line| such(line)).count() >= number);
        tokio::time::timeout(DEADLINE, enough).await.expect("requests").expect("a sender").len();
    }
}
