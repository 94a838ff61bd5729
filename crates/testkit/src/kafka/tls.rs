//! A broker's certificate and key, in the files that Java reads.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// How a broker speaks TLS. Everything is PEM.
#[derive(Debug, Clone)]
pub struct KafkaTls {
    /// Its certificate.
    pub certificate: String,
    /// The private key of that.
    pub key: String,
    /// If given, clients must show a certificate that this authority has signed.
    pub client_authority: Option<String>,
}

/// Java wants one; the files are as private as the folder.
const PASSWORD: &str = "changeit";

/// Writes the files, and returns the lines of `server.properties` that name them.
pub(super) fn properties(folder: &Path, tls: &KafkaTls) -> Result<String> {
    let path = |name: &str| folder.join(name);
    fs::write(path("broker.pem"), format!("{}{}", tls.certificate, tls.key))?;
    let from = path("broker.pem");
    let to = path("broker.p12");
    let mut export = Command::new("openssl");
    export.args(["pkcs12", "-export", "-name", "broker", "-passout"]).arg(format!("pass:{PASSWORD}"));
    run(export.arg("-in").arg(from).arg("-out").arg(&to))?;
    let mut lines = format!(
        "ssl.keystore.type=PKCS12\nssl.keystore.location={}\nssl.keystore.password={PASSWORD}\n\
         ssl.key.password={PASSWORD}\n",
        to.display()
    );
    if let Some(authority) = &tls.client_authority {
        fs::write(path("clients.pem"), authority)?;
        let from = path("clients.pem");
        let to = path("clients.p12");
        let mut import = Command::new("keytool");
        import.args(["-importcert", "-noprompt", "-alias", "clients", "-storetype", "PKCS12", "-storepass"]);
        run(import.arg(PASSWORD).arg("-file").arg(from).arg("-keystore").arg(&to))?;
        lines += &format!(
            "ssl.client.auth=required\nssl.truststore.type=PKCS12\nssl.truststore.location={}\n\
             ssl.truststore.password={PASSWORD}\n",
            to.display()
        );
    }
    Ok(lines)
}

fn run(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{name} is not here: run scripts/install-test-deps"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{name}: {said}{}", String::from_utf8_lossy(&output.stdout));
    Ok(())
}
