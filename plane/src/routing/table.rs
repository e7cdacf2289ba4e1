//! The routes of the fast lane, as Python compiled them. A request is routed by exactly one table.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::router::{order_backends, Backend};
use crate::balancing::activity::RouteActivity;
use crate::balancing::in_flight::{Endpoint, Revision};
use crate::balancing::pick_endpoint::{LeastLoaded, PickEndpoint, Pod, PrefixAffinity};
use crate::balancing::prefix_affinity::Known;
use crate::caching::copies::CacheRule;
use crate::handover::locked;
use crate::judging::samples::GenerationSamples;

/// One revision of a route with its endpoints, in the order of `Route::backends`.
#[derive(Debug)]
pub struct Served {
    pub revision: Arc<Revision>,
    pub endpoints: Vec<Arc<Endpoint>>,
}

/// A route that Python published as plain.
#[derive(Debug)]
pub struct Route {
    /// `namespace/name`.
    pub name: String,
    /// By which servers know it.
    pub model: String,
    /// By which clients request it.
    pub id: String,
    pub salt: String,
    pub backends: Vec<Backend>,
    pub served: Vec<Served>,
    /// Names of the credentials that its servers get, in lower case.
    pub forwarded: Vec<String>,
    /// Requests of tenants are Python's: an engine of its endpoints knows no tenants.
    pub isolates: bool,
    pub activity: Arc<RouteActivity>,
    /// Where its requests are counted for the judge; None: nowhere.
    pub generation: Option<Arc<GenerationSamples>>,
    /// Requests may get copies of kept responses, and all others are Python's; None: there is no cache.
    pub cache: Option<CacheRule>,
    /// Endpoints that have seen the beginning of a prompt are preferred.
    pub prefix_affinity: bool,
    /// Python decides about each request for now: a revision is cut off.
    is_paused: AtomicBool,
    /// Until when its weights are in force without a renewal; None: for ever.
    valid_until: Mutex<Option<Instant>>,
}

/// What a name of a model stands for.
#[derive(Clone, Debug)]
pub enum Named {
    Plain(Arc<Route>),
    /// A route whose requests are all Python's, by the name that clients use, and the reason.
    Other(String, &'static str),
}

/// One state of all routes, by each of their names.
#[derive(Debug, Default)]
pub struct Table {
    pub names: HashMap<String, Named>,
    pub routes: Vec<Arc<Route>>,
}

impl Table {
    /// Whether a route is one of this table.
    pub fn has(&self, route: &Arc<Route>) -> bool {
        let named = self.names.get(&route.name);
        matches!(named, Some(Named::Plain(known)) if Arc::ptr_eq(known, route))
    }
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Choice {
    pub endpoint: Arc<Endpoint>,
    pub revision: Arc<Revision>,
    /// The pods among which it was chosen by a prompt, where they are kept for a recount.
    pub pods: Vec<Pod>,
}

/// A prompt by which an endpoint is chosen.
#[derive(Debug)]
pub struct Prompted<'a> {
    /// As `PromptBlocks::name`.
    pub name: &'a str,
    pub known: Known<'a>,
    /// Choices have their pods.
    pub keeps_pods: bool,
}

impl Route {
    #[allow(clippy::too_many_arguments)] // the fields of a struct that others may not change
    pub fn new(
        names: [String; 3],
        salt: String,
        backends: Vec<Backend>,
        served: Vec<Served>,
        forwarded: Vec<String>,
        activity: Arc<RouteActivity>,
        generation: Option<Arc<GenerationSamples>>,
    ) -> Self {
        let [name, model, id] = names;
        let (is_paused, valid_until) = (AtomicBool::new(false), Mutex::new(None));
        let isolates = false;
        Route {
            name,
            model,
            id,
            salt,
            backends,
            served,
            forwarded,
            isolates,
            activity,
            generation,
            cache: None,
            prefix_affinity: false,
            is_paused,
            valid_until,
        }
    }

    pub fn pause(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::SeqCst);
    }

    pub fn renew(&self, until: Option<Instant>) {
        *locked(&self.valid_until) = until;
    }

    /// Why Python decides about its requests now; None: it does not.
    pub fn why_python(&self) -> Option<&'static str> {
        if self.is_paused.load(Ordering::SeqCst) {
            return Some("failsafe");
        }
        let is_over = locked(&self.valid_until).is_some_and(|until| Instant::now() >= until);
        is_over.then_some("expired")
    }

    /// The endpoint by the weights of the route; ejected ones are used only where there is no other. None: there is none.
    ///
    /// `tenant`: whose request it is; empty: no tenant's. `prompt`: None where it has no part in the choice.
    pub fn pick(&self, key: &[u8], tenant: &str, prompt: Option<&Prompted<'_>>) -> Option<Choice> {
        self.pick_among(key, tenant, prompt, false).or_else(|| self.pick_among(key, tenant, prompt, true))
    }

    fn pick_among(
        &self,
        key: &[u8],
        tenant: &str,
        prompt: Option<&Prompted<'_>>,
        with_ejected: bool,
    ) -> Option<Choice> {
        order_backends(&self.backends, &self.salt, key).into_iter().find_map(|at| {
            let served = self.served.get(at)?;
            let mut pods = Vec::new();
            let endpoint = match served.endpoints.as_slice() {
                [only] if with_ejected || !only.is_ejected() => only,
                endpoints => {
                    pods.extend(endpoints.iter().map(|one| pod(one, tenant, with_ejected)));
                    let at = match prompt {
                        None => LeastLoaded.pick(&pods, key),
                        Some(prompt) => prompt.pick(&mut pods, key),
                    };
                    endpoints.get(at?)?
                }
            };
            pods.truncate(if prompt.is_some_and(|prompt| prompt.keeps_pods) { pods.len() } else { 0 });
            Some(Choice { endpoint: endpoint.clone(), revision: served.revision.clone(), pods })
        })
    }
}

impl Prompted<'_> {
    fn pick(&self, pods: &mut [Pod], key: &[u8]) -> Option<usize> {
        for pod in pods.iter_mut() {
            (pod.matched, pod.waiting) = (self.known.matched_at(&pod.url), self.known.waiting_at(&pod.url));
        }
        PrefixAffinity { name: self.name }.pick(pods, key)
    }
}

fn pod(endpoint: &Endpoint, tenant: &str, with_ejected: bool) -> Pod {
    let is_excluded = !with_ejected && endpoint.is_ejected();
    let of_tenant = if tenant.is_empty() { 0 } else { endpoint.of_tenant(tenant).total() };
    Pod { url: endpoint.url.clone(), in_flight: endpoint.load(), of_tenant, is_excluded, ..Pod::default() }
}
