//! TLS and SASL.

use std::{
    fs,
    net::IpAddr,
    path::{Path, PathBuf},
};

use rdkafka::ClientConfig;
use serde::{Deserialize, Deserializer, Serialize};

use super::{Brokers, BrokersError};

/// TLS to the brokers. A broker's certificate must be for the host name by which it is reached.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tls {
    /// A file of authorities that are trusted in place of the system's, as PEM.
    pub ca_cert: Option<PathBuf>,
    /// A file with the certificate to show to brokers that ask for one, as PEM.
    pub client_cert: Option<PathBuf>,
    /// A file with its private key, as PEM.
    pub client_key: Option<PathBuf>,
}

/// A user and a password, for brokers that ask for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sasl {
    pub mechanism: Mechanism,
    pub user: String,
    /// A file with the password. It is read for each client that is made.
    pub password_file: PathBuf,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Mechanism {
    /// The password as it is.
    Plain,
    /// By a proof that both sides know it, with SHA-256.
    ScramSha256,
    /// The same with SHA-512.
    ScramSha512,
}

impl Mechanism {
    /// As brokers call it.
    fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

impl From<Mechanism> for String {
    fn from(mechanism: Mechanism) -> Self {
        mechanism.name().to_ascii_lowercase()
    }
}

impl TryFrom<String> for Mechanism {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let all = [Self::Plain, Self::ScramSha256, Self::ScramSha512];
        let known = all.into_iter().find(|mechanism| mechanism.name().eq_ignore_ascii_case(&text));
        known.ok_or_else(|| {
            let why = match text.to_ascii_uppercase().as_str() {
                "GSSAPI" => ": Kerberos needs libsasl2, which solehold is not built with",
                "OAUTHBEARER" => ": solehold has no way to get tokens",
                _ => "",
            };
            format!("mechanism {text:?} is none of plain, scram-sha-256, scram-sha-512{why}")
        })
    }
}

/// Deserializes a key that is present, even if it is empty: `tls:` with nothing below it must not mean no TLS.
pub fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Properties of librdkafka, and the settings of ours that replace them.
const OURS: [(&str, &str); 8] = [
    ("security.protocol", "tls for TLS and sasl for a password"),
    ("ssl.ca.location", "tls.ca_cert"),
    ("ssl.certificate.location", "tls.client_cert"),
    ("ssl.key.location", "tls.client_key"),
    ("sasl.mechanism", "sasl.mechanism"),
    ("sasl.mechanisms", "sasl.mechanism"),
    ("sasl.username", "sasl.user"),
    ("sasl.password", "sasl.password_file"),
];

pub(super) fn secure(brokers: &Brokers, client: &mut ClientConfig) -> Result<(), BrokersError> {
    for name in brokers.librdkafka.0.keys() {
        if let Some((_, instead)) = OURS.iter().find(|(ours, _)| ours == name) {
            return wrong(name, format!("property {name}: write {instead} instead"));
        }
        if name.starts_with("sasl.") {
            return wrong(
                name,
                format!("property {name} is for Kerberos or OAuth, which solehold is built without"),
            );
        }
        let is_about_tls = name.starts_with("ssl.") || name == "enable.ssl.certificate.verification";
        if is_about_tls && brokers.tls.is_none() {
            return wrong(
                name,
                format!("property {name} has no effect without tls: write tls: {{}} for TLS"),
            );
        }
    }
    if let Some(tls) = &brokers.tls {
        trust(tls, brokers.librdkafka.0.contains_key("ssl.key.password"), client)?;
    }
    if let Some(sasl) = &brokers.sasl {
        log_in(brokers, sasl, client)?;
    }
    let protocol = match (&brokers.tls, &brokers.sasl) {
        (None, None) => return Ok(()),
        (Some(_), None) => "ssl",
        (None, Some(_)) => "sasl_plaintext",
        (Some(_), Some(_)) => "sasl_ssl",
    };
    client.set("security.protocol", protocol);
    Ok(())
}

fn trust(tls: &Tls, has_key_password: bool, client: &mut ClientConfig) -> Result<(), BrokersError> {
    if tls.client_cert.is_some() != tls.client_key.is_some() {
        let (has, lacks) = if tls.client_cert.is_some() {
            ("client_cert", "client_key")
        } else {
            ("client_key", "client_cert")
        };
        return wrong(has, format!("tls has {has} and no {lacks}: give both, or neither"));
    }
    for (key, path, property, block) in [
        ("ca_cert", &tls.ca_cert, "ssl.ca.location", "CERTIFICATE-----"),
        ("client_cert", &tls.client_cert, "ssl.certificate.location", "CERTIFICATE-----"),
        ("client_key", &tls.client_key, "ssl.key.location", "PRIVATE KEY-----"),
    ] {
        let Some(path) = path else { continue };
        let shown = path.display();
        let text = read("tls", key, path)?;
        if !text.lines().any(|line| line.starts_with("-----BEGIN ") && line.trim_end().ends_with(block)) {
            return wrong(key, format!("tls.{key} {shown} is not PEM: no line says BEGIN ... {block}"));
        }
        if text.contains("BEGIN ENCRYPTED PRIVATE KEY") && !has_key_password {
            let what =
                format!("tls.{key} {shown} is encrypted: give its password as property ssl.key.password");
            return wrong(key, what);
        }
        client.set(property, shown.to_string());
    }
    Ok(())
}

