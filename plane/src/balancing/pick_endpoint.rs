//! The endpoint of a revision that gets a request. Other policies implement the same trait.

use crate::routing::split::affinity;

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
    pub reported: Reported,
}

/// What Python pushes about an endpoint, as its pod reported it last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    /// Requests that wait in the engine.
    pub waiting: u32,
    /// Percent of the cache for keys and values that is taken.
    pub cache_percent: f32,
}

/// Chooses among the pods of one revision.
pub trait PickEndpoint {
    /// The index of a pod that is not excluded; None when there is none. `key`: the sticky key of the request.
    fn pick(&self, pods: &[Pod], key: &[u8]) -> Option<usize>;
}

/// The least loaded pod; at equal load a key keeps its pod.
///
/// The same tenant's requests count twice: servers share their time among the tenants whose requests they have, so a
/// tenant whose requests are all at one endpoint gets a share of that endpoint alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeastLoaded;

impl PickEndpoint for LeastLoaded {
    fn pick(&self, pods: &[Pod], key: &[u8]) -> Option<usize> {
        let load = |pod: &Pod| pod.in_flight.saturating_add(pod.of_tenant);
        let open = || pods.iter().enumerate().filter(|(_, pod)| !pod.is_excluded);
        let least = open().map(|(_, pod)| load(pod)).min()?;
        let mut ties = open().filter(|(_, pod)| load(pod) == least);
        let (first, pod) = ties.next()?;
        let Some((second, other)) = ties.next() else { return Some(first) };
        // A hash for each tie only.
        let two = [(first, pod), (second, other)];
        two.into_iter().chain(ties).min_by_key(|(_, pod)| affinity(&pod.url, key)).map(|(at, _)| at)
    }
}
