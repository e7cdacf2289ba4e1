//! Which rule of a ModelRoute a request fits.

use std::cell::OnceCell;

use super::router::HeaderMatch;
use crate::wire::headers::Headers;
use crate::wire::prompts;
use crate::wire::request_fields::RequestFields;

const BYTES_PER_TOKEN: usize = 4;

/// What rules look at. A prompt is searched once, however many rules and chains look at what it has.
#[derive(Debug)]
pub struct RoutedRequest<'a> {
    headers: Headers<'a>,
    tenant: &'a str,
    fields: &'a RequestFields<'a>,
    body_bytes: usize,
    images: OnceCell<bool>,
    code: OnceCell<bool>,
}

impl<'a> RoutedRequest<'a> {
    /// `tenant`: empty without one.
    pub fn new(headers: Headers<'a>, tenant: &'a str, fields: &'a RequestFields<'a>, body_bytes: usize) -> Self {
        RoutedRequest { headers, tenant, fields, body_bytes, images: OnceCell::new(), code: OnceCell::new() }
    }

    fn has_tools(&self) -> bool {
        prompts::has_tools(self.fields)
    }

    fn has_images(&self) -> bool {
        *self.images.get_or_init(|| prompts::has_images(self.fields))
    }

    fn has_code(&self) -> bool {
        *self.code.get_or_init(|| prompts::has_code(self.fields))
    }
}

/// A rule needs what Python alone knows of a request: the time of day, or what a classifier predicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unknown;

/// A tenant by its name, or those whose names begin alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TenantPattern {
    Name(String),
    Beginning(String),
}

impl TenantPattern {
    /// `written`: a name, or a beginning with `*` behind it.
    pub fn new(written: &str) -> Self {
        match written.strip_suffix('*') {
            Some(beginning) => TenantPattern::Beginning(beginning.to_owned()),
            None => TenantPattern::Name(written.to_owned()),
        }
    }

    fn fits(&self, tenant: &str) -> bool {
        match self {
            TenantPattern::Name(name) => tenant == name,
            TenantPattern::Beginning(beginning) => tenant.starts_with(beginning),
        }
    }
}

/// The least and the largest number; None: there is no such limit.
pub type Range = (Option<i64>, Option<i64>);

/// One item of a rule's matches: all its conditions must hold. What is empty or None is no condition.
#[derive(Clone, Debug, Default)]
pub struct RouteMatch {
    pub tenants: Vec<TenantPattern>,
    pub headers: Vec<HeaderMatch>,
    pub prompt_bytes: Option<Range>,
    pub prompt_tokens: Option<Range>,
    pub has_tools: Option<bool>,
    pub has_images: Option<bool>,
    pub has_code: Option<bool>,
    /// It has conditions that Python alone knows.
    pub needs_python: bool,
}

impl RouteMatch {
    /// Whether a request fits all conditions that are known here.
    fn fits(&self, request: &RoutedRequest<'_>) -> bool {
        let tenant = request.tenant;
        let is_tenant =
            self.tenants.is_empty() || (!tenant.is_empty() && self.tenants.iter().any(|one| one.fits(tenant)));
        is_tenant && self.headers.iter().all(|one| one.fits(request.headers)) && self.fits_body(request)
    }

    fn fits_body(&self, request: &RoutedRequest<'_>) -> bool {
        let bytes = || prompts::prompt_bytes(request.fields, request.body_bytes);
        self.prompt_bytes.is_none_or(|range| is_in(range, bytes()))
            && self.prompt_tokens.is_none_or(|range| is_in(range, tokens_of(bytes())))
            && self.has_tools.is_none_or(|wanted| wanted == request.has_tools())
            && self.has_images.is_none_or(|wanted| wanted == request.has_images())
            && self.has_code.is_none_or(|wanted| wanted == request.has_code())
    }
}