fn log_in(brokers: &Brokers, sasl: &Sasl, client: &mut ClientConfig) -> Result<(), BrokersError> {
    if let Some(version) = &brokers.broker_version {
        let what = format!(
            "sasl is for brokers of Kafka 0.10 and later, and broker_version is {version}: remove one of the two"
        );
        return wrong("sasl", what);
    }
    if sasl.mechanism == Mechanism::Plain && brokers.tls.is_none() && !are_all_local(&brokers.brokers) {
        return wrong(
            "mechanism",
            "sasl.mechanism plain without tls would send the password readable over the network: write tls: {} for TLS, \
             or use scram-sha-512",
        );
    }
    if sasl.user.is_empty() {
        return wrong("user", "sasl.user is empty");
    }
    let password = read("sasl", "password_file", &sasl.password_file)?;
    let password = password.trim();
    if password.is_empty() {
        let what = format!("sasl.password_file {} has no password in it", sasl.password_file.display());
        return wrong("password_file", what);
    }
    client
        .set("sasl.mechanism", sasl.mechanism.name())
        .set("sasl.username", &sasl.user)
        .set("sasl.password", password);
    Ok(())
}

/// Whether all brokers are on this machine.
fn are_all_local(brokers: &str) -> bool {
    brokers.split(',').all(|broker| {
        let address = broker.trim().rsplit("://").next().unwrap_or_default();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.to_canonical().is_loopback())
    })
}

fn read(of: &str, key: &str, path: &Path) -> Result<String, BrokersError> {
    fs::read_to_string(path).or_else(|error| wrong(key, format!("{of}.{key} {}: {error}", path.display())))
}

