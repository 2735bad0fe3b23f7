//! A random generator that a seed determines: splitmix64.

use std::time::Duration;

pub struct Chance(u64);

impl Chance {
    /// A generator for one `part` of the rig, whose draws do not depend on how often others draw.
    pub fn of(seed: u64, part: u64) -> Self {
        let mut mixed = Self(seed ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        mixed.next();
        mixed
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `limit`, which is not zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// Between two durations, to the millisecond.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let spread = most.saturating_sub(least).as_millis() as u64;
        least + Duration::from_millis(self.below(spread + 1))
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}
