//! What requests of the fast lane are charged, added up until Python takes it to the ledger: one sum for each tenant, key,
//! model, revision and hour, as the ledger itself keeps them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::balancing::in_flight::Revision;
use crate::limits::places::Places;
use crate::quotas::usage::Usage;

/// Sums that may wait for Python. A request that would need one more is Python's, so that nothing is lost.
pub const MAX_SUMS: u64 = 4096;
/// Of them, what one tenant may have while it is alone.
const PERCENTAGE: u64 = 50;

/// Whose requests are added up. A tenant has no choice in any of it but which of its keys and models it uses.
#[derive(Clone, Debug)]
pub struct Payer {
    pub tenant: Arc<str>,
    /// The id of its API key.
    pub key: Arc<str>,
    pub revision: Arc<Revision>,
    pub hour: i64,
}

/// The names of a payer. A revision is the same one while a sum of it is here.
type Key = (Arc<str>, Arc<str>, usize, i64);

/// What requests of one payer came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Requests that took from the tenant's limits and were ended here.
    pub admitted: u64,
    /// Those of them that are charged.
    pub requests: u64,
    pub usage: Usage,
    pub cost_nano: i128,
    /// Responses whose servers reported no usage.
    pub estimated: u64,
    pub hits: Hits,
}

/// Responses from the gateway's cache, among the requests that are charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hits {
    pub requests: u64,
    /// Input and output tokens that they took from limits.
    pub limited: (i64, i64),
    pub saved: Saved,
}

/// What responses from a cache did not cost: tokens that were not computed, and money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Saved {
    pub usage: Usage,
    pub cost_nano: i128,
}

impl Saved {
    pub fn add(&mut self, other: &Saved) {
        add_usage(&mut self.usage, &other.usage);
        self.cost_nano = self.cost_nano.saturating_add(other.cost_nano);
    }
}

fn add_usage(total: &mut Usage, usage: &Usage) {
    total.input_tokens = total.input_tokens.saturating_add(usage.input_tokens);
    total.output_tokens = total.output_tokens.saturating_add(usage.output_tokens);
    total.cached_tokens = total.cached_tokens.saturating_add(usage.cached_tokens);
}

#[derive(Debug)]
pub struct Charges {
    sums: HashMap<Key, (Payer, Sums)>,
    /// Of sums, with a share for each tenant.
    places: Places,
}

impl Default for Charges {
    fn default() -> Self {
        Charges { sums: HashMap::new(), places: Places::new(MAX_SUMS, PERCENTAGE, 0) }
    }
}

/// One response with its cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    pub usage: Usage,
    pub cost_nano: i64,
    pub estimated: bool,
    /// Of a response from a cache: the tokens that it took from limits, and what it did not cost.
    pub hit: Option<((i64, i64), Saved)>,
}

impl Payer {
    fn key(&self) -> Key {
        (self.tenant.clone(), self.key.clone(), Arc::as_ptr(&self.revision) as usize, self.hour)
    }
}

impl Charges {
    /// Whether a request of this payer can be added.
    pub fn has_room(&mut self, payer: &Payer) -> bool {
        self.sums.contains_key(&payer.key()) || {
            let has_room = self.places.take(&payer.tenant).is_ok();
            if has_room {
                self.places.leave(&payer.tenant);
            }
            has_room
        }
    }

    /// Adds a request that ended. `charge`: None: it is charged nothing.
    pub fn add(&mut self, payer: &Payer, charge: Option<&Charge>) {
        let Charges { sums, places } = self;
        let (_, sums) = sums.entry(payer.key()).or_insert_with(|| {
            let _ = places.take(&payer.tenant); // those that had room and are at servers may be a few more
            (payer.clone(), Sums::default())
        });
        sums.admitted += 1;
        let Some(charge) = charge else { return };
        sums.requests += 1;
        add_usage(&mut sums.usage, &charge.usage);
        if let Some(((input, output), saved)) = &charge.hit {
            let limited = &mut sums.hits.limited;
            sums.hits.requests += 1;
            *limited = (limited.0.saturating_add(*input), limited.1.saturating_add(*output));
            sums.hits.saved.add(saved);
        }
        sums.cost_nano = sums.cost_nano.saturating_add(i128::from(charge.cost_nano));
        sums.estimated += u64::from(charge.estimated);
    }

    /// All sums since the last call.
    pub fn take(&mut self) -> Vec<(Payer, Sums)> {
        std::mem::take(self).sums.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payer(tenant: &str, key: &str) -> Payer {
        let revision = Arc::new(Revision::new("ns/m", "m", "r"));
        Payer { tenant: tenant.into(), key: key.into(), revision, hour: 1 }
    }

    #[test]
    fn requests_of_one_payer_are_one_sum() {
        let (mut charges, one) = (Charges::default(), payer("t", "k"));
        let usage = Usage { input_tokens: 3, output_tokens: 2, cached_tokens: 1 };
        for estimated in [true, false] {
            charges.add(&one, Some(&Charge { usage, cost_nano: 7, estimated, hit: None }));
        }
        charges.add(&one, None);
        let taken = charges.take();
        let usage = Usage { input_tokens: 6, output_tokens: 4, cached_tokens: 2 };
        let sums = Sums { admitted: 3, requests: 2, usage, cost_nano: 14, estimated: 1, hits: Hits::default() };
        assert_eq!(taken.iter().map(|(_, sums)| *sums).collect::<Vec<_>>(), [sums]);
        assert!(charges.take().is_empty());
    }

    #[test]
    fn a_hit_is_a_request_without_tokens_and_what_it_saved() {
        let (mut charges, one) = (Charges::default(), payer("t", "k"));
        let usage = Usage { input_tokens: 3, output_tokens: 2, cached_tokens: 1 };
        let saved = Saved { usage, cost_nano: 9 };
        let hit = Charge { usage: Usage::default(), cost_nano: 1, estimated: false, hit: Some(((3, 2), saved)) };
        charges.add(&one, Some(&Charge { usage, cost_nano: 7, estimated: false, hit: None }));
        charges.add(&one, Some(&hit));
        charges.add(&one, Some(&hit));
        let (_, sums) = charges.take()[0];
        assert_eq!((sums.requests, sums.usage, sums.cost_nano), (3, usage, 9));
        assert_eq!((sums.hits.requests, sums.hits.limited, sums.hits.saved.cost_nano), (2, (6, 4), 18));
        assert_eq!(sums.hits.saved.usage.cached_tokens, 2);
    }

    #[test]
    fn a_tenant_of_many_keys_leaves_room_to_others() {
        let mut charges = Charges::default();
        let first = payer("t", "first");
        let mut used = 0;
        while charges.has_room(&payer("t", &used.to_string())) {
            charges.add(&payer("t", &used.to_string()), None);
            used += 1;
        }
        assert_eq!(used, MAX_SUMS / 2);
        assert!(!charges.has_room(&first) && charges.has_room(&payer("other", "first")));
        charges.take();
        assert!(charges.has_room(&first));
    }
}
