//! Times that a clock which was ahead has written. Pure; the present time is an argument.

use std::collections::HashMap;

use k8s_openapi::jiff::Timestamp;

/// Times that lie in the future, and when each was first seen. Without this, a renewal by a clock that was ahead, the hub's or an
/// agent's, would keep what is long gone alive until that time comes.
#[derive(Debug, Default)]
pub struct FutureTimes(HashMap<String, (Timestamp, Timestamp)>);

impl FutureTimes {
    /// The time that counts for what `key` names: `time` itself, or, if that lies in the future, when it was first seen.
    pub fn heard_at(&mut self, key: &str, time: Timestamp, now: Timestamp) -> Timestamp {
        if time <= now {
            self.0.remove(key);
            return time;
        }
        match self.0.get(key) {
            Some((known, seen)) if *known == time && *seen <= now => *seen,
            _ => {
                self.0.insert(key.to_owned(), (time, now));
                now
            }
        }
    }

    /// Forgets what is gone.
    pub fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_049_a_time_of_the_future_counts_from_when_it_was_seen() {
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        let mut times = FutureTimes::default();
        assert_eq!(times.heard_at("a", at(5), at(10)), at(5), "the past counts as it is");
        assert_eq!(times.heard_at("a", at(99), at(10)), at(10));
        assert_eq!(times.heard_at("a", at(99), at(20)), at(10), "still the same one");
        assert_eq!(times.heard_at("a", at(98), at(30)), at(30), "another one");
        assert_eq!(times.heard_at("a", at(98), at(25)), at(25), "this clock went back");
        times.forget("a");
        assert_eq!(times.heard_at("a", at(98), at(40)), at(40));
    }
}
