//! Serialized programs, sealed with a digest: plugins may misbehave on corrupt ones.

use sha2::{Digest, Sha256};

const MAGIC: &[u8; 8] = b"FSEXEC\x00\x02";
const DIGEST_BYTES: usize = 32;

/// A magic number, a digest of the payload, and the payload.
pub fn seal(payload: &[u8]) -> Vec<u8> {
    let digest = Sha256::digest(payload);
    [MAGIC.as_slice(), digest.as_slice(), payload].concat()
}

/// The payload of sealed bytes, if the digest matches.
pub fn unseal(sealed: &[u8]) -> Option<&[u8]> {
    let rest = sealed.strip_prefix(MAGIC)?;
    let (digest, payload) = rest.split_at_checked(DIGEST_BYTES)?;
    (Sha256::digest(payload).as_slice() == digest).then_some(payload)
}
