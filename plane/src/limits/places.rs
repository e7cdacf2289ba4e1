//! Places with a share for each owner (pure): twin of `slipway_process/places.py`, for one owner and one place at a time.

use std::collections::HashMap;

/// Why no place can be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Total,
    Share,
}

/// How many of something may be held at once, in total and by one owner.
#[derive(Debug)]
pub struct Places {
    limit: u64,
    used: u64,
    ratio: f64,
    most: u64,
    held: HashMap<String, u64>,
}

impl Places {
    /// `percentage`: of all places, what one owner may hold while it is alone; 100: all of them. `most`: what one
    /// owner may hold in any case; 0: no such bound.
    pub fn new(limit: u64, percentage: u64, most: u64) -> Self {
        let ratio = if percentage < 100 { percentage as f64 / (100 - percentage) as f64 } else { limit as f64 };
        let most = if most == 0 { limit } else { most };
        Places { limit, used: 0, ratio, most, held: HashMap::new() }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    /// Takes a place until `leave`.
    pub fn take(&mut self, owner: &str) -> Result<(), Refusal> {
        self.take_many(owner, 1)
    }

    /// Takes `size` places until `leave_many`, or none.
    pub fn take_many(&mut self, owner: &str, size: u64) -> Result<(), Refusal> {
        let free = self.limit.saturating_sub(self.used);
        if size > free {
            return Err(Refusal::Total);
        }
        let held = self.held.get_mut(owner);
        let now = held.as_deref().copied().unwrap_or(0) + size;
        if now as f64 > (self.most as f64).min(free as f64 * self.ratio) {
            return Err(Refusal::Share);
        }
        self.used += size;
        match held {
            Some(held) => *held = now,
            None => {
                self.held.insert(owner.to_owned(), now);
            }
        }
        Ok(())
    }

    /// Gives a place back that `owner` took. Without effect where it holds none.
    pub fn leave(&mut self, owner: &str) {
        self.leave_many(owner, 1);
    }

    /// Gives places back that `owner` took, as many as it holds at most.
    pub fn leave_many(&mut self, owner: &str, size: u64) {
        let Some(held) = self.held.get_mut(owner) else { return };
        let size = size.min(*held);
        self.used -= size;
        *held -= size;
        if *held == 0 {
            self.held.remove(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_owner_has_half_and_the_total_is_kept() {
        let mut places = Places::new(10, 50, 0);
        for _ in 0..5 {
            assert_eq!(places.take("a"), Ok(()));
        }
        assert_eq!(places.take("a"), Err(Refusal::Share));
        for n in 0..5 {
            assert_eq!(places.take(&format!("b{n}")), Ok(()));
        }
        assert_eq!(places.take("c"), Err(Refusal::Total));
        places.leave("a");
        places.leave("stranger");
        assert_eq!((places.take("c"), places.used()), (Ok(()), 10));
    }

    proptest! {
        #[test]
        fn only_what_is_held_is_counted(
            limit in 1u64..8, most in 0u64..8, steps in prop::collection::vec((any::<bool>(), 0usize..3), 0..60)
        ) {
            let (mut places, mut inside) = (Places::new(limit, 50, most), [0u64; 3]);
            for (comes, who) in steps {
                let owner = ["a", "b", "c"][who];
                if comes {
                    inside[who] += u64::from(places.take(owner).is_ok());
                } else if inside[who] > 0 {
                    places.leave(owner);
                    inside[who] -= 1;
                }
                prop_assert_eq!(places.used(), inside.iter().sum::<u64>());
                prop_assert!(places.used() <= limit);
                let largest = if most > 0 { most } else { limit.div_ceil(2) };
                prop_assert!(inside.iter().all(|held| *held <= largest));
            }
        }
    }
}
