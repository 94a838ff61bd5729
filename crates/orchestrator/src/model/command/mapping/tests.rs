use super::*;

fn place<T>(path: &str, default: Option<T>) -> Place<T> {
    Place { path: path.parse().expect("a path"), default }
}

fn parse(mapping: &Mapping, key: &str, payload: &Value) -> Result<Command, Rejection> {
    mapping.parse(Some(payload.to_string().as_bytes()), Some(key.as_bytes()))
}

fn error_of(mapping: &Mapping, key: &str, payload: &Value) -> String {
    parse(mapping, key, payload).expect_err("invalid").to_string()
}

/// As in the example.
fn with_labels() -> Mapping {
    let label = |name: &str| (name.to_owned(), place(name, None));
    Mapping {
        labels: [label("organization_id"), label("match_id")].into(),
        key: Some("{labels.organization_id}:{labels.match_id}".parse().expect("a template")),
        ..Mapping::default()
    }
}

#[test]
fn a_job_id_and_a_payload_are_enough() {
    let mapping = Mapping::default();
    let said = json!({"job_id": "j", "payload": {"video": "a.mp4"}});
    let command = parse(&mapping, "k", &said).expect("good");
    assert_eq!((command.kind, command.id(), command.key.as_str()), (CommandKind::Create, "j", "k"));
    assert_eq!(
        (&command.input, command.labels.len()),
        (&said, 0),
        "the whole message, so that nothing is lost"
    );
    let command =
        parse(&mapping, "k", &json!({"job_id": 17, "input": null, "command_id": null})).expect("good");
    assert_eq!((command.job_id.as_str(), &command.input), ("17", &Value::Null));
    let command =
        parse(&mapping, "k", &json!({"job_id": "j", "type": "CANCEL", "command_id": 2})).expect("good");
    assert_eq!((command.kind, command.id(), &command.input), (CommandKind::Cancel, "2", &Value::Null));
}

#[test]
fn mistakes_in_a_command_are_named() {
    let mapping = Mapping::default();
    let of = |text: &str| mapping.parse(Some(text.as_bytes()), Some(b"k")).expect_err("invalid").to_string();
    assert!(of("{").starts_with("this is not a job command: EOF"));
    assert!(of("[1]").contains("expected a JSON object"), "{}", of("[1]"));
    assert!(of(r#"{"job_id": "a", "job_id": "b"}"#).contains(r#"duplicate member "job_id""#));
    assert_eq!(of("{}"), "the message has no job_id (commands.job_id)");
    assert_eq!(
        of(r#"{"job_id": ""}"#),
        r#"invalid job_id "" (commands.job_id): use 1 to 255 bytes without control characters"#
    );
    assert_eq!(of(r#"{"job_id": [1.5]}"#), r#"invalid job_id "[1.5]" (commands.job_id): use a string"#);
    assert!(of(r#"{"job_id": 1.5}"#).contains("use a string"));
    assert_eq!(
        of(r#"{"job_id": "a", "type": "STOP"}"#),
        r#"invalid type "STOP" (commands.type): it must be one of CANCEL, CREATE, RETRY"#
    );
    assert!(mapping.parse(None, Some(b"k")).expect_err("invalid").0.contains("a tombstone"));
    let good = json!({"job_id": "a"}).to_string();
    for key in [None, Some(&b""[..])] {
        let error = mapping.parse(Some(good.as_bytes()), key).expect_err("invalid").to_string();
        assert!(
            error.starts_with("the message has no key: give all messages of a job the same key"),
            "{error}"
        );
    }
    for key in [&b"a\0b"[..], b"\xff", &[b'k'; 512], "a\u{fffd}".as_bytes()] {
        let error = mapping.parse(Some(good.as_bytes()), Some(key)).expect_err("invalid").to_string();
        assert!(error.contains("a key must be 1 to 511 bytes of text"), "{error}");
    }
}

#[test]
fn parts_are_where_the_mapping_says() {
    let mapping = Mapping {
        job_id: "meta.id".parse().expect("a path"),
        kind: KindMapping {
            place: place("meta.action", None),
            values: [("start".to_owned(), CommandKind::Create), ("stop".to_owned(), CommandKind::Cancel)]
                .into(),
        },
        input: Some(place("data.0", None)),
        labels: [("tenant".to_owned(), place("meta.tenant", Some("none".to_owned())))].into(),
        ..Mapping::default()
    };
    let start = json!({"meta": {"id": "j", "action": "start"}, "data": [{"a": 1}]});
    let command = parse(&mapping, "k", &start).expect("good");
    assert_eq!((command.job_id.as_str(), command.kind), ("j", CommandKind::Create));
    assert_eq!((&command.input, command.labels["tenant"].as_str()), (&json!({"a": 1}), "none"));
    let stop = json!({"meta": {"id": "j", "action": "stop", "tenant": "acme"}});
    let command = parse(&mapping, "k", &stop).expect("only a CREATE has an input");
    assert_eq!((command.kind, command.labels["tenant"].as_str()), (CommandKind::Cancel, "acme"));
    assert_eq!(
        error_of(&mapping, "k", &json!({"meta": {"id": "j"}})),
        "the message has no meta.action (commands.type)"
    );
    let create = json!({"meta": {"id": "j", "action": "CREATE"}});
    assert!(error_of(&mapping, "k", &create).contains("it must be one of start, stop"));
    let empty = json!({"meta": {"id": "j", "action": "start"}, "data": []});
    assert_eq!(error_of(&mapping, "k", &empty), "the message has no data.0 (commands.input)");
}

#[test]
fn a_key_is_compared_with_its_template() {
    let mapping = with_labels();
    let said = json!({"job_id": "j", "organization_id": "o", "match_id": "m"});
    let command = parse(&mapping, "o:m", &said).expect("good");
    assert_eq!(
        command.labels,
        [("match_id", "m"), ("organization_id", "o")].map(|(a, b)| (a.into(), b.into())).into()
    );
    let wanted = r#"its key must be {labels.organization_id}:{labels.match_id}, "o:m", so that commands stay in order"#;
    assert_eq!(error_of(&mapping, "o:x", &said), format!(r#"the message has the key "o:x"; {wanted}"#));
    assert_eq!(error_of(&mapping, "", &said), format!("the message has no key; {wanted}"));
    assert_eq!(
        error_of(&mapping, "o:m", &json!({"job_id": "j", "organization_id": "o"})),
        "the message has no match_id (commands.labels.match_id)"
    );
}
