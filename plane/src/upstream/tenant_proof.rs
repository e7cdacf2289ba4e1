//! Signs the tenant of a request for servers, which verify it.

use std::collections::{HashMap, VecDeque};

use crate::wire::request_fields::{hexadecimal, hmac_sha256};

pub const WINDOW_S: f64 = 60.0;
/// Proofs: about 4 MB.
const MAX_KEPT: usize = 8192;

/// The first of the release's keys, which Python reads and pushes.
#[derive(Clone)]
pub struct SigningKey {
    pub id: String,
    pub master: Vec<u8>,
}

impl SigningKey {
    /// The signature that servers verify, with a key of the deployment's namespace. `deployment`: namespace/name.
    pub fn proof(&self, tenant: &str, deployment: &str, window: i64) -> String {
        let window = window.to_string();
        let about = ["v1", tenant, deployment, &window].join("\0");
        let signed = hmac_sha256(&self.key_of(deployment), &[about.as_bytes()]);
        format!("v1.{}.{window}.{}", self.id, hexadecimal(&signed))
    }

    /// The signature of a weight, by the same key.
    pub fn sign_weight(&self, tenant: &str, deployment: &str, window: i64, weight: &str) -> String {
        let about = ["weight v1", tenant, deployment, &window.to_string(), weight].join("\0");
        hexadecimal(&hmac_sha256(&self.key_of(deployment), &[about.as_bytes()]))
    }

    /// The `cache_salt` of a tenant at engines of `deployment`, in 64 hexadecimal digits.
    ///
    /// `client_salt`: digest of the salt that the client sends, which divides the tenant's own cache.
    pub fn cache_salt(&self, tenant: &str, deployment: &str, client_salt: &[u8]) -> String {
        let about = format!("cache salt v1\0{deployment}\0{tenant}\0");
        hexadecimal(&hmac_sha256(&self.key_of(deployment), &[about.as_bytes(), client_salt]))
    }

    fn key_of(&self, deployment: &str) -> [u8; 32] {
        let namespace = deployment.split('/').next().unwrap_or_default();
        hmac_sha256(&self.master, &[b"slipway tenant key\0", namespace.as_bytes()])
    }
}

/// A proof of a tenant, and the signature of its weight, empty where there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantProof {
    window: i64,
    pub proof: String,
    pub weight_signature: String,
}

/// Proofs of this minute, each made once.
pub struct TenantSigner {
    key: SigningKey,
    kept: HashMap<[String; 3], TenantProof>,
    /// In the order in which they came to be.
    order: VecDeque<[String; 3]>,
}

impl std::fmt::Debug for TenantSigner {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "TenantSigner({})", self.key.id) // the key itself is a secret
    }
}

impl TenantSigner {
    /// Another key needs another signer.
    pub fn new(key: SigningKey) -> Self {
        TenantSigner { key, kept: HashMap::new(), order: VecDeque::new() }
    }

    /// The proof of a tenant at a deployment. `weight`: empty where it is 1. `now_s`: Unix time.
    pub fn sign(&mut self, tenant: &str, deployment: &str, weight: &str, now_s: f64) -> TenantProof {
        let window = (now_s / WINDOW_S).floor() as i64;
        let about = [tenant, deployment, weight].map(str::to_owned);
        if let Some(kept) = self.kept.get(&about).filter(|kept| kept.window == window) {
            return kept.clone();
        }
        let proof = self.key.proof(tenant, deployment, window);
        let weight_signature =
            if weight.is_empty() { String::new() } else { self.key.sign_weight(tenant, deployment, window, weight) };
        let signed = TenantProof { window, proof, weight_signature };
        if self.kept.insert(about.clone(), signed.clone()).is_none() {
            self.order.push_back(about);
        }
        if self.kept.len() > MAX_KEPT {
            if let Some(oldest) = self.order.pop_front() {
                self.kept.remove(&oldest);
            }
        }
        signed
    }
}
