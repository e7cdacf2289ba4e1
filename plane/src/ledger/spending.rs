//! What tenants spent, for their budgets: the ledger's totals, and costs that are not written there yet. Both lanes count
//! here, so that neither spends what the other one has spent.

use std::collections::HashMap;

use super::periods::{day_begin, month_begin};

/// Most that a tenant may spend in a day and in a month, in billionths of the currency; None: no bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    pub day_nano: Option<i128>,
    pub month_nano: Option<i128>,
}

/// Costs of one tenant in a day and a month, in billionths of the currency.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    pub day_nano: i128,
    pub month_nano: i128,
}

/// Costs of all tenants, as one process knows them, in billionths of the currency.
#[derive(Debug, Default)]
pub struct Spending {
    spent: HashMap<String, Spent>,
    hour: i64,
    /// Costs that are not in the ledger yet: of responses that ended, and the expected ones of running requests.
    unwritten: HashMap<String, i128>,
}

impl Spending {
    /// Adopts the ledger's totals, read at this hour, which have all that was written until now.
    pub fn read(&mut self, spent: HashMap<String, Spent>, hour: i64) {
        (self.spent, self.hour) = (spent, hour);
    }

    /// So much was written to the ledger.
    pub fn written(&mut self, added: &[(String, i128)]) {
        for (tenant, nano) in added {
            let spent = self.spent.entry(tenant.clone()).or_default();
            spent.day_nano = spent.day_nano.saturating_add(*nano);
            spent.month_nano = spent.month_nano.saturating_add(*nano);
        }
    }

    /// Adds to the costs of a tenant that are not written yet; `nano` below 0 takes from them.
    pub fn expect(&mut self, tenant: &str, nano: i128) {
        match self.unwritten.get_mut(tenant) {
            Some(total) => {
                *total = total.saturating_add(nano);
                if *total == 0 {
                    self.unwritten.remove(tenant);
                }
            }
            None if nano != 0 => {
                self.unwritten.insert(tenant.to_owned(), nano);
            }
            None => {}
        }
    }

    /// Adds an expected cost, unless a budget is used up: then it returns the period, and changes nothing.
    pub fn begin(&mut self, tenant: &str, nano: i128, budget: &Budget, hour: i64) -> &'static str {
        let period = self.exhausted(tenant, budget, hour);
        if period.is_empty() {
            self.expect(tenant, nano);
        }
        period
    }

    /// What is not written yet.
    pub fn unwritten(&self, tenant: &str) -> i128 {
        self.unwritten.get(tenant).copied().unwrap_or(0)
    }

    /// What a tenant spent in the day and the month of this hour, with costs that are not written yet.
    pub fn of(&self, tenant: &str, hour: i64) -> Spent {
        let (written, unwritten) = (self.written_at(tenant, hour), self.unwritten(tenant));
        Spent {
            day_nano: written.day_nano.saturating_add(unwritten),
            month_nano: written.month_nano.saturating_add(unwritten),
        }
    }

    /// The period whose budget a tenant has used up, `day` or `month`; empty when there is none.
    pub fn exhausted(&self, tenant: &str, budget: &Budget, hour: i64) -> &'static str {
        if budget.day_nano.is_none() && budget.month_nano.is_none() {
            return "";
        }
        let spent = self.of(tenant, hour);
        if budget.month_nano.is_some_and(|most| spent.month_nano >= most) {
            return "month";
        }
        if budget.day_nano.is_some_and(|most| spent.day_nano >= most) {
            return "day";
        }
        ""
    }

    /// What the ledger has of a tenant for the day and the month of this hour.
    fn written_at(&self, tenant: &str, hour: i64) -> Spent {
        let spent = self.spent.get(tenant).copied().unwrap_or_default();
        if hour == self.hour {
            return spent;
        }
        Spent {
            day_nano: if day_begin(hour) == day_begin(self.hour) { spent.day_nano } else { 0 },
            month_nano: if month_begin(hour) == month_begin(self.hour) { spent.month_nano } else { 0 },
        }
    }
}
