//! An OpenID provider of one's own: what Kubernetes is to a pod that has a role and no keys.
//!
//! It says where its key is, says the key, and makes tokens that are signed with it. A MinIO that was told of it
//! ([`IdentityProvider::settings`]) gives credentials for some time to whoever brings such a token.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::certificates::run_script;

/// Who the tokens are for.
const AUDIENCE: &str = "firn";
/// MinIO's name of the role that this provider's tokens have: a hash of the audience.
pub const ROLE_ARN: &str = "arn:minio:iam:::role/TuT_Mg61LgIFOx_KOLzx09rF3E8";

const MAKE_KEY: &str = "openssl genrsa -out key.pem 2048 && openssl rsa -in key.pem -noout -modulus | \
    cut -d= -f2 | tr -d '\\n' | xxd -r -p | openssl base64 -A | tr '+/' '-_' | tr -d '='";
/// Arguments: the token's head and its claims.
const SIGN: &str = "b64() { openssl base64 -A | tr '+/' '-_' | tr -d '='; }; \
    said=$(printf %s \"$1\" | b64).$(printf %s \"$2\" | b64); \
    printf %s.%s \"$said\" \"$(printf %s \"$said\" | openssl dgst -sha256 -sign key.pem -binary | b64)\"";

/// A provider on a port of its own; it ends when dropped.
#[derive(Debug)]
pub struct IdentityProvider {
    address: SocketAddr,
    dir: tempfile::TempDir,
    is_open: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl IdentityProvider {
    /// Makes a key and starts to answer.
    pub fn start() -> io::Result<IdentityProvider> {
        let dir = tempfile::tempdir()?;
        let modulus = run_script(MAKE_KEY, dir.path(), &[])?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let discovery =
            format!(r#"{{"issuer":"http://{address}","jwks_uri":"http://{address}/keys"}}"#);
        let keys = format!(
            r#"{{"keys":[{{"kty":"RSA","use":"sig","alg":"RS256","kid":"1","n":"{modulus}","e":"AQAB"}}]}}"#
        );
        let is_open = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&is_open);
        let acceptor = spawn(move || {
            for client in listener.incoming().flatten() {
                if !goes_on.load(Ordering::SeqCst) {
                    return;
                }
                // Whoever got no answer asks again.
                let _ = answer(client, &discovery, &keys);
            }
        });
        Ok(IdentityProvider {
            address,
            dir,
            is_open,
            acceptor: Some(acceptor),
        })
    }

    /// What a MinIO has to have in its environment, to trust it.
    pub fn settings(&self) -> Vec<(String, String)> {
        let url = format!("http://{}/.well-known/openid-configuration", self.address);
        [
            ("CONFIG_URL", url.as_str()),
            ("CLIENT_ID", AUDIENCE),
            ("ROLE_POLICY", "readwrite"),
        ]
        .map(|(name, value)| (format!("MINIO_IDENTITY_OPENID_{name}"), value.to_owned()))
        .to_vec()
    }

    /// A token that is good for an hour.
    pub fn token(&self) -> io::Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let until = now.map_err(io::Error::other)?.as_secs() + 3600;
        let claims = format!(
            r#"{{"iss":"http://{}","sub":"pod","aud":"{AUDIENCE}","exp":{until}}}"#,
            self.address
        );
        let head = r#"{"alg":"RS256","typ":"JWT","kid":"1"}"#;
        run_script(SIGN, self.dir.path(), &[head, &claims])
    }
}

impl Drop for IdentityProvider {
    fn drop(&mut self) {
        self.is_open.store(false, Ordering::SeqCst);
        // Wakes the thread that accepts; where it cannot be reached it has ended.
        let _ = TcpStream::connect(self.address);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
    }
}

fn answer(mut client: TcpStream, discovery: &str, keys: &str) -> io::Result<()> {
    let mut head = [0; 4096];
    let bytes = client.read(&mut head)?;
    let body = match head[..bytes].starts_with(b"GET /keys ") {
        true => keys,
        false => discovery,
    };
    let length = body.len();
    write!(
        client,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}
