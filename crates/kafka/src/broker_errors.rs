//! Why brokers cannot be reached, in terms of our settings.

use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::{
    ClientContext,
    config::RDKafkaLogLevel,
    consumer::ConsumerContext,
    error::{KafkaError, RDKafkaErrorCode},
    message::DeliveryResult,
    producer::ProducerContext,
};
use solehold_clock::BootTime;

/// The same error is logged again after this time,
const SAME_EVERY: Duration = Duration::from_secs(30);
/// and a different one after this: with several brokers, errors alternate.
const OTHER_EVERY: Duration = Duration::from_secs(5);

/// How long librdkafka may take to report the error behind a request that failed.
pub const REPORTED_WITHIN: Duration = Duration::from_millis(100);

/// Why a broker cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BrokerProblem {
    /// What happened, with which broker, and what to do about it.
    pub text: String,
    /// Whether retrying cannot help: TLS or the login is wrong, as opposed to the network.
    pub is_lasting: bool,
}

/// Receives the errors that librdkafka reports about its connections: a request that times out does not include them.
pub struct BrokerErrors {
    is_logged: bool,
    last: Mutex<Option<(BrokerProblem, BootTime)>>,
}

impl BrokerErrors {
    /// Logs errors, at a bounded rate.
    pub fn logged() -> Self {
        Self { is_logged: true, last: Mutex::new(None) }
    }

    /// Only keeps the last error, for [`last`](Self::last).
    pub fn kept() -> Self {
        Self { is_logged: false, last: Mutex::new(None) }
    }

    pub fn last(&self) -> Option<BrokerProblem> {
        self.last.lock().as_ref().map(|(problem, _)| problem.clone())
    }

    /// librdkafka reported an error.
    pub fn record(&self, error: &KafkaError, reason: &str) {
        let code = error.rdkafka_error_code();
        // Follows the last broker's own error.
        if code == Some(RDKafkaErrorCode::AllBrokersDown) {
            return;
        }
        self.keep(explain(code, reason));
    }

    /// A request timed out, and librdkafka reported no error.
    pub fn no_answer(&self, error: &KafkaError) {
        let text = format!("no broker answers: {error}");
        if self.last().is_none_or(|last| last.text == text) {
            self.keep(BrokerProblem { text, is_lasting: false });
        }
    }

    fn keep(&self, problem: BrokerProblem) {
        let text = problem.text.clone();
        if keep(&mut self.last.lock(), problem, BootTime::now()) && self.is_logged {
            // Under this target, so that one filter covers everything about the client.
            tracing::warn!(target: "librdkafka", reason = text, "cannot use a Kafka broker; retrying");
        }
    }
}

/// Keeps a problem with the time at which one was logged last. Returns whether to log this one.
fn keep(last: &mut Option<(BrokerProblem, BootTime)>, problem: BrokerProblem, now: BootTime) -> bool {
    let is_early = |(before, at): &(BrokerProblem, BootTime)| {
        now.since(*at) < if before.text == problem.text { SAME_EVERY } else { OTHER_EVERY }
    };
    let logged_before = last.as_ref().filter(|last| is_early(last)).map(|(_, at)| *at);
    *last = Some((problem, logged_before.unwrap_or(now)));
    logged_before.is_none()
}

impl ClientContext for BrokerErrors {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.record(&error, reason);
    }
}

impl ConsumerContext for BrokerErrors {}

impl ProducerContext for BrokerErrors {
    type DeliveryOpaque = ();

