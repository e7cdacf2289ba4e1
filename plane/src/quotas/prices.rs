//! What tokens cost, in whole numbers: a billionth of the currency is one `nano`.

use super::usage::Usage;

/// The most that one request costs: a billion of the currency. Ledgers add up costs in 64 bits.
pub const MAX_COST_NANO: i64 = 1_000_000_000_000_000_000;

/// Prices of a million tokens (`_micro`: millionths of the currency) and of a request (`_nano`: billionths).
///
/// `model`: a name, or the beginning of names and a `*`. `cached_input_micro`: of cached input; None: as other input.
/// `hit_percentage`: what the tokens of a response from a gateway's cache cost, in percent of their price.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Price {
    pub model: String,
    pub input_micro: i64,
    pub output_micro: i64,
    pub cached_input_micro: Option<i64>,
    pub request_nano: i64,
    pub hit_percentage: i64,
}

impl Price {
    /// The cost of one request in billionths of the currency, rounded up once, at most `MAX_COST_NANO`.
    pub fn cost_nano(&self, usage: &Usage) -> i64 {
        self.with_request(self.pico(usage), 1000)
    }

    /// The cost of a request whose response came from a gateway's cache.
    pub fn hit_cost_nano(&self, usage: &Usage) -> i64 {
        self.with_request(self.pico(usage).saturating_mul(i128::from(self.hit_percentage)), 100_000)
    }

    /// The price of the tokens alone, in thousandths of a billionth.
    fn pico(&self, usage: &Usage) -> i128 {
        let cached = self.cached_input_micro.unwrap_or(self.input_micro);
        let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens);
        // Two numbers of 63 bits each: their products, and the sum of three, may need more than 127.
        let times = |tokens: i64, micro: i64| i128::from(tokens) * i128::from(micro);
        times(fresh, self.input_micro)
            .saturating_add(times(usage.cached_tokens, cached))
            .saturating_add(times(usage.output_tokens, self.output_micro))
    }

    /// The price of a request and of its tokens, of which `parts` are a billionth.
    fn with_request(&self, tokens: i128, parts: i128) -> i64 {
        let nano = tokens.div_euclid(parts) + i128::from(tokens.rem_euclid(parts) != 0);
        let cost = nano.saturating_add(i128::from(self.request_nano)).min(i128::from(MAX_COST_NANO));
        i64::try_from(cost).unwrap_or(i64::MIN)
    }

    fn matches(&self, name: &str) -> bool {
        match self.model.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => name == self.model,
        }
    }

    fn rank(&self) -> (bool, usize) {
        (!self.model.ends_with('*'), self.model.chars().count())
    }
}

/// The price that matches one of the names best, else none, which is free: whole names come before beginnings, longer
/// ones first, and of equal ones the first.
pub fn price_of<'p>(prices: &'p [Price], names: &[&str]) -> Option<&'p Price> {
    let matching = prices.iter().filter(|price| names.iter().any(|name| price.matches(name)));
    matching.reduce(|best, price| if price.rank() > best.rank() { price } else { best })
}
