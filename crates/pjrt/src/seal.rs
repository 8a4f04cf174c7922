//! Compiled programs as bytes: sealed with a digest, since what a plugin would make of damaged
//! ones is anybody's guess.

use sha2::{Digest, Sha256};

const MARK: &[u8; 8] = b"FSEXEC\x00\x01";
const DIGEST_BYTES: usize = 32;

/// A mark, a digest of the payload, and the payload.
pub fn seal(payload: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(payload);
    [MARK.as_slice(), digest.as_slice(), payload].concat()
}

/// The payload of sealed bytes, if they are whole.
pub fn unseal(sealed: &[u8]) -> Option<&[u8]> {
    let rest = sealed.strip_prefix(MARK)?;
    let (digest, payload) = rest.split_at_checked(DIGEST_BYTES)?;
    (Sha256::digest(payload).as_slice() == digest).then_some(payload)
}
