//! One direction of a secure connection: AES-128-GCM with a counted nonce.
//!
//! Owns key and nonce. The nonce goes up by one for each operation, on both sides alike, so
//! a frame that is removed, repeated or moved fails its tag. A stream is never used again after a
//! tag failed, and never shared between the two directions: their nonces differ from the start.

use aes_gcm::aead::AeadInPlace;
use aes_gcm::{Aes128Gcm, KeyInit};
use zeroize::Zeroize;

use super::FrameError;

/// Bytes of the secret both sides hold after authentication.
pub const CONNECTION_SECRET_LEN: usize = 64;

/// Key and start nonces of both directions of one connection.
#[derive(Clone)]
pub struct SecureKeys {
    key: [u8; 16],
    client_rx: [u8; 12],
    client_tx: [u8; 12],
}

impl SecureKeys {
    /// Cuts them out of the connection secret: key, client's receiving nonce, client's sending nonce.
    pub fn from_secret(secret: &[u8; CONNECTION_SECRET_LEN]) -> Self {
        let mut keys = Self {
            key: [0; 16],
            client_rx: [0; 12],
            client_tx: [0; 12],
        };
        keys.key.copy_from_slice(&secret[..16]);
        keys.client_rx.copy_from_slice(&secret[16..28]);
        keys.client_tx.copy_from_slice(&secret[28..40]);
        keys
    }

    /// The two streams of one side: receiving, sending.
    pub fn streams(&self, connecting: bool) -> (GcmStream, GcmStream) {
        let to_client = GcmStream::new(&self.key, &self.client_rx);
        let to_server = GcmStream::new(&self.key, &self.client_tx);
        if connecting {
            (to_client, to_server)
        } else {
            (to_server, to_client)
        }
    }
}

impl Drop for SecureKeys {
    fn drop(&mut self) {
        self.key.zeroize();
        self.client_rx.zeroize();
        self.client_tx.zeroize();
    }
}

impl std::fmt::Debug for SecureKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecureKeys(..)")
    }
}

/// Seals or opens one direction.
pub struct GcmStream {
    cipher: Aes128Gcm,
    fixed: [u8; 4],
    counter: u64,
}

impl GcmStream {
    /// A stream at its first nonce: four fixed bytes and a counter of eight.
    pub fn new(key: &[u8; 16], nonce: &[u8; 12]) -> Self {
        let [a, b, c, d, counter @ ..] = *nonce;
        let cipher = Aes128Gcm::new(key.into());
        Self {
            cipher,
            fixed: [a, b, c, d],
            counter: u64::from_le_bytes(counter),
        }
    }

    fn next_nonce(&mut self) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..4].copy_from_slice(&self.fixed);
        nonce[4..].copy_from_slice(&self.counter.to_le_bytes());
        self.counter = self.counter.wrapping_add(1);
        nonce
    }

    /// Encrypts `buf[from..]` in place and appends the tag.
    pub fn seal(&mut self, buf: &mut Vec<u8>, from: usize) {
        let nonce = self.next_nonce();
        let tag = self
            .cipher
            .encrypt_in_place_detached((&nonce).into(), &[], &mut buf[from..])
            .expect("a frame is far below what one GCM operation can take");
        buf.extend_from_slice(&tag);
    }

    /// Checks and decrypts `buf`, whose last 16 bytes are the tag; the plain text.
    pub fn open<'a>(
        &mut self,
        buf: &'a mut [u8],
        part: &'static str,
    ) -> Result<&'a mut [u8], FrameError> {
        let nonce = self.next_nonce();
        let failed = FrameError::Authentication { part };
        let Some(split) = buf.len().checked_sub(super::GCM_TAG) else {
            return Err(failed);
        };
        let (text, tag) = buf.split_at_mut(split);
        let tag = aes_gcm::Tag::from_slice(tag);
        match self
            .cipher
            .decrypt_in_place_detached((&nonce).into(), &[], text, tag)
        {
            Ok(()) => Ok(text),
            Err(_) => Err(failed),
        }
    }
}

impl std::fmt::Debug for GcmStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GcmStream").finish_non_exhaustive()
    }
}
