//! How the Space Manager orders what should become of spaces. The installation, which owns them, carries the orders out one
//! after the other.

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use space_manager::{Access, Component, ComponentState, Role, Spaces, SpacesError};
use tokio::sync::{broadcast, mpsc, oneshot};

type Answer<T> = oneshot::Sender<Result<T, SpacesError>>;

/// An order, and where its outcome goes.
pub(super) enum Order {
    Open { space: String, owner: String, role: Role, answer: Answer<Access> },
    Suspend { space: String, answer: Answer<()> },
    Delete { space: String, owner: String, answer: Answer<()> },
    Abandoned { space: String, answer: Answer<()> },
    Run { space: String, component: Component, answer: Answer<ComponentState> },
    Client { space: String, answer: Answer<Client> },
}

/// The spaces of an installation, as its Space Manager knows them.
pub(super) struct Hosted {
    orders: mpsc::Sender<Order>,
    changes: broadcast::Sender<Arc<str>>,
}

impl Hosted {
    /// Most orders that wait.
    pub(super) const WAITING: usize = 256;

    pub(super) fn new(orders: mpsc::Sender<Order>, changes: broadcast::Sender<Arc<str>>) -> Self {
        Self { orders, changes }
    }

    /// Something about a space changed that its ControlPlane shows.
    pub(super) fn changed(&self, space: &str) {
        // Nobody may be listening.
        let _ = self.changes.send(space.into());
    }

    fn order<T: Send + 'static>(
        &self,
        order: impl FnOnce(Answer<T>) -> Order,
    ) -> BoxFuture<'_, Result<T, SpacesError>> {
        let (answer, outcome) = oneshot::channel();
        let order = order(answer);
        Box::pin(async move {
            let stops = || SpacesError("the server is being stopped".into());
            self.orders.send(order).await.map_err(|_| stops())?;
            outcome.await.map_err(|_| stops())?
        })
    }
}

impl Spaces for Hosted {
    fn open<'a>(
        &'a self,
        space: &'a str,
        owner: &'a str,
        role: Role,
    ) -> BoxFuture<'a, Result<Access, SpacesError>> {
        self.order(|answer| Order::Open { space: space.to_owned(), owner: owner.to_owned(), role, answer })
    }

    fn suspend<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        self.order(|answer| Order::Suspend { space: space.to_owned(), answer })
    }

    fn delete<'a>(&'a self, space: &'a str, owner: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        self.order(|answer| Order::Delete { space: space.to_owned(), owner: owner.to_owned(), answer })
    }

    fn abandoned<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        self.order(|answer| Order::Abandoned { space: space.to_owned(), answer })
    }

    fn run<'a>(
        &'a self,
        space: &'a str,
        component: &'a Component,
    ) -> BoxFuture<'a, Result<ComponentState, SpacesError>> {
        self.order(|answer| Order::Run { space: space.to_owned(), component: component.clone(), answer })
    }

    fn client<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<Client, SpacesError>> {
        self.order(|answer| Order::Client { space: space.to_owned(), answer })
    }

    fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.changes.subscribe()
    }
}
