//! What Python sees: the module `slipway_plane._native`. Every class and function here has its types in `_native.pyi`.
#![allow(unsafe_code)]

mod lane;
mod listener;
mod prefixes;
mod relay;
mod tenants;
mod twins;

use std::net::IpAddr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The version of the crate.
#[pyfunction]
fn version() -> &'static str {
    crate::VERSION
}

#[pyfunction]
fn address_owner(host: &str) -> PyResult<String> {
    let address: IpAddr = host.parse().map_err(|_| PyValueError::new_err("host: no address of IPv4 or IPv6"))?;
    Ok(crate::limits::connections::address_owner(address))
}

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_submodule(&twins::module(module.py())?)?;
    module.add_function(wrap_pyfunction!(version, module)?)?;
    module.add_function(wrap_pyfunction!(address_owner, module)?)?;
    module.add_class::<listener::Listener>()?;
    module.add_class::<listener::News>()?;
    module.add_class::<listener::Handed>()?;
    module.add_class::<listener::Secured>()?;
    module.add_class::<listener::Places>()?;
    module.add_class::<tenants::Quotas>()?;
    module.add_class::<tenants::TenantQuota>()?;
    module.add_class::<tenants::Reservation>()?;
    module.add_class::<tenants::Spending>()?;
    module.add_class::<tenants::LaneTenant>()?;
    module.add_class::<prefixes::PrefixRouting>()?;
    module.add_class::<prefixes::Prefill>()?;
    module.add_class::<lane::TenantCharge>()?;
    module.add_class::<lane::Paid>()?;
    module.add_class::<lane::Sessions>()?;
    module.add_class::<lane::Units>()?;
    module.add_class::<lane::Generation>()?;
    module.add_class::<lane::Lane>()?;
    module.add_class::<lane::LaneRoute>()?;
    module.add_class::<lane::LaneCounts>()?;
    module.add_class::<lane::RevisionCounts>()?;
    module.add_class::<lane::LogEntry>()?;
    module.add_class::<lane::Recount>()?;
    module.add_class::<lane::RecountedHit>()?;
    module.add_class::<lane::RecountedPrompt>()?;
    module.add_class::<lane::Begun>()?;
    module.add_class::<relay::ChunkDecoder>()?;
    module.add_class::<relay::EventRelay>()?;
    module.add_class::<relay::Passed>()?;
    module.add_function(wrap_pyfunction!(lane::is_good_response, module)?)?;
    module.add_function(wrap_pyfunction!(lane::is_varied_text, module)?)?;
    module.add_function(wrap_pyfunction!(lane::http_date, module)?)
}
