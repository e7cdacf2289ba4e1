//! Prefix affinity as Python sees it: both lanes have the same blocks and the same prompts that wait.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::balancing::prefix_affinity;
use crate::balancing::prompt_blocks::{blocks_of, BlockHash, PromptBlocks};
use crate::handover::locked;

#[pyclass(frozen)]
pub struct PrefixRouting(pub Arc<prefix_affinity::PrefixRouting>);

fn hashes_of(joined: &[u8]) -> PyResult<Vec<BlockHash>> {
    let (hashes, rest) = joined.as_chunks();
    if !rest.is_empty() {
        return Err(PyValueError::new_err("hashes: they have 16 bytes each"));
    }
    Ok(hashes.to_vec())
}

#[pymethods]
impl PrefixRouting {
    #[new]
    fn new(max_blocks: usize) -> Self {
        PrefixRouting(Arc::new(prefix_affinity::PrefixRouting::new(max_blocks)))
    }

    #[getter]
    fn blocks(&self) -> usize {
        self.0.blocks()
    }

    fn follow(&self, py: Python<'_>, urls: HashSet<String>) {
        py.detach(|| self.0.follow(urls));
    }

    fn forget(&self, url: &str) {
        self.0.forget(url);
    }

    fn known(&self, hashes: &[u8], now_s: f64) -> PyResult<(HashMap<String, u64>, HashMap<String, i64>)> {
        Ok(self.0.known(&hashes_of(hashes)?, now_s).all())
    }

    fn matched_at(&self, hashes: &[u8], url: &str) -> PyResult<u64> {
        Ok(self.0.known(&hashes_of(hashes)?, 0.0).matched_at(url))
    }

    fn begin(&self, hashes: &[u8], size: usize, owner: String, url: &str) -> PyResult<Prefill> {
        let prompt = PromptBlocks { hashes: hashes_of(hashes)?, size, owner };
        Ok(self.0.begin(&prompt, url).into())
    }

    fn reported(&self, url: &str, header: &[u8], now_s: f64) {
        self.0.reported(url, header, now_s);
    }
}

#[pyclass(frozen)]
pub struct Prefill {
    inner: Mutex<prefix_affinity::Prefill>,
    #[pyo3(get)]
    size: usize,
}

impl From<prefix_affinity::Prefill> for Prefill {
    fn from(one: prefix_affinity::Prefill) -> Self {
        Prefill { size: one.size, inner: Mutex::new(one) }
    }
}

#[pymethods]
impl Prefill {
    fn end(&self) {
        locked(&self.inner).end();
    }
}

/// The hashes of a prompt's blocks, and its size.
#[pyfunction]
pub fn prompt_blocks(parts: Vec<Vec<u8>>, owner: &str, scope: &str) -> (Cow<'static, [u8]>, usize) {
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let prompt = blocks_of(&parts, owner, scope);
    (Cow::Owned(prompt.hashes.concat()), prompt.size)
}
