//! Places for requests, of which one user has only a share (AS-070).

use std::collections::HashMap;

use parking_lot::Mutex;

/// At most `most` places are taken at once, at most `per_user` of them by one user.
pub(super) struct Places {
    most: usize,
    per_user: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    /// Users without a place have no entry.
    users: HashMap<String, usize>,
}

/// A taken place. Dropping it frees it.
pub(super) struct Place<'p> {
    places: &'p Places,
    user: String,
}

impl Places {
    pub(super) fn new(most: usize, per_user: usize) -> Self {
        Self { most, per_user, taken: Mutex::default() }
    }

    /// Takes a place; `None` if none is left, or none for this user.
    pub(super) fn take(&self, user: &str) -> Option<Place<'_>> {
        let mut taken = self.taken.lock();
        if !self.has_place(&taken, user) {
            return None;
        }
        taken.all += 1;
        *taken.users.entry(user.to_owned()).or_default() += 1;
        Some(Place { places: self, user: user.to_owned() })
    }

    /// Whether [`Places::take`] would give a place now.
    pub(super) fn has(&self, user: &str) -> bool {
        self.has_place(&self.taken.lock(), user)
    }

    fn has_place(&self, taken: &Taken, user: &str) -> bool {
        taken.all < self.most && taken.users.get(user).is_none_or(|own| *own < self.per_user)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.users.get_mut(&self.user) {
            *own -= 1;
            if *own == 0 {
                taken.users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-070: a user has a share, all users together have all places, and a place that is freed is there again.
    #[test]
    fn as_070_a_user_has_a_share_of_the_places() {
        let places = Places::new(3, 2);
        let first = places.take("alice");
        let second = places.take("alice");
        assert!(first.is_some() && second.is_some());
        assert!(!places.has("alice") && places.take("alice").is_none());
        let third = places.take("bob");
        assert!(third.is_some() && !places.has("bob") && places.take("carol").is_none());
        drop(first);
        assert!(places.has("alice") && places.has("carol"));
        drop((second, third));
        let taken = places.taken.lock();
        assert!(taken.all == 0 && taken.users.is_empty());
    }
}
