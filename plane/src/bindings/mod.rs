//! What Python sees: the module `slipway_plane._native`. Every class and function here has its types in `_native.pyi`.
#![allow(unsafe_code)]

mod twins;

use pyo3::prelude::*;

/// The version of the crate.
#[pyfunction]
fn version() -> &'static str {
    crate::VERSION
}

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_submodule(&twins::module(module.py())?)?;
    module.add_function(wrap_pyfunction!(version, module)?)
}
