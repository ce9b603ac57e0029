//! Chance that comes again with the same seed.

/// The seed that KUBESTELLAR_TEST_SEED names, or one of the clock's; printed, so that a failure can be seen again.
pub fn any_seed() -> u64 {
    let clock = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap_or_default()
    };
    let seed = std::env::var("KUBESTELLAR_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(clock);
    println!("KUBESTELLAR_TEST_SEED={seed}");
    seed
}

/// SplitMix64: enough to choose what to do, and when to kill.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }
}
