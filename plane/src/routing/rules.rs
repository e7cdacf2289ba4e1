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

#[cfg(test)]
mod tests {
    use super::{Condition, Facts, RouteNames, RouteRules, Rule};
    use crate::routing::router::HeaderMatch;

    fn rule(revision: &str, conditions: Vec<Condition>) -> Rule {
        Rule { conditions, revision: revision.to_owned() }
    }

    fn percentage(percent: i64, salt: &str) -> Condition {
        Condition::Percentage { percent, salt: salt.to_owned() }
    }

    #[test]
    fn the_first_rule_whose_conditions_all_hold_decides() {
        let header = || Condition::Header(HeaderMatch::new("x-user", Some("a"), None));
        let tenants = |names: &[&str]| Condition::Tenants(names.iter().map(|name| (*name).to_owned()).collect());
        let rules = RouteRules::new(vec![
            rule("never", vec![]),
            rule("both", vec![header(), tenants(&["t1"])]),
            rule("tenant", vec![tenants(&["t1", "t2", ""])]),
            rule("header", vec![header()]),
        ]);
        let listed = [httparse::Header { name: "X-User", value: b"a" }];
        let revision = |headers, tenant| rules.revision(&Facts { headers, key: b"k", tenant }).map(str::to_owned);
        assert_eq!(revision(&listed, "t1").as_deref(), Some("both"));
        assert_eq!(revision(&[], "t1").as_deref(), Some("tenant"));
        assert_eq!(revision(&listed, "").as_deref(), Some("header"));
        assert_eq!(revision(&[], ""), None);
    }

    #[test]
    fn a_percentage_takes_its_share_of_keys_and_salts_differ() {
        let (first, second) = (percentage(20, "a"), percentage(20, "b"));
        let keys: Vec<String> = (0..10_000).map(|n| format!("user:{n}")).collect();
        let fits = |condition: &Condition, key: &String| {
            condition.fits(&Facts { headers: &[], key: key.as_bytes(), tenant: "" })
        };
        let share = keys.iter().filter(|key| fits(&first, key)).count();
        assert!((1_900..2_100).contains(&share), "{share}");
        let both = keys.iter().filter(|key| fits(&first, key) && fits(&second, key)).count();
        assert!((300..500).contains(&both), "{both}");
        assert!(keys.iter().all(|key| fits(&percentage(100, "a"), key) && !fits(&percentage(0, "a"), key)));
    }

    #[test]
    fn an_alias_stands_for_a_name_and_hides_none() {
        let names = [("m", 0), ("ns/m", 0), ("n", 1)].map(|(name, at)| (name.to_owned(), at));
        let alias = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let aliases = [alias("latest", "n"), alias("m", "n"), alias("second", "latest"), alias("gone", "x")];
        let known = RouteNames::new(names, &aliases);
        let found = ["m", "ns/m", "n", "latest", "second", "gone"].map(|name| known.find(name));
        assert_eq!(found, [Some(0), Some(0), Some(1), Some(1), None, None]);
    }
}
