//! A CA of one's own and a server's certificate from it, made by openssl for the time of a test.

use std::io;
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=firn-test-ca \
    -keyout ca.key -out ../ca.pem && \
    openssl req -newkey rsa:2048 -nodes -subj /CN=localhost -keyout private.key -out s.csr && \
    printf 'subjectAltName=IP:127.0.0.1,DNS:minio.test\\nbasicConstraints=CA:FALSE\\n' > ext && \
    openssl x509 -req -in s.csr -CA ../ca.pem -CAkey ca.key -CAcreateserial -days 2 \
    -extfile ext -out public.crt";

/// Puts a key and a certificate for the loopback address and the name `minio.test` into a server's directory of
/// certificates; the CA's is `ca.pem` above it.
pub fn make_certificates(dir: &Path) -> io::Result<()> {
    run_script(SCRIPT, dir, &[]).map(drop)
}

/// Runs a shell's script in `dir`; what it printed.
pub(crate) fn run_script(script: &str, dir: &Path, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .args(arguments)
        .current_dir(dir)
        .output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err(io::Error::other(format!("{script}: {output:?}"))),
    }
}