    fn delivery(&self, _: &DeliveryResult<'_>, (): ()) {}
}

/// Forwards a log line of librdkafka. Connection failures are reported as errors, too, and logged as such.
pub(super) fn log(level: RDKafkaLogLevel, facility: &str, message: &str) {
    use RDKafkaLogLevel as Level;
    match level {
        _ if matches!(facility, "FAIL" | "ERROR") => {
            tracing::debug!(target: "librdkafka", facility, "{message}");
        }
        Level::Emerg | Level::Alert | Level::Critical | Level::Error => {
            tracing::error!(target: "librdkafka", facility, "{message}");
        }
        Level::Warning => tracing::warn!(target: "librdkafka", facility, "{message}"),
        Level::Notice | Level::Info => tracing::info!(target: "librdkafka", facility, "{message}"),
        Level::Debug => tracing::debug!(target: "librdkafka", facility, "{message}"),
    }
}

/// Puts an error of librdkafka in terms of our settings.
fn explain(code: Option<RDKafkaErrorCode>, reason: &str) -> BrokerProblem {
    // The duration differs each time.
    let said = reason.split(" (after ").next().unwrap_or(reason);
    let (broker, what) = said.split_once(": ").unwrap_or(("", said));
    let broker = broker.rsplit("://").next().unwrap_or(broker);
    let broker = broker.split('/').next().unwrap_or(broker);
    let has = |part: &str| what.contains(part);
    let lasting = |text: String| BrokerProblem { text, is_lasting: true };
    if has("certificate verify failed") {
        return lasting(format!(
            "the certificate of {broker} is not trusted, or is for another host name: tls.ca_cert names the authorities to \
             trust ({})",
            first_part(what)
        ));
    }
    if has("connecting to a PLAINTEXT broker listener") || has("wrong version number") {
        return lasting(format!("{broker} does not speak TLS: give its port for TLS, or remove tls"));
    }
    if code == Some(RDKafkaErrorCode::SSL) {
        return lasting(format!(
            "{broker} refuses TLS with this client; if it asks for client certificates, tls.client_cert and tls.client_key \
             must name one that it trusts ({})",
            first_part(what)
        ));
    }
    if code == Some(RDKafkaErrorCode::Authentication) {
        let what = what
            .split(": broker's supported mechanisms")
            .collect::<Vec<_>>()
            .join("; the broker's mechanisms");
        return lasting(format!(
            "{broker} refuses the login ({what}): check sasl.user, sasl.mechanism and the password in sasl.password_file"
        ));
    }
    if has("connecting to a SSL listener") || has("broker might require SASL authentication") {
        let text = format!(
            "{broker} closed the connection without an answer: it may ask for TLS (tls) or for a login (sasl), or have a \
             version before 0.10 (broker_version)"
        );
        return BrokerProblem { text, is_lasting: false };
    }
    BrokerProblem { text: said.to_owned(), is_lasting: false }
}

/// Without the advice of librdkafka, which names its own settings.
fn first_part(what: &str) -> &str {
    let end = [": broker certificate could not", ": client SSL authentication"];
    end.iter().filter_map(|end| what.find(end)).min().map_or(what, |end| &what[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_librdkafka_are_explained_in_terms_of_our_settings() {
        let ssl = Some(RDKafkaErrorCode::SSL);
        let told = explain(
            ssl,
            "ssl://kafka.local:9093/bootstrap: SSL handshake failed: error:0A000086:SSL routines::certificate verify \
             failed: broker certificate could not be verified, verify that ssl.ca.location is correctly configured or \
             root CA certificates are installed (install ca-certificates package) (after 5ms in state SSL_HANDSHAKE)",
        );
        assert_eq!(
            told.text,
            "the certificate of kafka.local:9093 is not trusted, or is for another host name: tls.ca_cert names the \
             authorities to trust (SSL handshake failed: error:0A000086:SSL routines::certificate verify failed)"
        );
        assert!(told.is_lasting);
        let refused = "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state \
                       CONNECT, 3 identical error(s) suppressed)";
        let told = explain(Some(RDKafkaErrorCode::BrokerTransportFailure), refused);
        assert_eq!(
            told.text,
            "127.0.0.1:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused"
        );
        assert!(!told.is_lasting);
    }

    #[test]
    fn errors_are_logged_at_a_bounded_rate() {
        let mut last = None;
        let start = BootTime::now();
        let reason = |text: &str| BrokerProblem { text: text.to_owned(), is_lasting: false };
        let mut logged =
            |text: &str, ms: u64| keep(&mut last, reason(text), start.plus(Duration::from_millis(ms)));
        assert!(logged("a", 0));
        let same = (1..30).filter(|second| logged("a", second * 1_000)).count();
        assert!(same == 0 && logged("a", 30_000));
        // Two that take turns.
        let names = ["b", "a"].into_iter().cycle();
        let turns = names.zip(0..600).filter(|(name, at)| logged(name, 30_000 + at * 100)).count();
        assert!((6..=12).contains(&turns), "{turns} lines in a minute");
    }
}
