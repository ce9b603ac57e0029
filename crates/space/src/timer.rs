//! Time limits of connections that do not count time in which this process stood still (SP-055).
//!
//! After SIGSTOP and SIGCONT, or when the machine was suspended, timers end before the process has read what clients have sent
//! meanwhile. A connection would be closed although its next request is there already.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use hyper::rt::{Sleep, Timer};

/// A timer that ends later than this is a sign that the process stood still.
const LATE: Duration = Duration::from_secs(1);
/// How long what has arrived meanwhile may then take to be read.
const SECOND_LOOK: Duration = Duration::from_secs(2);

/// hyper's timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PatientTimer;

struct PatientSleep {
    sleep: Pin<Box<tokio::time::Sleep>>,
    prolonged: bool,
}

impl Timer for PatientTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let sleep = Box::pin(tokio::time::sleep_until(deadline.into()));
        Box::pin(PatientSleep { sleep, prolonged: false })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }
}

impl Sleep for PatientSleep {}

impl Future for PatientSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        ready!(self.sleep.as_mut().poll(context));
        let now = tokio::time::Instant::now();
        if self.prolonged || now - self.sleep.deadline() < LATE {
            return Poll::Ready(());
        }
        self.prolonged = true;
        self.sleep.as_mut().reset(now + SECOND_LOOK);
        self.sleep.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-055: a limit that passed while the process stood still leaves time to read what has arrived.
    #[tokio::test(start_paused = true)]
    async fn sp_055_a_limit_does_not_end_while_the_process_stands_still() {
        let limit = Duration::from_secs(30);
        let begun = tokio::time::Instant::now();
        PatientTimer.sleep(limit).await;
        assert_eq!(begun.elapsed(), limit);
        let begun = tokio::time::Instant::now();
        let mut sleep = PatientTimer.sleep(limit);
        assert!(futures::poll!(&mut sleep).is_pending());
        tokio::time::advance(Duration::from_secs(90)).await;
        assert!(futures::poll!(&mut sleep).is_pending(), "nothing was read yet");
        sleep.await;
        assert_eq!(begun.elapsed(), Duration::from_secs(90) + SECOND_LOOK);
    }
}
