//! A client whose requests are written down.

use std::time::Duration;

use kube::{Client, client::Body};
use tokio::sync::watch;

/// Longest wait for a request; a test that works does not come near.
const DEADLINE: Duration = Duration::from_secs(60);

/// The requests that somebody made, in order: `who PUT /api/v1/...`.
#[derive(Clone, Default)]
pub struct Requests(pub watch::Sender<Vec<String>>);

impl Requests {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
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

    /// How many of a sort there are so far.
    pub fn count(&self, such: impl Fn(&str) -> bool) -> usize {
        self.since(0).iter().filter(|line| such(line)).count()
    }

    /// Waits for so many more requests of a sort.
    ///
    /// # Panics
    /// When they do not come.
    pub async fn more(&self, number: usize, such: impl Fn(&str) -> bool) {
        let (mark, mut news) = (self.mark(), self.0.subscribe());
        let enough = news.wait_for(|all| all[mark..].iter().filter(|line| such(line)).count() >= number);
        tokio::time::timeout(DEADLINE, enough).await.expect("requests").expect("a sender").len();
    }
}
