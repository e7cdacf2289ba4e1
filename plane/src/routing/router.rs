//! Choice of a revision and an endpoint for one request: weight first, then availability, then least load.

use super::split::{choose, tag};
use crate::balancing::pick_endpoint::{PickEndpoint, Pod};
use crate::wire::headers::{first_value, Headers};

/// Suffix of a revision's label: new pods of it, with which the revision under test is compared.
const BASELINE: &str = "-baseline";

/// Match of a request header, by its whole value or the beginning of its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMatch {
    name: String,
    wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wanted {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Nothing,
}

impl HeaderMatch {
    /// `name`: in lower case. A match with neither value fits no request; with both `exact` counts.
    pub fn new(name: &str, exact: Option<&str>, prefix: Option<&str>) -> Self {
        // Names of hosts have no case.
        let value = |text: &str| if name == "host" { text.to_lowercase() } else { text.to_owned() }.into_bytes();
        let wanted = match (exact, prefix) {
            (Some(exact), _) => Wanted::Exact(value(exact)),
            (None, Some(prefix)) => Wanted::Prefix(value(prefix)),
            (None, None) => Wanted::Nothing,
        };
        HeaderMatch { name: name.to_owned(), wanted }
    }

    /// Whether a request has this header. Its values are ASCII, as those of a plain head.
    pub fn fits(&self, headers: Headers<'_>) -> bool {
        let Some(value) = first_value(headers, &self.name) else { return false };
        if self.name == "host" {
            return self.wanted.fits(&host_name(value));
        }
        self.wanted.fits(value)
    }
}

impl Wanted {
    fn fits(&self, value: &[u8]) -> bool {
        match self {
            Wanted::Exact(exact) => value == exact,
            Wanted::Prefix(prefix) => value.starts_with(prefix),
            Wanted::Nothing => false,
        }
    }
}

/// The host in lower case and without the port; an IPv6 address keeps its colons.
fn host_name(host: &[u8]) -> Vec<u8> {
    let colon = host.iter().rposition(|byte| *byte == b':');
    let name = colon.and_then(|at| {
        let (name, port) = (&host[..at], &host[at + 1..]);
        let is_port = !port.is_empty() && port.iter().all(u8::is_ascii_digit);
        (is_port && !name.ends_with(b":")).then_some(name)
    });
    name.unwrap_or(host).to_ascii_lowercase()
}

/// A revision of a route, with its share of new requests in percent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    pub revision: String,
    pub weight: i64,
}

/// The revision that the split gives a key, whether it has an endpoint or not; None when there is no split.
pub fn assign_revision<'b>(backends: &'b [Backend], salt: &str, key: &[u8]) -> Option<&'b str> {
    let at = match backends {
        [only] if only.weight == 100 => 0,
        _ => choose(backends.iter().map(|backend| backend.weight), salt.as_bytes(), key)?,
    };
    backends.get(at).map(|backend| backend.revision.as_str())
}

/// Indexes of backends in the order in which a key tries them: its own, its baseline or base, those with weight, the
/// rest.
pub fn order_backends(backends: &[Backend], salt: &str, key: &[u8]) -> Vec<usize> {
    let all = 0..backends.len();
    if backends.len() < 2 {
        return all.collect();
    }
    let weights = backends.iter().map(|backend| backend.weight);
    let Some(own) = choose(weights, salt.as_bytes(), key) else { return all.collect() };
    let same = base_revision(&backends[own].revision);
    let rank = |at: &usize| {
        let backend = &backends[*at];
        (base_revision(&backend.revision) != same, backend.weight == 0)
    };
    let mut others: Vec<usize> = (own + 1..backends.len()).chain(0..own).collect();
    others.sort_by_key(rank); // stable
    others.insert(0, own);
    others
}

/// The revision that pods with this label run.
pub fn base_revision(revision: &str) -> &str {
    revision.strip_suffix(BASELINE).unwrap_or(revision)
}

/// The backend and the pod of the first revision that has one; None when no revision has one.
///
/// `pods_of`: the pods of a revision that the request may go to. The `avoided` revision comes last: better a bad one
/// than none.
pub fn pick<'p>(
    backends: &[Backend],
    salt: &str,
    key: &[u8],
    avoided: &str,
    policy: &dyn PickEndpoint,
    pods_of: impl Fn(usize) -> &'p [Pod],
) -> Option<(usize, usize)> {
    let mut order = order_backends(backends, salt, key);
    if !avoided.is_empty() {
        order.sort_by_key(|at| backends[*at].revision == avoided); // stable
    }
    order.into_iter().find_map(|at| policy.pick(pods_of(at), key).map(|pod| (at, pod)))
}

/// The pod in one revision, where a stream goes on: that with the tag `holder` comes first, whatever its load.
pub fn pick_holder(pods: &[Pod], key: &[u8], holder: &str, policy: &dyn PickEndpoint) -> Option<usize> {
    let is_holder = |pod: &Pod| !pod.is_excluded && tag(&pod.url) == holder;
    let holders: Vec<usize> = (0..pods.len()).filter(|at| is_holder(&pods[*at])).collect();
    if holder.is_empty() || holders.is_empty() {
        return policy.pick(pods, key);
    }
    let held: Vec<Pod> = holders.iter().map(|at| pods[*at].clone()).collect();
    policy.pick(&held, key).and_then(|at| holders.get(at).copied())
}
