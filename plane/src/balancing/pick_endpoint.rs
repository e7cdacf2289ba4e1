//! The endpoint of a revision that gets a request. Other policies implement the same trait.

use crate::routing::split::affinity;

/// What one more request in flight costs, in bytes of a prompt that is computed: while it has its turn in each step of the
/// engine, so many could be computed.
const REQUEST_BYTES: i64 = 512;

/// One endpoint, with the numbers by which it is chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    pub url: String,
    /// Requests of clients that this gateway has there.
    pub in_flight: u64,
    /// The part of them that is of the tenant whose request it is.
    pub of_tenant: u64,
    /// It was tried before, or it is ejected.
    pub is_excluded: bool,
    /// Bytes of the prompt that its cache has, and bytes of other prompts that it has to compute.
    pub matched: u64,
    pub waiting: i64,
}

impl Pod {
    /// The same tenant's requests count twice: servers share their time among the tenants whose requests they have, so a
    /// tenant whose requests are all at one endpoint gets a share of that endpoint alone.
    pub fn load(&self) -> u64 {
        self.in_flight.saturating_add(self.of_tenant)
    }
}

/// Chooses among the pods of one revision.
pub trait PickEndpoint {
    /// The index of a pod that is not excluded; None when there is none. `key`: the sticky key of the request.
    fn pick(&self, pods: &[Pod], key: &[u8]) -> Option<usize>;
}

/// The least loaded pod; at equal load a key keeps its pod.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl PickEndpoint for LeastLoaded {
    fn pick(&self, pods: &[Pod], key: &[u8]) -> Option<usize> {
        cheapest(pods, key, |pod| i64::try_from(pod.load()).unwrap_or(i64::MAX))
    }
}

/// The pod that computes the least before the first token of a prompt: what it has of others, and what its cache lacks of
/// this one. Where no cache has anything of the prompt it is the least loaded one.
#[derive(Clone, Copy, Debug)]
pub struct PrefixAffinity<'a> {
    /// At equal cost prompts of this name have the same pod, in every gateway; empty: the key decides.
    pub name: &'a str,
}

impl PickEndpoint for PrefixAffinity<'_> {
    fn pick(&self, pods: &[Pod], key: &[u8]) -> Option<usize> {
        let key = if self.name.is_empty() { key } else { self.name.as_bytes() };
        if !pods.iter().any(|pod| !pod.is_excluded && pod.matched > 0) {
            return LeastLoaded.pick(pods, key);
        }
        cheapest(pods, key, |pod| {
            let load = i64::try_from(pod.load()).unwrap_or(i64::MAX);
            let matched = i64::try_from(pod.matched).unwrap_or(i64::MAX);
            pod.waiting.saturating_sub(matched).saturating_add(load.saturating_mul(REQUEST_BYTES))
        })
    }
}

/// The pod with the least cost; of several it is the same one for the same key.
fn cheapest(pods: &[Pod], key: &[u8], cost: impl Fn(&Pod) -> i64) -> Option<usize> {
    let open = || pods.iter().enumerate().filter(|(_, pod)| !pod.is_excluded);
    let least = open().map(|(_, pod)| cost(pod)).min()?;
    let mut ties = open().filter(|(_, pod)| cost(pod) == least);
    let (first, pod) = ties.next()?;
    let Some((second, other)) = ties.next() else { return Some(first) };
    // A hash for each tie only.
    let two = [(first, pod), (second, other)];
    two.into_iter().chain(ties).min_by_key(|(_, pod)| affinity(&pod.url, key)).map(|(at, _)| at)
}
