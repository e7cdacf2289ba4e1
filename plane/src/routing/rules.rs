//! Rules that come before the split of a route: by headers, by a share of requests, by tenants; and names of routes.
//!
//! Python compiles the table and hands it over; today it has header routes, and later kinds of rules need no code here.

use std::collections::{HashMap, HashSet};

use super::router::HeaderMatch;
use super::split::choose;
use crate::wire::headers::Headers;

/// What a rule demands of a request.
#[derive(Clone, Debug)]
pub enum Condition {
    Header(HeaderMatch),
    /// Percent of the sticky keys, by a hash with a salt of the rule's own.
    Percentage {
        percent: i64,
        salt: String,
    },
    /// One of these tenants; a request without a tenant fits none.
    Tenants(HashSet<String>),
}

/// What rules know of a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub headers: Headers<'a>,
    pub key: &'a [u8],
    /// Empty without one.
    pub tenant: &'a str,
}

impl Condition {
    pub fn fits(&self, facts: &Facts<'_>) -> bool {
        match self {
            Condition::Header(one) => one.fits(facts.headers),
            Condition::Percentage { percent, salt } => choose([*percent], salt.as_bytes(), facts.key).is_some(),
            Condition::Tenants(names) => !facts.tenant.is_empty() && names.contains(facts.tenant),
        }
    }
}

/// A rule: a request that fits all conditions goes to the revision while it has an endpoint.
#[derive(Clone, Debug)]
pub struct Rule {
    pub conditions: Vec<Condition>,
    pub revision: String,
}

/// The rules of one route, in their order.
#[derive(Clone, Debug, Default)]
pub struct RouteRules {
    rules: Vec<Rule>,
}

impl RouteRules {
    /// A rule without conditions fits no request.
    pub fn new(rules: Vec<Rule>) -> Self {
        RouteRules { rules: rules.into_iter().filter(|rule| !rule.conditions.is_empty()).collect() }
    }

    /// The revision of the first rule that a request fits.
    pub fn revision(&self, facts: &Facts<'_>) -> Option<&str> {
        let fits = |rule: &&Rule| rule.conditions.iter().all(|condition| condition.fits(facts));
        self.rules.iter().find(fits).map(|rule| rule.revision.as_str())
    }
}

/// Which route has a name: names of models, `namespace/name`, and aliases of one or the other.
#[derive(Clone, Debug, Default)]
pub struct RouteNames {
    routes: HashMap<String, usize>,
}

impl RouteNames {
    /// `aliases`: other names by the name that they stand for. An alias hides no name and stands for no alias.
    pub fn new(names: impl IntoIterator<Item = (String, usize)>, aliases: &[(String, String)]) -> Self {
        let named: HashMap<String, usize> = names.into_iter().collect();
        let mut routes = named.clone();
        for (alias, name) in aliases {
            if let Some(route) = named.get(name) {
                routes.entry(alias.clone()).or_insert(*route);
            }
        }
        RouteNames { routes }
    }

    /// The index of the route with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.routes.get(name).copied()
    }
}
