//! Events to an HTTP server, signed.
//!
//! ```text
//!   POST URL                      Solehold-Event-Id: 0192...        the id, the same on every attempt
//!   {"event_id": ...}             Solehold-Event: lease_acquired
//!                                 Solehold-Signature: t=1701424800,v1=5f2a...
//! ```
//! `v1` is the HMAC-SHA256 of the text `t`, a dot and the body, in hexadecimal digits, by the secret. `t` is the time
//! of sending in seconds, so that a receiver can reject a replayed request.

use std::fmt::Write as _;

use async_trait::async_trait;
use aws_lc_rs::hmac;
use reqwest::{Client, StatusCode, redirect};
use secrecy::ExposeSecret;
use solehold_engine::clock::wall_ms;

use super::{Destination, IS_THERE, Message, config::WebhookConfig, window::Failure};

pub struct Webhook {
    client: Client,
    url: String,
    key: hmac::Key,
}

impl Webhook {
    pub fn new(config: &WebhookConfig) -> Result<Self, reqwest::Error> {
        let client = Client::builder()
            .timeout(config.timeout)
            // A body that is signed for one server is not sent to another.
            .redirect(redirect::Policy::none())
            .user_agent(concat!("solehold/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(reqwest::Error::without_url)?;
        let key = hmac::Key::new(hmac::HMAC_SHA256, config.secret.expose_secret().as_bytes());
        Ok(Self { client, url: config.url.reveal().to_owned(), key })
    }
}

#[async_trait]
impl Destination for Webhook {
    async fn publish(&self, message: &Message) -> Result<(), Failure> {
        let request = self
            .client
            .post(&self.url)
            .header("content-type", "application/json")
            .header("solehold-event-id", message.id.to_string())
            .header("solehold-event", message.event)
            .header("solehold-signature", signature(&self.key, wall_ms() / 1_000, &message.body))
            .body(message.body.clone());
        judge(request.send().await.map(|answer| answer.status()))
    }

    async fn check(&self) -> Result<String, Failure> {
        // Any response shows that the server is there.
        let answer = self.client.head(&self.url).send().await;
        answer.map(|_| IS_THERE.to_owned()).map_err(|error| Failure::Away(shown(error)))
    }
}

/// The value of the header `Solehold-Signature`.
fn signature(key: &hmac::Key, seconds: u64, body: &[u8]) -> String {
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{seconds}.").as_bytes());
    context.update(body);
    let mut text = format!("t={seconds},v1=");
    for byte in context.sign().as_ref() {
        write!(text, "{byte:02x}").expect("a string takes writes");
    }
    text
}

fn judge(answer: Result<StatusCode, reqwest::Error>) -> Result<(), Failure> {
    match answer {
        Ok(status) if status.is_success() => Ok(()),
        Ok(
            status @ (StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS),
        ) => Err(Failure::Busy(format!("the webhook responded with {status}"))),
        Ok(status) if status.is_server_error() => {
            Err(Failure::Busy(format!("the webhook responded with {status}")))
        }
        Ok(status) => Err(Failure::Refused(format!("the webhook responded with {status}"))),
        // The receiver may hang on this event only: other events are still sent.
        Err(error) if error.is_timeout() && !error.is_connect() => {
            Err(Failure::Busy("the webhook did not respond in time".to_owned()))
        }
        Err(error) => Err(Failure::Away(shown(error))),
    }
}

/// The error with its causes and without the URL, which may contain a secret.
fn shown(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(deeper) = cause {
        let _ = write!(text, ": {deeper}");
        cause = deeper.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `printf '1700000000.{"a":1}' | openssl dgst -sha256 -hmac key` prints it.
    #[test]
    fn the_signature_is_as_others_compute_it() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"key");
        assert_eq!(
            signature(&key, 1_700_000_000, b"{\"a\":1}"),
            "t=1700000000,v1=a438e398bfafc57e4396bb7fc2304422f0f768e965d073ca313cb52e22e6ad03"
        );
    }

    #[test]
    fn answers_are_told_apart() {
        let judged = |code| judge(Ok(StatusCode::from_u16(code).expect("a status")));
        assert!(judged(200).is_ok() && judged(204).is_ok());
        for code in [408, 425, 429, 500, 503] {
            assert!(matches!(judged(code), Err(Failure::Busy(_))), "{code}");
        }
        for code in [301, 400, 401, 404, 410, 422] {
            assert!(matches!(judged(code), Err(Failure::Refused(_))), "{code}");
        }
    }
}