/// The first list of matches that a request fits. A list without items fits all requests.
///
/// # Errors
/// Unknown: whether the request fits one of the lists before is not known here.
pub fn select<'r>(
    rules: impl IntoIterator<Item = &'r [RouteMatch]>,
    request: &RoutedRequest<'_>,
) -> Result<Option<usize>, Unknown> {
    for (at, matches) in rules.into_iter().enumerate() {
        if matches.is_empty() {
            return Ok(Some(at));
        }
        let mut is_unknown = false;
        for one in matches.iter().filter(|one| one.fits(request)) {
            if !one.needs_python {
                return Ok(Some(at));
            }
            is_unknown = true;
        }
        if is_unknown {
            return Err(Unknown);
        }
    }
    Ok(None)
}

/// The estimated tokens of a prompt.
fn tokens_of(prompt_bytes: usize) -> usize {
    prompt_bytes.div_ceil(BYTES_PER_TOKEN)
}

fn is_in((least, most): Range, number: usize) -> bool {
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
}

#[cfg(test)]
mod tests {
    use super::{select, RouteMatch, RoutedRequest, TenantPattern, Unknown};
    use crate::routing::router::HeaderMatch;
    use crate::wire::request_fields::RequestFields;

    fn of_tenant(pattern: &str) -> RouteMatch {
        RouteMatch { tenants: vec![TenantPattern::new(pattern)], ..RouteMatch::default() }
    }

    fn selected(rules: &[Vec<RouteMatch>], tenant: &str) -> Result<Option<usize>, Unknown> {
        let headers = [httparse::Header { name: "X-App", value: b"ide-1" }];
        let fields = RequestFields::parse(br#"{"prompt":"12345","tools":[]}"#).unwrap();
        let request = RoutedRequest::new(&headers, tenant, &fields, 30);
        select(rules.iter().map(Vec::as_slice), &request)
    }

    #[test]
    fn the_first_rule_of_which_a_request_fits_an_item_decides() {
        let headers = vec![HeaderMatch::new("x-app", None, Some("ide-"))];
        let both = RouteMatch { headers, ..of_tenant("gold-*") };
        let rules = [vec![both], vec![of_tenant("silver"), of_tenant("gold-*")], vec![]];
        assert_eq!(selected(&rules, "gold-1"), Ok(Some(0)));
        assert_eq!(selected(&rules, "silver"), Ok(Some(1)));
        assert_eq!(selected(&rules, "silver-1"), Ok(Some(2)));
        assert_eq!(selected(&rules[..2], ""), Ok(None));
    }

    #[test]
    fn python_decides_only_where_what_it_alone_knows_decides() {
        let timed = |pattern| RouteMatch { needs_python: true, ..of_tenant(pattern) };
        assert_eq!(selected(&[vec![timed("a")], vec![]], "b"), Ok(Some(1)));
        assert_eq!(selected(&[vec![timed("a")], vec![]], "a"), Err(Unknown));
        assert_eq!(selected(&[vec![timed("a"), of_tenant("a")], vec![]], "a"), Ok(Some(0)));
    }

    #[test]
    fn a_prompt_is_searched_once_for_all_rules() {
        let fields = RequestFields::parse(br#"{"prompt":"```"}"#).unwrap();
        let request = RoutedRequest::new(&[], "", &fields, 16);
        let wants = RouteMatch { has_code: Some(false), has_images: Some(true), ..RouteMatch::default() };
        assert_eq!(select([std::slice::from_ref(&wants); 64], &request), Ok(None));
        // The second condition is not looked at where the first one does not hold.
        assert_eq!((request.images.get(), request.code.get()), (Some(&false), None));
    }

    #[test]
    fn sizes_are_those_of_the_prompt_and_ranges_include_their_ends() {
        let sized = |least, most| RouteMatch { prompt_bytes: Some((least, most)), ..RouteMatch::default() };
        // `"12345"` with its quotes, and `[]`.
        assert_eq!(selected(&[vec![sized(Some(9), Some(9))]], ""), Ok(Some(0)));
        assert_eq!(selected(&[vec![sized(Some(10), None)]], ""), Ok(None));
        let tokens = RouteMatch { prompt_tokens: Some((Some(3), Some(3))), ..RouteMatch::default() };
        assert_eq!(selected(&[vec![tokens]], ""), Ok(Some(0)));
        let tools = RouteMatch { has_tools: Some(true), ..RouteMatch::default() };
        assert_eq!(selected(&[vec![tools]], ""), Ok(None));
    }
}
