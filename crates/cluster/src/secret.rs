//! Proofs of knowing the job's secret: HMAC-SHA256 over nonces of both sides, never the secret
//! itself.

use crate::messages::Hello;
use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::Sha256;

/// The shortest secret: shorter ones could be guessed from a proof.
pub(crate) const SHORTEST: usize = 16;

/// Whose proof it is: one side's is worth nothing when sent back by the other.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Side {
    Coordinator,
    Member,
}

/// A random secret of 64 hexadecimal digits, for `FULLSHARD_SECRET`.
pub fn random_secret() -> Result<String> {
    Ok(nonce()?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// 32 random bytes.
pub(crate) fn nonce() -> Result<[u8; 32]> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| Error::System {
        what: "get random numbers",
        source: std::io::Error::other(error.to_string()),
    })?;
    Ok(bytes)
}

/// The proof of a side: for this connection's nonce and everything that the member has stated.
pub(crate) fn prove(secret: &str, side: Side, nonce: &[u8], hello: &Hello) -> Vec<u8> {
    mac(secret, side, nonce, hello).finalize().into_bytes().to_vec()
}

/// Whether a proof is right, in constant time.
pub(crate) fn verify(secret: &str, side: Side, nonce: &[u8], hello: &Hello, proof: &[u8]) -> bool {
    mac(secret, side, nonce, hello).verify_slice(proof).is_ok()
}

/// The proof of a side for nonces alone.
pub(crate) fn prove_bytes(secret: &str, side: Side, nonces: &[u8]) -> Vec<u8> {
    prove(secret, side, nonces, &Hello::default())
}

/// Whether such a proof is right.
pub(crate) fn verify_bytes(secret: &str, side: Side, nonces: &[u8], proof: &[u8]) -> bool {
    verify(secret, side, nonces, &Hello::default(), proof)
}

fn mac(secret: &str, side: Side, nonce: &[u8], hello: &Hello) -> Hmac<Sha256> {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of every length")]
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).expect("a key");
    mac.update(match side {
        Side::Coordinator => b"fullshard coordinator",
        Side::Member => b"fullshard member",
    });
    mac.update(&(nonce.len() as u64).to_le_bytes());
    mac.update(nonce);
    mac.update(&hello.encode_to_vec());
    mac
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_proof_holds_for_one_secret_side_nonce_and_member() {
        let hello = Hello { process: 1, count: 2, ..Hello::default() };
        let other = Hello { process: 0, ..hello.clone() };
        let proof = prove("secret", Side::Member, &[1; 32], &hello);
        assert!(verify("secret", Side::Member, &[1; 32], &hello, &proof));
        assert!(!verify("secrets", Side::Member, &[1; 32], &hello, &proof));
        assert!(!verify("secret", Side::Coordinator, &[1; 32], &hello, &proof));
        assert!(!verify("secret", Side::Member, &[2; 32], &hello, &proof));
        assert!(!verify("secret", Side::Member, &[1; 32], &other, &proof));
        assert!(!verify("secret", Side::Member, &[1; 32], &hello, &proof[..31]));
        assert!(!verify("secret", Side::Member, &[1; 32], &hello, &[]));
    }

    #[test]
    fn secrets_are_random() {
        let secret = random_secret().unwrap();
        assert_eq!(secret.len(), 64);
        assert_ne!(secret, random_secret().unwrap());
    }
}