fn wrong<T>(key: &str, what: impl Into<String>) -> Result<T, BrokersError> {
    Err(BrokersError { key: key.to_owned(), what: what.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const KEY: &str = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";

    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Self {
            let files = Self(tempfile::tempdir().expect("a folder"));
            for (name, text) in
                [("ca", CERTIFICATE), ("cert", CERTIFICATE), ("key", KEY), ("pw", "hunter2\n")]
            {
                files.write(name, text);
            }
            files
        }

        fn write(&self, name: &str, text: &str) {
            fs::write(self.path(name), text).expect("written");
        }

        fn path(&self, name: &str) -> PathBuf {
            self.0.path().join(name)
        }

        fn tls(&self) -> Option<Tls> {
            let path = |name| Some(self.path(name));
            Some(Tls { ca_cert: path("ca"), client_cert: path("cert"), client_key: path("key") })
        }

        fn sasl(&self, mechanism: Mechanism) -> Option<Sasl> {
            Some(Sasl { mechanism, user: "app".to_owned(), password_file: self.path("pw") })
        }

        fn told(&self, change: impl FnOnce(&mut Brokers)) -> String {
            let mut brokers = Brokers::at("kafka.local:9093");
            change(&mut brokers);
            let error = brokers.client().expect_err("it is wrong").to_string();
            error.replace(&self.0.path().display().to_string(), "")
        }
    }

    #[test]
    fn brokers_are_told_by_tls_and_sasl_what_librdkafka_calls_otherwise() {
        let files = Files::new();
        let with = |tls, sasl| Brokers { tls, sasl, ..Brokers::at("kafka.local:9093") };
        let names = ["security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"];
        let told = |brokers: &Brokers| {
            let client = brokers.client().expect("good");
            names.map(|name| client.get(name).unwrap_or_default().to_owned())
        };
        assert_eq!(told(&with(None, None)), ["", "", "", ""]);
        assert_eq!(told(&with(Some(Tls::default()), None)), ["ssl", "", "", ""]);
        let both = with(files.tls(), files.sasl(Mechanism::Plain));
        assert_eq!(told(&both), ["sasl_ssl", "PLAIN", "app", "hunter2"]);
        let client = both.client().expect("good");
        for (property, name) in
            [("ssl.ca.location", "ca"), ("ssl.certificate.location", "cert"), ("ssl.key.location", "key")]
        {
            assert_eq!(client.get(property).map(PathBuf::from), Some(files.path(name)));
        }
        let scram = with(None, files.sasl(Mechanism::ScramSha512));
        assert_eq!(told(&scram), ["sasl_plaintext", "SCRAM-SHA-512", "app", "hunter2"]);
        assert!(!format!("{both:?} {client:?}").contains("hunter2"));
    }

    #[test]
    fn a_password_goes_unencrypted_to_this_machine_only() {
        let files = Files::new();
        let plain = |at: &str| Brokers { sasl: files.sasl(Mechanism::Plain), ..Brokers::at(at) }.client();
        for at in
            ["localhost:9092", "127.0.0.1:9092, [::1]:9092", "127.1.2.3", "sasl_plaintext://127.0.0.1:1"]
        {
            assert!(plain(at).is_ok(), "{at}");
        }
        for at in ["kafka:9092", "127.0.0.1:9092,10.0.0.1:9092", "localhost.example.com:1", "[2001:db8::1]:1"]
        {
            let error = plain(at).expect_err(at).to_string();
            assert!(error.starts_with("sasl.mechanism plain without tls would send"), "{at}: {error}");
        }
    }

    #[test]
    fn what_contradicts_itself_or_cannot_be_done_is_refused() {
        let files = Files::new();
        let property = |name: &'static str| {
            move |brokers: &mut Brokers| {
                brokers.librdkafka.0.insert(name.to_owned(), "hunter2".to_owned());
            }
        };
        let said = files.told(property("security.protocol"));
        assert_eq!(said, "property security.protocol: write tls for TLS and sasl for a password instead");
        let said = files.told(property("sasl.password"));
        assert_eq!(said, "property sasl.password: write sasl.password_file instead");
        assert!(
            files.told(property("sasl.kerberos.service.name")).contains("which solehold is built without")
        );
        let said = files.told(property("ssl.key.password"));
        assert_eq!(said, "property ssl.key.password has no effect without tls: write tls: {} for TLS");
        // A name that is not known: its value may be a password all the same.
        let said = files.told(property("ssl_key_pasword"));
        assert!(said.starts_with("property ssl_key_pasword: No such") && !said.contains("hunter2"), "{said}");

        let tls = |change: &dyn Fn(&mut Tls)| {
            files.told(|brokers| {
                let mut tls = files.tls().expect("some");
                change(&mut tls);
                brokers.tls = Some(tls);
            })
        };
        let said = tls(&|tls| tls.client_key = None);
        assert_eq!(said, "tls has client_cert and no client_key: give both, or neither");
        let said = tls(&|tls| tls.ca_cert = Some(files.path("none")));
        assert_eq!(said, "tls.ca_cert /none: No such file or directory (os error 2)");
        let said = tls(&|tls| tls.ca_cert = tls.client_key.clone());
        assert_eq!(said, "tls.ca_cert /key is not PEM: no line says BEGIN ... CERTIFICATE-----");
        files.write("key", &KEY.replace("PRIVATE", "ENCRYPTED PRIVATE"));
        assert!(tls(&|_| {}).contains("tls.client_key /key is encrypted"));

        let sasl = |change: &dyn Fn(&mut Brokers, &mut Sasl)| {
            files.told(|brokers| {
                let mut sasl = files.sasl(Mechanism::ScramSha256).expect("some");
                change(brokers, &mut sasl);
                brokers.sasl = Some(sasl);
            })
        };
        let said = sasl(&|brokers, _| brokers.broker_version = Some("0.9.0.1".to_owned()));
        assert!(said.starts_with("sasl is for brokers of Kafka 0.10 and later"), "{said}");
        assert_eq!(sasl(&|_, sasl| sasl.user = String::new()), "sasl.user is empty");
        files.write("pw", " \n");
        assert_eq!(sasl(&|_, _| {}), "sasl.password_file /pw has no password in it");
    }

    #[test]
    fn mechanisms_that_are_not_built_in_are_refused_by_name() {
        let parse =
            |text: &str| serde_json::from_str::<Mechanism>(&format!("{text:?}")).map_err(|e| e.to_string());
        assert_eq!(parse("SCRAM-SHA-256"), Ok(Mechanism::ScramSha256));
        assert_eq!(parse("plain"), Ok(Mechanism::Plain));
        let said = parse("GSSAPI").expect_err("not there");
        assert!(said.starts_with(
            "mechanism \"GSSAPI\" is none of plain, scram-sha-256, scram-sha-512: Kerberos needs"
        ));
        assert!(parse("oauthbearer").expect_err("not there").contains("no way to get tokens"));
        assert!(parse("scram").is_err());
    }
}
