//! Servers that refuse requests, lose responses or do not answer.

use std::sync::{Arc, Mutex};

use http::{Request, Response, StatusCode, header};
use kube::{Client, client::Body};
use serde_json::json;
use tokio::sync::watch;

use testkit::wait::shows;

/// What happens to a request instead of its normal processing.
#[derive(Clone, Copy)]
pub(crate) enum Fault {
    /// The server refuses it with this code.
    Refuse(u16),
    /// The server processes it but answers with an error.
    Lose,
    /// The server never answers.
    Hang,
}

struct Rule {
    /// The start of `METHOD path?query`, and another part of it.
    start: String,
    part: String,
    fault: Fault,
    times: usize,
}

/// The faults of a server, and the requests it received.
#[derive(Default)]
pub(crate) struct Faults {
    rules: Mutex<Vec<Rule>>,
    /// `METHOD path?query` of all requests.
    asked: watch::Sender<Vec<String>>,
}

impl Faults {
    /// Applies a fault to the next `times` requests whose `METHOD path?query` begins with `start` and
    /// contains `part`.
    pub(crate) fn next(&self, times: usize, start: &str, part: &str, fault: Fault) {
        let (start, part) = (start.to_owned(), part.to_owned());
        self.rules.lock().unwrap().push(Rule { start, part, fault, times });
    }

    /// Applies a fault to all such requests from now on.
    pub(crate) fn always(&self, start: &str, part: &str, fault: Fault) {
        self.next(usize::MAX, start, part, fault);
    }

    pub(crate) fn is_sound(&self) -> bool {
        self.rules.lock().unwrap().iter().all(|rule| rule.times == 0)
    }

    /// Returns how many requests began with `start` and contained `part`.
    pub(crate) fn asked(&self, start: &str, part: &str) -> usize {
        self.asked.borrow().iter().filter(|it| it.starts_with(start) && it.contains(part)).count()
    }

    /// Waits until at least `times` requests have begun with `start`.
    pub(crate) async fn until_asked(&self, times: usize, start: &str) {
        let mut asked = self.asked.subscribe();
        let enough = |all: &Vec<String>| all.iter().filter(|it| it.starts_with(start)).count() >= times;
        shows(start, &mut asked, enough).await;
    }

    /// A client that sends requests to `client` through these faults.
    pub(crate) fn client(self: &Arc<Self>, client: Client) -> Client {
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (faults, client) = (faults.clone(), client.clone());
            async move { faults.pass(client, request).await }
        });
        Client::new(service, "default")
    }

    async fn pass(&self, client: Client, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let asked = format!("{} {path}", request.method());
        self.asked.send_modify(|all| all.push(asked.clone()));
        match self.due(&asked) {
            None => client.send(request).await,
            Some(Fault::Refuse(code)) => Ok(refusal(code)),
            Some(Fault::Lose) => {
                client.send(request).await?;
                Ok(refusal(500))
            }
            Some(Fault::Hang) => std::future::pending().await,
        }
    }

    fn due(&self, asked: &str) -> Option<Fault> {
        let mut rules = self.rules.lock().unwrap();
        let meant =
            |rule: &&mut Rule| rule.times > 0 && asked.starts_with(&rule.start) && asked.contains(&rule.part);
        let rule = rules.iter_mut().find(meant)?;
        rule.times = rule.times.saturating_sub(1);
        Some(rule.fault)
    }
}

fn refusal(code: u16) -> Response<Body> {
    let reason = if code == 409 { "Conflict" } else { "Refused" };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "reason": reason, "message": "refused by the test"});
    let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
    let response = response.header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(status.to_string().into_bytes())).unwrap()
}
