//! An object that is being read or written.

use tokio::time::Instant;

use super::{records::Write, rules::Target, shared::Agent, state::Wake};

/// Marks an object as being read or written, however that ends; events about it are processed afterwards.
pub(super) struct InFlight<'a> {
    agent: &'a Agent,
    work: &'a str,
    target: &'a Target,
    settled: bool,
}

impl<'a> InFlight<'a> {
    pub(super) fn begin(agent: &'a Agent, work: &'a str, target: &'a Target) -> Self {
        agent.state.lock().tracker.begin(target);
        Self { agent, work, target, settled: false }
    }

    /// Its record was stored together with what was written.
    pub(super) fn recorded(mut self) {
        self.settled = true;
    }

    fn settle(&self, write: Option<Write>) {
        let wake =
            self.agent.state.lock().tracker.settle(self.work, self.target, None, write, Instant::now());
        self.agent.wake(Wake::later(wake));
    }

    /// The object was written; the work's record of it stays as it is.
    pub(super) fn wrote(mut self, write: Write) {
        self.settled = true;
        self.settle(Some(write));
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.settle(None);
        }
    }
}
