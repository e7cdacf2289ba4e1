//! Public names: the ModelRoutes of a table, and the deployment to which the rules of one lead a request.

use std::collections::HashMap;
use std::sync::Arc;

use super::rules::{select, RouteMatch, RoutedRequest};
use super::split::choose;

/// How many ModelRoutes a request may pass.
const MOST_DEPTH: usize = 4;

/// A ModelRoute and the rule of it that a request passed.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct PassedRule {
    /// `namespace/name`.
    pub model_route: String,
    pub rule: String,
}

/// Where a rule leads requests.
#[derive(Clone, Debug)]
pub enum Target {
    /// `namespace/name` of a ModelDeployment, which may not be there.
    Deployment(String),
    /// The same of a further ModelRoute.
    ModelRoute(String),
    /// The rule may not lead there.
    Forbidden,
}

/// A rule of a ModelRoute.
#[derive(Debug)]
pub struct RouteRule {
    passed: Arc<PassedRule>,
    matches: Vec<RouteMatch>,
    /// With their weights in percent.
    targets: Vec<(Target, i64)>,
    /// Its requests need what the lane has not.
    is_python: bool,
    salt: String,
}

impl RouteRule {
    pub fn new(passed: PassedRule, matches: Vec<RouteMatch>, targets: Vec<(Target, i64)>, is_python: bool) -> Self {
        let salt = format!("{}/{}", passed.model_route, passed.rule);
        RouteRule { passed: Arc::new(passed), matches, targets, is_python, salt }
    }

    fn target(&self, key: &[u8]) -> Option<&Target> {
        let at = match self.targets.as_slice() {
            [_] => 0,
            targets => choose(targets.iter().map(|(_, weight)| *weight), self.salt.as_bytes(), key)?,
        };
        self.targets.get(at).map(|(target, _)| target)
    }
}

/// A ModelRoute.
#[derive(Debug)]
pub struct PublicRoute {
    /// `namespace/name`.
    pub name: String,
    pub rules: Vec<RouteRule>,
}

/// ModelRoutes by `namespace/name`.
pub type PublicRoutes = HashMap<String, Arc<PublicRoute>>;

/// The deployment to which rules lead a request, and those that it passed. None: Python decides, for example because
/// there is no deployment.
///
/// `key`: the sticky key, which chooses among the targets of a rule.
pub fn choose_target<'r>(
    routes: &'r PublicRoutes,
    first: &'r PublicRoute,
    request: &RoutedRequest<'_>,
    key: &[u8],
) -> Option<(&'r str, Vec<Arc<PassedRule>>)> {
    let (mut route, mut passed) = (first, Vec::new());
    for _ in 0..MOST_DEPTH {
        let at = select(route.rules.iter().map(|rule| rule.matches.as_slice()), request).ok()??;
        let rule = route.rules.get(at).filter(|rule| !rule.is_python)?;
        passed.push(rule.passed.clone());
        match rule.target(key)? {
            Target::Deployment(name) => return Some((name, passed)),
            Target::ModelRoute(name) => route = routes.get(name)?,
            Target::Forbidden => return None,
        }
    }
    None
}
