//! Where the MQTT broker is, and how to log in to it.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use percent_encoding::percent_decode_str;
use reqwest::Url;
use rumqttc::{MqttOptions, Transport};
use secrecy::{ExposeSecret, SecretString};
use solehold_client::transport::check_certificates;

use crate::settings::secret;

const PACKET_MAX: usize = 1024 * 1024;
const RIGHT: &str = "write HOST:PORT, mqtt://HOST or mqtts://USER@HOST:PORT";

/// The broker, in the words of `solehold gate mqtt`.
#[derive(Debug, Clone, Args)]
pub struct BrokerArgs {
    /// The MQTT broker: HOST:PORT or mqtt://HOST:PORT, or mqtts:// with TLS; USER:PASSWORD@ before the host logs in
    #[arg(
        long,
        env = "SOLEHOLD_MQTT_URL",
        value_name = "URL",
        default_value = "127.0.0.1:1883",
        value_parser = secret,
        hide_env_values = true
    )]
    broker: SecretString,
    /// Read the password of the broker's user from this file
    #[arg(long, value_name = "FILE")]
    broker_password_file: Option<PathBuf>,
    /// Trust only the broker's certificates that this one has signed, PEM [default: the system's]
    #[arg(long, value_name = "FILE")]
    broker_ca: Option<PathBuf>,
}

impl BrokerArgs {
    /// A connection of this client id, which the broker remembers.
    pub fn options(&self, id: &str) -> Result<MqttOptions> {
        // What is wrong is not shown: it may have a password in it.
        let given = self.broker.expose_secret();
        let text = if given.contains("://") { given.to_owned() } else { format!("mqtt://{given}") };
        let url = Url::parse(&text).ok().with_context(|| format!("--broker is not a URL: {RIGHT}"))?;
        let (is_tls, default_port) = match url.scheme() {
            "mqtt" => (false, 1_883),
            "mqtts" => (true, 8_883),
            other => bail!("--broker is a URL of the scheme {other:?}: {RIGHT}"),
        };
        let host = url.host_str().filter(|host| !host.is_empty());
        let host = host.with_context(|| format!("--broker names no host: {RIGHT}"))?.trim_matches(['[', ']']);
        let mut options = MqttOptions::new(id, (host.to_owned(), url.port().unwrap_or(default_port)));
        options.set_keep_alive(5).set_clean_session(false).set_max_packet_size(PACKET_MAX, PACKET_MAX);
        if is_tls {
            options.set_transport(self.tls()?);
        }
        ensure!(is_tls || self.broker_ca.is_none(), "--broker-ca is for TLS: write --broker mqtts://HOST");
        let plain = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let password = match &self.broker_password_file {
            None => plain(url.password().unwrap_or_default()),
            Some(path) => {
                let flag = || format!("--broker-password-file {}", path.display());
                let text = fs::read_to_string(path).with_context(flag)?;
                text.trim_end_matches(['\r', '\n']).to_owned()
            }
        };
        if !url.username().is_empty() {
            options.set_credentials(plain(url.username()), password);
        } else if !password.is_empty() {
            bail!("a password for the broker needs a user: {RIGHT}");
        }
        Ok(options)
    }

    fn tls(&self) -> Result<Transport> {
        let Some(path) = &self.broker_ca else { return Ok(Transport::try_tls_with_default_config()?) };
        let flag = || format!("--broker-ca {}: give a PEM file", path.display());
        let pem = fs::read(path).with_context(flag)?;
        check_certificates(&pem).with_context(flag)?;
        Ok(Transport::tls(pem, None, None))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Given {
        #[command(flatten)]
        broker: BrokerArgs,
    }

    fn options(broker: &str) -> Result<MqttOptions> {
        Given::try_parse_from(["test", "--broker", broker])?.broker.options("id")
    }

    #[test]
    fn a_broker_that_is_wrong_is_told_without_its_password() {
        for right in ["localhost:1883", "mqtt://localhost", "mqtt://u:p%40ss@[::1]:1884"] {
            assert!(options(right).is_ok(), "{right}");
        }
        for (wrong, words) in [
            ("localhost:hunter2", "is not a URL"),
            ("http://u:hunter2@mq", "the scheme \"http\""),
            ("mqtt://:hunter2@mq", "needs a user"),
        ] {
            let why = options(wrong).expect_err(wrong).to_string();
            assert!(
                why.contains(words) && why.contains("write HOST:PORT") && !why.contains("hunter2"),
                "{why}"
            );
        }
        let given = Given::try_parse_from(["test", "--broker", "mqtt://u:hunter2@mq"]).expect("good");
        assert!(!format!("{given:?}").contains("hunter2"));
    }
}
