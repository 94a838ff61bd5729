//! What is logged of a request, and what never is.

mod support;

use std::{
    io,
    sync::{Arc, Mutex},
};

use reqwest::Method;
use serde_json::Value;
use solehold_server::Role;
use support::{Answer, config, flaky::Flaky, memory, serve_with};
use tracing_subscriber::{fmt::MakeWriter, prelude::*};

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl io::Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("a lock").extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Kept {
    type Writer = Self;
    fn make_writer(&self) -> Self {
        self.clone()
    }
}

impl Kept {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().expect("a lock").clone()).expect("text")
    }

    /// The line of that request.
    fn of(&self, request_id: &str) -> Value {
        let text = self.text();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let mut of_request = lines.filter(|line| line["fields"]["request_id"] == request_id);
        let line = of_request.next().expect("a line");
        assert!(of_request.next().is_none(), "one line a request");
        line
    }
}

#[tokio::test]
async fn a_request_is_one_line_without_secrets() {
    let kept = Kept::default();
    let lines = tracing_subscriber::fmt::layer().json().with_writer(kept.clone());
    let filter = tracing_subscriber::EnvFilter::new("solehold_server=trace");
    tracing_subscriber::registry().with(lines.with_filter(filter)).init();
    let store = Flaky::over(memory());
    let asking = serve_with(config(), store.clone()).await;
    let (key, text) = asking.make_key(Role::Admin, None).await;
    let asking = asking.with_key(&text);

    let ask = |id: &'static str, path: &str| asking.request(Method::GET, path).header("x-request-id", id);
    Answer::of(ask("id-1", "/api/v1/admin/tenants/secret-name?cursor=also-secret")).await;
    let line = kept.of("id-1");
    let fields = &line["fields"];
    assert_eq!((&line["level"], &fields["method"]), (&"DEBUG".into(), &"GET".into()));
    assert_eq!(
        (&fields["route"], &fields["status"]),
        (&"/api/v1/admin/tenants/{tenant}".into(), &200.into())
    );
    assert_eq!(fields["by"], key.id.as_str());
    assert!(fields["took_us"].is_u64());
    assert!(fields.get("node_id").is_none(), "the log of the binary has it on every line");
    assert!(fields.get("code").is_none() && fields.get("resource").is_none(), "{fields}");

    let post = |id: &'static str, path: &str, body: &'static str| {
        asking.request(Method::POST, path).header("x-request-id", id).body(body)
    };
    let lease = "/api/v1/resources/job/nightly/lease";
    Answer::of(post("id-a", lease, r#"{"holder": "ann", "attributes": {"password": "also-secret"}}"#)).await;
    Answer::of(post("id-b", lease, r#"{"holder": "bob"}"#)).await.problem("held");
    let body = r#"{"camera_uuid": "cam-1", "runner_id": "r"}"#;
    Answer::of(post("id-c", "/api/v1/leases/acquire", body)).await;
    for (id, resource, holder, code) in [
        ("id-a", Value::from("job/nightly"), Value::from("ann"), Value::Null),
        ("id-b", "job/nightly".into(), "bob".into(), "held".into()),
        ("id-c", Value::Null, Value::Null, "not_found".into()),
    ] {
        let fields = kept.of(id)["fields"].clone();
        assert_eq!(
            (&fields["resource"], &fields["holder"], &fields["code"]),
            (&resource, &holder, &code),
            "{id}"
        );
    }

    store.set_down(true);
    Answer::of(ask("id-2", "/api/v1/admin/tenants/x")).await.problem("unavailable");
    assert_eq!(kept.of("id-2")["level"], "WARN");
    let logged = kept.text();
    let secret = text.rsplit('_').next().expect("a secret");
    for never in [secret, "secret-name", "also-secret"] {
        assert!(!logged.contains(never), "{never} is in\n{logged}");
    }
}
